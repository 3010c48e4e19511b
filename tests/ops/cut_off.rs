//! An operator's word whose connection is cut, at each step on its way: it is there with its audit row, or the
//! row is as it was.

use std::time::Duration;

use atomic_phases::engine::Resolved;
use atomic_phases::ops::{OperatorStore, OpsError, State};

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
    // What became of a commit is asked for as long as a lease.
    let there = engine_with(cut, &app, |builder| builder.lease(asked_for));
    arm();
    admin(&there).retry(row.request_id, &row.version, "provider back").await
}

/// How often the retry is in the audit as done; `None` where it is done and not in the audit, or the other way
/// around.
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

/// The connection is cut once: it is sent again, and done once.
async fn is_done_once<S: TestDb + OperatorStore>(db: &S, cut: &S, what: &str, arm: impl FnOnce()) {
    let here = engine(db, &App::default());
    let told = retried(&here, cut, Duration::from_secs(60), arm).await;
    assert!(matches!(told, Ok(Resolved::Applied)), "{what}: {told:?}");
    assert_eq!(done(&here).await, Some(1), "{what}");
}

/// And then there is no connection any more.
async fn is_whole_or_nothing<S: TestDb + OperatorStore>(
    db: &S,
    cut: &S,
    what: &str,
    arm: impl FnOnce(),
) {
    let here = engine(db, &App::default());
    let told = retried(&here, cut, Duration::from_millis(500), arm).await;
    assert!(matches!(told, Err(OpsError::Unavailable(_))), "{what}: {told:?}");
    // A commit that its client has not waited for may be under way.
    until(async || done(&here).await.is_some()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn g4_g7_a_word_that_is_cut_off_is_there_with_its_audit_row_or_not_at_all_on_postgres() {
    use crate::support::db::url_of;
    use crate::support::proxy::Proxy;

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
                let db = atomic_phases::Postgres::fresh().await;
                let url = url_of(&db);
                let port = url.rsplit_once(':').unwrap().1.split_once('/').unwrap().0;
                let proxy = Proxy::start(port.parse().unwrap()).await;
                let store = atomic_phases::Postgres::connect(&proxy.url(&url)).await.unwrap();
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

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g4_g7_a_word_that_is_cut_off_is_there_with_its_audit_row_or_not_at_all_on_mysql() {
    use crate::support::db::open_my;
    use crate::support::mysql_proxy::MysqlProxy;

    for cut in [Cut::Before, Cut::After, Cut::Answer] {
        let what = format!("{cut:?}");
        let db = atomic_phases::Mysql::fresh().await;
        let proxy = MysqlProxy::start(db.__url()).await;
        let store = open_my(&proxy.url(db.__url()), 4).await;
        let arm = || proxy.arm("SET lease_token = lease_token + 1", 1, cut);
        is_done_once(&db, &store, &what, arm).await;
        assert_eq!(proxy.fired(), 1, "{what}: a fault that does not happen proves nothing");
    }
}

#[cfg(feature = "simulation")]
#[tokio::test(flavor = "multi_thread")]
async fn g4_g7_a_word_that_is_cut_off_is_there_with_its_audit_row_or_not_at_all_in_memory() {
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
