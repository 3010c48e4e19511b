//! The client half's decision: rules for every answer, policy and moment.

use std::time::Duration;

use atomic_phases::IdempotencyKey;
use atomic_phases::client::*;
use atomic_phases::http::{KeySyntax, parse_key};
use proptest::prelude::*;

/// A header's value, present in `share` of the cases.
fn any_header(share: f64) -> impl Strategy<Value = Option<String>> {
    let value = prop_oneof![
        any::<u32>().prop_map(|n| n.to_string()),
        (0_u8..20).prop_map(|n| n.to_string()),
        Just("true".to_owned()),
        Just("false".to_owned()),
        Just("Sun, 06 Nov 1994 08:49:37 GMT".to_owned()),
        Just("Sun, 06 Nov 1994 08:49:59 GMT".to_owned()),
        Just("application/problem+json".to_owned()),
        Just("application/json".to_owned()),
        any::<String>(),
    ];
    proptest::option::weighted(share, value)
}

fn any_end() -> impl Strategy<Value = End> {
    let body = prop_oneof![
        Just(r#"{"retryable":true}"#.to_owned()),
        Just(r#"{"retryable":false}"#.to_owned()),
        Just(r#"{"code":"outcome_unknown","error":{"code":"outcome_unknown"}}"#.to_owned()),
        Just(r#"{"code":"record_deleted","error":{"code":"record_deleted"}}"#.to_owned()),
        Just(r#"{"code":"dead_letter","error":{"code":"dead_letter"}}"#.to_owned()),
        any::<String>(),
    ];
    let status = prop_oneof![
        2 => 200_u16..600,
        1 => any::<u16>(),
        2 => proptest::sample::select(vec![202, 400, 409, 422, 429, 500, 503]),
    ];
    // Stored answers are final, whatever else they say, so they are only a part of the cases.
    let values = [0.8, 0.5, 0.3, 0.8, 0.1, 0.1].map(any_header);
    prop_oneof![
        1 => Just(End::Unanswered(Transport::NotSent)),
        1 => Just(End::Unanswered(Transport::Unknown)),
        8 => (status, values, body).prop_map(
            |(status, values, body)| {
                let names = [
                    "retry-after",
                    "date",
                    "stripe-should-retry",
                    "content-type",
                    "idempotent-replayed",
                    "idempotency-expires",
                ];
                let header = |name: &str| {
                    let at = names.iter().position(|n| *n == name)?;
                    values[at].as_deref()
                };
                End::Answered(Answer::read(status, header, body.as_bytes()))
            }
        ),
    ]
}

fn any_duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (0_u64..200_000).prop_map(Duration::from_millis),
        any::<u64>().prop_map(Duration::from_nanos),
        (any::<u64>(), 0_u32..1_000_000_000).prop_map(|(s, n)| Duration::new(s, n)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn no_wait_passes_the_deadline_or_comes_sooner_than_asked(
        end in any_end(),
        (deadline, elapsed, least, most) in
            (any_duration(), any_duration(), any_duration(), any_duration()),
        (number, random, attempts) in (any::<u32>(), any::<u32>(), any::<u32>()),
        repeat in prop_oneof![Just(Repeat::Keyed), Just(Repeat::WithoutEffect)],
    ) {
        let policy =
            RetryPolicy::new(deadline).backoff(least, most).attempts(attempts).repeat(repeat);
        let attempt = Attempt { number, end, elapsed, random };
        let decision = decide(&policy, &attempt);
        prop_assert_eq!(decision, decide(&policy, &attempt), "the same again");
        let asked = match end {
            End::Answered(answer) => answer.retry_after.filter(|after| !after.is_zero()),
            End::Unanswered(_) => None,
        };
        if decision == Decision::GiveUp(Reason::Deadline) {
            let least = asked.unwrap_or_else(|| policy.backoff_after(number, 0));
            prop_assert!(elapsed.checked_add(least).is_none_or(|then| then >= deadline));
        }
        if let Decision::RetryAfter(wait) = decision {
            prop_assert!(elapsed.checked_add(wait).is_some_and(|then| then < deadline));
            prop_assert!(number < attempts);
            match asked {
                Some(asked) => prop_assert!(asked <= wait && wait <= asked + asked / 10),
                None => prop_assert!(wait <= most),
            }
            if let End::Answered(Answer { status, should_retry: advice, .. }) = end {
                prop_assert!(
                    matches!(status, 202 | 408 | 409 | 425 | 429 | 500..),
                    "{status} is never tried again"
                );
                prop_assert_ne!(advice, Some(false), "against the server's word");
            }
        }
        prop_assert!(policy.time_for_attempt(elapsed) <= deadline.saturating_sub(elapsed));
    }

    #[test]
    fn the_back_off_keeps_its_bounds(
        (first, longest) in (any_duration(), any_duration()),
        (number, random) in (1_u32..80, any::<u32>()),
    ) {
        let policy = RetryPolicy::new(Duration::from_secs(100)).backoff(first, longest);
        let wait = policy.backoff_after(number, random);
        let full = policy.backoff_after(number, u32::MAX);
        prop_assert!(wait <= full && full <= longest);
        prop_assert!(wait >= full / 2);
        prop_assert!(policy.backoff_after(number + 1, random) >= wait);
    }

    /// By the server half of this crate.
    #[test]
    fn no_key_that_is_sent_is_read_as_another(
        key in prop_oneof!["[!-~]{1,60}", "\"[a-z]{1,20}\"(;[a-z]=[0-9])?"],
    ) {
        let key = IdempotencyKey::new(key).unwrap();
        let call = KeyedCall::with_key(key.clone(), RetryPolicy::new(Duration::from_secs(1)));
        let read = |form| parse_key(call.header_value(form).as_bytes(), KeySyntax::default());
        let bare = read(KeyForm::Bare);
        prop_assert!(call.check(KeyForm::Bare).is_err() || bare.is_err() || bare == Ok(key.clone()));
        prop_assert!(call.check(KeyForm::Quoted).is_ok());
        prop_assert_eq!(read(KeyForm::Quoted), Ok(key));
    }
}
