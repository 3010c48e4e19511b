//! An application's tables beside the engine's distributed tables, on the Citus cluster whose coordinator
//! `CITUS_URL` names (docs/scaling.md). Without one, these tests test nothing, and say so.
//!
//! `CITUS_URL=… cargo test --all-features --test engine distributed_tables:: -- --nocapture`

use std::time::Instant;

use diesel::ExpressionMethods;
use diesel_async::RunQueryDsl;
use serde::{Deserialize, Serialize};

use crate::support::cluster::{citus, psql};
use crate::support::db::url_of;
use crate::support::*;
use atomic_phases::store::Postgres;
use atomic_phases::{Batch, Engine, PhaseResult, Reply, RequestContext, Tx, atomic_phases};

diesel::table! { colocated (scope, ride, step) { scope -> Text, ride -> Text, step -> Text, } }
diesel::table! { copied (scope, ride, step) { scope -> Text, ride -> Text, step -> Text, } }
diesel::table! { elsewhere (scope, ride, step) { scope -> Text, ride -> Text, step -> Text, } }

const TABLES: &str = r#"
    SET client_min_messages = warning;
    SET citus.shard_count = 4;
    CREATE TABLE colocated (scope text COLLATE "C", ride text, step text, PRIMARY KEY (scope, ride, step));
    CREATE TABLE copied (LIKE colocated INCLUDING ALL);
    CREATE TABLE elsewhere (scope text COLLATE "C", ride text, step text, PRIMARY KEY (ride, step));
    SELECT create_distributed_table('colocated', 'scope', colocate_with => 'atomic_phases_keys');
    SELECT create_reference_table('copied');
    SELECT create_distributed_table('elsewhere', 'ride', colocate_with => 'none');
"#;

/// Where the application's rows are, relative to the row of the key.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Place {
    /// On the same shard.
    Colocated,
    /// On each node.
    Copied,
    /// On another shard.
    Elsewhere,
}

/// Writes a table, by each kind of phase.
#[derive(Clone, Serialize, Deserialize)]
struct Books {
    place: Place,
}

#[derive(Serialize, Deserialize)]
struct Booked;

#[derive(Serialize, Deserialize)]
struct Kept;

#[derive(Serialize, Deserialize)]
struct Staged;

macro_rules! insertion {
    ($table:ident, $ctx:expr, $step:expr) => {
        diesel::insert_into($table::table).values((
            $table::scope.eq($ctx.scope().as_str().to_owned()),
            $table::ride.eq($ctx.key().as_str().to_owned()),
            $table::step.eq($step),
        ))
    };
}

#[atomic_phases(name = "books", version = 1)]
impl Books {
    #[phase]
    async fn booked(
        &self,
        batch: &mut Batch<'_, Postgres>,
        ctx: &RequestContext,
    ) -> PhaseResult<Booked> {
        match self.place {
            Place::Colocated => batch.add(insertion!(colocated, ctx, "booked")),
            Place::Copied => batch.add(insertion!(copied, ctx, "booked")),
            Place::Elsewhere => batch.add(insertion!(elsewhere, ctx, "booked")),
        };
        batch.stage_job("booked", &())?;
        Ok(Booked)
    }

    #[phase(commit)]
    async fn kept(
        &self,
        batch: &mut Batch<'_, Postgres>,
        ctx: &RequestContext,
    ) -> PhaseResult<Kept> {
        match self.place {
            Place::Colocated => batch.add(insertion!(colocated, ctx, "kept")),
            Place::Copied => batch.add(insertion!(copied, ctx, "kept")),
            Place::Elsewhere => batch.add(insertion!(elsewhere, ctx, "kept")),
        };
        Ok(Kept)
    }

    /// With a job and without one: the last statement is another.
    #[phase(commit)]
    async fn staged(&self, tx: &mut Tx<'_, Postgres>, ctx: &RequestContext) -> PhaseResult<Staged> {
        match self.place {
            Place::Colocated => insertion!(colocated, ctx, "staged").execute(tx).await?,
            Place::Copied => insertion!(copied, ctx, "staged").execute(tx).await?,
            Place::Elsewhere => insertion!(elsewhere, ctx, "staged").execute(tx).await?,
        };
        tx.stage_job("staged", &())?;
        Ok(Staged)
    }

    #[phase(commit)]
    async fn noted(&self, tx: &mut Tx<'_, Postgres>, ctx: &RequestContext) -> PhaseResult<Reply> {
        match self.place {
            Place::Colocated => insertion!(colocated, ctx, "noted").execute(tx).await?,
            Place::Copied => insertion!(copied, ctx, "noted").execute(tx).await?,
            Place::Elsewhere => insertion!(elsewhere, ctx, "noted").execute(tx).await?,
        };
        Ok(Reply::new(201))
    }
}

/// The server records the nodes of each two-phase commit, and deletes the record a minute later.
const TWO_PHASE_COMMITS: &str =
    "SELECT count(DISTINCT split_part(gid, '_', 4)) FROM pg_dist_transaction";

const REQUESTS: usize = 31;

const COMMITS: i64 = 4;

/// For a request whose table is on another shard: whether its row there is on another node than that of its key.
const IS_APART: &str = "SELECT count(*) FROM citus_shards AS own, citus_shards AS its
    WHERE own.shardid = get_shard_id_for_distribution_column('atomic_phases_keys', '{scope}')
    AND its.shardid = get_shard_id_for_distribution_column('elsewhere', '{ride}')
    AND own.nodeport <> its.nodeport";

/// A request of four commits. The first one creates its row, and takes two phases wherever the table is. So does
/// one that stages a job: both insert what they have read.
#[tokio::test(flavor = "multi_thread")]
async fn g4_a_phase_commits_with_its_table_wherever_that_is_and_on_one_node_where_it_is_colocated()
{
    if citus().is_none() {
        println!("no Citus, nothing was shown: CITUS_URL names a coordinator");
        return;
    }
    let db = Postgres::fresh().await;
    let url = url_of(&db);
    tokio::task::block_in_place(|| psql(&url, TABLES));
    let engine = Engine::builder(db.another().await).register::<Books>().build().unwrap();
    for (place, table) in [
        (Place::Colocated, "colocated"),
        (Place::Copied, "copied"),
        (Place::Elsewhere, "elsewhere"),
    ] {
        let (mut took, mut apart) = (Vec::new(), 0);
        for nth in 0..REQUESTS {
            let ride = format!("{table}-{nth}");
            let (before, began) = (db.number(TWO_PHASE_COMMITS).await, Instant::now());
            finished(engine.call(&scope(), &key(&ride), Books { place }).await);
            took.push(began.elapsed());
            let of_two_phases = db.number(TWO_PHASE_COMMITS).await - before;
            let asked = IS_APART.replace("{scope}", scope().as_str()).replace("{ride}", &ride);
            let is_apart = place == Place::Elsewhere && db.number(&asked).await == 1;
            apart += i32::from(is_apart);
            let all = place == Place::Copied || is_apart;
            let expected = if all { COMMITS } else { 2 };
            // The server has deleted them meanwhile, a minute after it recorded them.
            assert!(
                of_two_phases == expected || of_two_phases < 0,
                "{ride}: {of_two_phases} of {expected}"
            );
        }
        let written = db.number(&format!("SELECT count(*) FROM {table}")).await;
        assert_eq!(written, COMMITS * i64::try_from(REQUESTS).unwrap(), "{place:?}");
        assert!(apart > 5 || place != Place::Elsewhere, "{apart}");
        took.sort();
        println!("{place:?}: a request of four commits took {:?}", took[REQUESTS / 2]);
    }
}
