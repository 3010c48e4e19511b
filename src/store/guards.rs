//! The guards of each store's statements: for each condition of a guard, a call that violates only this condition, and writes
//! nothing. On every store.

use std::time::Duration;

use super::*;
use crate::job::FIRST_NOTICE;
use crate::store::Statements;
use crate::store::audit::AuditEntry;
use crate::store::operators::{JobAct, JobFate, OperatorStore, ScopeLimits};

macro_rules! over_every_store {
    ($($name:ident),* $(,)?) => {
        #[cfg(feature = "sqlite")]
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let store = crate::store::Sqlite::connect(":memory:").await.unwrap();
                super::Store::migrate(&store).await.unwrap();
                super::$name(store).await;
            })*
        }
        #[cfg(feature = "postgres")]
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let url = tokio::task::spawn_blocking(crate::store::cluster::new_database).await.unwrap();
                let store = crate::store::Postgres::connect(&url).await.unwrap();
                super::Store::migrate(&store).await.unwrap();
                super::$name(store).await;
            })*
        }
        #[cfg(all(feature = "mysql", feature = "postgres"))]
        mod on_mariadb {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let new = crate::store::mariadb::new_database;
                let url = tokio::task::spawn_blocking(new).await.unwrap();
                let store = crate::store::Mysql::connect(&url).await.unwrap();
                super::Store::migrate(&store).await.unwrap();
                super::$name(store).await;
            })*
        }
        #[cfg(feature = "simulation")]
        mod on_memory {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let database = crate::simulation::Database::default();
                super::$name(crate::simulation::Memory::connect(&database)).await;
            })*
        }
    };
}

over_every_store! {
    g10_a_lease_is_taken_over_only_as_it_was_seen_and_once_it_is_over,
    g3_a_lease_is_renewed_by_its_holder_only_and_the_key_is_kept_as_long_again,
    g3_a_resolution_settles_a_row_only_as_it_was_read,
    g11_each_recovery_point_begins_a_time_of_its_own,
    g11_a_takeover_begins_a_time_of_its_own_where_nothing_was_called,
    g17_an_abandoned_row_is_entered_once_and_only_while_it_is_abandoned,
    g18_jobs_in_bulk_are_claimed_and_deleted_as_each_would_be_alone,
    g18_a_job_is_claimed_as_it_was_seen_when_it_is_due_and_in_its_turn,
    g18_a_job_and_a_notice_that_is_under_way_wait_for_neither,
    g18_a_word_about_a_delivery_is_its_claims_only,
    g17_g18_no_history_leaves_jobs_that_wait_for_each_other,
    a_failover_loses_what_was_committed_since_the_copy,
}

const FAR: Duration = Duration::from_secs(1_000_000);
const OVER: Duration = Duration::ZERO;

/// One key, and the calls about it.
struct One<S> {
    store: S,
    scope: Scope,
    key: IdempotencyKey,
    request_id: Uuid,
}

fn hold(lease: Duration) -> Hold {
    Hold { lease, retention: FAR }
}

fn to(recovery_point: &str, hold: Duration) -> Change<'_> {
    Change {
        status: Status::InProgress,
        recovery_point,
        outputs: None,
        open_intent: None,
        hold: Some(hold),
        resolution: None,
        settles: Settles::Nothing,
        reason: None,
        forgiven_attempts: 0,
        was_no_attempt: false,
        response: None,
        keep_for: None,
        event: None,
    }
}

impl<S: Store> One<S> {
    /// In progress, with a lease of this length, a retention of that, and token 1.
    async fn of(store: &S, lease: Duration, retention: Duration) -> Self {
        let one = Self {
            store: store.clone(),
            scope: Scope::new("s").unwrap(),
            key: IdempotencyKey::new(Uuid::new_v4().to_string()).unwrap(),
            request_id: Uuid::new_v4(),
        };
        let row = NewRow {
            scope: &one.scope,
            key: &one.key,
            request_id: one.request_id,
            definition: "d",
            version: 1,
            phases: "x",
            fingerprint: "v1:f",
            params: b"{}",
            context: None,
            trace: None,
            birth: Birth::Held(lease),
            retention,
            creation_wait: Duration::from_secs(1),
            caller: &crate::caller::Caller::here(),
            replaces: None,
        };
        let Ok(Reserved::Fresh { tx, .. }) = store.reserve_key(&row).await else {
            panic!("not reserved");
        };
        assert!(matches!(tx.commit_unguarded().await, Commit::Done(())));
        one
    }

    fn guard<'a>(&'a self, lease_token: i64, recovery_point: &'a str) -> Guard<'a> {
        let (scope, key, request_id) = (&self.scope, &self.key, self.request_id);
        Guard { scope, key, request_id, lease_token, recovery_point }
    }

    fn claim(&self, right: Right) -> Claim<'_> {
        Claim {
            scope: &self.scope,
            key: &self.key,
            request_id: self.request_id,
            lease_token: 1,
            status: Status::InProgress,
            recovery_point: Some("started"),
            phases: None,
            right,
            opens_window: false,
            event: None,
            trace: None,
        }
    }

    async fn is_taken(&self, claim: Claim<'_>) -> bool {
        self.store.take_over_key(&claim, hold(OVER)).await.unwrap().is_some()
    }

    async fn row(&self) -> KeyRow {
        self.store.read_key(&self.scope, &self.key).await.unwrap().unwrap()
    }

    /// In a phase's transaction.
    async fn commit(&self, from: &str, change: &Change<'_>, jobs: &[StagedJob]) {
        let guard = self.guard(1, from);
        let tx =
            self.store.begin_transaction(Isolation::ReadCommitted, &guard).await.unwrap().unwrap();
        let commit = tx.commit(&guard, change, jobs).await;
        assert!(matches!(commit, Commit::Done(())), "{commit:?}");
    }
}

/// What the explorer fails over to: all tables come back as they were, and are of use.
async fn a_failover_loses_what_was_committed_since_the_copy<S: Store>(store: S) {
    let one = One::of(&store, FAR, FAR).await;
    for _ in 0..2 {
        store.replicate().await.unwrap();
        let later = One::of(&store, FAR, FAR).await;
        one.commit("started", &to("p", FAR), &[]).await;
        assert_eq!(one.row().await.recovery_point, "p");
        store.fail_over().await.unwrap();
        assert_eq!(one.row().await.recovery_point, "started");
        assert!(store.read_key(&later.scope, &later.key).await.unwrap().is_none());
    }
    one.commit("started", &to("p", FAR), &[]).await;
    // A copy that is never brought back is replaced by the next one.
    store.replicate().await.unwrap();
    store.replicate().await.unwrap();
    store.fail_over().await.unwrap();
    assert_eq!(one.row().await.recovery_point, "p");
}

async fn g10_a_lease_is_taken_over_only_as_it_was_seen_and_once_it_is_over<S: Store>(store: S) {
    let one = One::of(&store, OVER, FAR).await;
    let claim = || one.claim(Right::Free);
    assert!(!one.is_taken(Claim { request_id: Uuid::new_v4(), ..claim() }).await, "another life");
    assert!(!one.is_taken(Claim { lease_token: 2, ..claim() }).await, "another token");
    assert!(!one.is_taken(Claim { status: Status::Unknown, ..claim() }).await, "another status");
    assert!(!one.is_taken(Claim { recovery_point: Some("p"), ..claim() }).await, "another place");
    // Its holder lives after all, and renewed it since it was read.
    assert!(store.renew_lease(&one.guard(1, ""), hold(FAR)).await.unwrap());
    assert!(!one.is_taken(claim()).await, "renewed");
    // By its own holder, whose commit got no answer: not once the row is another's.
    assert!(one.is_taken(one.claim(Right::Own)).await);
    assert_eq!((one.row().await.lease_token, one.row().await.attempts), (2, 1));
    assert!(!one.is_taken(one.claim(Right::Own)).await, "the seen token is not the row's any more");
    assert!(!one.is_taken(claim()).await);
    assert!(one.is_taken(Claim { lease_token: 2, ..claim() }).await);
    assert_eq!((one.row().await.lease_token, one.row().await.attempts), (3, 2));
}

async fn g3_a_lease_is_renewed_by_its_holder_only_and_the_key_is_kept_as_long_again<S: Store>(
    store: S,
) {
    let one = One::of(&store, OVER, OVER).await;
    let renews = async |guard| store.renew_lease(&guard, hold(FAR)).await.unwrap();
    assert!(!renews(one.guard(2, "")).await, "another token");
    assert!(
        !renews(Guard { request_id: Uuid::new_v4(), ..one.guard(1, "") }).await,
        "another life"
    );
    assert!(one.row().await.expired && one.row().await.lease_left.is_zero());
    assert!(renews(one.guard(1, "")).await);
    assert!(!one.row().await.expired && !one.row().await.lease_left.is_zero());
    // And it is never kept for less.
    let less = Hold { lease: FAR, retention: OVER };
    assert!(store.renew_lease(&one.guard(1, ""), less).await.unwrap());
    assert!(!one.row().await.expired);
    let done = Change { status: Status::FailedRetryable, ..to("started", OVER) };
    assert!(matches!(
        store.write_change(&one.guard(1, "started"), &done, None).await,
        Commit::Done(())
    ));
    assert!(!renews(one.guard(1, "")).await, "it runs no more");
}

/// A resolution is written by acquiring the row and releasing it, in one transaction.
async fn g3_a_resolution_settles_a_row_only_as_it_was_read<S: Store>(store: S) {
    let dead_letter = async || {
        let one = One::of(&store, FAR, OVER).await;
        let gave_up = Change { status: Status::DeadLetter, hold: None, ..to("started", OVER) };
        let written = store.write_change(&one.guard(1, "started"), &gave_up, None).await;
        assert!(matches!(written, Commit::Done(())), "{written:?}");
        one
    };
    let word = Change {
        status: Status::FailedRetryable,
        resolution: Some("retry"),
        settles: Settles::Attempts,
        ..to("started", OVER)
    };
    let settles =
        async |claim: Claim<'_>| match store.settle_key(&claim, hold(FAR), &word, None).await {
            Commit::Done(()) => true,
            Commit::Fenced => false,
            other => panic!("{other:?}"),
        };
    let one = dead_letter().await;
    let claim = || Claim { status: Status::DeadLetter, ..one.claim(Right::Resolve) };
    assert!(!settles(Claim { request_id: Uuid::new_v4(), ..claim() }).await, "another life");
    assert!(!settles(Claim { lease_token: 2, ..claim() }).await, "another token");
    assert!(!settles(Claim { status: Status::Unknown, ..claim() }).await, "another status");
    assert!(!settles(Claim { recovery_point: Some("p"), ..claim() }).await, "another place");
    assert_eq!((one.row().await.status, one.row().await.lease_token), (Status::DeadLetter, 1));
    assert!(one.row().await.expired);
    assert!(settles(claim()).await);
    let row = one.row().await;
    assert_eq!((row.status, row.lease_token, row.attempts), (Status::FailedRetryable, 2, 1));
    assert!(row.lease_left.is_zero() && row.waiting_since.is_none() && !row.expired);
    assert_eq!((row.resolution.as_deref(), row.forgiven_attempts), (Some("retry"), 1));
    assert!(!settles(claim()).await, "once");

    // Another process was faster, and holds the row at that place under the token that the resolution would have had.
    let one = dead_letter().await;
    let claim = || Claim { status: Status::DeadLetter, ..one.claim(Right::Resolve) };
    assert!(store.take_over_key(&claim(), hold(FAR)).await.unwrap().is_some());
    assert!(!settles(claim()).await);
    assert_eq!((one.row().await.status, one.row().await.lease_token), (Status::InProgress, 2));
}

/// The age of a call is counted from the recovery point before it: what a later phase does is younger than
/// what an earlier one did.
async fn g11_each_recovery_point_begins_a_time_of_its_own<S: Store>(store: S) {
    let one = One::of(&store, FAR, FAR).await;
    let long_ago = Duration::from_millis(60);
    let ages = async |what: &str, moves: bool, began: std::time::Instant| {
        let age = one.row().await.since_advance;
        match moves {
            true => assert!(age <= began.elapsed() + Duration::from_millis(2), "{what}: {age:?}"),
            false => assert!(age + Duration::from_millis(2) >= long_ago, "{what}: {age:?}"),
        }
    };
    for (what, moves) in [("commit", true), ("write", true), ("advance", true), ("intent", false)] {
        // It is time itself that has to pass.
        tokio::time::sleep(long_ago).await;
        let began = std::time::Instant::now();
        match what {
            "commit" => one.commit("started", &to("a", FAR), &[]).await,
            "write" => {
                let written = store.write_change(&one.guard(1, "a"), &to("b", FAR), None).await;
                assert!(matches!(written, Commit::Done(())), "{written:?}");
            }
            "advance" => {
                let statements = Statements::default();
                let writes = Writes { statements, jobs: &[], within: FAR };
                let guard = one.guard(1, "b");
                let level = Isolation::ReadCommitted;
                let written = store.advance_key(level, &guard, &to("c", FAR), writes).await;
                assert!(matches!(written, Commit::Done(())), "{written:?}");
            }
            _ => {
                let intent = Change { open_intent: Some("d"), ..to("c", FAR) };
                let written = store.write_change(&one.guard(1, "c"), &intent, None).await;
                assert!(matches!(written, Commit::Done(())), "{written:?}");
            }
        }
        ages(what, moves, began).await;
    }
}

/// Of a row that many may take over together, too.
async fn g11_a_takeover_begins_a_time_of_its_own_where_nothing_was_called<S: Store>(store: S) {
    let one = One::of(&store, OVER, FAR).await;
    let other = One::of(&store, OVER, FAR).await;
    let long_ago = Duration::from_millis(60);
    // It is time itself that has to pass.
    tokio::time::sleep(long_ago).await;
    let began = std::time::Instant::now();
    let uncalled = Claim { opens_window: true, ..one.claim(Right::Free) };
    let called = other.claim(Right::Free);
    let hold = hold(FAR);
    let (opened, kept) =
        tokio::join!(store.take_over_key(&uncalled, hold), store.take_over_key(&called, hold));
    let age = opened.unwrap().unwrap().since_advance;
    assert!(age <= began.elapsed() + Duration::from_millis(2), "{age:?}");
    let age = kept.unwrap().unwrap().since_advance;
    assert!(age + Duration::from_millis(2) >= long_ago, "{age:?}");
}

async fn g17_an_abandoned_row_is_entered_once_and_only_while_it_is_abandoned<S: Store>(store: S) {
    let found = |one: &One<S>, lease_token| HeldKey {
        scope: one.scope.clone(),
        key: one.key.clone(),
        request_id: one.request_id,
        lease_token,
        lease_left: Duration::ZERO,
    };
    let alive = One::of(&store, FAR, FAR).await;
    let (one, other) = (One::of(&store, OVER, FAR).await, One::of(&store, OVER, FAR).await);
    let another = || HeldKey { request_id: Uuid::new_v4(), ..found(&one, 1) };
    let done = One::of(&store, OVER, OVER).await;
    let finished = Change { status: Status::Completed, ..to("finished", OVER) };
    assert!(matches!(
        store.write_change(&done.guard(1, "started"), &finished, None).await,
        Commit::Done(())
    ));
    let is_gone = async |held| store.enrol_keys(&[held]).await.unwrap() == [Enrolled::Gone];
    let is_far = |enrolled: &Enrolled| match enrolled {
        Enrolled::Held(left) => *left > FAR / 2 && *left <= FAR,
        _ => false,
    };
    assert!(is_far(&store.enrol_keys(&[found(&alive, 1)]).await.unwrap()[0]), "its holder lives");
    assert!(is_gone(another()).await, "another life");
    assert!(is_gone(found(&one, 2)).await, "another token");
    assert!(is_gone(found(&done, 1)).await, "it is finished");
    assert_eq!(store.enrol_keys(&[found(&one, 1)]).await.unwrap(), [Enrolled::Entered]);
    assert!(is_gone(found(&one, 1)).await, "it is entered");
    assert!(store.enrol_keys(&[]).await.unwrap().is_empty());
    // Of many in a single statement each is judged as it is alone.
    let tokens = [(&alive, 1), (&other, 2), (&done, 1), (&other, 1), (&one, 1)];
    let mut many: Vec<_> = tokens.map(|(one, token)| found(one, token)).into();
    many.push(another());
    let many = store.enrol_keys(&many).await.unwrap();
    assert!(is_far(&many[0]), "{many:?}");
    use Enrolled::{Entered, Gone};
    assert_eq!(many[1..], [Gone, Gone, Entered, Gone, Gone]);
    assert!(is_gone(found(&other, 1)).await, "it is entered");
    // Of all of them the only one to be reaped (G15).
    let start = ExpiryPlace::default();
    let page = store.expired_keys(&start, 1).await.unwrap();
    assert!(store.expired_keys(&page.next.unwrap(), 1).await.unwrap().rows.is_empty());
    let expired = page.rows.into_iter().next().unwrap();
    let reaped = async |rows: &[ExpiredKey]| store.reap_rows(rows).await.unwrap();
    let open = One::of(&store, OVER, OVER).await;
    let open = ExpiredKey {
        at: ExpiryPlace {
            scope: open.scope.as_str().to_owned(),
            key: open.key.as_str().to_owned(),
            ..ExpiryPlace::default()
        },
        request_id: open.request_id,
    };
    let found = [open, expired];
    assert_eq!(reaped(&found[..]).await, 1, "the other one is in progress");
    assert_eq!(reaped(&found[..]).await, 0, "it is gone");
    assert!(store.expired_keys(&start, 1).await.unwrap().rows.is_empty());
}

/// A request with two jobs of one phase.
async fn staged<S: Store>(store: &S) -> [JobAt; 2] {
    staged_at(store, [0, 1]).await
}

async fn staged_at<S: Store>(store: &S, positions: [i64; 2]) -> [JobAt; 2] {
    let one = One::of(store, FAR, FAR).await;
    let job = |position| StagedJob {
        id: Uuid::new_v4(),
        name: "job".to_owned(),
        position,
        args: b"1".to_vec(),
        trace: None,
    };
    one.commit("started", &to("a", FAR), &positions.map(job)).await;
    positions.map(|position| JobAt {
        scope: one.scope.clone(),
        request_id: one.request_id,
        position,
        attempts: 0,
    })
}

/// Lets each dead job try again, and says how many there were.
pub(super) async fn retry_dead_jobs<S: OperatorStore>(store: &S) -> usize {
    let first = (DateTime::UNIX_EPOCH, Uuid::nil());
    let dead = store.dead_jobs_after(&ScopeLimits::default(), first, 1000).await.unwrap().rows;
    for job in &dead {
        let audit = AuditEntry {
            // Of this act alone: the attempts grow.
            id: Uuid::from_u128(job.id.as_u128() ^ (u128::from(job.attempts) << 96)),
            actor: "ada".to_owned(),
            act: "job.retry",
            outcome: "applied",
            refused_because: None,
            reason: "why".to_owned(),
            scope: Some(job.scope.clone()),
            request_id: Some(job.request_id),
            job_id: Some(job.id),
            bulk_id: None,
            definition: None,
            version: None,
            phase: None,
            attempt: None,
            value: None,
            before: None,
            after: None,
        };
        let (scope, id, audit) = (&*job.scope, job.id, &audit);
        let retry = |attempts| JobAct { scope, id, attempts, fate: JobFate::Retry, audit };
        let another = retry(job.attempts + 1);
        assert!(!store.settle_job(&another).await.unwrap(), "another token");
        assert!(store.settle_job(&retry(job.attempts)).await.unwrap());
        assert!(!store.settle_job(&retry(job.attempts)).await.unwrap(), "it is dead no more");
    }
    dead.len()
}

async fn g18_a_job_is_claimed_as_it_was_seen_when_it_is_due_and_in_its_turn<S: OperatorStore>(
    store: S,
) {
    let [first, second] = staged(&store).await;
    let claims =
        async |at: &JobAt, lease| store.claim_job(at, lease).await.unwrap().map(|row| row.at);
    assert!(claims(&JobAt { attempts: 1, ..first.clone() }, FAR).await.is_none(), "another token");
    assert!(claims(&second, FAR).await.is_none(), "the first one is to come before it");
    let first = claims(&first, OVER).await.unwrap();
    let first = claims(&first, FAR).await.unwrap();
    assert_eq!(first.attempts, 2);
    assert!(claims(&first, FAR).await.is_none(), "it is under way");
    assert!(claims(&second, FAR).await.is_none(), "and not its turn before the first has ended");
    assert!(store.job_failed(&first, Undelivered::Dead, "dead").await.unwrap());
    let second = claims(&second, FAR).await.unwrap();
    // The first is let try again while the second is under way.
    assert_eq!(retry_dead_jobs(&store).await, 1);
    let first = JobAt { attempts: 3, ..first };
    assert!(claims(&first, FAR).await.is_none(), "the second is under way");
    assert!(store.job_failed(&second, Undelivered::Again(OVER), "later").await.unwrap());
    assert!(claims(&first, FAR).await.is_some());
    assert!(claims(&second, FAR).await.is_none());
}

/// Also where the job is let try again, which then asks what is under way behind it.
async fn g18_a_job_and_a_notice_that_is_under_way_wait_for_neither<S: Store>(store: S) {
    let claims =
        async |at: &JobAt, lease| store.claim_job(at, lease).await.unwrap().map(|row| row.at);
    for becomes in [Undelivered::Again(Duration::ZERO), Undelivered::Left] {
        let [job, notice] = staged_at(&store, [0, FIRST_NOTICE + 1]).await;
        let first = claims(&job, FAR).await.unwrap();
        let notice = claims(&notice, FAR).await.expect("it waits for no job");
        assert!(store.job_failed(&first, becomes, "later").await.unwrap());
        let due = store.jobs_due(&JobPlace::default(), 10).await.unwrap().rows;
        let is_next = |due: &DueJob| due.is_next && due.at.request_id == job.request_id;
        assert!(due.iter().any(is_next), "it is its turn");
        let job = claims(&first, FAR).await.expect("it waits for no notice");
        assert!(store.jobs_delivered(&[job, notice]).await.unwrap().iter().all(|ours| *ours));
    }
}

async fn g18_a_word_about_a_delivery_is_its_claims_only<S: Store>(store: S) {
    let [first, _] = staged(&store).await;
    let late = store.claim_job(&first, OVER).await.unwrap().unwrap().at;
    let current = store.claim_job(&late, FAR).await.unwrap().unwrap().at;
    assert!(!store.job_delivered(&late).await.unwrap());
    for becomes in [Undelivered::Again(OVER), Undelivered::Left, Undelivered::Dead] {
        assert!(!store.job_failed(&late, becomes, "late").await.unwrap());
    }
    let due = async || store.jobs_due(&JobPlace::default(), 10).await.unwrap().rows.len();
    assert_eq!(due().await, 0, "nothing has changed");
    assert!(store.job_delivered(&current).await.unwrap());
    assert_eq!(due().await, 1, "the second is next");
    assert!(!store.job_delivered(&current).await.unwrap(), "it is gone");
    assert_eq!(store.dead_jobs().await.unwrap(), 0);
}

async fn g18_jobs_in_bulk_are_claimed_and_deleted_as_each_would_be_alone<S: Store>(store: S) {
    let [one, other, held] = [staged(&store).await, staged(&store).await, staged(&store).await];
    let stale = store.claim_job(&held[0], OVER).await.unwrap().unwrap().at;
    let current = store.claim_job(&stale, FAR).await.unwrap().unwrap().at;
    let at = [&one[0], &one[1], &other[0], &held[0], &stale, &current].map(JobAt::clone);
    let won = async |at: &[JobAt]| {
        let claimed = store.claim_jobs(at, FAR).await.unwrap();
        assert_eq!(claimed.len(), at.len());
        for (at, claimed) in at.iter().zip(&claimed) {
            let Ok(Some(row)) = claimed else { continue };
            let of = |at: &JobAt| (at.scope.clone(), at.request_id, at.position, at.attempts);
            assert_eq!(of(&row.at), of(&JobAt { attempts: at.attempts + 1, ..at.clone() }));
        }
        claimed.into_iter().filter_map(Result::unwrap).collect::<Vec<_>>()
    };
    let all = won(&at).await;
    let mut requests: Vec<_> = all.iter().map(|row| (row.at.request_id, row.at.position)).collect();
    let mut expected = vec![(one[0].request_id, 0), (other[0].request_id, 0)];
    requests.sort();
    expected.sort();
    assert_eq!(requests, expected, "of each request the next, seen as it is, and not under way");
    assert!(all.iter().all(|row| row.at.attempts == 1 && row.args == b"1"));
    assert!(won(&at).await.is_empty(), "each once");

    let [first, second] = [&all[0].at, &all[1].at].map(JobAt::clone);
    let unseen = JobAt { attempts: 7, ..second.clone() };
    let ours = store.jobs_delivered(&[first.clone(), unseen, current, stale]).await.unwrap();
    assert_eq!(ours, [true, false, true, false]);
    assert_eq!(store.jobs_delivered(&[first.clone(), second]).await.unwrap(), [false, true]);
    // Behind each that was delivered, the next of its request is due.
    let next = [&one[1], &other[1], &held[1]].map(JobAt::clone);
    assert_eq!(won(&next).await.len(), 3);
}

/// What happens to the job whose turn it is, or to the dead ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happens {
    /// Its process dies, and its claim ends.
    CutOff,
    PutBack,
    Dies,
    /// An operator lets the dead ones try again.
    Revived,
}

/// Every history of so many steps that two jobs of one request can have.
fn histories(steps: u32) -> impl Iterator<Item = Vec<Happens>> {
    const ALL: [Happens; 4] = [Happens::CutOff, Happens::PutBack, Happens::Dies, Happens::Revived];
    let nth = move |number: usize| (0..steps).map(move |step| ALL[(number >> (2 * step)) & 3]);
    let can_be = |history: &Vec<Happens>| {
        let mut dead = 0;
        history.iter().all(|step| match step {
            Happens::Revived => std::mem::replace(&mut dead, 0) > 0,
            Happens::CutOff | Happens::PutBack => dead < 2,
            Happens::Dies => {
                dead += 1;
                dead <= 2
            }
        })
    };
    (0..1 << (2 * steps)).map(move |number| nth(number).collect()).filter(can_be)
}

/// Whatever happened to two jobs of one request: once nothing fails any more, both are delivered, in their order.
async fn g17_g18_no_history_leaves_jobs_that_wait_for_each_other<S: OperatorStore>(store: S) {
    for history in histories(4) {
        let [first, second] = staged(&store).await;
        // Claimed for no time: no claim has to end.
        let claimed = async || {
            let due = store.jobs_due(&JobPlace::default(), 10).await.unwrap().rows;
            let next = due.into_iter().find(|due| due.is_next).map(|due| due.at);
            let next = next.unwrap_or_else(|| panic!("each waits for the other: {history:?}"));
            store.claim_job(&next, OVER).await.unwrap().expect("it is its turn").at
        };
        for step in &history {
            let becomes = match step {
                Happens::Revived => {
                    assert!(retry_dead_jobs(&store).await > 0, "{history:?}");
                    continue;
                }
                Happens::CutOff => {
                    claimed().await;
                    continue;
                }
                Happens::PutBack => Undelivered::Again(OVER),
                Happens::Dies => Undelivered::Dead,
            };
            assert!(store.job_failed(&claimed().await, becomes, "why").await.unwrap());
        }
        retry_dead_jobs(&store).await;
        for expected in [first, second] {
            let job = claimed().await;
            assert_eq!(job.position, expected.position, "{history:?}");
            assert!(store.job_delivered(&job).await.unwrap(), "{history:?}");
        }
    }
}
