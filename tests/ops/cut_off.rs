//! An operator's act whose connection is cut at each step: either the act and its audit row exist, or the row is
//! unchanged. If it is sent again, it is done once, and the audit has one row for each time that it was sent. A search,
//! which writes nothing, is answered all the same.

use std::time::Duration;

use atomic_phases::Reply;
use atomic_phases::engine::{Resolution, Resolved};
use atomic_phases::ops::{
    BulkAct, BulkPlan, Filter, JobView, OperatorStore, Ops, OpsError, RowVersion, Selection, State,
    Summary,
};
use uuid::Uuid;

use super::cast::*;
use crate::support::proxy::Cut;
use crate::support::*;

/// Retries a dead letter of `here`, through the store that is cut.
async fn retried<S: TestDb + OperatorStore>(
    here: &TestEngine<S>,
    cut: &S,
    asked_for: Duration,
    arm: impl FnOnce(),
) -> Result<Resolved, OpsError> {
    dead_letter(here, "k").await;
    let row = admin(here).find(&scope(), &key("k")).await.unwrap();
    let app = App::default();
    // The engine tries to resolve a commit for as long as a lease.
    let there = engine_with(cut, &app, |builder| builder.lease(asked_for));
    arm();
    admin(&there).retry(row.request_id, &row.version, "provider back").await
}

/// How often the audit has the retry as done; `None` if it is done but not in the audit, or the reverse.
async fn done<S: TestDb + OperatorStore>(here: &TestEngine<S>) -> Option<usize> {
    let ops = admin(here);
    let acts = ops.audit(None, None, 100).await.unwrap().rows;
    let applied = acts.iter().filter(|act| act.outcome == "applied").count();
    let state = ops.find(&scope(), &key("k")).await.unwrap().state;
    let is_whole = match applied {
        0 => state == State::DeadLetter,
        _ => state == State::Due,
    };
    is_whole.then_some(applied)
}

/// The connection is cut once: the act is sent again, and done once.
async fn is_done_once<S: TestDb + OperatorStore>(db: &S, cut: &S, what: &str, arm: impl FnOnce()) {
    let here = engine(db, &App::default());
    let told = retried(&here, cut, Duration::from_secs(60), arm).await;
    assert!(matches!(told, Ok(Resolved::Applied)), "{what}: {told:?}");
    assert_eq!(done(&here).await, Some(1), "{what}");
}

/// And after the cut, no connection is possible.
async fn is_whole_or_nothing<S: TestDb + OperatorStore>(
    db: &S,
    cut: &S,
    what: &str,
    arm: impl FnOnce(),
) {
    let here = engine(db, &App::default());
    let told = retried(&here, cut, Duration::from_millis(500), arm).await;
    assert!(matches!(told, Err(OpsError::Unavailable(_))), "{what}: {told:?}");
    // A commit whose client did not wait for it may be under way.
    until(async || done(&here).await.is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g4_g7_a_resolution_that_is_cut_off_is_there_with_its_audit_row_or_not_at_all_on_postgres()
{
    use crate::support::proxy::proxied;

    // The second: a search is before it.
    let all = [Cut::Before, Cut::After, Cut::Answer];
    let steps = [
        ("UPDATE atomic_phases_keys SET status = 'in_progress'", 1, &all[..]),
        // Its first answer is that it is prepared.
        ("WITH written AS (UPDATE atomic_phases_keys", 1, &all[..2]),
        ("COMMIT", 2, &all[..]),
    ];
    for (sql, nth, cuts) in steps {
        for &cut in cuts {
            for is_for_good in [false, true] {
                let what = format!("{cut:?} {sql}, for good: {is_for_good}");
                let (db, store, proxy) = proxied().await;
                let arm = || proxy.arm(sql, nth, cut);
                if is_for_good {
                    proxy.refuse_once_cut();
                    is_whole_or_nothing(&db, &store, &what, arm).await;
                } else {
                    is_done_once(&db, &store, &what, arm).await;
                }
                assert_eq!(proxy.fired(), 1, "{what}: a fault that does not happen proves nothing");
            }
        }
    }
}

/// A commit without an answer keeps its row locked, like one that waits for a standby. That the row is in use does
/// not tell the commit's outcome, so the audit does not record a refusal.
#[tokio::test(flavor = "multi_thread")]
async fn g7_a_resolution_whose_commit_is_not_answered_is_not_refused_because_its_row_is_locked() {
    use crate::support::db::{pg, url_of};
    use crate::support::proxy::proxied;
    use diesel_async::SimpleAsyncConnection;

    let (db, store, proxy) = proxied().await;
    let here = engine(&db, &App::default());
    let mut other = pg(&url_of(&db)).await;
    let (looks, its_lock) = (proxy.clone(), async {
        until(async || proxy.fired() == 1).await;
        let lock = "BEGIN; SELECT 1 FROM atomic_phases_keys WHERE idempotency_key = 'k' FOR UPDATE";
        other.batch_execute(lock).await.unwrap();
        proxy.refuse(false);
    });
    let retried = retried(&here, &store, Duration::from_secs(5), || {
        looks.arm("COMMIT", 2, Cut::Before);
        looks.refuse_once_cut();
    });
    let (told, ()) = tokio::join!(retried, its_lock);
    assert!(matches!(told, Err(OpsError::Unavailable(_))), "{told:?}");
    let acts = admin(&here).audit(None, None, 100).await.unwrap().rows;
    assert!(acts.is_empty(), "what came of it is not known: {acts:?}");
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g4_g7_a_resolution_that_is_cut_off_is_there_with_its_audit_row_or_not_at_all_on_mysql() {
    use crate::support::db::open_my;
    use crate::support::mysql_proxy::MysqlProxy;

    for cut in [Cut::Before, Cut::After, Cut::Answer] {
        for is_for_good in [false, true] {
            let what = format!("{cut:?}, for good: {is_for_good}");
            let db = atomic_phases::store::Mysql::fresh().await;
            let proxy = MysqlProxy::start(db.__url()).await;
            let store = open_my(&proxy.url(db.__url()), 4).await;
            // The act is one text, from its begin to its COMMIT.
            let arm = || proxy.arm("COMMIT AND", 1, cut);
            if is_for_good {
                proxy.refuse_once_cut();
                is_whole_or_nothing(&db, &store, &what, arm).await;
            } else {
                is_done_once(&db, &store, &what, arm).await;
            }
            assert_eq!(proxy.fired(), 1, "{what}: a fault that does not happen proves nothing");
        }
    }
}

#[cfg(feature = "simulation")]
#[tokio::test(flavor = "multi_thread")]
async fn g4_g7_a_resolution_that_is_cut_off_is_there_with_its_audit_row_or_not_at_all_in_memory() {
    use std::sync::Mutex;

    use atomic_phases::simulation::{Cut, Memory, Network, Passage};

    /// Cuts at the first statement that writes to the row.
    struct CutsOnce(Mutex<Option<Cut>>);

    impl Network for CutsOnce {
        fn passage(&self, what: &'static str) -> Passage {
            let cut = match what {
                "settle the key" | "take over the key" => self.0.lock().unwrap().take(),
                _ => None,
            };
            Passage { cut, ..Passage::default() }
        }
    }

    let inside = (0..6).map(|statements| Cut::Inside { statements });
    for cut in [Cut::Before, Cut::After].into_iter().chain(inside) {
        let db = Memory::fresh().await;
        let network = CutsOnce(Mutex::new(Some(cut)));
        let store = Memory::connect_through(db.database(), network, 4);
        is_done_once(&db, &store, &format!("{cut:?}"), || {}).await;
    }
}

/// An operator's act.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Retry,
    Finish,
    Erase,
    RetryJob,
    DiscardJob,
    Pause,
    ReplacePause,
    Unpause,
    Start,
    Stop,
}

const ACTS: [Act; 10] = [
    Act::Retry,
    Act::Finish,
    Act::Erase,
    Act::RetryJob,
    Act::DiscardJob,
    Act::Pause,
    Act::ReplacePause,
    Act::Unpause,
    Act::Start,
    Act::Stop,
];

/// The target of the act, as the operator has seen it.
enum Thing {
    Row(Summary),
    Job(JobView),
    /// One that is not paused.
    Phase,
    Pause(RowVersion),
    Plan(Selection, BulkPlan),
    Bulk(Uuid),
}

const PHASE: (&str, &str) = ("notify", "notified");

async fn thing<S: TestDb + OperatorStore>(here: &TestEngine<S>, act: Act, name: &str) -> Thing {
    let ops = admin(here);
    match act {
        Act::Retry | Act::Finish | Act::Erase => {
            dead_letter(here, name).await;
            Thing::Row(ops.find(&scope(), &key(name)).await.unwrap())
        }
        Act::RetryJob | Act::DiscardJob => {
            finish(here, name).await;
            here.store().sql("UPDATE atomic_phases_staged_jobs SET run_after = NULL").await;
            Thing::Job(ops.dead_jobs(None, 1).await.unwrap().rows.remove(0))
        }
        Act::Pause | Act::ReplacePause | Act::Unpause => {
            if !ops.pauses().await.unwrap().is_empty() {
                unpause(&ops, PHASE).await;
            }
            if act == Act::Pause {
                return Thing::Phase;
            }
            ops.pause(PHASE.0, PHASE.1, None, "the line is cut").await.unwrap();
            Thing::Pause(pause_of(&ops, PHASE).await.version)
        }
        Act::Start | Act::Stop => {
            dead_letter(here, name).await;
            let some = Selection::Requests(vec![id_of(here, name).await]);
            let plan = ops.plan_bulk(BulkAct::Retry, &some).await.unwrap();
            if act == Act::Start {
                return Thing::Plan(some, plan);
            }
            Thing::Bulk(ops.start_bulk(BulkAct::Retry, &some, &plan, "it is back").await.unwrap())
        }
    }
}

/// The result: whether this call did the act.
async fn done_to<S: TestDb + OperatorStore>(
    ops: &Ops<S>,
    act: Act,
    thing: &Thing,
    why: &str,
) -> Result<bool, OpsError> {
    let is_news = |resolved| resolved == Resolved::Applied;
    match (act, thing) {
        (Act::Retry, Thing::Row(row)) => {
            ops.retry(row.request_id, &row.version, why).await.map(is_news)
        }
        (Act::Erase, Thing::Row(row)) => {
            ops.erase(row.request_id, &row.version, why).await.map(is_news)
        }
        (_, Thing::Row(row)) => {
            let word = Resolution::finish(Reply::text(409, "settled by hand"));
            ops.resolve(row.request_id, &row.version, word, why).await.map(is_news)
        }
        (Act::RetryJob, Thing::Job(job)) => {
            ops.retry_job(job.id, job.attempts, why).await.map(|()| true)
        }
        (_, Thing::Job(job)) => ops.discard_job(job.id, job.attempts, why).await.map(|()| true),
        (_, Thing::Phase) => ops.pause(PHASE.0, PHASE.1, None, why).await.map(|()| true),
        (Act::ReplacePause, Thing::Pause(seen)) => {
            ops.replace_pause(PHASE.0, PHASE.1, seen, None, why).await.map(|_| true)
        }
        (_, Thing::Pause(seen)) => ops.unpause(PHASE.0, PHASE.1, seen, why).await.map(|_| true),
        (_, Thing::Plan(some, plan)) => {
            ops.start_bulk(BulkAct::Retry, some, plan, why).await.map(|_| true)
        }
        (_, Thing::Bulk(id)) => ops.stop_bulk(*id, why).await.map(is_news),
    }
}

/// After a cut connection, the operator sends the act again, because there was no answer or the operator does not
/// trust it. The audit has one row for each of the two, and neither has the other's outcome.
async fn stands_once<S: TestDb + OperatorStore>(
    here: &TestEngine<S>,
    cut: &S,
    act: Act,
    (name, what): (&str, &str),
    arm: impl FnOnce(),
) {
    let thing = thing(here, act, name).await;
    let app = App::default();
    let there = engine_with(cut, &app, |builder| builder.lease(Duration::from_secs(60)));
    arm();
    let (first, second) = (format!("first {name}"), format!("second {name}"));
    let told = done_to(&admin(&there), act, &thing, &first).await;
    let again = done_to(&admin(here), act, &thing, &second).await;
    let acts = admin(here).audit(None, None, 1000).await.unwrap().rows;
    let outcomes = |reason: &str| -> Vec<String> {
        let ours = acts.iter().filter(|row| row.reason == reason);
        ours.map(|row| row.outcome.clone()).collect()
    };
    let (firsts, seconds) = (outcomes(&first), outcomes(&second));
    let what = format!("{what} {act:?}: {told:?} {firsts:?}, {again:?} {seconds:?}");
    assert!(firsts.len() <= 1 && seconds.len() == 1, "an act has one row: {what}");
    match told {
        Ok(true) => assert_eq!(firsts, ["applied"], "{what}"),
        Err(OpsError::Unavailable(_)) => assert!(firsts.iter().all(|it| it == "applied"), "{what}"),
        _ => panic!("it was the first: {what}"),
    }
    let is_applied = |outcomes: &[String]| outcomes.iter().any(|outcome| outcome == "applied");
    assert!(is_applied(&firsts) != is_applied(&seconds), "it was done once: {what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn g3_g4_an_act_that_is_cut_off_stands_once_in_the_audit_on_postgres() {
    use crate::support::db::url_of;
    use crate::support::proxy::{Proxy, port_of};

    let db = atomic_phases::store::Postgres::fresh().await;
    let here = engine(&db, &App::default());
    let url = url_of(&db);
    let mut number = 0;
    for act in ACTS {
        for cut in [Cut::Before, Cut::After, Cut::Answer] {
            // Each COMMIT on its way, also those of searches.
            for nth in 1.. {
                number += 1;
                let proxy = Proxy::start(port_of(&url)).await;
                let store =
                    atomic_phases::store::Postgres::connect(&proxy.url(&url)).await.unwrap();
                let case = (&*format!("k-{number}"), &*format!("{cut:?} {nth}"));
                stands_once(&here, &store, act, case, || proxy.arm("COMMIT", nth, cut)).await;
                if proxy.fired() == 0 {
                    assert!(nth > 1, "{act:?}: a fault that does not happen proves nothing");
                    break;
                }
            }
        }
    }
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g3_g4_an_act_that_is_cut_off_stands_once_in_the_audit_on_mysql() {
    use crate::support::db::open_my;
    use crate::support::mysql_proxy::MysqlProxy;

    let db = atomic_phases::store::Mysql::fresh().await;
    let here = engine(&db, &App::default());
    let mut number = 0;
    for act in ACTS {
        for cut in [Cut::Before, Cut::After, Cut::Answer] {
            for nth in 1.. {
                number += 1;
                let proxy = MysqlProxy::start(db.__url()).await;
                let store = open_my(&proxy.url(db.__url()), 4).await;
                let case = (&*format!("k-{number}"), &*format!("{cut:?} {nth}"));
                // The row is written, and the resolution reads it.
                let arm = || proxy.arm("atomic_phases_audit", nth, cut);
                stands_once(&here, &store, act, case, arm).await;
                if proxy.fired() == 0 {
                    assert!(nth > 1, "{act:?}: a fault that does not happen proves nothing");
                    break;
                }
            }
        }
    }
}

#[cfg(feature = "simulation")]
#[tokio::test(flavor = "multi_thread")]
async fn g3_g4_an_act_that_is_cut_off_stands_once_in_the_audit_in_memory() {
    use std::sync::{Arc, Mutex};

    use atomic_phases::simulation::{Cut, Memory, Network, Passage};

    /// From now on, cuts when this statement passes for the given time, counted from 1; 0: never.
    #[derive(Clone, Default)]
    struct CutsAt(Arc<Mutex<(u32, Option<Cut>)>>);

    impl Network for CutsAt {
        fn passage(&self, _: &'static str) -> Passage {
            let mut armed = self.0.lock().unwrap();
            armed.0 = armed.0.saturating_sub(1);
            let cut = if armed.0 == 0 { armed.1.take() } else { None };
            Passage { cut, ..Passage::default() }
        }
    }

    let inside = (0..6).map(|statements| Cut::Inside { statements });
    let cuts: Vec<Cut> = [Cut::Before, Cut::After].into_iter().chain(inside).collect();
    for act in ACTS {
        for cut in &cuts {
            for nth in 1.. {
                let db = Memory::fresh().await;
                let here = engine(&db, &App::default());
                let network = CutsAt::default();
                let store = Memory::connect_through(db.database(), network.clone(), 4);
                let arm = || *network.0.lock().unwrap() = (nth, Some(*cut));
                stands_once(&here, &store, act, ("k", &format!("{cut:?} {nth}")), arm).await;
                if network.0.lock().unwrap().1.is_some() {
                    assert!(nth > 1, "{act:?}: a fault that does not happen proves nothing");
                    break;
                }
            }
        }
    }
}

/// A list of one request, through the store that is cut.
async fn is_listed<S: TestDb + OperatorStore>(cut: &S, what: &str, arm: impl FnOnce()) {
    let there = engine(cut, &App::default());
    arm();
    match admin(&there).list(Filter::new()).await {
        Ok(page) => assert_eq!(page.rows.len(), 1, "{what}"),
        Err(told) => panic!("{what}: {told:?}"),
    }
}

/// Whatever of it was sent: another connection answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_search_whose_connection_is_cut_is_sent_again_on_postgres() {
    use crate::support::db::url_of;
    use crate::support::proxy::{Proxy, port_of};

    let db = atomic_phases::store::Postgres::fresh().await;
    finish(&engine(&db, &App::default()), "k").await;
    let url = url_of(&db);
    for sql in ["BEGIN ISOLATION LEVEL", "SELECT request_id, scope", "COMMIT"] {
        for cut in [Cut::Before, Cut::After] {
            let what = format!("{cut:?} {sql}");
            let proxy = Proxy::start(port_of(&url)).await;
            let store = atomic_phases::store::Postgres::connect(&proxy.url(&url)).await.unwrap();
            is_listed(&store, &what, || proxy.arm(sql, 1, cut)).await;
            assert_eq!(proxy.fired(), 1, "{what}: a fault that does not happen proves nothing");
        }
    }
}

/// The connection was asked before whether its server is there, and said so.
#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn a_search_whose_connection_is_cut_is_sent_again_on_mysql() {
    use crate::support::db::open_my;
    use crate::support::mysql_proxy::MysqlProxy;

    let db = atomic_phases::store::Mysql::fresh().await;
    finish(&engine(&db, &App::default()), "k").await;
    for sql in ["WITH CONSISTENT SNAPSHOT", "PREPARE", "^SELECT request_id, scope", "^ROLLBACK"] {
        for cut in [Cut::Before, Cut::After] {
            let what = format!("{cut:?} {sql}");
            let proxy = MysqlProxy::start(db.__url()).await;
            let store = open_my(&proxy.url(db.__url()), 4).await;
            is_listed(&store, &what, || proxy.arm(sql, 1, cut)).await;
            assert_eq!(proxy.fired(), 1, "{what}: a fault that does not happen proves nothing");
        }
    }
}

#[cfg(feature = "simulation")]
#[tokio::test(flavor = "multi_thread")]
async fn a_search_whose_connection_is_cut_is_sent_again_in_memory() {
    use std::sync::{Arc, Mutex};

    use atomic_phases::simulation::{Cut, Memory, Network, Passage};

    /// Cuts at the first statement that reads the rows.
    #[derive(Clone)]
    struct CutsOnce(Arc<Mutex<Option<Cut>>>);

    impl Network for CutsOnce {
        fn passage(&self, what: &'static str) -> Passage {
            let cut = match what {
                "read the keys" => self.0.lock().unwrap().take(),
                _ => None,
            };
            Passage { cut, ..Passage::default() }
        }
    }

    let db = Memory::fresh().await;
    finish(&engine(&db, &App::default()), "k").await;
    for cut in [Cut::Before, Cut::After] {
        let network = CutsOnce(Arc::new(Mutex::new(Some(cut))));
        let store = Memory::connect_through(db.database(), network.clone(), 4);
        is_listed(&store, &format!("{cut:?}"), || {}).await;
        assert_eq!(*network.0.lock().unwrap(), None, "a fault that does not happen proves nothing");
    }
}
