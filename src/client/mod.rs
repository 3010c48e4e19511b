//! The client side: when a client retries, how long it waits, when it stops.
//!
//! A server that stores idempotency keys is half of the promise. The other half is a client that
//! creates the key **once per logical call**, sends the same bytes under it until there is an answer,
//! and knows which answers a retry can change. Here that is a pure function, [`decide`], with
//! neither HTTP nor clock nor random numbers in it, and [`KeyedCall`], which holds the key and
//! counts the attempts. The cargo feature `reqwest` adds `Caller`, which sends requests.
//!
//! | an attempt ends with | then |
//! |---|---|
//! | 2xx, 402, or any status that the server has stored under the key | done |
//! | 202 with `Retry-After`, not yet stored: accepted, running in the background | retry |
//! | 409 in progress, 409 `outcome_unknown`, 408, 425, 429, 5xx, no answer | retry |
//! | 2xx or 402 with an HTML page that is not stored: from a proxy or a portal, not from the API | retry |
//! | 3xx, 409 `dead_letter`, 409 `record_deleted`, 410 `response_not_retained`, 400, 401, 403, 404, 413, 422, any other 4xx, 501, 505 | give up |
//!
//! An answer is *stored* if it carries the replay marker or `Idempotency-Expires`. If the status does not
//! decide, the server's advice does: `Stripe-Should-Retry`, or else `retryable` of a problem
//! document. Nothing is retried against it: it may mean that a retry is another request, as after a call without a
//! key. A 202 is then done, and the rest is given up. The wait is the server's `Retry-After`, or else a jittered
//! exponential back-off; no wait ends past the deadline.
//!
//! ```
//! use std::time::Duration;
//! use atomic_phases::client::{Answer, Decision, End, KeyedCall, RetryPolicy};
//!
//! let policy = RetryPolicy::new(Duration::from_secs(30));
//! let mut call = KeyedCall::new(policy); // creates the key, once
//! let elapsed = Duration::from_secs(1); // since the first attempt began
//!
//! // First attempt, with `call.key()` in the header: another one is still running.
//! let headers = [("retry-after", "3")];
//! let header = |name: &str| headers.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
//! let end = End::Answered(Answer::read(409, header, b""));
//! assert_eq!(call.decide(end, elapsed, 0), Decision::RetryAfter(Duration::from_secs(3)));
//!
//! // Second attempt, the same key: the stored answer.
//! let header = |name: &str| (name == "idempotent-replayed").then_some("true");
//! let end = End::Answered(Answer::read(201, header, b"{}"));
//! assert_eq!(call.decide(end, elapsed, 0), Decision::Done { replayed: true });
//! ```

mod answer;
mod call;
mod decide;
mod http_date;
mod policy;
#[cfg(feature = "reqwest")]
mod send;

pub use answer::{Answer, ErrorCode, REPLAY_MARKER};
pub use call::{KeyForm, KeyedCall};
pub use decide::{Attempt, Decision, End, Reason, Transport, decide};
pub use policy::{Repeat, RetryPolicy};
#[cfg(feature = "reqwest")]
pub use send::{Answered, Caller, GaveUp, Last, Response, SendError, Tried};
#[cfg(feature = "reqwest")]
pub(crate) use send::{lacks_tls, one_exchange};
