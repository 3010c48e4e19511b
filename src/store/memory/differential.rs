//! Random histories of calls, made to this store and to the one that it copies: the answers are the
//! same. Both see the same calls, also those that only make sense by an earlier answer.

use std::fmt::Write as _;
use std::time::Duration;

use chrono::DateTime;
use uuid::Uuid;

use super::{Database, Memory};
use crate::definition::Isolation;
use crate::job::StagedJob;
use crate::key::{IdempotencyKey, Scope};
use crate::simulation::Chance;
use crate::store::audit::{AuditEntry, AuditSearch, ValueDigest};
use crate::store::guards::retry_dead_jobs;
use crate::store::operators::{OperatorStore, RequestAt, ScopeLimits, Walk};
use crate::store::{
    Birth, Change, Claim, Commit, DueJob, Enrolled, Erase, ExpiryPlace, Guard, Hold, JobPlace,
    KeyPlace, KeyRow, KeySummary, NewRow, Reserved, Right, Settles, Statements, Status, Store,
    StoreError, StoredResponse, Transaction, TransactionUnderFaults, Undelivered, Writes,
};

/// What is known of a key by the answers so far; guards and claims are made of it, most of the time.
#[derive(Clone, Default)]
struct Known {
    request_id: Uuid,
    token: i64,
    point: String,
    status: Option<Status>,
}

/// Long past, or far away: on both clocks the same.
const NEVER_ENDS: Duration = Duration::from_secs(1_000_000);
const ENDS_AT_ONCE: Duration = Duration::ZERO;

fn row(row: &KeyRow) -> String {
    let work = row
        .work
        .as_ref()
        .map(|work| (work.params.clone(), work.context.clone(), work.outputs.clone()));
    let response = row.response.as_ref();
    let response = response.map(|reply| (reply.status, reply.headers.clone(), reply.body.clone()));
    format!(
        "{} {} {} {} {:?} {} {:?} {} {} {} {} {:?} {} {:?} waits {} held {} rests {} expired {} trace {:?} {work:?} {response:?}",
        row.request_id,
        row.definition,
        row.version,
        row.fingerprint,
        row.status,
        row.recovery_point,
        row.open_intent,
        row.lease_token,
        row.attempts,
        row.forgiven_attempts,
        row.reconciles,
        row.resolution,
        row.phases,
        row.reason,
        row.waiting_since.is_some(),
        !row.lease_left.is_zero(),
        !row.back_off_left.is_zero(),
        row.expired,
        row.trace,
    )
}

fn summary_of(row: &KeySummary) -> String {
    format!(
        "{} {:?} {} held {} rests {} expired {} {:?}",
        row.request_id,
        row.status,
        row.lease_token,
        !row.lease_left.is_zero(),
        !row.back_off_left.is_zero(),
        row.expired,
        row.response.as_ref().map(|reply| reply.status),
    )
}

fn commit_of(commit: &Commit) -> String {
    match commit {
        Commit::Done(()) => "done".to_owned(),
        Commit::Fenced => "fenced".to_owned(),
        Commit::Refused(refusal) => format!("{refusal:?}"),
        Commit::Failed(error) => format!("failed: {}", error.kind()),
        Commit::Unknown(error) => format!("unknown: {}", error.kind()),
    }
}

/// Plays the history of this seed, and writes down each call and its answer.
async fn history<S: OperatorStore>(store: &S, seed: u64, length: usize) -> Vec<String> {
    let mut numbers = Chance::from_seed(seed);
    let scopes = ["a", "b"].map(|name| Scope::new(name).unwrap());
    let keys = ["k", "l", "m"].map(|name| IdempotencyKey::new(name).unwrap());
    let mut known = vec![vec![Known::default(); keys.len()]; scopes.len()];
    let mut log = Vec::new();
    for step in 0..length {
        let (s, k) = (numbers.below(2) as usize, numbers.below(3) as usize);
        let (scope, key) = (&scopes[s], &keys[k]);
        let mut line = format!("{step} {}/{}: ", scope.as_str(), key.as_str());
        let read = store.read_key(scope, key).await.unwrap();
        if let (Some(read), true) = (&read, numbers.below(4) > 0) {
            known[s][k] = Known {
                request_id: read.request_id,
                token: read.lease_token,
                point: read.recovery_point.clone(),
                status: Some(read.status),
            };
        }
        let belief = known[s][k].clone();
        let guard = Guard {
            scope,
            key,
            request_id: belief.request_id,
            lease_token: belief.token,
            recovery_point: &belief.point,
        };
        let ends = pick(&mut numbers, &[ENDS_AT_ONCE, NEVER_ENDS]);
        let retention = pick(&mut numbers, &[ENDS_AT_ONCE, NEVER_ENDS, NEVER_ENDS]);
        let hold = Hold { lease: ends, retention };
        let status = pick(
            &mut numbers,
            &[
                Status::InProgress,
                Status::InProgress,
                Status::Completed,
                Status::FailedRetryable,
                Status::Unknown,
                Status::DeadLetter,
            ],
        );
        let response = StoredResponse { status: 201, headers: vec![1], body: Some(vec![2, 3]) };
        let response = Some(&response).filter(|_| status == Status::Completed);
        let unforgiven = read.as_ref().map_or(0, |row| row.attempts - row.forgiven_attempts);
        let settles = match numbers.below(7) {
            0 => Settles::Window,
            1 => Settles::Attempts,
            2 => Settles::WindowAndAttempts,
            3 => Settles::Reconciles,
            _ => Settles::Nothing,
        };
        let point = format!("p{}", numbers.below(3));
        // So long that a row does not keep many.
        let event =
            format!("\nreleased\t{step}\ta\t{}\t", "é".repeat(numbers.below(1500) as usize));
        let change = Change {
            status,
            recovery_point: &point,
            outputs: numbers.happens(1, 2).then_some(&b"[1]"[..]),
            open_intent: numbers.happens(1, 2).then_some("call"),
            hold: match status {
                Status::Completed | Status::DeadLetter => None,
                Status::Unknown if numbers.happens(1, 2) => None,
                _ => Some(ends),
            },
            resolution: numbers.happens(1, 2).then_some("said"),
            settles,
            reason: numbers.happens(1, 2).then_some("why"),
            forgiven_attempts: (numbers.below(2) as u32).min(unforgiven),
            was_no_attempt: unforgiven > 1 && numbers.happens(1, 2),
            response,
            keep_for: response.and(Some(ends)).filter(|_| numbers.happens(1, 2)),
            event: Some(&event).filter(|_| numbers.happens(1, 2)).map(String::as_str),
        };
        // A phase's commit continues or finishes, and has nothing to say about a failure.
        let finishes = status == Status::Completed;
        let phase = Change {
            status: if finishes { status } else { Status::InProgress },
            hold: (!finishes).then_some(ends),
            resolution: None,
            settles: Settles::Nothing,
            reason: None,
            ..change
        };
        let id = Uuid::from_u128(numbers.number().into());
        let replaces = read.as_ref().map(|row| row.request_id).filter(|_| numbers.happens(1, 2));
        let new = NewRow {
            scope,
            key,
            request_id: id,
            definition: "d",
            version: 1,
            phases: "x",
            fingerprint: "v1:f",
            params: b"{}",
            context: numbers.happens(1, 2).then_some(&b"c"[..]),
            trace: numbers.happens(1, 2).then_some(&[1; 26][..]),
            birth: match numbers.below(3) {
                0 => Birth::Pending,
                _ => Birth::Held(ends),
            },
            retention,
            creation_wait: Duration::from_millis(50),
            caller: &crate::caller::Caller::here(),
            replaces,
        };
        let trace = numbers.happens(1, 2).then_some([3; 26]);
        let job = |position: i64| StagedJob {
            // Each has its own, because an operator's act names a job by its id.
            id: Uuid::from_u128(id.as_u128() | (u128::from(position.cast_unsigned()) << 64)),
            name: "job".to_owned(),
            position,
            args: b"1".to_vec(),
            trace,
        };
        let jobs: Vec<StagedJob> = (0..numbers.below(3) as i64).map(job).collect();
        let writes = || Writes {
            statements: Statements::default(),
            jobs: &jobs,
            within: Duration::from_secs(15),
        };
        let isolation = pick(
            &mut numbers,
            &[Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable],
        );
        let line = &mut line;
        let long_ago = DateTime::UNIX_EPOCH + NEVER_ENDS;
        match numbers.below(23) {
            0..=2 => match store.reserve_key(&new).await.unwrap() {
                Reserved::Fresh { tx, .. } => {
                    known[s][k] = Known {
                        request_id: id,
                        token: 1,
                        point: "started".to_owned(),
                        status: Some(Status::InProgress),
                    };
                    let other = store.reserve_key(&NewRow { request_id: Uuid::nil(), ..new }).await;
                    let busy = matches!(other, Ok(Reserved::Busy));
                    write!(line, "fresh, another is busy: {busy}").unwrap();
                    match numbers.below(3) {
                        0 => tx.rollback().await,
                        1 => {
                            let commit = tx.commit_unguarded().await;
                            write!(line, ", reservation {}", commit_of(&commit)).unwrap();
                        }
                        _ => {
                            let guard = Guard { recovery_point: "started", ..new.guard() };
                            let commit = tx.commit(&guard, &phase, &jobs).await;
                            write!(line, ", phase {}", commit_of(&commit)).unwrap();
                        }
                    }
                }
                Reserved::Exists(row) => {
                    write!(line, "exists {:?}", row.as_ref().map(summary_of)).unwrap();
                }
                Reserved::Busy => line.push_str("busy"),
            },
            3 | 4 => {
                let created = store.create_key(&new, long_ago, &phase, writes()).await;
                line.push_str(match created {
                    Commit::Done(_) => "created",
                    Commit::Fenced => "not created: exists",
                    Commit::Failed(StoreError::Locked) => "busy",
                    Commit::Refused(_) => "refused",
                    Commit::Failed(_) => "not created: failed",
                    Commit::Unknown(_) => "unknown",
                });
            }
            5 | 6 => {
                let commit = store.advance_key(isolation, &guard, &phase, writes()).await;
                write!(line, "advance {}", commit_of(&commit)).unwrap();
            }
            7 | 8 => {
                let commit = store.write_change(&guard, &change, None).await;
                write!(line, "write {}", commit_of(&commit)).unwrap();
            }
            9 => match store.begin_transaction(isolation, &guard).await.unwrap() {
                Some(tx) => {
                    let commit = tx.commit(&guard, &phase, &jobs).await;
                    write!(line, "transaction {}", commit_of(&commit)).unwrap();
                }
                None => line.push_str("no transaction"),
            },
            10..=12 => {
                let claim = Claim {
                    scope,
                    key,
                    request_id: belief.request_id,
                    lease_token: belief.token,
                    status: belief.status.unwrap_or(Status::InProgress),
                    recovery_point: numbers.happens(1, 2).then_some(&belief.point),
                    phases: numbers.happens(1, 2).then_some("y"),
                    right: pick(
                        &mut numbers,
                        &[Right::Free, Right::Own, Right::Reconcile, Right::Resolve],
                    ),
                    opens_window: numbers.happens(1, 2),
                    event: numbers.happens(1, 2).then_some("\ntaken_over\t1\t\t\t"),
                    trace: numbers.happens(1, 2).then_some(&[2; 52][..]),
                };
                let taken = store.take_over_key(&claim, hold).await.unwrap();
                write!(line, "take over {:?}", taken.as_ref().map(row)).unwrap();
            }
            19..=21 => {
                let claim = Claim {
                    scope,
                    key,
                    request_id: belief.request_id,
                    lease_token: belief.token,
                    status: belief.status.unwrap_or(Status::Unknown),
                    recovery_point: Some(&belief.point),
                    phases: numbers.happens(1, 2).then_some("z"),
                    right: Right::Resolve,
                    opens_window: false,
                    event: None,
                    trace: None,
                };
                let entry = entry(id, scope, belief.request_id);
                let audit = Some(&entry).filter(|_| numbers.happens(1, 2));
                // Of a resolution, which is not an attempt and forgives none.
                let word = Change { forgiven_attempts: 0, was_no_attempt: false, ..change };
                let settled = store.settle_key(&claim, hold, &word, audit).await;
                write!(line, "settle {} {}", audit.is_some(), commit_of(&settled)).unwrap();
            }
            13 => write!(line, "renew {}", store.renew_lease(&guard, hold).await.unwrap()).unwrap(),
            14 => {
                let expired = store.expired_keys(&ExpiryPlace::default(), 1000).await.unwrap();
                let reaped = store.reap_rows(&expired.rows).await.unwrap();
                write!(line, "reap {reaped}").unwrap();
            }
            15 | 16 => {
                let due = store.jobs_due(&JobPlace::default(), 10).await.unwrap().rows;
                let at: Vec<_> = due
                    .iter()
                    .map(|job| (job.at.request_id, job.at.position, job.at.attempts, job.is_next))
                    .collect();
                write!(line, "jobs {:?}", sorted(at)).unwrap();
                let mut due = due;
                due.sort_by_key(|job| (job.at.request_id, job.at.position));
                if let Some(DueJob { at, .. }) = due.first() {
                    let claimed = store.claim_job(at, ends).await.unwrap();
                    let again = store.claim_job(at, ends).await.unwrap().is_some();
                    if let Some(job) = claimed {
                        write!(line, " claimed {} {}", job.name, job.at.attempts).unwrap();
                        let told = match numbers.below(4) {
                            0 => store.job_delivered(&job.at).await,
                            1 => store.job_failed(&job.at, Undelivered::Again(ends), "late").await,
                            2 => store.job_failed(&job.at, Undelivered::Left, "left").await,
                            _ => store.job_failed(&job.at, Undelivered::Dead, "dead").await,
                        };
                        write!(line, " again {again}, {}", told.unwrap()).unwrap();
                    }
                }
            }
            17 => {
                let one = numbers.happens(1, 2);
                let erased = match one {
                    true => store.erase_key(&Erase { scope, key, retention, act: None }).await,
                    false => store.erase_between(scope, ("", key.as_str()), retention).await,
                };
                let erased = erased.unwrap();
                let (left, _) = store.count_unerased(scope, "", 1000).await.unwrap();
                write!(line, "erase {erased}, {left} left").unwrap();
            }
            18 => {
                let dead = store.dead_jobs().await.unwrap();
                let retried = retry_dead_jobs(store).await;
                write!(line, "dead jobs {dead}, retried {retried}").unwrap();
            }
            _ => {
                let look = store.look_up_key(scope, key).await.unwrap();
                let outputs = store.read_outputs(scope, key).await.unwrap();
                let count = store.count_keys(scope, 2).await.unwrap();
                let look = look.as_ref().map(summary_of);
                write!(line, "look {look:?} {outputs:?} {count}").unwrap();
            }
        }
        let grace = if numbers.happens(1, 2) { NEVER_ENDS } else { Duration::ZERO };
        let due = store.due_keys(&KeyPlace::default(), grace, 10).await.unwrap().rows;
        let due: Vec<_> = due
            .iter()
            .map(|due| {
                let (scope, key) = (due.scope.as_str().to_owned(), due.key.as_str().to_owned());
                (scope, key, due.status.as_str(), due.lease_token, due.past_grace)
            })
            .collect();
        let place = ExpiryPlace::default();
        let ever = (DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + NEVER_ENDS * 5000);
        let limit = pick(&mut numbers, &[1, 2, 10]);
        let read = store.held_keys(ever, &place, limit).await.unwrap();
        write!(line, " | due {:?}", sorted(due)).unwrap();
        let mut picked = Vec::new();
        for held in &read.rows {
            let left = !held.lease_left.is_zero();
            write!(line, " held {}/{} {left}", held.scope.as_str(), held.key.as_str()).unwrap();
            if numbers.happens(1, 4) {
                picked.push(held.clone());
            }
        }
        for enrolled in store.enrol_keys(&picked).await.unwrap() {
            write!(line, " enrolled {}", enrolled == Enrolled::Entered).unwrap();
        }
        if let Some(ExpiryPlace { scope, key, .. }) = read.next {
            write!(line, " up to {scope}/{key}").unwrap();
        }
        let left = store.read_key(scope, key).await.unwrap();
        write!(
            line,
            "\n    {:?} {:?}",
            left.as_ref().map(row),
            events_text(store, scope, key).await
        )
        .unwrap();
        log.push(std::mem::take(line));
    }
    let survey = store.survey_keys(100, 100, Duration::from_secs(60)).await.unwrap();
    let survey = survey
        .iter()
        .map(|row| format!("{:?} {}/{} {:?}", row.found_by, row.scope, row.key, row.standing));
    log.push(format!("{:?}", sorted(survey.collect())));
    let newest = (Walk::Newest.start().time, Uuid::max());
    let acts = store
        .audit_before(&ScopeLimits::default(), &AuditSearch::default(), newest, 1000)
        .await
        .unwrap()
        .rows;
    let acts = acts.into_iter().map(|act| {
        let value = act.value.map(|value| (value.sha256, value.bytes));
        (act.id, act.scope, act.request_id, act.after, act.attempt, value)
    });
    log.push(format!("{:?}", sorted(acts.collect())));
    log
}

fn entry(id: Uuid, scope: &Scope, request_id: Uuid) -> AuditEntry {
    AuditEntry {
        id,
        actor: "ada".to_owned(),
        act: "resolve",
        outcome: "applied",
        refused_because: None,
        reason: "why".to_owned(),
        scope: Some(scope.as_str().to_owned()),
        request_id: Some(request_id),
        job_id: None,
        bulk_id: None,
        definition: Some("d".to_owned()),
        version: Some(1),
        phase: None,
        attempt: Some(u32::MAX),
        value: Some(ValueDigest::of(id.as_bytes())),
        before: None,
        after: Some("unknown".to_owned()),
    }
}

/// The events of a row, but for their times, and how many are gone.
async fn events_text<S: OperatorStore>(
    store: &S,
    scope: &Scope,
    key: &IdempotencyKey,
) -> Option<String> {
    let at = RequestAt::Key(scope, key);
    let found = store.find_request(at, &ScopeLimits::default()).await.unwrap()?;
    let events = store.events(&found).await.unwrap();
    let kept = events.kept().into_iter();
    let kept = kept.map(|it| (it.kind, it.attempt, it.reason.map(|reason| reason.chars().count())));
    Some(format!("{:?}, {} gone", kept.collect::<Vec<_>>(), events.gone()))
}

fn sorted<T: Ord>(mut all: Vec<T>) -> Vec<T> {
    all.sort();
    all
}

fn compare(seed: u64, ours: &[String], theirs: &[String]) {
    let before = ours;
    for (at, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        assert_eq!(ours, theirs, "seed {seed}, step {at}, after:\n{}", before[..at].join("\n"));
    }
    assert_eq!(ours.len(), theirs.len(), "seed {seed}");
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn random_histories_are_answered_as_postgresql_answers_them() {
    for seed in 0..6 {
        let url = tokio::task::spawn_blocking(crate::store::cluster::new_database).await.unwrap();
        let postgres = crate::store::Postgres::connect(&url).await.unwrap();
        postgres.migrate().await.unwrap();
        let theirs = history(&postgres, seed, 120).await;
        let ours = history(&Memory::connect(&Database::default()), seed, 120).await;
        compare(seed, &ours, &theirs);
    }
}

fn pick<T: Copy>(numbers: &mut Chance, all: &[T]) -> T {
    all[numbers.below(all.len() as u64) as usize]
}
