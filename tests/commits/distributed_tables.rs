//! Tables of an application's beside the distributed tables of the engine, on the Citus cluster whose coordinator
//! `CITUS_URL` names (docs/scaling.md). Without one these tests show nothing, and say so.
//!
//! `CITUS_URL=… cargo test --all-features --test commits distributed_tables:: -- --nocapture`

use std::time::Instant;

use diesel::ExpressionMethods;
use diesel_async::RunQueryDsl;
use serde::{Deserialize, Serialize};

use crate::support::cluster::{citus, psql};
use crate::support::db::url_of;
use crate::support::*;
use atomic_phases::{
    Batch, Engine, PhaseResult, Postgres, Reply, RequestContext, Tx, atomic_phases,
};

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

/// Where the rows of an application are, beside the row of the key.
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
        Ok(Booked)
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

/// The server writes down the nodes of each commit in two phases, and forgets them a minute later.
const TWO_PHASE_COMMITS: &str =
    "SELECT count(DISTINCT split_part(gid, '_', 4)) FROM pg_dist_transaction";

const REQUESTS: usize = 31;

/// A request of two commits. The first, which creates its row, is of two phases wherever the table is.
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
    for (place, table, of_two_phases) in [
        (Place::Colocated, "colocated", 1),
        (Place::Copied, "copied", 2),
        (Place::Elsewhere, "elsewhere", 2),
    ] {
        let (mut took, mut commits) = (Vec::new(), Vec::new());
        for nth in 0..REQUESTS {
            let (before, began) = (db.number(TWO_PHASE_COMMITS).await, Instant::now());
            let call = engine.call(&scope(), &key(&format!("{table}-{nth}")), Books { place });
            finished(call.await);
            took.push(began.elapsed());
            commits.push(db.number(TWO_PHASE_COMMITS).await - before);
        }
        let written = db.number(&format!("SELECT count(*) FROM {table}")).await;
        assert_eq!(written, 2 * i64::try_from(REQUESTS).unwrap(), "{place:?}");
        took.sort();
        let most = commits.into_iter().max();
        println!("{place:?}: a request of two commits took {:?}", took[REQUESTS / 2]);
        // Of the rows that are elsewhere some are on the key's node.
        assert_eq!(most, Some(of_two_phases), "{place:?}");
    }
}
