//! G16: slow phases of some scopes hold all connections for phases. A request of another scope then waits, and does
//! not use up its attempts.

use std::time::Duration;

use crate::support::db::url_of;
use crate::support::work::*;
use crate::support::*;
use atomic_phases::{
    Engine, PhaseResult, Reply, RequestContext, Scope, Tx, atomic_phases,
    store::{PoolSettings, Postgres, Status},
    worker::Completer,
};
use serde::{Deserialize, Serialize};

/// A phase whose duration the request sets.
#[derive(Clone, Serialize, Deserialize)]
struct Slow {
    milliseconds: u64,
}

#[atomic_phases(name = "slow", version = 1)]
impl Slow {
    #[phase]
    async fn answered(
        &self,
        tx: &mut Tx<'_, Postgres>,
        ctx: &RequestContext,
    ) -> PhaseResult<Reply> {
        Postgres::insert_step(tx, &ctx.uuid(0).to_string(), "answered").await?;
        tokio::time::sleep(Duration::from_millis(self.milliseconds)).await;
        Ok(Reply::text(200, "done"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn g16_a_request_that_gets_no_connection_does_not_come_to_the_attempt_cap() {
    let db = <Postgres as TestDb>::fresh().await;
    let settings = PoolSettings::default().max_size(4).wait(Duration::from_millis(200));
    let url = url_of(&db);
    let connect = async || Postgres::connect_with(&url, settings).await;
    let narrow = answer_within(Duration::from_secs(60), connect).await;
    // Opened before any request waits for one: opening may take longer than a wait for an existing one.
    until(async || {
        let all = (narrow.connection(), narrow.connection(), narrow.connection());
        let (a, b, c) = tokio::join!(all.0, all.1, all.2);
        a.is_ok() && b.is_ok() && c.is_ok()
    })
    .await;
    let builder = Engine::builder(narrow).register::<Slow>();
    let engine = builder.lease(Duration::from_secs(60)).max_attempts(3).build().unwrap();
    let victim = Scope::new("victim").unwrap();
    until(async || {
        let call = engine.call(&victim, &key("k"), Slow { milliseconds: 1 });
        call.accept().await.is_ok()
    })
    .await;
    let hog = |scope: &str, name: &str| {
        let (engine, scope, name) = (engine.clone(), Scope::new(scope).unwrap(), key(name));
        let slow = Slow { milliseconds: 600_000 };
        // Again, where it got no connection in time.
        tokio::spawn(
            async move { while engine.call(&scope, &name, slow.clone()).await.is_err() {} },
        )
    };
    let hogs = [hog("a", "1"), hog("a", "2"), hog("b", "1")];
    let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
        AND state = 'idle in transaction'";
    until(async || db.number(open).await == 3).await;
    let tried = "SELECT lease_token FROM atomic_phases_keys WHERE scope = 'victim'";
    // Each try waits for a connection several times.
    until_within(Duration::from_secs(90), async || {
        // The worker's own search may not get a connection either.
        let _ = Completer::new(&engine, config()).run_once().await;
        let standing =
            db.text("SELECT status FROM atomic_phases_keys WHERE scope = 'victim'").await;
        assert_ne!(standing, "dead_letter");
        assert_ne!(standing, "completed", "it was to get no connection");
        db.sql("UPDATE atomic_phases_keys SET run_after = created_at WHERE scope = 'victim'").await;
        db.number(tried).await >= 5
    })
    .await;
    hogs.iter().for_each(tokio::task::JoinHandle::abort);
    // Detached from their callers, the phases end with the connections that they hold.
    db.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND state = 'idle in transaction'",
    )
    .await;
    until(async || {
        db.sql("UPDATE atomic_phases_keys SET run_after = created_at WHERE scope = 'victim' AND run_after IS NOT NULL").await;
        // To open a connection may take longer than it is waited for.
        let _ = Completer::new(&engine, config()).run_once().await;
        let standing = engine.status(&victim, &key("k")).await;
        standing.is_ok_and(|standing| standing.unwrap().status == Status::Completed)
    })
    .await;
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 1);
}
