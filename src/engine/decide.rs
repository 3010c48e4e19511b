//! What a row means for a request: two pure functions, tested over every state.

use std::time::Duration;

use crate::definition::{Definition, EffectClass, PhaseKind};
use crate::store::{KeyRow, KeySummary, Status};

/// Whether a row is of the request that is asked for (G9).
#[derive(Clone, Copy)]
pub(crate) enum Comparison {
    Same,
    Another,
    /// This process cannot tell: it does not know the version of the row's fingerprint, or the row's
    /// parameters are of a type that the caller's cannot read.
    NotKnownHere,
}

/// What is known about a call before its row is looked at.
pub(crate) struct CallFacts {
    /// The name of its definition.
    pub(crate) definition: &'static str,
    /// Whether this process can run the version of the definition that the row is of.
    pub(crate) knows_version: bool,
    /// The id under which this call creates the row to run it itself. `None` where it leaves the row to the
    /// workers: then a row in progress under its id is held by one of them.
    pub(crate) runs_as: Option<uuid::Uuid>,
    pub(crate) comparison: Comparison,
}

/// Whether the call that creates rows as `runs_as` has created this one and holds it, or has finished it, and
/// no other process has held it since: a row that its creator runs is born with token 1, and each
/// takeover raises the token.
pub(crate) fn is_held_by_its_creator(row: &KeySummary, runs_as: Option<uuid::Uuid>) -> bool {
    runs_as == Some(row.request_id) && row.lease_token == 1
}

/// What to do with a key's row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It is finished and expired: create another one in its place.
    Create,
    /// No process runs it: acquire the lease.
    TakeOver,
    /// This very call created it, in a commit that got no answer: continue.
    Recover,
    /// Nothing: it has the answer.
    Answer(Answer),
}

/// What a row answers to a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Another request under this key.
    Mismatch,
    /// The stored reply.
    Replay,
    /// Its data was erased; the parameters can no longer be compared.
    Erased,
    /// A holder has the lease.
    InProgress {
        retry_after: Duration,
    },
    /// `looked_into`: after so long, by a reconcile function; or only by an operator.
    Unknown {
        looked_into: Option<Duration>,
    },
    DeadLetter,
    /// Left to a node that knows it (G14).
    NotKnownHere,
}

/// What to do with `row`. The fingerprint comes before everything else about the row (G9).
pub(crate) fn decide(row: &KeySummary, facts: &CallFacts) -> Decision {
    passed!("decision", decided(row, facts))
}

fn decided(row: &KeySummary, facts: &CallFacts) -> Decision {
    if row.is_over() {
        return Decision::Create;
    }
    let answer = match (row.status, facts.comparison) {
        (Status::Completed, _) if row.is_erased() => Answer::Erased,
        _ if mutated!(LockBeforeFingerprint) && !row.lease_left.is_zero() => {
            Answer::InProgress { retry_after: row.lease_left }
        }
        (_, Comparison::NotKnownHere) => Answer::NotKnownHere,
        (_, Comparison::Another) => Answer::Mismatch,
        (_, Comparison::Same) if row.definition != facts.definition => Answer::Mismatch,
        (Status::Completed, Comparison::Same) => Answer::Replay,
        (Status::Unknown, Comparison::Same) => {
            Answer::Unknown { looked_into: row.for_workers.then_some(row.back_off_left) }
        }
        (Status::DeadLetter, Comparison::Same) => Answer::DeadLetter,
        (Status::InProgress, Comparison::Same) if is_held_by_its_creator(row, facts.runs_as) => {
            return Decision::Recover;
        }
        (Status::InProgress, Comparison::Same) if !row.lease_left.is_zero() => {
            Answer::InProgress { retry_after: row.lease_left }
        }
        (Status::Pending | Status::InProgress | Status::FailedRetryable, Comparison::Same)
            if !facts.knows_version =>
        {
            Answer::NotKnownHere
        }
        (Status::Pending | Status::InProgress | Status::FailedRetryable, Comparison::Same) => {
            return Decision::TakeOver;
        }
    };
    Decision::Answer(passed!("answer", answer))
}

/// What to do with a row that was just taken over and stands before phase `done`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    Run,
    /// The former holder may have made a call that must not be repeated (G2).
    OpenIntent,
    /// The provider may have forgotten the key (G11).
    WindowPassed,
    /// It was tried often enough.
    GiveUp,
}

pub(crate) fn plan(
    row: &KeyRow,
    definition: &Definition,
    done: usize,
    max_attempts: u32,
    window_margin: Duration,
) -> Plan {
    passed!("plan", planned(row, definition, done, max_attempts, window_margin))
}

fn planned(
    row: &KeyRow,
    definition: &Definition,
    done: usize,
    max_attempts: u32,
    window_margin: Duration,
) -> Plan {
    if row.open_intent.is_some() {
        return Plan::OpenIntent;
    }
    if let Some(PhaseKind::Foreign(effect)) = definition.phases.get(done).map(|phase| phase.kind)
        && has_passed(effect, row.since_advance, window_margin)
    {
        return Plan::WindowPassed;
    }
    if row.attempts.saturating_sub(row.forgiven_attempts) > max_attempts {
        return Plan::GiveUp;
    }
    Plan::Run
}

/// Why a call is not repeated that was to be made when its provider may have forgotten it (G11).
pub(super) const WINDOW_PASSED: &str = "the provider's window has passed";

/// Whether the provider may have forgotten a call that was made when the last recovery point was
/// committed, which is `age` ago: it cannot have been made before (G11).
pub(crate) fn has_passed(effect: EffectClass, age: Duration, margin: Duration) -> bool {
    left_of_window(effect, age, margin).is_some_and(|left| left.is_zero())
}

/// For how long a call may still be on its way, where its provider forgets keys.
pub(crate) fn left_of_window(
    effect: EffectClass,
    age: Duration,
    margin: Duration,
) -> Option<Duration> {
    let EffectClass::Idempotent { window: Some(window) } = effect else { return None };
    Some(window.saturating_sub(margin.min(window / 10)).saturating_sub(age))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::definition::{Isolation, Phase};
    use crate::store::{ERASED, EVERY_STATUS};
    use chrono::DateTime;
    use uuid::Uuid;

    const HOUR: Duration = Duration::from_secs(3600);
    const WINDOW: Duration = Duration::from_secs(24 * 3600);
    const DEFINITION: Definition = Definition {
        name: "rides.create",
        version: 3,
        phases: &[
            Phase {
                name: "local",
                was: &[],
                kind: PhaseKind::Local(Isolation::ReadCommitted),
                commit: false,
                timeout: None,
                reconciles: false,
            },
            Phase {
                name: "foreign",
                was: &[],
                kind: PhaseKind::Foreign(EffectClass::Idempotent { window: Some(WINDOW) }),
                commit: false,
                timeout: None,
                reconciles: false,
            },
        ],
    };

    pub(in crate::engine) fn row(status: Status) -> KeyRow {
        KeyRow {
            request_id: Uuid::from_u128(1),
            definition: "rides.create".into(),
            version: 3,
            fingerprint: "v1:".into(),
            status,
            recovery_point: "local".into(),
            open_intent: None,
            lease_token: 7,
            attempts: 2,
            forgiven_attempts: 0,
            reconciles: 0,
            resolution: None,
            phases: "local foreign=i".into(),
            reason: None,
            waiting_since: None,
            lease_left: Duration::ZERO,
            back_off_left: Duration::ZERO,
            for_workers: true,
            since_advance: Duration::ZERO,
            created_at: DateTime::UNIX_EPOCH,
            expires_at: DateTime::UNIX_EPOCH,
            expired: false,
            trace: None,
            work: None,
            response: None,
        }
    }

    fn key_summary(status: Status) -> KeySummary {
        KeySummary {
            request_id: Uuid::from_u128(1),
            definition: "rides.create".into(),
            version: 3,
            fingerprint: "v1:".into(),
            status,
            lease_token: 7,
            lease_left: Duration::ZERO,
            back_off_left: Duration::ZERO,
            for_workers: true,
            expires_at: DateTime::UNIX_EPOCH,
            expired: false,
            trace: None,
            response: None,
        }
    }

    fn facts(comparison: Comparison) -> CallFacts {
        CallFacts {
            definition: DEFINITION.name,
            knows_version: true,
            runs_as: Some(Uuid::from_u128(2)),
            comparison,
        }
    }

    #[test]
    fn every_status_has_its_decision() {
        for lease_left in [Duration::ZERO, HOUR] {
            for status in EVERY_STATUS {
                let row = KeySummary { lease_left, back_off_left: HOUR, ..key_summary(status) };
                let expected = match status {
                    Status::Pending | Status::FailedRetryable => Decision::TakeOver,
                    Status::InProgress if lease_left.is_zero() => Decision::TakeOver,
                    Status::InProgress => {
                        Decision::Answer(Answer::InProgress { retry_after: HOUR })
                    }
                    Status::Completed => Decision::Answer(Answer::Replay),
                    Status::Unknown => {
                        Decision::Answer(Answer::Unknown { looked_into: Some(HOUR) })
                    }
                    Status::DeadLetter => Decision::Answer(Answer::DeadLetter),
                };
                assert_eq!(decide(&row, &facts(Comparison::Same)), expected, "{status:?}");
            }
        }
    }

    #[test]
    fn an_unknown_outcome_that_only_an_operator_looks_into_is_told_as_that() {
        let row = KeySummary { for_workers: false, ..key_summary(Status::Unknown) };
        let decision = decide(&row, &facts(Comparison::Same));
        assert_eq!(decision, Decision::Answer(Answer::Unknown { looked_into: None }));
    }

    #[test]
    fn g9_a_mismatch_is_told_in_every_state_of_the_row_and_before_anything_else() {
        for status in EVERY_STATUS {
            for (lease_left, version) in [(Duration::ZERO, 3), (HOUR, 3), (HOUR, 4)] {
                let row = KeySummary { lease_left, version, ..key_summary(status) };
                let mismatch = Decision::Answer(Answer::Mismatch);
                assert_eq!(decide(&row, &facts(Comparison::Another)), mismatch, "{status:?}");
                let row = KeySummary { definition: "rides.cancel".into(), ..row };
                assert_eq!(decide(&row, &facts(Comparison::Same)), mismatch, "{status:?}");
            }
        }
    }

    #[test]
    fn g14_what_this_process_does_not_know_is_left_alone() {
        let left_alone = Decision::Answer(Answer::NotKnownHere);
        for status in EVERY_STATUS {
            assert_eq!(decide(&key_summary(status), &facts(Comparison::NotKnownHere)), left_alone);
        }
        for status in [Status::Pending, Status::InProgress, Status::FailedRetryable] {
            let row = KeySummary { version: 4, ..key_summary(status) };
            let elsewhere = CallFacts { knows_version: false, ..facts(Comparison::Same) };
            assert_eq!(decide(&row, &elsewhere), left_alone);
            // Another version that this process can run is taken over as what it is.
            assert_eq!(decide(&row, &facts(Comparison::Same)), Decision::TakeOver);
        }
        let finished = KeySummary { version: 4, ..key_summary(Status::Completed) };
        let elsewhere = CallFacts { knows_version: false, ..facts(Comparison::Same) };
        assert_eq!(decide(&finished, &elsewhere), Decision::Answer(Answer::Replay));
    }

    #[test]
    fn g15_an_erased_row_is_a_tombstone_until_it_expires() {
        for comparison in [Comparison::Same, Comparison::Another, Comparison::NotKnownHere] {
            let erased =
                KeySummary { fingerprint: ERASED.into(), ..key_summary(Status::Completed) };
            let answer = decide(&erased, &facts(comparison));
            assert_eq!(answer, Decision::Answer(Answer::Erased));
            let expired = KeySummary { expired: true, ..erased };
            assert_eq!(decide(&expired, &facts(comparison)), Decision::Create);
        }
    }

    #[test]
    fn g15_only_a_finished_row_expires() {
        for status in EVERY_STATUS {
            let row = KeySummary { expired: true, ..key_summary(status) };
            let replaced = decide(&row, &facts(Comparison::Same)) == Decision::Create;
            assert_eq!(replaced, status == Status::Completed, "{status:?}");
        }
    }

    #[test]
    fn g7_a_row_that_this_call_created_is_recovered_even_while_its_lease_lives() {
        let created = KeySummary {
            lease_left: HOUR,
            request_id: Uuid::from_u128(2),
            lease_token: 1,
            ..key_summary(Status::InProgress)
        };
        assert_eq!(decide(&created, &facts(Comparison::Same)), Decision::Recover);
        let held = Decision::Answer(Answer::InProgress { retry_after: HOUR });
        // A row that was accepted is born with token 0: token 1 is the completer's.
        let accepting = CallFacts { runs_as: None, ..facts(Comparison::Same) };
        assert_eq!(decide(&created, &accepting), held);
        let taken_over = KeySummary { lease_token: 2, ..created };
        assert_eq!(decide(&taken_over, &facts(Comparison::Same)), held);
    }

    #[test]
    fn g2_an_open_intent_is_never_run_again() {
        let row = KeyRow { open_intent: Some("foreign".into()), ..row(Status::InProgress) };
        assert_eq!(plan(&row, &DEFINITION, 1, 20, HOUR), Plan::OpenIntent);
        // It is not given up either, nor reported as another outcome: the outcome of the call must be found first.
        let row = KeyRow { attempts: 21, since_advance: WINDOW, ..row };
        assert_eq!(plan(&row, &DEFINITION, 1, 20, HOUR), Plan::OpenIntent);
    }

    #[test]
    fn g11_a_call_is_not_repeated_past_the_window_less_its_margin() {
        let aged = |hours: u32| KeyRow { since_advance: HOUR * hours, ..row(Status::InProgress) };
        assert_eq!(plan(&aged(22), &DEFINITION, 1, 20, HOUR), Plan::Run);
        assert_eq!(plan(&aged(23), &DEFINITION, 1, 20, HOUR), Plan::WindowPassed);
        assert_eq!(
            plan(&aged(23), &DEFINITION, 0, 20, HOUR),
            Plan::Run,
            "a local phase has no window"
        );
    }

    #[test]
    fn g17_the_attempt_cap_ends_in_a_dead_letter() {
        let tried = |attempts| KeyRow { attempts, ..row(Status::InProgress) };
        assert_eq!(plan(&tried(20), &DEFINITION, 1, 20, HOUR), Plan::Run);
        assert_eq!(plan(&tried(21), &DEFINITION, 1, 20, HOUR), Plan::GiveUp);
        // A call that the provider may have forgotten is not given up.
        let aged = KeyRow { since_advance: WINDOW, ..tried(21) };
        assert_eq!(plan(&aged, &DEFINITION, 1, 20, HOUR), Plan::WindowPassed);
        let forgiven = KeyRow { forgiven_attempts: 1, ..tried(21) };
        assert_eq!(plan(&forgiven, &DEFINITION, 1, 20, HOUR), Plan::Run);
    }
}
