//! Whatever bytes the header has: no panic, one row at most, and a header is never treated as missing.

use crate::support::*;
use atomic_phases::http::{IDEMPOTENCY_KEY, Idempotency, KeyRule, Policy, single_tenant};
use atomic_phases::store::Sqlite;
use http::header::HeaderValue;
use http::request::Parts;
use proptest::prelude::*;

fn head(lines: &[Vec<u8>]) -> Option<Parts> {
    let mut request = http::Request::post("/book");
    for line in lines {
        request = request.header(IDEMPOTENCY_KEY, HeaderValue::from_bytes(line).ok()?);
    }
    Some(request.body(()).unwrap().into_parts().0)
}

/// Bytes of each kind: any, those with a meaning in the grammars, and whole keys with something around them.
fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..80),
        "[\"\\\\;, ?:@(%a1=*-]{0,12}".prop_map(String::into_bytes),
        "[ \t]{0,2}\"?[!-~]{0,6}\"?(;[a-z]=?[0-9]?)?[ \t]{0,2}".prop_map(String::into_bytes),
        "[a-z]{250,260}".prop_map(String::into_bytes),
    ]
}

async fn boundary() -> Idempotency<Sqlite, App> {
    let engine = engine(&Sqlite::fresh().await, &App::default());
    let policy = Policy::default().key(KeyRule::Optional);
    Idempotency::new(engine, single_tenant()).with_policy(policy).unwrap()
}

/// Runs what is admitted, and returns the key that it ran under.
async fn runs_under(idempotency: &Idempotency<Sqlite, App>, head: &Parts) -> Option<String> {
    let keyed = idempotency.admit(head).ok()?.expect("POST takes a key");
    let key = keyed.key().as_str().to_owned();
    let answer = keyed.answer(book(20)).await;
    assert_eq!(answer.status(), 201);
    assert!(answer.into_http().headers().contains_key(IDEMPOTENCY_KEY), "taken for no header");
    Some(key)
}

#[test]
fn no_bytes_in_the_header_panic_reserve_twice_or_pass_for_no_header() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let idempotency = runtime.block_on(boundary());
    let mut keys = std::collections::HashSet::new();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(1500));
    let lines = proptest::collection::vec(value(), 1..3);
    let keys_of_all = std::cell::RefCell::new(&mut keys);
    runner
        .run(&lines, |lines| {
            // Bytes that HTTP does not allow do not arrive.
            let Some(head) = head(&lines) else { return Ok(()) };
            let effects = || idempotency.engine().app().provider.effects();
            let before = effects();
            let first = runtime.block_on(runs_under(&idempotency, &head));
            let second = runtime.block_on(runs_under(&idempotency, &head));
            prop_assert_eq!(&first, &second);
            prop_assert!(lines.len() == 1 || first.is_none(), "two lines");
            let is_new = first.is_some_and(|key| keys_of_all.borrow_mut().insert(key));
            prop_assert_eq!(effects() - before, usize::from(is_new));
            Ok(())
        })
        .unwrap();
    assert!(keys.len() > 100, "{} keys: the values are too wild", keys.len());
}
