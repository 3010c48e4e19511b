//! [`Answer`]: the facts about a response that the decision needs.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::http_date;

/// The header that marks a replay, unless the server uses another name.
pub const REPLAY_MARKER: &str = "idempotent-replayed";

/// The facts about a response that the decision needs, without any of the server's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The marker says that an earlier attempt produced this answer.
    pub replayed: bool,
    /// The answer is stored under the key (`Idempotency-Expires`, or the marker): a retry would
    /// get it again.
    pub stored: bool,
    /// `Retry-After`. A date is measured against the response's own `Date`, so that the clocks of
    /// server and client need not agree; without a `Date`, a date is ignored. Zero if it has passed.
    pub retry_after: Option<Duration>,
    /// The server's advice: `Stripe-Should-Retry`, or else `retryable` of a problem document.
    pub should_retry: Option<bool>,
    /// The codes that say more than the status.
    pub code: Option<ErrorCode>,
    /// An HTML page that is not stored under the key: the answer of a proxy, a portal or a login page in between,
    /// with any status.
    pub page: bool,
}

/// The error codes that change a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorCode {
    /// `outcome_unknown`: the outcome of the request is being determined.
    OutcomeUnknown,
    /// `record_deleted`: the server's record of the request was deleted while it ran; a retry is another request.
    RecordDeleted,
    /// `dead_letter`: the server gave up; only an operator can retry or settle the request.
    DeadLetter,
    /// `response_not_retained`: the request is done, its answer was too large to be kept.
    ResponseNotRetained,
}

impl Answer {
    /// Reads a response. `header` looks a value up by its lower-case name; if several lines have the name, join them
    /// with commas. `body` may be anything, even truncated or empty.
    #[must_use]
    pub fn read<'a>(status: u16, header: impl Fn(&str) -> Option<&'a str>, body: &[u8]) -> Self {
        Self::read_marked(status, header, body, REPLAY_MARKER)
    }

    /// As [`read`](Self::read), for a server with another marker; in lower case.
    #[must_use]
    pub fn read_marked<'a>(
        status: u16,
        header: impl Fn(&str) -> Option<&'a str>,
        body: &[u8],
        marker: &str,
    ) -> Self {
        let header = |name: &str| header(name).map(str::trim);
        let replayed = header(marker).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let stored = replayed || header("idempotency-expires").is_some();
        let media_type = media_type(header("content-type").unwrap_or(""));
        let error = match status {
            400.. => ErrorBody::read(&media_type, body),
            _ => ErrorBody::default(),
        };
        Self {
            status,
            replayed,
            stored,
            page: !stored && matches!(&*media_type, "text/html" | "application/xhtml+xml"),
            retry_after: header("retry-after").and_then(|v| retry_after(v, header("date"))),
            should_retry: match header("stripe-should-retry") {
                Some("true") => Some(true),
                Some("false") => Some(false),
                _ => error.retryable,
            },
            code: error.code,
        }
    }
}

/// `Retry-After`: an HTTP date, or seconds. A value that is neither, and is still sent, is read as it must be
/// meant: a fraction of a second, and of several lines (a proxy has added its own) the longest.
fn retry_after(value: &str, date: Option<&str>) -> Option<Duration> {
    let parts: Vec<&str> = value.split(',').map(str::trim).collect();
    let mut waits = Vec::new();
    let mut rest = &parts[..];
    while let [part, behind @ ..] = rest {
        // A date has a comma itself, behind its day; the older form of RFC 850, too.
        let dated = behind.first().map(|next| format!("{part}, {next}"));
        rest = match (seconds(part), dated.and_then(|text| http_date::parse(&text))) {
            (Some(wait), _) => {
                waits.push(wait);
                behind
            }
            (None, Some(until)) => {
                waits.push(until_then(until, date)?);
                &behind[1..]
            }
            (None, None) => {
                waits.push(until_then(http_date::parse(part)?, date)?);
                behind
            }
        };
    }
    waits.into_iter().max()
}

/// From when the answer was made.
fn until_then(until: DateTime<Utc>, date: Option<&str>) -> Option<Duration> {
    let wait = until.signed_duration_since(http_date::parse(date?)?);
    Some(wait.to_std().unwrap_or_default())
}

fn seconds(number: &str) -> Option<Duration> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    // More digits than fit are as good as for ever; a fraction is rounded up to a millisecond.
    let whole = Duration::from_secs(whole.parse().unwrap_or(u64::MAX));
    let fraction = format!("0.{fraction}").parse::<f64>().unwrap_or_default();
    Some(whole.saturating_add(Duration::from_millis((fraction * 1000.0).ceil() as u64)))
}

fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or("").trim().to_ascii_lowercase()
}

/// What the two dialects' error bodies have to say.
#[derive(Default)]
struct ErrorBody {
    retryable: Option<bool>,
    code: Option<ErrorCode>,
}

impl ErrorBody {
    fn read(media_type: &str, body: &[u8]) -> Self {
        let is_problem = media_type == "application/problem+json";
        if !is_problem && media_type != "application/json" {
            return Self::default();
        }
        let Ok(body) = serde_json::from_slice::<Value>(body) else {
            return Self::default();
        };
        // A problem document has its members at the top, Stripe's envelope under `error`.
        let members = if is_problem { &body } else { &body["error"] };
        Self {
            retryable: members["retryable"].as_bool().filter(|_| is_problem),
            code: match members["code"].as_str() {
                Some("outcome_unknown") => Some(ErrorCode::OutcomeUnknown),
                Some("record_deleted") => Some(ErrorCode::RecordDeleted),
                Some("dead_letter") => Some(ErrorCode::DeadLetter),
                Some("response_not_retained") => Some(ErrorCode::ResponseNotRetained),
                _ => None,
            },
        }
    }
}
