//! The contract of each error, written by hand from its table: one line, both profiles.

use std::time::Duration;

use atomic_phases::client::{self, Decision, End, KeyedCall, RetryPolicy};
use atomic_phases::http::Profile;

use super::client::Seen;

/// Code, status (IETF, Stripe), title (IETF), type (Stripe), retryable, and whether it has a Retry-After.
type Error = (&'static str, [u16; 2], &'static str, &'static str, bool, bool);

const IDEMPOTENCY: &str = "idempotency_error";
const REQUEST: &str = "invalid_request_error";
const API: &str = "api_error";

const ERRORS: [Error; 23] = [
    ("no_such_request", [404, 404], "There is no such request", REQUEST, false, false),
    ("rate_exceeded", [429, 429], "Too many new requests", REQUEST, true, true),
    ("too_many_keys", [429, 429], "Too many keys are stored", REQUEST, true, true),
    (
        "idempotency_key_missing",
        [400, 400],
        "Idempotency-Key is missing",
        IDEMPOTENCY,
        false,
        false,
    ),
    (
        "idempotency_key_malformed",
        [400, 400],
        "Idempotency-Key is malformed",
        IDEMPOTENCY,
        false,
        false,
    ),
    (
        "idempotency_key_too_long",
        [400, 400],
        "Idempotency-Key is too long",
        IDEMPOTENCY,
        false,
        false,
    ),
    (
        "idempotency_key_repeated",
        [400, 400],
        "Idempotency-Key is sent more than once",
        IDEMPOTENCY,
        false,
        false,
    ),
    (
        "idempotency_key_reused",
        [422, 400],
        "Idempotency-Key is already used",
        IDEMPOTENCY,
        false,
        false,
    ),
    (
        "idempotency_key_in_use",
        [409, 409],
        "A request is outstanding for this Idempotency-Key",
        IDEMPOTENCY,
        true,
        true,
    ),
    (
        "outcome_unknown",
        [409, 409],
        "The outcome of the request is unknown",
        IDEMPOTENCY,
        true,
        true,
    ),
    (
        "record_deleted",
        [409, 409],
        "The record of the request was deleted",
        IDEMPOTENCY,
        false,
        false,
    ),
    ("dead_letter", [409, 409], "The request was given up", IDEMPOTENCY, false, false),
    (
        "response_not_retained",
        [410, 410],
        "The response was not retained",
        IDEMPOTENCY,
        false,
        false,
    ),
    ("unauthenticated", [401, 401], "The caller is not known", REQUEST, false, false),
    ("method_not_allowed", [405, 405], "The method takes no key", REQUEST, false, false),
    ("body_too_large", [413, 413], "The request is too large", REQUEST, false, false),
    ("body_not_read", [408, 408], "The body did not arrive", REQUEST, true, false),
    (
        "unsupported_media_type",
        [415, 415],
        "The body's type or encoding is not supported",
        REQUEST,
        false,
        false,
    ),
    ("parameters_malformed", [400, 400], "The body cannot be read", REQUEST, false, false),
    ("parameters_invalid", [422, 400], "The parameters are not valid", REQUEST, false, false),
    ("internal_error", [500, 500], "The request failed", API, true, true),
    ("not_continued_here", [503, 503], "This server cannot continue the request", API, true, true),
    ("temporarily_unavailable", [503, 503], "Not available now", API, true, true),
];

/// Asserts that the answer is this error, in every part, in this profile.
#[track_caller]
pub fn is_error(seen: &Seen, profile: Profile, code: &str) {
    let (_, statuses, title, kind, retryable, says_when) =
        *ERRORS.iter().find(|error| error.0 == code).unwrap();
    let body = seen.json();
    match profile {
        Profile::Ietf => {
            assert_eq!(body["code"], code, "{seen:?}");
            assert_eq!(seen.status, statuses[0]);
            assert_eq!(seen.header("content-type"), Some("application/problem+json"));
            assert_eq!(body["status"], statuses[0]);
            assert_eq!(body["title"], title);
            assert_eq!(body["retryable"], retryable);
            assert!(body["detail"].as_str().is_some_and(|detail| !detail.is_empty()));
            let uri = format!("/idempotency#{code}");
            assert_eq!(body["type"], uri.as_str());
            let link = format!("<{uri}>; rel=\"describedby\"");
            assert_eq!(seen.header("link"), Some(link.as_str()));
            assert_eq!(seen.header("stripe-should-retry"), None);
        }
        _ => {
            assert_eq!(body["error"]["code"], code, "{seen:?}");
            assert_eq!(seen.status, statuses[1]);
            assert_eq!(seen.header("content-type"), Some("application/json"));
            assert_eq!(body["error"]["type"], kind);
            let message = body["error"]["message"].as_str().unwrap();
            assert!(message.starts_with(title), "{message}");
            let retry = if retryable { "true" } else { "false" };
            assert_eq!(seen.header("stripe-should-retry"), Some(retry));
            assert_eq!(seen.header("link"), None);
        }
    }
    let retry_after = seen.header("retry-after").map(|seconds| seconds.parse::<u64>().unwrap());
    assert_eq!(retry_after.is_some(), says_when, "{seen:?}");
    assert!(retry_after.is_none_or(|seconds| (1..=60).contains(&seconds)), "{retry_after:?}");
    for name in ["idempotent-replayed", "idempotency-expires", "idempotency-key"] {
        assert_eq!(seen.header(name), None, "{name}");
    }
    let heard = as_the_client_reads_it(seen);
    assert_eq!((heard.should_retry, heard.stored), (Some(retryable), false));
    assert_eq!(heard.retry_after.map(|after| after.as_secs()), retry_after);
    // The client obeys the answer.
    let decision = decided(seen);
    let is_repeated = matches!(decision, Decision::RetryAfter(_));
    assert_eq!(is_repeated, retryable, "{decision:?} {seen:?}");
}

/// By this crate's own client half.
fn as_the_client_reads_it(seen: &Seen) -> client::Answer {
    client::Answer::read(seen.status, |name| seen.all(name).first().copied(), &seen.body)
}

/// What it decides after the first attempt.
pub fn decided(seen: &Seen) -> Decision {
    let end = End::Answered(as_the_client_reads_it(seen));
    KeyedCall::new(RetryPolicy::new(Duration::from_secs(1000))).decide(end, Duration::ZERO, 0)
}

/// Asserts that the answer is a phase's reply for this key, as the first answer or as a replay.
#[track_caller]
pub fn is_reply(seen: &Seen, profile: Profile, key: &str, status: u16, replayed: bool) {
    assert_eq!(seen.status, status, "{} {}", seen.status, String::from_utf8_lossy(&seen.body));
    let echo = match profile {
        Profile::Ietf => format!("\"{key}\""),
        _ => key.to_owned(),
    };
    assert_eq!(seen.header("idempotency-key"), Some(echo.as_str()));
    assert_eq!(seen.replayed(), replayed, "{seen:?}");
    assert_eq!(seen.header("idempotent-replayed").is_some(), replayed);
    let expires = httpdate::parse_http_date(seen.header("idempotency-expires").unwrap()).unwrap();
    let left = expires.duration_since(std::time::SystemTime::now()).unwrap();
    assert!((23 * 3600..=24 * 3600 + 60).contains(&left.as_secs()), "{left:?}");
    let heard = as_the_client_reads_it(seen);
    assert_eq!((heard.replayed, heard.stored), (replayed, true));
    let final_error = (profile == Profile::Stripe && status >= 400).then_some("false");
    assert_eq!(seen.header("stripe-should-retry"), final_error);
}

/// Asserts that the answer contains nothing of the text.
#[track_caller]
pub fn does_not_reflect(seen: &Seen, text: &str) {
    let all = format!("{:?} {}", seen.lines, String::from_utf8_lossy(&seen.body));
    assert!(!all.contains(text), "{all}");
}
