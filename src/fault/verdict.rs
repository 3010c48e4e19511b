//! How a case is judged: after each attempt, at its end, and beside the clean run. The user's checks are run here; what the
//! engine's row says is read by the runner.

use std::fmt::Debug;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::rc::Rc;

use futures_util::FutureExt;

use super::case::Stop;
use super::plan::Read;
use super::points::{Point, listed};
use crate::definition::Definition;
use crate::engine::{CallError, Outcome};
use crate::error::Causes;
use crate::phase::Reply;
use crate::store::{KeyRow, Status};

/// What must not happen.
pub(super) type Wrong = String;

/// Said if a holder loses the key although its lease is alive.
pub(super) const TAKEN: &str = "G10: a request was taken from a worker whose lease was alive";

const OF_THE_LOST_ROW: &str = "its row was lost with an acknowledged commit, and the retry is unknown: the provider \
    was asked under the same key with other parameters, most likely with what is made of the row that is lost: \
    ctx.uuid, ctx.created_at, ctx.request_id. Send ctx.key_uuid, and what the request's parameters say";

const OF_LOST_COMMITS: &str = "acknowledged commits were lost, and the request is unknown: the provider was asked under \
    the same key with other parameters, most likely with an output of a phase whose commit was lost and which came to \
    another when it ran again. Send ctx.key_uuid, and what the request's parameters say";

const UNSETTLED: &str = "whether the call was executed stays unknown, and every case was to be settled: the \
    reconcile function did not find out, or there is none";

/// A user's check. It holds unless it panics.
type Assertion<W> = Box<dyn for<'w> Fn(&'w W) -> Pin<Box<dyn Future<Output = ()> + 'w>>>;

/// A check, with the name to tell it by.
type Check<W> = (&'static str, Assertion<W>);

/// Reads the user's effects.
type Effects<W> = Box<dyn for<'w> Fn(&'w W) -> Pin<Box<dyn Future<Output = String> + 'w>>>;

/// What the user expects of each case.
pub(super) struct Expectations<W> {
    always: Vec<Check<W>>,
    finally: Vec<Check<W>>,
    effects: Option<Effects<W>>,
    pub(super) same_reply: bool,
    pub(super) settles: bool,
}

impl<W: 'static> Expectations<W> {
    pub(super) fn new() -> Self {
        let (always, finally) = (Vec::new(), Vec::new());
        Self { always, finally, effects: None, same_reply: true, settles: false }
    }

    pub(super) fn always(&mut self, name: &'static str, check: impl AsyncFn(&W) + 'static) {
        self.always.push(named(name, check));
    }

    pub(super) fn finally(&mut self, name: &'static str, check: impl AsyncFn(&W) + 'static) {
        self.finally.push(named(name, check));
    }

    pub(super) fn effects<T: Debug>(&mut self, effects: impl AsyncFn(&W) -> T + 'static) {
        let effects = Rc::new(effects);
        self.effects = Some(Box::new(move |world| {
            let effects = effects.clone();
            Box::pin(async move { format!("{:?}", effects(world).await) })
        }));
    }
}

fn named<W: 'static>(name: &'static str, check: impl AsyncFn(&W) + 'static) -> Check<W> {
    let check = Rc::new(check);
    let boxed: Assertion<W> = Box::new(move |world| {
        let check = check.clone();
        Box::pin(async move { check(world).await })
    });
    (name, boxed)
}

impl<W> Expectations<W> {
    /// Checks what holds after every attempt.
    pub(super) async fn check_attempt(&self, world: &W) -> Result<(), Wrong> {
        hold(&self.always, world).await
    }

    /// Checks what holds at the end of every case.
    pub(super) async fn check_end(&self, world: &W) -> Result<(), Wrong> {
        hold(&self.finally, world).await
    }

    pub(super) async fn read_effects(&self, world: &W) -> Option<String> {
        match &self.effects {
            Some(effects) => Some(effects(world).await),
            None => None,
        }
    }

    /// Compares a case with the clean run.
    pub(super) fn compare(&self, end: CaseEnd, clean: &CaseEnd) -> Result<CaseEnd, Wrong> {
        let (Some(reply), Some(expected)) = (&end.reply, &clean.reply) else { return Ok(end) };
        if self.same_reply && end.is_of_the_first && reply != expected {
            return Err(format!(
                "the reply is {}, and in a clean run {} (if it may differ: replies_may_differ())",
                text_of(reply),
                text_of(expected)
            ));
        }
        match (&end.effects, &clean.effects) {
            (Some(effects), Some(expected)) if effects != expected => {
                Err(format!("the effects are {effects}, and in a clean run {expected}"))
            }
            _ => Ok(end),
        }
    }

    /// Whether a case may end as unknown: one that lost commits must settle, and each where the user requires it.
    pub(super) fn may_stay_unknown(&self, end: CaseEnd) -> Result<CaseEnd, Wrong> {
        let wrong = match end.lost {
            Some(Lost::Row) => OF_THE_LOST_ROW,
            Some(Lost::LaterCommits) => OF_LOST_COMMITS,
            None if self.settles => UNSETTLED,
            None => return Ok(end),
        };
        Err(match end.reason.filter(|_| end.lost.is_some()) {
            Some(reason) => format!("{wrong}. Its reason: {reason}"),
            None => wrong.to_owned(),
        })
    }
}

async fn hold<W>(checks: &[Check<W>], world: &W) -> Result<(), Wrong> {
    for (name, check) in checks {
        if let Err(panic) = AssertUnwindSafe(check(world)).catch_unwind().await {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
            return Err(format!("{name}: {text}"));
        }
    }
    Ok(())
}

/// How a case ended.
pub(super) struct CaseEnd {
    /// Of a request that was completed.
    pub(super) reply: Option<Reply>,
    pub(super) effects: Option<String>,
    /// What each attempt passed.
    pub(super) passed: Vec<Vec<Point>>,
    /// What each attempt has read.
    pub(super) reads: Vec<Vec<Read>>,
    /// Where two workers may take another turn.
    pub(super) stops: Vec<Stop>,
    /// Whether the row is the first worker's. What derives from its id, as the reply may, can be compared with another
    /// case's.
    pub(super) is_of_the_first: bool,
    /// What a failover has lost.
    pub(super) lost: Option<Lost>,
    /// Why it is not settled.
    pub(super) reason: Option<String>,
}

/// What a failover has lost of the commits that were acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// All of the request's: its row does not exist.
    Row,
    /// The last ones. The row is back at an earlier recovery point.
    LaterCommits,
}

/// What the clean run passed, in its one attempt: what is declared, and at least one point. With an acceptance, what the
/// acceptance passed; the workers then run the request in an attempt of their own.
pub(super) fn points_of_the_clean_run<'c>(
    clean: &'c CaseEnd,
    accepts: bool,
    definition: &Definition,
) -> Result<&'c [Point], Wrong> {
    let passed = match clean.passed.as_slice() {
        [accepted, _] if accepts => return Ok(accepted),
        [passed] => passed,
        attempts => {
            return Err(format!(
                "the request took {} attempts with nothing going wrong: what it is \
                 compared with has to finish in one",
                attempts.len()
            ));
        }
    };
    if passed.is_empty() {
        return Err("the clean run passed no point: there is nothing to crash at".to_owned());
    }
    // One that finishes early passes the first of them.
    let declared = definition.points();
    let mut rest = declared.iter();
    let mut engines = passed.iter().filter(|point| !point.is_own());
    if !engines.all(|point| rest.any(|next| next == point)) {
        return Err(format!(
            "the clean run passed {}, and what is declared is {}",
            listed(passed),
            listed(&declared)
        ));
    }
    Ok(passed)
}

/// How one attempt ended.
#[derive(Debug)]
pub(super) enum Ended {
    Outcome(Outcome),
    Error(CallError),
    Crashed,
    /// By a worker, whose report is not what counts: the row does.
    ByWorker,
}

/// What the attempts of a case came to so far.
#[derive(Default)]
pub(super) struct Observed {
    /// What clients received.
    replies: Vec<Reply>,
    /// Runs that answered as the one that finished the request.
    pub(super) finishers: u32,
    was_unknown: bool,
    last: Option<Ended>,
    /// What the database said to a phase of the last attempt.
    pub(super) said: Option<String>,
}

impl Observed {
    /// Notes how an attempt ended.
    pub(super) fn note(&mut self, ended: Ended) -> Result<(), Wrong> {
        match &ended {
            Ended::Outcome(Outcome::Finished(finished)) => {
                self.finishers += u32::from(!finished.replayed);
                self.replies.push(finished.reply.clone());
                if self.finishers > 1 {
                    return Err("G10: two runs finished the request".to_owned());
                }
            }
            Ended::Outcome(Outcome::Mismatch) => {
                return Err("G9: the same request was taken for another".to_owned());
            }
            Ended::Outcome(_) | Ended::Crashed | Ended::ByWorker => {}
            Ended::Error(CallError::Unavailable(_) | CallError::TaskLost) => {}
            Ended::Error(error) => return Err(format!("the engine refused the request: {error}")),
        }
        self.last = Some(ended);
        Ok(())
    }

    /// How the last attempt ended, for the developer who looks for the cause.
    pub(super) fn last(&self) -> String {
        let ended = match &self.last {
            None => "there was no attempt".to_owned(),
            Some(Ended::Outcome(Outcome::Finished(_))) => "the last attempt finished".to_owned(),
            Some(Ended::Outcome(outcome)) => format!("the last attempt ended with {outcome:?}"),
            Some(Ended::Error(error)) => {
                format!("the last attempt ended with an error: {}", Causes(error))
            }
            Some(Ended::Crashed) => "the last attempt crashed".to_owned(),
            Some(Ended::ByWorker) => "a background worker drove it last".to_owned(),
        };
        match &self.said {
            Some(said) => format!("{ended}; the database said: {said}"),
            None => ended,
        }
    }

    /// Whether the row is at its end.
    pub(super) fn is_settled(&mut self, row: Option<&KeyRow>) -> Result<bool, Wrong> {
        let status = row.map(|row| row.status);
        self.was_unknown |= status == Some(Status::Unknown);
        // A reply that was sent before it was durable: the request would be driven on for ever.
        if status != Some(Status::Completed) && !self.replies.is_empty() {
            return Err(format!("G8: a client received a reply, and the row is {status:?}"));
        }
        match status {
            Some(Status::Completed) => Ok(true),
            // Without a reconcile function, an operator settles it. That is a correct end.
            Some(Status::Unknown) => Ok(row.is_some_and(|row| !row.for_workers)),
            // The cap was reached before the outcome was found: so is this.
            Some(Status::DeadLetter) if self.was_unknown => Ok(true),
            Some(Status::DeadLetter) => {
                Err(format!("the request became a dead letter; {}", self.last()))
            }
            _ => Ok(false),
        }
    }

    /// The stored reply of a completed request: a replay, equal to each answer before (G8).
    pub(super) fn replay(&self, answered: Result<Outcome, CallError>) -> Result<Reply, Wrong> {
        let replay = match answered {
            Ok(Outcome::Finished(finished)) if finished.replayed => finished.reply,
            other => return Err(format!("G8: a finished request was not replayed: {other:?}")),
        };
        match self.replies.iter().find(|reply| **reply != replay) {
            None => Ok(replay),
            Some(received) => Err(format!(
                "G8: a client received {}, and the stored reply is {}",
                text_of(received),
                text_of(&replay)
            )),
        }
    }
}

/// Another request under the key is refused, whatever the row says (G9).
pub(super) fn refused(answered: Result<Outcome, CallError>) -> Result<(), Wrong> {
    match answered {
        Ok(Outcome::Mismatch) => Ok(()),
        other => Err(format!("G9: another request under the key was not refused: {other:?}")),
    }
}

/// A reply as a reader wants it.
fn text_of(reply: &Reply) -> String {
    format!("{} `{}`", reply.status(), String::from_utf8_lossy(reply.bytes()))
}
