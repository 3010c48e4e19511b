//! [`Why`]: why a request waits, and what ends the wait. One pure function of everything that is stored.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::config::Settings;
use crate::definition::{Definition, Phase, PhaseKind, STARTED};
use crate::engine::{PAUSED, StrandedBecause, left_of_window, said};
use crate::store::pauses::PausedPhase;
use crate::store::{KeyRow, Status};

/// Why a request waits, in one sentence, and what ends the wait.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Why {
    /// For a program.
    pub held_by: HeldBy,
    /// Who or what ends the wait.
    pub ended_by: EndedBy,
    /// When the wait ends, if that is known, by the database's clock.
    pub until: Option<DateTime<Utc>>,
    /// Until when the next call may be made: after that time, its provider may have forgotten an earlier one (G11). It
    /// goes by the phase's `window`, less the margin. `None` if there is no such call.
    pub window_ends: Option<DateTime<Utc>>,
    /// The sentence for an operator. Contains no key, scope or value.
    pub sentence: String,
}

/// Why a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeldBy {
    /// Nothing: it is finished, and its key replays.
    Finished,
    /// Nothing: it is finished, and its data was erased.
    Erased,
    /// Nothing: it is finished and past its retention.
    Expired,
    /// A holder that has its lease.
    Lease,
    /// Its holder stopped renewing the lease, which has ended.
    EndedLease,
    /// It was accepted, and no worker has begun it.
    Accepted,
    /// A back-off after a transient failure.
    BackOff,
    /// Its next phase is paused by an operator.
    Paused,
    /// It can be resumed, but no retry or worker has done so yet.
    Due,
    /// A call whose outcome is unknown; its reconcile function will be called.
    UnknownAsked,
    /// A call whose outcome is unknown, of a phase that has no reconcile function.
    UnknownUnasked,
    /// It gave up.
    DeadLetter,
    /// It gave up, and the outcome of a call is unknown.
    DeadLetterUnknown,
    /// This build cannot continue it.
    Stranded(StrandedBecause),
}

impl HeldBy {
    /// Its name, for example `back_off`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Erased => "erased",
            Self::Expired => "expired",
            Self::Lease => "lease",
            Self::EndedLease => "ended_lease",
            Self::Accepted => "accepted",
            Self::BackOff => "back_off",
            Self::Paused => "paused",
            Self::Due => "due",
            Self::UnknownAsked => "unknown_asked",
            Self::UnknownUnasked => "unknown_unasked",
            Self::DeadLetter => "dead_letter",
            Self::DeadLetterUnknown => "dead_letter_unknown",
            Self::Stranded(_) => "stranded",
        }
    }
}

/// Who or what ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndedBy {
    /// The reaper, once its retention has passed.
    Retention,
    /// Its holder, or the end of its lease.
    Holder,
    /// The client's next retry, or a worker.
    Worker,
    /// The reconciler, or an operator's resolution.
    Reconciler,
    /// Only an operator.
    Operator,
    /// A build that can continue it.
    Deploy,
}

impl EndedBy {
    /// Its name, for example `operator`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retention => "retention",
            Self::Holder => "holder",
            Self::Worker => "worker",
            Self::Reconciler => "reconciler",
            Self::Operator => "operator",
            Self::Deploy => "deploy",
        }
    }
}

/// The next phase behind a recovery point, if its provider forgets calls, and for how long its call may be made from the
/// commit of that recovery point on (G11).
pub(super) fn next_window<'d>(
    definition: &'d Definition,
    recovery_point: &str,
    margin: Duration,
) -> Option<(&'d Phase, Duration)> {
    let done = definition.phases.iter().position(|phase| phase.is_called(recovery_point));
    let next = match done {
        Some(done) => done + 1,
        None if recovery_point == STARTED => 0,
        None => return None,
    };
    let next = definition.phases.get(next)?;
    let PhaseKind::Foreign(effect) = next.kind else { return None };
    Some((next, left_of_window(effect, Duration::ZERO, margin)?))
}

/// What is known of a request.
pub(super) struct Facts<'a> {
    pub(super) now: DateTime<Utc>,
    pub(super) row: &'a KeyRow,
    /// Where it is registered here.
    pub(super) definition: Option<&'a Definition>,
    /// Of an unfinished row.
    pub(super) stranded: Option<StrandedBecause>,
    /// The pause of its next phase, if it met one that lasts.
    pub(super) pause: Option<&'a PausedPhase>,
    /// Its next phase, if that is idempotent and an attempt may have made its call.
    pub(super) perhaps_called: Option<&'a str>,
    pub(super) settings: &'a Settings,
}

impl Facts<'_> {
    fn after(&self, left: Duration) -> DateTime<Utc> {
        self.now + left
    }

    /// A time as a person reads it.
    fn at(&self, time: DateTime<Utc>) -> String {
        let said = time.format("%Y-%m-%d %H:%M:%S UTC");
        match (time - self.now).to_std() {
            Ok(left) => format!("{said} (in {})", coarse(left)),
            Err(_) => {
                let past = (self.now - time).to_std().unwrap_or_default();
                format!("{said} ({} ago)", coarse(past))
            }
        }
    }

    fn because(&self) -> String {
        self.row.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"))
    }

    fn call(&self) -> String {
        match &self.row.open_intent {
            Some(phase) => format!("the call of `{phase}`"),
            None => "a call".to_owned(),
        }
    }

    /// The number of the last attempt, and how many count towards the cap: one that met a pause, or that a client made
    /// before the back-off was over, does not.
    fn attempt(&self) -> String {
        let KeyRow { attempts, forgiven_attempts, .. } = self.row;
        let counted = attempts.saturating_sub(*forgiven_attempts);
        match self.definition {
            Some(_) => {
                format!("attempt {attempts}, counted {counted} of {}", self.settings.max_attempts)
            }
            // What another build allows is not known.
            None => format!("attempt {attempts}, counted {counted}"),
        }
    }

    /// The word that let the request go on, and behind which no attempt has counted: the reason is that of what was
    /// before.
    fn word(&self) -> Option<&str> {
        let counted = self.row.attempts > self.row.forgiven_attempts;
        said(self.row.resolution.as_deref()).filter(|_| !counted)
    }

    /// The next phase, and until when its call may be made, if its provider forgets calls (G11).
    fn window(&self) -> Option<(&'static str, DateTime<Utc>)> {
        let row = self.row;
        let is_unknown = match row.status {
            Status::Completed => return None,
            Status::Unknown => true,
            Status::InProgress => row.waiting_since.is_some(),
            Status::Pending | Status::FailedRetryable | Status::DeadLetter => false,
        };
        // A call that was not made begins a window of its own.
        if is_unknown || self.perhaps_called.is_none() || self.stranded.is_some() {
            return None;
        }
        let margin = self.settings.window_margin;
        let (phase, whole) = next_window(self.definition?, &row.recovery_point, margin)?;
        let whole = TimeDelta::from_std(whole).ok()?;
        Some((phase.name, (self.now - row.since_advance).checked_add_signed(whole)?))
    }

    /// Whether a worker is to ask for the outcome of its call. Where this build has no function that does, it is
    /// [stranded](Self::stranded).
    fn is_asked(&self) -> bool {
        self.row.for_workers && self.row.open_intent.is_some()
    }
}

/// In two units at most.
fn coarse(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// What holds the request, and what ends that.
struct Held {
    held_by: HeldBy,
    ended_by: EndedBy,
    until: Option<DateTime<Utc>>,
    sentence: String,
}

/// What holds the request, what ends that, and until when its next call may be made, if there is an end to it.
pub(super) fn why(facts: &Facts<'_>) -> Why {
    let Held { held_by, ended_by, until, mut sentence } = held(facts);
    if let Some(phase) = facts.perhaps_called {
        sentence.push_str(&match held_by {
            HeldBy::Lease => format!(" `{phase}` may have been called, and its call may be under way."),
            _ => format!(
                " `{phase}` may have been called: look it up at the provider before you finish or erase the request."
            ),
        });
    }
    let window = facts.window();
    if let Some((phase, ends)) = window {
        let ends_at = facts.at(ends);
        sentence.push_str(&match ends > facts.now {
            true => format!(
                " The call of `{phase}` may be made until {ends_at}; later its outcome is unknown, because the \
                 provider may have forgotten an earlier one."
            ),
            false => format!(
                " The provider may have forgotten an earlier call of `{phase}` since {ends_at}: the next attempt \
                 makes its outcome unknown."
            ),
        });
    }
    Why { held_by, ended_by, until, window_ends: window.map(|(_, ends)| ends), sentence }
}

fn held(facts: &Facts<'_>) -> Held {
    let row = facts.row;
    match row.status {
        Status::Completed => over(facts),
        Status::DeadLetter => gave_up(facts),
        Status::InProgress if !row.lease_left.is_zero() => match row.waiting_since {
            Some(_) => looked_into(facts),
            None => runs(facts),
        },
        _ if facts.stranded.is_some() => stranded(facts),
        Status::Unknown => unknown(facts),
        Status::InProgress => match row.waiting_since {
            Some(_) => looked_into(facts),
            None => lease_ended(facts),
        },
        Status::FailedRetryable => match facts.pause {
            Some(pause) => paused(facts, pause),
            None => released(facts),
        },
        Status::Pending => Held {
            held_by: HeldBy::Accepted,
            ended_by: EndedBy::Worker,
            until: Some(facts.after(row.back_off_left)),
            sentence: format!(
                "It was accepted at {} and waits for a completer to run it.",
                facts.at(row.created_at)
            ),
        },
    }
}

fn over(facts: &Facts<'_>) -> Held {
    let row = facts.row;
    let expiry = facts.at(row.expires_at);
    let (held_by, sentence) = if row.expired {
        let text = format!(
            "It is finished, and its retention has passed since {expiry}: the key is free, and a reaper \
             deletes the row."
        );
        (HeldBy::Expired, text)
    } else if row.is_erased() {
        let text = format!(
            "Its data was erased; the row keeps the key from running again until {expiry}."
        );
        (HeldBy::Erased, text)
    } else {
        (HeldBy::Finished, format!("It is finished, and its reply is replayed until {expiry}."))
    };
    Held { held_by, ended_by: EndedBy::Retention, until: Some(row.expires_at), sentence }
}

fn gave_up(facts: &Facts<'_>) -> Held {
    let since = facts
        .row
        .waiting_since
        .map_or_else(String::new, |since| format!(" since {}", facts.at(since)));
    let here = facts.stranded.map_or_else(String::new, |because| {
        format!(" This build would not go on with it after that: {because}.")
    });
    let because = facts.because();
    let (held_by, what) = match facts.row.open_intent {
        Some(_) => {
            let what = format!(
                "whether {} was executed is unknown: an operator says executed or not executed, or \
                 finishes or erases it",
                facts.call()
            );
            (HeldBy::DeadLetterUnknown, what)
        }
        None => (HeldBy::DeadLetter, "an operator retries, finishes or erases it".to_owned()),
    };
    let sentence = format!("It is a dead letter{since}{because}; {what}.{here}");
    Held { held_by, ended_by: EndedBy::Operator, until: None, sentence }
}

fn runs(facts: &Facts<'_>) -> Held {
    let until = facts.after(facts.row.lease_left);
    let call = match facts.row.open_intent {
        Some(_) => format!(", and {} may be under way", facts.call()),
        None => String::new(),
    };
    let sentence = format!(
        "A holder runs it ({}){call}; its lease ends at {}, and is extended while the holder lives.",
        facts.attempt(),
        facts.at(until)
    );
    Held { held_by: HeldBy::Lease, ended_by: EndedBy::Holder, until: Some(until), sentence }
}

fn stranded(facts: &Facts<'_>) -> Held {
    let because = facts.stranded.unwrap_or(StrandedBecause::NewerForm);
    let what = match facts.row.status {
        Status::Unknown => {
            format!("Whether {} was executed is unknown, and this build", facts.call())
        }
        _ => "This build".to_owned(),
    };
    let sentence = format!(
        "{what} does not go on with it: {because}; a build that knows it does, or an operator finishes it."
    );
    let held_by = HeldBy::Stranded(because);
    Held { held_by, ended_by: EndedBy::Deploy, until: None, sentence }
}

fn unknown(facts: &Facts<'_>) -> Held {
    let row = facts.row;
    let most = match facts.definition {
        Some(_) => format!(" of {}", facts.settings.max_reconciles),
        None => String::new(),
    };
    let next = facts.after(row.back_off_left);
    let (call, because) = (facts.call(), facts.because());
    if facts.is_asked() {
        let sentence = format!(
            "Whether {call} was executed is unknown{because}; its reconcile function is asked at {} (asked \
             {}{most} times so far), or an operator reports it.",
            facts.at(next),
            row.reconciles
        );
        let (held_by, ended_by) = (HeldBy::UnknownAsked, EndedBy::Reconciler);
        return Held { held_by, ended_by, until: Some(next), sentence };
    }
    let sentence = format!(
        "Whether {call} was executed is unknown{because}, and its phase has no reconcile function: an \
         operator says executed or not executed, or finishes it."
    );
    Held { held_by: HeldBy::UnknownUnasked, ended_by: EndedBy::Operator, until: None, sentence }
}

/// While a worker asks about it, or after that worker died.
fn looked_into(facts: &Facts<'_>) -> Held {
    let KeyRow { lease_left, back_off_left, .. } = facts.row;
    let (left, then) = match lease_left.is_zero() {
        true => {
            let when = match back_off_left.is_zero() {
                true => String::new(),
                false => format!(" after {}", facts.at(facts.after(*back_off_left))),
            };
            let crashed = "the worker that looked into it crashed or is cut off, and another makes it unknown again";
            (*back_off_left, format!("{crashed}{when}"))
        }
        false => {
            let ends = facts.at(facts.after(*lease_left));
            (*lease_left, format!("it is being looked into, under a lease that ends at {ends}"))
        }
    };
    let until = facts.after(left);
    let sentence =
        format!("Whether {} was executed is unknown{}; {then}.", facts.call(), facts.because());
    let (held_by, ended_by) = (HeldBy::UnknownAsked, EndedBy::Reconciler);
    Held { held_by, ended_by, until: Some(until), sentence }
}

fn lease_ended(facts: &Facts<'_>) -> Held {
    let then = match facts.row.open_intent {
        Some(_) => format!("makes it unknown, because {} may have been executed", facts.call()),
        None => "resumes it behind its last committed phase".to_owned(),
    };
    let sentence = format!(
        "Its holder crashed or is cut off ({}): the lease has ended, and the next retry or a completer {then}.",
        facts.attempt()
    );
    let until = Some(facts.after(facts.row.back_off_left));
    Held { held_by: HeldBy::EndedLease, ended_by: EndedBy::Worker, until, sentence }
}

fn paused(facts: &Facts<'_>, pause: &PausedPhase) -> Held {
    let PausedPhase { phase, paused_by, reason, .. } = pause;
    let ends = match pause.ends_at {
        Some(ends) => format!("until {}", facts.at(ends)),
        None => "until an operator ends it".to_owned(),
    };
    let sentence = format!(
        "The phase `{phase}` is paused {ends}, by {paused_by} since {}: {reason}; no engine begins it.",
        facts.at(pause.paused_at)
    );
    Held { held_by: HeldBy::Paused, ended_by: EndedBy::Operator, until: pause.ends_at, sentence }
}

fn released(facts: &Facts<'_>) -> Held {
    let what = match facts.word() {
        // The pause is over, or is not the one that it met.
        _ if facts.row.reason.as_deref() == Some(PAUSED) => {
            "Its phase was paused when it was last tried".to_owned()
        }
        Some(word) => format!("It was settled (`{word}`)"),
        None => format!("Its last attempt failed ({}){}", facts.attempt(), facts.because()),
    };
    if facts.row.back_off_left.is_zero() {
        let sentence =
            format!("{what}; the back-off is over, and the next retry or a completer resumes it.");
        let until = Some(facts.now);
        return Held { held_by: HeldBy::Due, ended_by: EndedBy::Worker, until, sentence };
    }
    let until = facts.after(facts.row.back_off_left);
    let sentence = format!(
        "{what}; a completer resumes it after {}, the client's next retry immediately.",
        facts.at(until)
    );
    Held { held_by: HeldBy::BackOff, ended_by: EndedBy::Worker, until: Some(until), sentence }
}
