//! The client half's decision, for every relevant status and header. `client_properties.rs` has the rules for all
//! of them.

use std::time::Duration;

use atomic_phases::client::*;
use atomic_phases::http::{Policy, Profile};
use atomic_phases::{IdempotencyKey, Outcome};

const DEADLINE: Duration = Duration::from_secs(100);

fn policy() -> RetryPolicy {
    RetryPolicy::new(DEADLINE).backoff(secs(1), secs(8))
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Answer {
    let header = |name: &str| headers.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
    Answer::read(status, header, body.as_bytes())
}

/// The first attempt, one second after its beginning, with the least jitter.
fn first(policy: &RetryPolicy, end: End) -> Decision {
    decide(policy, &Attempt { number: 1, end, elapsed: secs(1), random: 0 })
}

fn decided(status: u16, headers: &[(&str, &str)], body: &str) -> Decision {
    first(&policy(), End::Answered(answer(status, headers, body)))
}

const DONE: Decision = Decision::Done { replayed: false };
const REPLAYED: Decision = Decision::Done { replayed: true };
const BACKOFF: Decision = Decision::RetryAfter(Duration::from_millis(500));
const REFUSED: Decision = Decision::GiveUp(Reason::Refused);

#[test]
fn each_status_by_itself() {
    for status in [200, 201, 202, 204, 206, 402] {
        assert_eq!(decided(status, &[], ""), DONE, "{status}");
    }
    for status in [300, 301, 302, 303, 304, 307, 308] {
        let redirected = Decision::GiveUp(Reason::Redirected);
        assert_eq!(decided(status, &[], ""), redirected, "{status}");
    }
    for status in [408, 409, 425, 429, 500, 502, 503, 504, 507, 520, 599] {
        assert_eq!(decided(status, &[], ""), BACKOFF, "{status}");
    }
    for status in [400, 401, 403, 404, 405, 406, 410, 411, 413, 415, 422, 428, 431, 451, 501, 505] {
        assert_eq!(decided(status, &[], ""), REFUSED, "{status}");
    }
}

#[test]
fn no_answer_is_tried_again_sent_or_not() {
    for transport in [Transport::NotSent, Transport::Unknown] {
        assert_eq!(first(&policy(), End::Unanswered(transport)), BACKOFF, "{transport:?}");
    }
}

#[test]
fn what_the_server_has_stored_is_an_answer_whatever_its_status() {
    for status in [200, 201, 202, 303, 400, 402, 404, 409, 422, 500, 503] {
        for marker in ["true", " true ", "True"] {
            assert_eq!(
                decided(status, &[("idempotent-replayed", marker)], ""),
                REPLAYED,
                "{status}"
            );
        }
        let expires = [("idempotency-expires", "Sun, 06 Nov 1994 08:49:37 GMT")];
        assert_eq!(decided(status, &expires, ""), DONE, "{status}");
    }
    assert_eq!(decided(503, &[("idempotent-replayed", "false")], ""), BACKOFF);
    // Under another name, if the server uses one.
    let header = |name: &str| (name == "x-replay").then_some("true");
    let other = Answer::read_marked(201, header, b"", "x-replay");
    assert_eq!(first(&policy(), End::Answered(other)), REPLAYED);
}

#[test]
fn a_page_is_no_answer_of_the_api_unless_it_is_stored() {
    for html in ["text/html", "Text/HTML; charset=utf-8", "application/xhtml+xml"] {
        let page = ("content-type", html);
        for status in [200, 201, 204, 402] {
            assert_eq!(decided(status, &[page], "<html>"), BACKOFF, "{status} {html}");
            let stored = ("idempotency-expires", "Sun, 06 Nov 1994 08:49:37 GMT");
            assert_eq!(decided(status, &[page, stored], "<html>"), DONE, "{status} {html}");
        }
        // A client that must not repeat a call with a possible effect does not do so, whatever a proxy's page says.
        let once = policy().repeat(Repeat::WithoutEffect);
        let end = End::Answered(answer(200, &[page], "<html>"));
        assert_eq!(first(&once, end), Decision::GiveUp(Reason::MayHaveHadEffect));
        assert_eq!(decided(404, &[page], "<html>"), REFUSED);
    }
    for other in ["text/plain", "application/json", "", "text/htmlx"] {
        assert_eq!(decided(200, &[("content-type", other)], ""), DONE, "{other}");
    }
}

#[test]
fn wire_30_accepted_is_asked_again_until_it_is_stored() {
    let later = ("retry-after", "2");
    assert_eq!(decided(202, &[later], ""), Decision::RetryAfter(secs(2)));
    assert_eq!(decided(202, &[later, ("idempotent-replayed", "true")], ""), REPLAYED);
}

#[test]
fn retry_after_is_obeyed_in_each_of_its_forms() {
    let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
    for (value, with_date, wait) in [
        ("7", false, Some(secs(7))),
        (" 7 ", false, Some(secs(7))),
        ("007", false, Some(secs(7))),
        // Relative to the response's own `Date`; without one, a date in the header has no meaning.
        ("Sun, 06 Nov 1994 08:49:47 GMT", true, Some(secs(10))),
        ("Sunday, 06-Nov-94 08:49:47 GMT", true, Some(secs(10))),
        ("Sun Nov  6 08:49:47 1994", true, Some(secs(10))),
        ("Sun, 06 Nov 1994 08:49:47 GMT", false, None),
        // Zero, or a time in the past, is not a wait that a loop can use.
        ("0", false, None),
        ("Sun, 06 Nov 1994 08:49:07 GMT", true, None),
        // An invalid Retry-After is ignored.
        ("", false, None),
        ("-1", false, None),
        ("+5", false, None),
        // Not in the standard form, but unambiguous: a fraction, and values of several hops.
        ("1.5", false, Some(Duration::from_millis(1500))),
        ("0.0001", false, Some(Duration::from_millis(1))),
        ("2, 7", false, Some(secs(7))),
        ("7 ,2,3.5", false, Some(secs(7))),
        ("Sun, 06 Nov 1994 08:49:44 GMT, 7", true, Some(secs(7))),
        ("7, Sun, 06 Nov 1994 08:49:47 GMT", true, Some(secs(10))),
        ("Sun, 06 Nov 1994 08:49:39 GMT, Sunday, 06-Nov-94 08:49:47 GMT", true, Some(secs(10))),
        ("2, soon", false, None),
        ("1.", false, None),
        (".5", false, None),
        ("1.5.2", false, None),
        (",", false, None),
        ("soon", true, None),
        ("٣", false, None),
    ] {
        let later = ("retry-after", value);
        let headers = if with_date { vec![later, date] } else { vec![later] };
        for status in [409, 429, 500, 503] {
            let expected = wait.map_or(BACKOFF, Decision::RetryAfter);
            assert_eq!(decided(status, &headers, ""), expected, "{status} {value:?}");
        }
        assert_eq!(decided(422, &headers, ""), REFUSED);
    }
    for far in ["100", "99", "9999999999", "99999999999999999999999999"] {
        let decision = decided(503, &[("retry-after", far)], "");
        assert_eq!(decision, Decision::GiveUp(Reason::Deadline), "{far}");
    }
}

#[test]
fn the_jitter_of_a_retry_after_is_a_tenth_and_never_less() {
    let end = End::Answered(answer(503, &[("retry-after", "30")], ""));
    let most = Attempt { number: 1, end, elapsed: secs(1), random: u32::MAX };
    assert_eq!(decide(&policy(), &most), Decision::RetryAfter(secs(33)));
}

#[test]
fn a_wait_that_fits_before_the_deadline_is_not_given_up_for_its_jitter() {
    let policy = RetryPolicy::new(secs(30)).backoff(secs(8), secs(8));
    let asked = End::Answered(answer(429, &[("retry-after", "28")], ""));
    let unanswered = End::Unanswered(Transport::Unknown);
    // Half of the second that is left is the attempt's.
    for (end, elapsed, wait) in [(asked, 1, 28_500), (unanswered, 25, 4_500)] {
        let most = Attempt { number: 1, end, elapsed: secs(elapsed), random: u32::MAX };
        let fits = Decision::RetryAfter(Duration::from_millis(wait));
        assert_eq!(decide(&policy, &most), fits, "{end:?}");
        let later = Attempt { elapsed: secs(elapsed + 1), random: 0, ..most };
        assert_eq!(decide(&policy, &later), Decision::GiveUp(Reason::Deadline), "{end:?}");
    }
}

const PROBLEM: (&str, &str) = ("content-type", "application/problem+json");
const JSON: (&str, &str) = ("content-type", "application/json; charset=utf-8");

#[test]
fn the_servers_own_word_decides_where_the_status_leaves_it_open() {
    let stop = Decision::GiveUp(Reason::NotRetryable);
    let (yes, no) = (("stripe-should-retry", "true"), ("stripe-should-retry", "false"));
    let (retryable, hopeless) = (r#"{"retryable":true}"#, r#"{"retryable":false}"#);
    for status in [408, 409, 425, 429, 500, 501, 502, 503, 504, 505] {
        assert_eq!(decided(status, &[yes], ""), BACKOFF, "{status}");
        assert_eq!(decided(status, &[no], ""), stop, "{status}");
        assert_eq!(decided(status, &[PROBLEM], retryable), BACKOFF, "{status}");
        assert_eq!(decided(status, &[PROBLEM], hopeless), stop, "{status}");
        // The header takes precedence over the body.
        assert_eq!(decided(status, &[PROBLEM, yes], hopeless), BACKOFF, "{status}");
        assert_eq!(decided(status, &[PROBLEM, no], retryable), stop, "{status}");
    }
    // No header makes a final answer retryable.
    for status in [400, 401, 403, 404, 413, 422] {
        for headers in [&[yes][..], &[no], &[PROBLEM], &[yes, ("retry-after", "1")]] {
            assert_eq!(decided(status, headers, retryable), REFUSED, "{status}");
        }
    }
    for status in [201, 402] {
        assert_eq!(decided(status, &[yes], ""), DONE, "{status}");
        assert_eq!(decided(status, &[no], ""), DONE, "{status}");
    }
}

#[test]
fn nothing_is_repeated_against_the_servers_own_word() {
    let (no, yes) = (("stripe-should-retry", "false"), ("stripe-should-retry", "true"));
    let (later, page) = (("retry-after", "3"), ("content-type", "text/html"));
    assert_eq!(decided(202, &[later, no], ""), DONE);
    assert_eq!(decided(202, &[later, yes], ""), Decision::RetryAfter(secs(3)));
    for status in [200, 201, 402] {
        let stop = Decision::GiveUp(Reason::NotRetryable);
        assert_eq!(decided(status, &[page, no], ""), stop, "{status}");
        assert_eq!(decided(status, &[page, yes], ""), BACKOFF, "{status}");
    }
}

/// No client can ask for it again: there is no key. Both halves have to agree on that.
#[test]
fn g2_an_unknown_outcome_without_a_key_is_not_asked_for_again() {
    for profile in [Profile::Ietf, Profile::Stripe] {
        let decided = |key: Option<&IdempotencyKey>| {
            let outcome = Outcome::Unknown { retry_after: secs(30), is_asked: true };
            let told = Policy::default().profile(profile).answer(key, Ok(outcome)).into_http();
            let header = |name: &str| told.headers().get(name).and_then(|v| v.to_str().ok());
            let read = Answer::read(told.status().as_u16(), header, told.body());
            first(&policy(), End::Answered(read))
        };
        assert_eq!(decided(None), Decision::GiveUp(Reason::NotRetryable), "{profile:?}");
        let key = IdempotencyKey::new("k").unwrap();
        assert_eq!(decided(Some(&key)), Decision::RetryAfter(secs(30)), "{profile:?}");
    }
}

#[test]
fn a_body_counts_only_as_what_it_says_to_be() {
    let hopeless = r#"{"retryable":false,"code":"dead_letter"}"#;
    let charset = ("content-type", "Application/Problem+JSON ; charset=utf-8");
    assert_eq!(decided(409, &[charset], hopeless), Decision::GiveUp(Reason::DeadLetter));
    for headers in [&[][..], &[JSON], &[("content-type", "text/html")]] {
        assert_eq!(decided(409, headers, hopeless), BACKOFF, "{headers:?}");
    }
    for garbage in
        ["", "{", "null", "[]", "7", r#"{"retryable":"no","code":7}"#, "\u{0}", &"[".repeat(9999)]
    {
        assert_eq!(decided(503, &[PROBLEM], garbage), BACKOFF, "{garbage:.20}");
        assert_eq!(decided(409, &[JSON], garbage), BACKOFF, "{garbage:.20}");
    }
}

#[test]
fn the_codes_of_both_dialects() {
    let ietf = |status, code: &str, more: &[(&str, &str)]| {
        let body = format!(r#"{{"title":"t","status":{status},"code":"{code}"}}"#);
        decided(status, &[&[PROBLEM], more].concat(), &body)
    };
    let stripe = |status, code: &str, more: &[(&str, &str)]| {
        let body = format!(r#"{{"error":{{"type":"idempotency_error","code":"{code}"}}}}"#);
        decided(status, &[&[JSON], more].concat(), &body)
    };
    let later = ("retry-after", "3");
    for (no, told) in [("false", "no"), ("true", "yes")] {
        let word = ("stripe-should-retry", no);
        for decided in [&ietf as &dyn Fn(u16, &str, &[(&str, &str)]) -> Decision, &stripe] {
            // 34: polled until the outcome is known; asking repeats no effect. Without a key it would, and the server
            // says so.
            let unknown = decided(409, "outcome_unknown", &[later, word]);
            let asked = match told {
                "yes" => Decision::RetryAfter(secs(3)),
                _ => Decision::GiveUp(Reason::NotRetryable),
            };
            assert_eq!(unknown, asked, "{told}");
            let unadvised = decided(409, "outcome_unknown", &[later]);
            assert_eq!(unadvised, Decision::RetryAfter(secs(3)));
            // Another request, whatever a hop in between has made of the advice.
            for headers in [&[later, word][..], &[later]] {
                let deleted = decided(409, "record_deleted", headers);
                assert_eq!(deleted, Decision::GiveUp(Reason::RecordDeleted), "{told}");
            }
            // 41 and 77.
            let dead = decided(409, "dead_letter", &[later, word]);
            assert_eq!(dead, Decision::GiveUp(Reason::DeadLetter), "{told}");
            let gone = decided(410, "response_not_retained", &[word]);
            assert_eq!(gone, Decision::GiveUp(Reason::ResponseNotRetained), "{told}");
        }
    }
    // 28, and an unknown code.
    for code in ["in_progress", "idempotency_key_in_use", "whatever"] {
        assert_eq!(ietf(409, code, &[later]), Decision::RetryAfter(secs(3)));
        assert_eq!(stripe(409, code, &[later]), Decision::RetryAfter(secs(3)));
    }
    // A code has its meaning only with its own status.
    assert_eq!(ietf(503, "dead_letter", &[]), BACKOFF);
    assert_eq!(stripe(422, "outcome_unknown", &[later]), REFUSED);
}

#[test]
fn a_policy_without_keys_repeats_only_what_had_no_effect() {
    let careful = policy().repeat(Repeat::WithoutEffect);
    let stop = Decision::GiveUp(Reason::MayHaveHadEffect);
    let status = |status| first(&careful, End::Answered(answer(status, &[], "")));
    for again in [409, 425, 429] {
        assert_eq!(status(again), BACKOFF, "{again}");
    }
    for uncertain in [408, 500, 502, 503, 504] {
        assert_eq!(status(uncertain), stop, "{uncertain}");
    }
    assert_eq!(status(201), DONE);
    assert_eq!(status(422), REFUSED);
    assert_eq!(first(&careful, End::Unanswered(Transport::NotSent)), BACKOFF);
    assert_eq!(first(&careful, End::Unanswered(Transport::Unknown)), stop);
    let unknown = answer(409, &[PROBLEM], r#"{"code":"outcome_unknown"}"#);
    assert_eq!(first(&careful, End::Answered(unknown)), stop);
}

#[test]
fn the_back_off_doubles_up_to_its_cap_and_attempts_end() {
    let end = End::Unanswered(Transport::Unknown);
    let waits: Vec<_> = (1..=6)
        .map(|number| {
            decide(&policy(), &Attempt { number, end, elapsed: secs(0), random: u32::MAX })
        })
        .collect();
    assert_eq!(waits, [1, 2, 4, 8, 8, 8].map(|wait| Decision::RetryAfter(secs(wait))));
    let mut call = KeyedCall::new(policy().attempts(2));
    assert_eq!(call.decide(end, secs(0), 0), BACKOFF);
    assert_eq!(call.decide(end, secs(1), 0), Decision::GiveUp(Reason::Attempts));
    assert_eq!(call.attempts(), 2);
}

#[test]
fn each_call_has_a_key_of_its_own_and_each_attempt_the_same() {
    let (mut call, other) = (KeyedCall::new(policy()), KeyedCall::new(policy()));
    assert_ne!(call.key(), other.key());
    let key = call.key().clone();
    let _ = call.decide(End::Unanswered(Transport::Unknown), secs(1), 0);
    assert_eq!(*call.key(), key);
    let given = IdempotencyKey::new(r#"a"b\c"#).unwrap();
    let given = KeyedCall::with_key(given, policy());
    assert_eq!(given.header_value(KeyForm::Bare), r#"a"b\c"#);
    assert_eq!(given.header_value(KeyForm::Quoted), r#""a\"b\\c""#);
    assert!(!format!("{given:?}").contains(r#"a"b"#), "G19");
}
