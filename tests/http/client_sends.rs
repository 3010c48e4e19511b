//! The client half over real sockets: a server that follows a script, and the requests that it received.

use std::time::{Duration, Instant};

use crate::support::script::{DROP, Server, Step};
use atomic_phases::IdempotencyKey;
use atomic_phases::client::*;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::net::TcpListener;

const BUSY: Step = Step::Say(
    "HTTP/1.1 409 Conflict\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
     content-length: 18\r\nconnection: close\r\n\r\n{\"retryable\":true}",
);
const DOWN: Step = Step::Say(
    "HTTP/1.1 503 Service Unavailable\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
     retry-after: Sun, 06 Nov 1994 08:49:38 GMT\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
);
const CREATED: Step =
    Step::Say("HTTP/1.1 201 Created\r\ncontent-length: 4\r\nconnection: close\r\n\r\nride");
const REPLAY: Step = Step::Say(
    "HTTP/1.1 201 Created\r\nidempotent-replayed: true\r\ncontent-length: 4\r\n\
     connection: close\r\n\r\nride",
);
const CUT_OFF: Step = Step::Say("HTTP/1.1 201 Created\r\ncontent-length: 4\r\n\r\nri");
const GARBAGE: Step = Step::Say("\u{1}\u{2} certainly no HTTP \r\n\r\n");
const DECLINED: Step =
    Step::Say("HTTP/1.1 402 Payment Required\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
const INVALID: Step = Step::Say(
    "HTTP/1.1 422 No\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
);

async fn rides(script: &'static [Step]) -> Server {
    Server::follow("/rides", script).await
}

const BODY: &str = "{\"origin\": 1.0,  \"target\":\"\\u00e9\"}";

fn policy() -> RetryPolicy {
    let (first, longest) = (Duration::from_millis(1), Duration::from_millis(5));
    RetryPolicy::new(Duration::from_secs(30)).backoff(first, longest)
}

fn caller() -> Caller {
    // Its builder would follow redirects.
    Caller::new(reqwest::Client::builder().no_proxy()).unwrap()
}

fn post(url: &str) -> reqwest::Request {
    reqwest::Client::new().post(url).body(BODY).build().unwrap()
}

async fn send(server: &Server, call: KeyedCall) -> Result<Answered, SendError> {
    caller().send(call, post(&server.url)).await
}

fn gave_up(result: Result<Answered, SendError>) -> GaveUp {
    match result {
        Err(SendError::GaveUp(gave_up)) => *gave_up,
        other => panic!("not given up: {other:?}"),
    }
}

#[tokio::test]
async fn one_key_and_the_same_bytes_in_each_attempt_until_the_answer() {
    let server = rides(&[DROP, GARBAGE, DOWN, CUT_OFF, BUSY, REPLAY, CREATED]).await;
    let call = KeyedCall::new(policy());
    let key = call.key().clone();
    let mut tried = Vec::new();
    let began = Instant::now();
    let answered = caller().send_watched(call, post(&server.url), |t| tried.push(t)).await.unwrap();
    assert_eq!((answered.attempts, answered.replayed), (6, true));
    assert_eq!(answered.response.body, b"ride");
    // 503 and 409 each asked for one second, one of them as a date of 1994.
    assert!(began.elapsed() >= Duration::from_secs(2));
    let seen = server.seen();
    assert_eq!(seen.len(), 6);
    for request in &seen {
        assert_eq!(request, &seen[0]);
        assert!(request.ends_with(BODY));
        assert!(request.contains(&format!("\r\nidempotency-key: {}\r\n", key.as_str())));
    }
    let unanswered: Vec<u32> = tried
        .iter()
        .filter(|tried| tried.end == End::Unanswered(Transport::Unknown))
        .map(|tried| tried.number)
        .collect();
    assert_eq!(unanswered, [1, 2, 4]);
    assert_eq!(tried[5].next, Decision::Done { replayed: true });
}

#[tokio::test]
async fn a_first_answer_is_no_replay_and_a_decline_is_an_answer() {
    let server = rides(&[CREATED]).await;
    let answered = send(&server, KeyedCall::new(policy())).await.unwrap();
    assert_eq!((answered.attempts, answered.replayed), (1, false));
    let server = rides(&[DROP, DECLINED]).await;
    let answered = send(&server, KeyedCall::new(policy())).await.unwrap();
    assert_eq!((answered.attempts, answered.response.status.as_u16()), (2, 402));
}

const TWO_HOPS: Step = Step::Say(
    "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nretry-after: 86400\r\n\
     content-length: 0\r\nconnection: close\r\n\r\n",
);
const LOGIN: Step = Step::Say(
    "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\nconnection: close\r\n\r\n<html>",
);
const MOVED: Step = Step::Say(
    "HTTP/1.1 307 Temporary Redirect\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\
     connection: close\r\n\r\n",
);
const NEVER_ENDS: Step = Step::Flood("HTTP/1.1 201 Created\r\n\r\n");
const DOWN_AT_LENGTH: Step = Step::Flood("HTTP/1.1 503 Service Unavailable\r\n\r\n");

#[tokio::test]
async fn a_body_is_read_up_to_a_limit() {
    let limited = caller().response_limit(10_000).unwrap();
    let server = rides(&[NEVER_ENDS, CREATED]).await;
    let end = gave_up(limited.send(KeyedCall::new(policy()), post(&server.url)).await);
    assert_eq!((end.reason, end.attempts), (Reason::ResponseTooLarge, 1));
    let Last::Response(response) = end.last else { panic!("the status is known") };
    assert_eq!((response.status.as_u16(), response.body.len()), (201, 0));
    // The client retries a retryable answer, whatever its body is.
    let server = rides(&[DOWN_AT_LENGTH, CREATED]).await;
    let answered = limited.send(KeyedCall::new(policy()), post(&server.url)).await.unwrap();
    assert_eq!((answered.attempts, &*answered.response.body), (2, &b"ride"[..]));
}

#[tokio::test]
async fn of_several_lines_of_retry_after_the_longest_counts() {
    let server = rides(&[TWO_HOPS, CREATED]).await;
    let end = gave_up(send(&server, KeyedCall::new(policy())).await);
    assert_eq!((end.reason, end.attempts), (Reason::Deadline, 1));
}

#[tokio::test]
async fn a_page_is_tried_again_and_a_redirect_is_given_up() {
    let server = rides(&[LOGIN, LOGIN, CREATED]).await;
    let answered = send(&server, KeyedCall::new(policy())).await.unwrap();
    assert_eq!((answered.attempts, answered.response.status.as_u16()), (3, 201));
    let server = rides(&[MOVED, CREATED]).await;
    let end = gave_up(send(&server, KeyedCall::new(policy())).await);
    assert_eq!((end.reason, end.attempts, server.seen().len()), (Reason::Redirected, 1, 1));
}

const MOVED_FOR_EVER: Step = Step::Say(
    "HTTP/1.1 301 Moved Permanently\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\
     connection: close\r\n\r\n",
);
const LIST: Step = Step::Say(
    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\
     connection: close\r\n\r\n[]",
);

/// A `reqwest` that follows it sends a `GET`, by which nothing is booked.
#[tokio::test]
async fn the_answer_behind_a_redirect_is_not_that_of_the_call() {
    let server = rides(&[MOVED_FOR_EVER, LIST]).await;
    let end = gave_up(send(&server, KeyedCall::new(policy())).await);
    assert_eq!((end.reason, end.attempts, server.seen().len()), (Reason::Redirected, 1, 1));
}

/// As an API answers that has done its work. No process listens at port 1.
const SEE_OTHER: Step = Step::Say(
    "HTTP/1.1 303 See Other\r\nlocation: http://127.0.0.1:1/rides/1\r\ncontent-length: 0\r\n\
     connection: close\r\n\r\n",
);

/// It is the redirected `GET` that would find no connection. The request itself was read, and answered.
#[tokio::test]
async fn g2_a_connection_refused_behind_a_redirect_does_not_say_that_nothing_was_sent() {
    let server = rides(&[SEE_OTHER, CREATED]).await;
    let call = KeyedCall::new(policy().repeat(Repeat::WithoutEffect));
    let end = gave_up(send(&server, call).await);
    assert_eq!((end.reason, end.attempts, server.seen().len()), (Reason::Redirected, 1, 1));
    assert!(matches!(end.last, Last::Response(response) if response.status.as_u16() == 303));
}

/// The provider honors no key: what `reqwest` repeats by itself would be a second effect.
#[tokio::test]
async fn g2_an_attempt_is_one_request_even_if_the_http_client_is_to_repeat_it() {
    let server = rides(&[DOWN, CREATED]).await;
    let repeats = reqwest::retry::for_host("127.0.0.1").no_budget();
    let repeats = repeats.classify_fn(|ended| match ended.status() {
        Some(status) if status.is_server_error() => ended.retryable(),
        _ => ended.success(),
    });
    let http = reqwest::Client::builder().no_proxy().retry(repeats);
    let call = KeyedCall::new(policy().repeat(Repeat::WithoutEffect));
    let end = gave_up(Caller::new(http).unwrap().send(call, post(&server.url)).await);
    assert_eq!((end.reason, end.attempts), (Reason::MayHaveHadEffect, 1));
    assert_eq!(server.seen().len(), 1);
}

/// As an application's that forgot the feature, the `reqwest` of these tests has no TLS.
#[tokio::test]
async fn a_url_of_https_is_refused_immediately_where_tls_is_not_built_in() {
    let call = KeyedCall::new(policy());
    let error = caller().send(call, post("https://127.0.0.1:1/rides")).await.unwrap_err();
    assert!(matches!(error, SendError::Invalid(_)), "{error:?}");
}

#[tokio::test]
async fn a_refusal_is_sent_once() {
    let server = rides(&[INVALID, CREATED]).await;
    let end = gave_up(send(&server, KeyedCall::new(policy())).await);
    assert_eq!((end.reason, end.attempts), (Reason::Refused, 1));
    assert!(matches!(end.last, Last::Response(response) if response.status.as_u16() == 422));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn the_deadline_ends_waits_and_attempts() {
    // The client does not begin a wait that would pass the deadline.
    let server = rides(&[TWO_HOPS]).await;
    let short = RetryPolicy::new(Duration::from_secs(30));
    let began = Instant::now();
    let end = gave_up(send(&server, KeyedCall::new(short)).await);
    assert_eq!((end.reason, end.attempts), (Reason::Deadline, 1));
    assert!(began.elapsed() < Duration::from_secs(30));
    // An attempt that hangs is cut off there. On a slow machine, it may not have been sent by then.
    for _ in 0..20 {
        let server = rides(&[Step::Hang]).await;
        let short = RetryPolicy::new(Duration::from_millis(300));
        let end = gave_up(send(&server, KeyedCall::new(short)).await);
        assert_eq!(end.reason, Reason::Deadline);
        assert!(began.elapsed() < Duration::from_secs(120), "it was not cut off");
        if matches!(end.last, Last::Unanswered(Transport::Unknown)) {
            assert_eq!(end.attempts, 1);
            return;
        }
    }
    panic!("no attempt was sent");
}

#[tokio::test]
async fn an_attempt_that_hangs_is_cut_off_and_tried_again() {
    // On a slow machine, the next attempts may be cut off, too.
    const SCRIPT: &[Step] = &[Step::Hang, REPLAY, REPLAY, REPLAY, REPLAY, REPLAY];
    let server = rides(SCRIPT).await;
    let call = KeyedCall::new(policy().attempt_timeout(Duration::from_secs(1)));
    let answered = send(&server, call).await.unwrap();
    assert!(answered.attempts >= 2 && answered.replayed, "{} attempts", answered.attempts);
    // The request's own time-out counts where it is shorter.
    let server = rides(SCRIPT).await;
    let mut request = post(&server.url);
    *request.timeout_mut() = Some(Duration::from_secs(1));
    let answered = caller().send(KeyedCall::new(policy()), request).await.unwrap();
    assert!(answered.attempts >= 2 && answered.replayed, "{} attempts", answered.attempts);
}

#[tokio::test]
async fn a_refused_connection_is_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let call = KeyedCall::new(policy().attempts(3).repeat(Repeat::WithoutEffect));
    let end = gave_up(caller().send(call, post(&url)).await);
    assert_eq!((end.reason, end.attempts), (Reason::Attempts, 3));
    assert!(matches!(end.last, Last::Unanswered(Transport::NotSent)));
}

#[tokio::test]
async fn a_dropped_connection_may_have_had_its_effect() {
    let server = rides(&[DROP, CREATED]).await;
    let call = KeyedCall::new(policy().repeat(Repeat::WithoutEffect));
    let end = gave_up(send(&server, call).await);
    assert_eq!((end.reason, end.attempts), (Reason::MayHaveHadEffect, 1));
    assert!(matches!(end.last, Last::Unanswered(Transport::Unknown)));
}

#[tokio::test]
async fn the_strict_form_and_another_marker() {
    let server = rides(&[REPLAY]).await;
    let call = KeyedCall::with_key(IdempotencyKey::new(r#"a"b"#).unwrap(), policy());
    // The name in the answer may be in any letter case.
    let marker = HeaderName::from_bytes(b"X-Replay").unwrap();
    let caller = caller().key_form(KeyForm::Quoted).marker(marker);
    let answered = caller.send(call, post(&server.url)).await.unwrap();
    assert!(!answered.replayed);
    assert!(server.seen()[0].contains("idempotency-key: \"a\\\"b\"\r\n"));
}

/// A server would read its bare form as the key between the quotes.
#[tokio::test]
async fn a_key_that_begins_with_a_quote_is_sent_in_quoted_form_only() {
    let server = rides(&[CREATED]).await;
    let key = IdempotencyKey::new(r#""canary""#).unwrap();
    match send(&server, KeyedCall::with_key(key.clone(), policy())).await {
        Err(SendError::Policy(error)) => {
            let text = error.to_string();
            assert!(text.starts_with("KeyForm is \"Bare\", but it must be Quoted"), "{text}");
            assert!(!text.contains("canary"), "G19: {text}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(server.seen().len(), 0);
    let quoted = caller().key_form(KeyForm::Quoted);
    quoted.send(KeyedCall::with_key(key, policy()), post(&server.url)).await.unwrap();
    assert!(server.seen()[0].contains("idempotency-key: \"\\\"canary\\\"\"\r\n"));
}

#[tokio::test]
async fn what_cannot_be_sent_says_so_without_its_content() {
    for url in ["ftp://canary.example/canary", "http://canary@[::1]:1/canary"] {
        let call =
            KeyedCall::with_key(IdempotencyKey::new("canary-key").unwrap(), policy().attempts(1));
        let error = caller().send(call, post(url)).await.unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("canary"), "G19: {shown}");
    }
    // What the client adds to each request is a credential, as a rule.
    let mut lines = HeaderMap::new();
    lines.insert("x-api-key", HeaderValue::from_static("canary-secret"));
    let http = reqwest::Client::builder().no_proxy().default_headers(lines);
    let caller_with = Caller::new(http).unwrap();
    assert!(format!("{:?}", caller_with.http()).contains("canary"), "reqwest shows it");
    assert!(!format!("{caller_with:?}").contains("canary"), "G19: {caller_with:?}");
    // A stream could not be sent a second time, so the client refuses to send it.
    let server = rides(&[CREATED]).await;
    let mut request = post(&server.url);
    *request.body_mut() = Some(reqwest::Body::wrap(reqwest::Body::from(BODY)));
    let error = caller().send(KeyedCall::new(policy()), request).await.unwrap_err();
    assert!(matches!(error, SendError::NotRepeatable), "{error:?}");
    assert_eq!(server.seen().len(), 0);
    let answered = send(&server, KeyedCall::new(policy())).await.unwrap();
    assert!(!format!("{answered:?}").contains("ride"), "G19: {answered:?}");
}
