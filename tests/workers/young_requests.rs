//! G17: requests whose holder died in its first seconds, before they enter the index of due rows: a worker finds
//! them when their own lease ends, whatever lease other nodes have and whatever happens to the database's clock.

use std::time::Duration;

use crate::support::work::*;
use crate::support::*;
use atomic_phases::store::Status;
use atomic_phases::worker::Completer;
use diesel_async::SimpleAsyncConnection;

on_every_store! {
    g17_a_young_request_is_found_between_two_full_sweeps,
    g17_a_young_request_with_another_lease_is_found_when_that_ends,
    g17_a_young_request_that_was_visible_late_is_found_between_two_full_sweeps,
    g17_rows_that_moved_on_keep_no_other_waiting,
}

/// The number of rows that the index of due rows lacks.
const HIDDEN: &str = "SELECT count(*) FROM atomic_phases_keys WHERE run_after IS NULL";

/// Makes the rows in progress ten seconds older; their lease ends in this many milliseconds.
async fn age<S: TestDb>(db: &S, lease_ends_in: i64) {
    age_by(db, 10_000, lease_ends_in).await;
}

async fn age_by<S: TestDb>(db: &S, millis: i64, lease_ends_in: i64) {
    let sql = match is_postgres::<S>() {
        false => format!(
            "expires_at = expires_at - {millis}, \
             locked_until = round(unixepoch('subsec') * 1000) + {lease_ends_in}"
        ),
        true => {
            let earlier = format!(
                "SELECT (expires_at - interval '{millis} ms')::text FROM atomic_phases_keys LIMIT 1"
            );
            format!(
                "expires_at = '{}', \
             locked_until = (SELECT clock_timestamp() + {lease_ends_in} * interval '1 ms')",
                db.text(&earlier).await
            )
        }
    };
    db.sql(&format!("UPDATE atomic_phases_keys SET {sql} WHERE status = 'in_progress'")).await;
}

/// A holder that dies within its first seconds leaves no entry in the index of due rows.
async fn g17_a_young_request_is_found_between_two_full_sweeps<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let mut completer = Completer::new(&engine, config());
    assert_eq!(completer.run_once().await.unwrap().total(), 0, "the full sweep at its start");
    dies_in_its_call(&engine, "k", book(20)).await;
    assert_eq!(db.number(HIDDEN).await, 1);
    age(&db, -1000).await;
    assert_eq!(completer.run_once().await.unwrap().finished, 1);
    assert_eq!(app.provider.effects(), 1);
}

/// Its holder had another lease than the node that searches it, and is dead when the row is read. The row is read
/// once.
async fn g17_a_young_request_with_another_lease_is_found_when_that_ends<S: TestDb>(db: S) {
    let app = App::default();
    let engine = engine(&db, &app);
    let mut completer = Completer::new(&engine, config());
    assert_eq!(completer.run_once().await.unwrap().total(), 0, "the full sweep at its start");
    dies_in_its_call(&engine, "k", book(20)).await;
    age(&db, 4000).await;
    assert_eq!(completer.run_once().await.unwrap().total(), 0, "its lease lives");
    assert_eq!(db.number(HIDDEN).await, 1);
    until(async || completer.run_once().await.unwrap().finished == 1).await;
    assert_eq!(app.provider.effects(), 1);
}

/// Its first batch, which may take 15 s, has taken so long that the row is visible behind what the completer has read by
/// then: it has the time at which the batch began. Its holder died with it.
async fn g17_a_young_request_that_was_visible_late_is_found_between_two_full_sweeps<S: TestDb>(
    db: S,
) {
    let app = App::default();
    let engine = engine(&db, &app);
    let mut completer = Completer::new(&engine, config());
    assert_eq!(completer.run_once().await.unwrap().total(), 0, "the full sweep at its start");
    dies_in_its_call(&engine, "k", Form::SingleStatement.parcel(Trouble::None)).await;
    age_by(&db, 24_500, -1000).await;
    until(async || completer.run_once().await.unwrap().finished == 1).await;
    assert_eq!(app.provider.effects(), 1);
}

/// Two nodes watch the same rows, and the faster one takes all of them.
async fn g17_rows_that_moved_on_keep_no_other_waiting<S: TestDb>(db: S) {
    const ROWS: u32 = 20;
    let app = App::default();
    let engine = engine(&db, &app);
    let mut slow = Completer::new(&engine, config().batch(4));
    assert_eq!(slow.run_once().await.unwrap().total(), 0, "the full sweep at its start");
    for number in 0..ROWS {
        dies_in_its_call(&engine, &format!("k-{number}"), book(20)).await;
    }
    age(&db, 4000).await;
    assert_eq!(slow.run_once().await.unwrap().total(), 0, "their leases live");
    // Longer than the slow node believes that they live.
    tokio::time::sleep(Duration::from_millis(4500)).await;
    let mut fast = Completer::new(&engine, config().batch(ROWS));
    let mut finished = 0;
    while finished < ROWS {
        finished += fast.run_once().await.unwrap().finished;
    }
    dies_in_its_call(&engine, "behind", book(20)).await;
    age(&db, -1000).await;
    assert_eq!(
        slow.run_once().await.unwrap().finished,
        1,
        "by one call, past any number of the others"
    );
    assert_eq!(app.provider.effects(), ROWS as usize + 1);
}

/// The statements by which a transaction locks a row, and no others.
trait LocksRows: TestDb {
    fn lock(&self, key: &str) -> impl Future<Output = impl Send> + Send;
}

impl LocksRows for atomic_phases::store::Postgres {
    async fn lock(&self, key: &str) -> impl Send {
        let mut holder = crate::support::db::pg(&crate::support::db::url_of(self)).await;
        holder.batch_execute(&format!("BEGIN; {}", locking(key))).await.unwrap();
        holder
    }
}

#[cfg(feature = "mysql")]
impl LocksRows for atomic_phases::store::Mysql {
    async fn lock(&self, key: &str) -> impl Send {
        let mut holder = self.connection().await.unwrap();
        holder.batch_execute("START TRANSACTION").await.unwrap();
        holder.batch_execute(&locking(key)).await.unwrap();
        holder
    }
}

fn locking(key: &str) -> String {
    let scope = scope();
    format!(
        "SELECT 1 FROM atomic_phases_keys WHERE scope = '{}' AND idempotency_key = '{key}' FOR UPDATE",
        scope.as_str()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn g16_a_young_request_that_is_locked_keeps_the_others_from_nothing_on_postgres() {
    a_locked_row_delays_no_other(<atomic_phases::store::Postgres as TestDb>::fresh().await).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g16_a_young_request_that_is_locked_keeps_the_others_from_nothing_on_mariadb() {
    a_locked_row_delays_no_other(<atomic_phases::store::Mysql as TestDb>::fresh().await).await;
}

async fn a_locked_row_delays_no_other<S: LocksRows>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine(&db, &app);
    // Both die young: the index of due rows has neither.
    for name in ["locked", "free"] {
        dies_in_its_call(&engine, name, notify(Trouble::None)).await;
    }
    db.let_leases_expire().await;
    let holder = db.lock("locked").await;
    let mut completer = Completer::new(&engine, config());
    let swept = completer.run_once().await.unwrap();
    assert_eq!(swept.unknown, 1, "{swept:?}");
    assert_eq!(status(&engine, "free").await.status, Status::Unknown);
    assert_eq!(status(&engine, "locked").await.status, Status::InProgress);
    drop(holder);
    // The server may still have to notice that its client has gone.
    until(async || completer.run_once().await.unwrap().unknown > 0).await;
    assert_eq!(status(&engine, "locked").await.status, Status::Unknown, "once it is free");
}

#[tokio::test(flavor = "multi_thread")]
async fn g16_g17_a_lease_that_cannot_be_measured_keeps_no_other_from_its_end_on_postgres() {
    let db = <atomic_phases::store::Postgres as TestDb>::fresh().await;
    a_strange_lease_delays_no_other(db, "'infinity'").await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g16_g17_a_lease_that_cannot_be_measured_keeps_no_other_from_its_end_on_mariadb() {
    let db = <atomic_phases::store::Mysql as TestDb>::fresh().await;
    a_strange_lease_delays_no_other(db, "-9223372036854775807").await;
}

/// A person has written a lease of which the server cannot compute what is left of it.
async fn a_strange_lease_delays_no_other<S: TestDb>(db: S, lease: &str) {
    let app = App::default();
    let engine = engine(&db, &app);
    // Both die young: one page of the full walk has both.
    for name in ["strange", "orphan"] {
        dies_in_its_call(&engine, name, book(20)).await;
    }
    db.let_leases_expire().await;
    let sql =
        "UPDATE atomic_phases_keys SET locked_until = LEASE WHERE idempotency_key = 'strange'";
    db.sql(&sql.replace("LEASE", lease)).await;
    let swept = Completer::new(&engine, config()).run_once().await.unwrap();
    assert_eq!(swept.finished, 1, "{swept:?}");
    assert_eq!(status(&engine, "orphan").await.status, Status::Completed);
    assert_eq!(app.provider.effects(), 2);
}

#[cfg(feature = "simulation")]
mod simulated {
    use super::*;
    use atomic_phases::request::RequestDefinition;
    use atomic_phases::simulation::{Database, Memory, Network, Passage, Perfect, simulate};
    use atomic_phases::worker::WorkerConfig;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// How the database's clock is set, and whether this happens before the request is created or when its holder
    /// has died.
    enum Clock {
        IsSteady,
        IsSetForward(Duration),
        IsSetBack(Duration),
        WasSetBack(Duration),
    }

    /// A row that its first batch creates is committed twelve seconds after the time that it has.
    struct SlowCreation;

    impl Network for SlowCreation {
        fn passage(&self, what: &'static str) -> Passage {
            let commit = if what == "create" { seconds(12) } else { Duration::ZERO };
            Passage { commit, ..Passage::default() }
        }
    }

    /// How long a request of a node with this lease, which dies young, waits for workers of one with 30 s.
    fn settled_after(lease: Duration, clock: Clock) -> Duration {
        settles(book(20), Perfect, lease, clock)
    }

    fn settles<R: RequestDefinition<Memory, App>>(
        request: R,
        network: impl Network,
        lease: Duration,
        clock: Clock,
    ) -> Duration {
        simulate(1, || async move {
            let database = Database::default();
            let app = App::default();
            let with =
                |store: Memory, lease| engine_with(&store, &app, |builder| builder.lease(lease));
            let dying = with(Memory::connect_through(&database, network, 16), lease);
            let living = with(Memory::connect(&database), seconds(30));
            let workers = living.spawn_workers(WorkerConfig::default()).unwrap();
            tokio::time::sleep(seconds(30)).await;
            if let Clock::WasSetBack(by) = clock {
                database.set_clock_back(by);
            }
            dies_in_its_call(&dying, "k", request).await;
            drop(dying);
            match clock {
                Clock::IsSetForward(by) => database.set_clock_forward(by),
                Clock::IsSetBack(by) => database.set_clock_back(by),
                Clock::IsSteady | Clock::WasSetBack(_) => {}
            }
            let began = tokio::time::Instant::now();
            while status(&living, "k").await.status != Status::Completed
                && began.elapsed() < seconds(3000)
            {
                tokio::time::sleep(seconds(1)).await;
            }
            drop(workers);
            assert_eq!(app.provider.effects(), 1);
            began.elapsed()
        })
    }

    /// A lease, the delay with which young rows are read, and a few searches.
    #[track_caller]
    fn is_within(waited: Duration, lease: u64) {
        assert!(waited < seconds(lease + 20), "it is settled after {waited:?}");
    }

    #[test]
    fn g17_with_one_lease_and_a_steady_clock() {
        is_within(settled_after(seconds(30), Clock::IsSteady), 30);
    }

    /// The young walk has passed the time of the row when that is visible.
    #[test]
    fn g17_behind_a_first_batch_that_is_slow() {
        let parcel = Form::SingleStatement.parcel(Trouble::None);
        is_within(settles(parcel, SlowCreation, seconds(60), Clock::IsSteady), 60);
    }

    /// As in a rolling deploy that shortens the lease, or with two engines on one database.
    #[test]
    fn g17_under_a_longer_lease() {
        is_within(settled_after(seconds(120), Clock::IsSteady), 120);
    }

    #[test]
    fn g17_under_a_shorter_lease() {
        is_within(settled_after(seconds(3), Clock::IsSteady), 10);
    }

    #[test]
    fn g17_where_the_clock_is_set_forward() {
        is_within(settled_after(seconds(30), Clock::IsSetForward(seconds(600))), 30);
    }

    /// The lease ends later by that amount.
    #[test]
    fn g17_where_the_clock_is_set_back() {
        is_within(settled_after(seconds(30), Clock::IsSetBack(seconds(600))), 630);
    }

    #[test]
    fn g17_where_the_clock_was_set_back_before() {
        is_within(settled_after(seconds(30), Clock::WasSetBack(seconds(600))), 30);
    }
}
