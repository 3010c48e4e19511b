//! [`decide`]: done, retry, or give up. Pure: no clock, no random source, no HTTP library.

use std::time::Duration;

use super::answer::{Answer, ErrorCode};
use super::policy::{Repeat, RetryPolicy, fraction};

/// A finished attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Which one it was, from 1.
    pub number: u32,
    /// How it ended.
    pub end: End,
    /// How long ago the first attempt began, by a clock that does not jump.
    pub elapsed: Duration,
    /// A random number, uniform over `u32`: it selects the wait within its bounds.
    pub random: u32,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With a complete response.
    Answered(Answer),
    /// Without one.
    Unanswered(Transport),
}

/// Why there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// The server cannot have read any byte of the request: no address, no connection, no TLS session.
    NotSent,
    /// The request, or a part of it, was or may have been sent.
    Unknown,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// There is a final answer; success or failure, a retry would not change it.
    Done {
        /// An earlier attempt produced the answer.
        replayed: bool,
    },
    /// Send the same request under the same key, after this wait.
    RetryAfter(Duration),
    /// Stop.
    GiveUp(Reason),
}

/// Why to stop without a final answer. A reason does not mean that
/// nothing happened: an earlier attempt may have had its effect, and a later call with the same key can find out,
/// except after [`RecordDeleted`](Self::RecordDeleted).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The answer is a redirect (3xx). Following it would turn the request into
    /// another one, or reveal its content and key to another server.
    #[error("the server redirects: send the request to the address of the API")]
    Redirected,
    /// There is a final answer, but its body exceeds the caller's limit.
    #[error(
        "the request is answered, but the answer is larger than this client reads: raise its `response_limit`"
    )]
    ResponseTooLarge,
    /// The server does not accept the request as it is (400, 401, 403, 404, 413, 422 and the like).
    #[error("the server refuses the request as it is: its answer says why")]
    Refused,
    /// The server says that no retry will help.
    #[error("the server's answer says that a repetition does not help, and why")]
    NotRetryable,
    /// The server's record of the request was deleted while it ran. Part of the request may be done, and a later call
    /// with the same key is another request: it does not find out, and may repeat effects.
    #[error(
        "part of the request may be done, and its record was deleted: a repetition is another request, so find \
         out first what is done"
    )]
    RecordDeleted,
    /// The server has given the request up; only its operator can retry or settle it.
    #[error("the server has given the request up: ask its operator")]
    DeadLetter,
    /// The request *is* done; its answer was too large to be kept.
    #[error(
        "the request is done, but the server did not keep its answer: ask the API for what was made"
    )]
    ResponseNotRetained,
    /// The attempt may have had an effect, and the policy repeats only attempts that certainly had none.
    #[error(
        "the attempt may have had its effect, and the policy does not repeat it: ask the API what was done"
    )]
    MayHaveHadEffect,
    /// All attempts of the policy are used up.
    #[error("the last attempt that was allowed failed; send the request later with the same key")]
    Attempts,
    /// Even the shortest wait before the next attempt would end past the deadline.
    #[error(
        "no further attempt fits before the deadline; send the request later with the same key"
    )]
    Deadline,
}

/// What to do after `attempt`. See the [module](super) for the rules.
#[must_use]
pub fn decide(policy: &RetryPolicy, attempt: &Attempt) -> Decision {
    let server_wait = match verdict(attempt.end) {
        Verdict::Done { replayed } => return Decision::Done { replayed },
        Verdict::Never(reason) => return Decision::GiveUp(reason),
        Verdict::Again { after } => after,
    };
    if policy.repeat == Repeat::WithoutEffect && !certainly_without_effect(attempt.end) {
        return Decision::GiveUp(Reason::MayHaveHadEffect);
    }
    if attempt.number >= policy.attempts {
        return Decision::GiveUp(Reason::Attempts);
    }
    match wait(policy, attempt, server_wait) {
        Some(wait) => Decision::RetryAfter(wait),
        None => Decision::GiveUp(Reason::Deadline),
    }
}

/// The wait before the next attempt; `None` if even the least one would not end before the deadline.
fn wait(
    policy: &RetryPolicy,
    attempt: &Attempt,
    server_wait: Option<Duration>,
) -> Option<Duration> {
    let (least, jitter) = match server_wait {
        // Never sooner than the server asked for; up to a tenth later, because it may have told many
        // clients the same second.
        Some(after) if !after.is_zero() => (after, after / 10),
        // A loop needs a pause: zero would spin.
        _ => {
            let least = policy.backoff_after(attempt.number, 0);
            (least, policy.backoff_after(attempt.number, u32::MAX) - least)
        }
    };
    let left = policy.deadline.checked_sub(attempt.elapsed)?.checked_sub(least)?;
    // At most half of what is left is jitter: the rest is for the attempt.
    (!left.is_zero()).then(|| least + fraction(jitter.min(left / 2), attempt.random))
}

/// What the end of one attempt says, whatever the policy.
enum Verdict {
    Done { replayed: bool },
    Again { after: Option<Duration> },
    Never(Reason),
}

fn verdict(end: End) -> Verdict {
    let answer = match end {
        End::Unanswered(_) => return Verdict::Again { after: None },
        End::Answered(answer) => answer,
    };
    let done = Verdict::Done { replayed: answer.replayed };
    let again = Verdict::Again { after: answer.retry_after };
    match (answer.status, answer.code, answer.should_retry) {
        // Kept under the key, so that each repetition gets it again: a replayed 404, or a 500 that
        // was declared final, is an answer like any other.
        _ if answer.stored => done,
        // Accepted, running in the background; the reply itself comes later, under the same key.
        (202, _, None | Some(true)) if answer.retry_after.is_some() => again,
        // The advice is the API's, so the page is, too: without a key, no answer is stored.
        (..300 | 402, _, Some(false)) if answer.page => Verdict::Never(Reason::NotRetryable),
        // Whatever its status, it does not come from the API.
        (..300 | 402, ..) if answer.page => again,
        (300..400, ..) => Verdict::Never(Reason::Redirected),
        (..300 | 402, ..) => done,
        (409, Some(ErrorCode::DeadLetter), _) => Verdict::Never(Reason::DeadLetter),
        // Even if a hop in between has removed the advice: nothing is left that would stop a repetition.
        (409, Some(ErrorCode::RecordDeleted), _) => Verdict::Never(Reason::RecordDeleted),
        (410, Some(ErrorCode::ResponseNotRetained), _) => {
            Verdict::Never(Reason::ResponseNotRetained)
        }
        // An unknown outcome, too: without a key, asking for it is another request.
        (408 | 409 | 425 | 429 | 500.., _, Some(false)) => Verdict::Never(Reason::NotRetryable),
        (408 | 409 | 425 | 429, ..) => again,
        (501 | 505, _, None) => Verdict::Never(Reason::Refused),
        (500.., ..) => again,
        // Whatever the response claims, repeating these cannot help.
        _ => Verdict::Never(Reason::Refused),
    }
}

fn certainly_without_effect(end: End) -> bool {
    match end {
        End::Unanswered(transport) => transport == Transport::NotSent,
        End::Answered(answer) => {
            matches!(answer.status, 409 | 425 | 429)
                && answer.code != Some(ErrorCode::OutcomeUnknown)
        }
    }
}
