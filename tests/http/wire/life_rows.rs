//! Rows 20 to 41: the life of a key, with the effects counted in the provider's ledger.

use std::time::Duration;

use atomic_phases::Outcome;
use atomic_phases::client::Decision;
use atomic_phases::config::{OnDuplicate, Quota};
use atomic_phases::fingerprint::RequestOrigin;
use atomic_phases::http::{KeyRule, Policy, Profile};
use atomic_phases::worker::WorkerConfig;
use serde_json::{Value, json};

use super::client::Seen;
use super::expect::{decided, is_error, is_reply};
use super::server::Wire;
use crate::support::*;

pub async fn w20_the_first_answer_has_key_and_expiry_and_no_marker<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let wire = Wire::start(db, profile).await;
    let seen = wire.book("k").send().await;
    is_reply(&seen, profile, "k", 201, false);
    assert_eq!(seen.header("content-type"), Some("application/json"));
    let body = seen.json();
    assert_eq!(body["charge"], "effect-1");
    let location = format!("/rides/{}", body["ride"].as_str().unwrap());
    assert_eq!(seen.header("location"), Some(location.as_str()));
    assert_eq!(wire.effects(), 1);
}

pub async fn w21_a_replay_is_equal_three_times<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    let first = wire.book("k").send().await;
    for _ in 0..3 {
        let again = wire.book("k").send().await;
        is_reply(&again, profile, "k", 201, true);
        assert_eq!(again.kept(), first.kept());
    }
    assert_eq!(wire.effects(), 1);
    assert_eq!(wire.app.bodies(), [1, 1, 1]);
}

pub async fn w22_a_rejection_is_stored_and_replayed<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    let first = wire.troubled("k", Trouble::RejectForeign).send().await;
    is_reply(&first, profile, "k", 402, false);
    let again = wire.book("k").send().await;
    is_reply(&again, profile, "k", 402, true);
    assert_eq!(again.kept(), first.kept());
    assert_eq!(wire.effects(), 1);
}

pub async fn w23_parameters_that_do_not_parse_leave_the_key_unused<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let wire = Wire::start(db, profile).await;
    for (body, code) in [
        ("", "parameters_malformed"),
        ("{", "parameters_malformed"),
        (r#"{"amount":20} x"#, "parameters_malformed"),
        ("{}", "parameters_invalid"),
        ("[]", "parameters_invalid"),
        (r#"{"amount":"20"}"#, "parameters_invalid"),
        (r#"{"amount":9223372036854775808}"#, "parameters_invalid"),
    ] {
        is_error(&wire.book("k").json(body).send().await, profile, code);
    }
    // The parameters of the query, and of the path.
    for path in ["/in/a?level=256", "/in/a?level=x", "/in/%ff"] {
        let seen = wire.request("POST", path).key("k").json("{}").send().await;
        is_error(&seen, profile, "parameters_malformed");
    }
    assert_eq!(wire.effects(), 0);
    is_reply(&wire.book("k").send().await, profile, "k", 201, false);
}

pub async fn w24_answers_of_outer_layers_are_not_stored<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    for status in ["401", "403", "429"] {
        let seen = wire.book("k").line("x-outer", status).send().await;
        assert_eq!(seen.status.to_string(), status);
    }
    assert_eq!(wire.effects(), 0);
    is_reply(&wire.book("k").send().await, profile, "k", 201, false);
    // Nor does a finished key bypass them.
    assert_eq!(wire.book("k").line("x-outer", "401").send().await.body, b"from outside");
}

pub async fn w25_a_retryable_failure_is_503_and_resumes<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    let failed = wire.troubled("k", Trouble::RetryForeignOnce).send().await;
    is_error(&failed, profile, "temporarily_unavailable");
    is_reply(&wire.book("k").send().await, profile, "k", 201, false);
    assert_eq!(wire.app.bodies(), [1, 2, 1], "what was committed did not run again");
    assert_eq!(wire.effects(), 1);
}

/// A row of another build's version, or of phases that this build lacks: this may last, and is not a mere outage.
pub async fn g14_a_request_that_this_build_cannot_continue_has_a_503_of_its_own<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let wire = Wire::start(db, profile).await;
    let failed = wire.troubled("k", Trouble::RetryForeignOnce).send().await;
    is_error(&failed, profile, "temporarily_unavailable");
    wire.db.let_time_pass().await;
    for [away, back] in [
        ["definition_version = definition_version + 8", "definition_version = 1"],
        ["phases = 'a=2 ' || phases", "phases = substr(phases, 5)"],
    ] {
        let change = |what: &str| format!("UPDATE atomic_phases_keys SET {what}");
        wire.db.sql(&change(away)).await;
        for _ in 0..2 {
            is_error(&wire.book("k").send().await, profile, "not_continued_here");
        }
        wire.db.sql(&change(back)).await;
    }
    is_reply(&wire.book("k").send().await, profile, "k", 201, false);
    assert_eq!(wire.effects(), 1);
}

pub async fn w26_a_final_failure_is_stored_and_replayed<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    let body = json!({ "how": "Fail" }).to_string();
    let first = wire.echo("k", &body).send().await;
    is_reply(&first, profile, "k", 500, false);
    let again = wire.echo("k", &body).send().await;
    is_reply(&again, profile, "k", 500, true);
    assert_eq!(again.kept(), first.kept());
    assert_eq!(wire.app.provider.calls().len(), 1);
}

pub async fn w27_a_panic_is_500_and_resumes<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    let failed = wire.troubled("k", Trouble::PanicForeignOnce).send().await;
    is_error(&failed, profile, "internal_error");
    is_reply(&wire.book("k").send().await, profile, "k", 201, false);
    assert_eq!(wire.effects(), 1);
}

pub async fn w28_a_duplicate_while_running_is_409<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    let mut gate = wire.app.provider.stop_after_the_effect();
    let first = wire.book("k").send_in_background();
    let running = gate.recv().await.unwrap();
    for _ in 0..2 {
        is_error(&wire.book("k").send().await, profile, "idempotency_key_in_use");
    }
    running.send(()).unwrap();
    is_reply(&first.await.unwrap(), profile, "k", 201, false);
    assert_eq!(wire.app.provider.calls().len(), 1);
}

/// The seconds in the `Retry-After` of a 409.
#[track_caller]
fn retry_after(seen: &Seen) -> u64 {
    assert_eq!(seen.status, 409, "{seen:?}");
    seen.header("retry-after").unwrap().parse().unwrap()
}

pub async fn w28_retry_after_is_short_while_the_holder_gives_signs<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let wire = Wire::start(db, profile).await;
    // The lease is 60 s long and was taken a moment ago.
    dies_in_the_call(&wire, false).await;
    let seen = wire.book("k").send().await;
    is_error(&seen, profile, "idempotency_key_in_use");
    assert!(retry_after(&seen) <= 3, "{seen:?}");
    // Without heartbeats, nothing happens before the lease ends.
    let left = match is_postgres::<S>() {
        true => "clock_timestamp() + interval '25 s'",
        false => "round(unixepoch('subsec') * 1000) + 25000",
    };
    wire.db.sql(&format!("UPDATE atomic_phases_keys SET locked_until = {left}")).await;
    let seen = wire.book("k").send().await;
    is_error(&seen, profile, "idempotency_key_in_use");
    assert!((4..=25).contains(&retry_after(&seen)), "{seen:?}");
}

/// The default of each profile.
fn by_default(profile: Profile) -> impl FnOnce(Policy) -> Policy {
    move |_| Policy::default().profile(profile)
}

pub async fn w29_the_stripe_profile_waits_by_default<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::setup(db, profile).policy(by_default(profile)).start().await;
    let mut gate = wire.app.provider.stop_after_the_effect();
    let first = wire.book("k").send_in_background();
    let running = gate.recv().await.unwrap();
    let second = wire.book("k").send_in_background();
    if profile == Profile::Ietf {
        is_error(&second.await.unwrap(), profile, "idempotency_key_in_use");
        running.send(()).unwrap();
        is_reply(&first.await.unwrap(), profile, "k", 201, false);
        return;
    }
    running.send(()).unwrap();
    is_reply(&first.await.unwrap(), profile, "k", 201, false);
    is_reply(&second.await.unwrap(), profile, "k", 201, true);
    assert_eq!(wire.effects(), 1);
}

pub async fn w34_the_stripe_profile_waits_for_an_outcome_that_is_soon_known<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let app = App::new(Provider::that_ignores_keys());
    let wire = Wire::setup(db, profile).app(&app).policy(by_default(profile)).start().await;
    let body = json!({ "who": "pilot", "trouble": Trouble::UnknownForeign }).to_string();
    let notify = wire.request("POST", "/notify").key("k").json(&body);
    app.provider.answer_searches();
    // The outcome stays unknown for longer than the duplicate's wait.
    is_error(&notify.send().await, profile, "outcome_unknown");
    wire.db.let_time_pass().await;
    let asked = notify.send_in_background();
    if profile == Profile::Ietf {
        is_error(&asked.await.unwrap(), profile, "outcome_unknown");
        return;
    }
    let workers = wire.engine.spawn_workers(WorkerConfig::default()).unwrap();
    is_reply(&asked.await.unwrap(), profile, "k", 200, true);
    assert_eq!(wire.effects(), 1);
    workers.shutdown(Duration::from_secs(30)).await.unwrap();
}

pub async fn w29_a_duplicate_in_wait_mode_hears_the_end<S: TestDb>(db: S, profile: Profile) {
    let app = App::default();
    let waiting = |db: S, millis| {
        let wait = OnDuplicate::Wait(Duration::from_millis(millis));
        Wire::setup(db, profile).app(&app).policy(move |policy| policy.on_duplicate(wait)).start()
    };
    let short = waiting(db.another().await, 60).await;
    let wire = waiting(db, 30_000).await;
    let mut gate = app.provider.stop_after_the_effect();
    let first = wire.book("k").send_in_background();
    let running = gate.recv().await.unwrap();
    let second = wire.book("k").send_in_background();
    is_error(&short.book("k").send().await, profile, "idempotency_key_in_use");
    assert!(!second.is_finished());
    running.send(()).unwrap();
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    is_reply(&first, profile, "k", 201, false);
    is_reply(&second, profile, "k", 201, true);
    assert_eq!(first.kept(), second.kept());
    assert_eq!(wire.effects(), 1);
}

pub async fn w30_a_duplicate_in_accept_mode_is_202<S: TestDb>(db: S, profile: Profile) {
    let accepting = Wire::setup(db, profile).policy(|p| p.accept_duplicates("/book/requests/"));
    let wire = accepting.start().await;
    let mut gate = wire.app.provider.stop_after_the_effect();
    let first = wire.book("k/1?").send_in_background();
    let running = gate.recv().await.unwrap();
    let seen = wire.book("k/1?").send().await;
    assert_eq!(seen.status, 202);
    assert_eq!(seen.header("location"), Some("/book/requests/k%2F1%3F"));
    let retry_after: u64 = seen.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&retry_after));
    assert_eq!(seen.json()["status"], "in_progress");
    assert!(!seen.replayed());
    let other = wire.book("k/1?").json(r#"{"amount":21}"#).send().await;
    is_error(&other, profile, "idempotency_key_reused");
    running.send(()).unwrap();
    is_reply(&first.await.unwrap(), profile, "k/1?", 201, false);
    is_reply(&wire.book("k/1?").send().await, profile, "k/1?", 201, true);
    assert_eq!(wire.effects(), 1);
}

/// A client that came again would be accepted again.
async fn without_a_key_it_is_done<S: TestDb>(db: S, profile: Profile) {
    let optional = Wire::setup(db, profile)
        .policy(|p| p.key(KeyRule::Optional).accept_duplicates("/book/requests/"));
    let wire = optional.start().await;
    let seen = wire.request("POST", "/later").json(r#"{"amount":20}"#).send().await;
    assert_eq!(seen.status, 202, "{seen:?}");
    for name in ["retry-after", "location", "idempotency-key"] {
        assert_eq!(seen.header(name), None, "{seen:?}");
    }
    assert!(matches!(decided(&seen), Decision::Done { replayed: false }));
}

pub async fn w30_an_accepted_request_is_202_before_it_runs<S: TestDb>(db: S, profile: Profile) {
    let accepting = Wire::setup(db, profile).policy(|p| p.accept_duplicates("/book/requests/"));
    let wire = accepting.start().await;
    let later = |body: &str| wire.request("POST", "/later").key("\"k\"").json(body);
    for _ in 0..2 {
        let seen = later(r#"{"amount":20}"#).send().await;
        assert_eq!(seen.status, 202, "{seen:?}");
        assert_eq!(seen.header("location"), Some("/book/requests/k"));
        assert_eq!(seen.json()["status"], "pending", "as the status resource says below");
        assert!(seen.header("retry-after").is_some());
        assert!(seen.header("idempotency-key").is_some());
    }
    is_error(&later(r#"{"amount":21}"#).send().await, profile, "idempotency_key_reused");
    assert_eq!(wire.app.bodies(), [0, 0, 0]);
    let status = || wire.request("GET", "/book/requests/k");
    let seen = status().send().await;
    let told: Value = serde_json::from_slice(&seen.body).unwrap();
    assert_eq!((seen.status, &told["status"]), (200, &json!("pending")));
    assert_eq!(told["recovery_point"], "started");
    assert!(seen.header("retry-after").is_some());
    // G16: another caller's key is like one that was never sent.
    is_error(&status().set("x-tenant", "other").send().await, profile, "no_such_request");
    let never = wire.request("GET", "/book/requests/never").send().await;
    is_error(&never, profile, "no_such_request");
    let stranger = wire.request("GET", "/book/requests/k").without("x-tenant").send().await;
    // A path that is not text: a problem in the dialect, and behind the authentication, as any other.
    let no_text = wire.request("GET", "/book/requests/%FF");
    let unnamed = no_text.send().await;
    is_error(&unnamed, profile, "no_such_request");
    let unknown = no_text.without("x-tenant").send().await;
    is_error(&unknown, profile, "unauthenticated");
    for told in [&seen, &never, &stranger, &unnamed, &unknown] {
        assert_eq!(told.header("cache-control"), Some("no-store"), "{told:?}");
    }
    let workers = wire.engine.spawn_workers(WorkerConfig::default()).unwrap();
    until(async || later(r#"{"amount":20}"#).send().await.status != 202).await;
    let seen = later(r#"{"amount":20}"#).send().await;
    is_reply(&seen, profile, "k", 201, true);
    assert_eq!(wire.effects(), 1);
    let told: Value = serde_json::from_slice(&status().send().await.body).unwrap();
    assert_eq!((&told["status"], &told["response"]["status"]), (&json!("completed"), &json!(201)));
    assert_eq!(told["response"]["body"].as_str().unwrap().as_bytes(), seen.body);
    workers.shutdown(std::time::Duration::from_secs(30)).await.unwrap();
    without_a_key_it_is_done(wire.db.another().await, profile).await;
}

pub async fn w31_a_duplicate_with_another_body_while_running_is_a_mismatch<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let wire = Wire::start(db, profile).await;
    let mut gate = wire.app.provider.stop_after_the_effect();
    let first = wire.book("k").send_in_background();
    let running = gate.recv().await.unwrap();
    let other = wire.book("k").json(r#"{"amount":21}"#).send().await;
    is_error(&other, profile, "idempotency_key_reused");
    running.send(()).unwrap();
    is_reply(&first.await.unwrap(), profile, "k", 201, false);
    assert_eq!(wire.effects(), 1);
}

/// Clients remove `.` and `..` from a path, percent-encoded or not. A quote marks the form that such keys have
/// instead.
pub async fn w30_every_key_has_a_status_uri_that_clients_leave_alone<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let accepting = Wire::setup(db, profile).policy(|p| p.accept_duplicates("/book/requests/"));
    let wire = accepting.start().await;
    let mut seen_at = std::collections::HashSet::new();
    for (count, key) in [".", "..", "...", "a.b", "\".\"", "\"..\"", "\"", "%2E", "a/b", "\\\""]
        .into_iter()
        .enumerate()
    {
        let quoted = format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""));
        let body = format!("{{\"amount\":{count}}}");
        let seen = wire.request("POST", "/later").key(&quoted).json(body).send().await;
        assert_eq!(seen.status, 202, "{key}: {seen:?}");
        let uri = seen.header("location").unwrap().to_owned();
        // As clients resolve the path.
        let base = format!("http://host{uri}").parse::<reqwest::Url>().unwrap();
        assert_eq!(base.path(), uri, "{key}");
        let status = wire.request("GET", &uri).send().await;
        assert_eq!((status.status, &status.json()["status"]), (200, &json!("pending")), "{key}");
        assert!(seen_at.insert(uri), "{key}");
    }
}

/// The holder of `POST /book` with key `k` dies before or after its effect: its future is dropped in the call.
async fn dies_in_the_call<S: TestDb>(wire: &Wire<S>, after_the_effect: bool) {
    let provider = &wire.app.provider;
    let mut gate = match after_the_effect {
        true => provider.stop_after_the_effect(),
        false => provider.stop_before_the_effect(),
    };
    let call = wire.engine.call(&scope(), &key("k"), book(20));
    let call = call.origin(RequestOrigin::new("POST", "/book", None));
    let holder = tokio::spawn(async move {
        let _ = call.__call_in_place().await;
    });
    let in_the_call = gate.recv().await.unwrap();
    holder.abort();
    assert!(holder.await.unwrap_err().is_cancelled());
    drop(in_the_call);
    provider.stop_no_more();
}

pub async fn w32_a_dead_holders_request_resumes<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    dies_in_the_call(&wire, false).await;
    assert_eq!(wire.effects(), 0);
    is_error(&wire.book("k").send().await, profile, "idempotency_key_in_use");
    wire.db.let_leases_expire().await;
    is_reply(&wire.book("k").send().await, profile, "k", 201, false);
    assert_eq!(wire.effects(), 1);
    assert_eq!(wire.app.bodies(), [1, 2, 1]);
}

pub async fn w33_a_stale_holders_client_hears_the_winners_answer<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let stale = Wire::start(db.another().await, profile).await;
    let heir = Wire::setup(db, profile).app(&stale.app).start().await;
    let mut gate = stale.app.provider.stop_after_the_effect();
    let sleeping = stale.book("k").send_in_background();
    let asleep = gate.recv().await.unwrap();
    stale.app.provider.stop_no_more();
    heir.db.let_leases_expire().await;
    let winner = heir.book("k").send().await;
    is_reply(&winner, profile, "k", 201, false);
    asleep.send(()).unwrap();
    let loser = sleeping.await.unwrap();
    is_reply(&loser, profile, "k", 201, true);
    assert_eq!(loser.kept(), winner.kept());
    assert_eq!(heir.effects(), 1);
    assert_eq!(heir.db.number("SELECT count(*) FROM steps").await, 1, "the loser wrote nothing");
}

pub async fn w34_an_unknown_outcome_is_409_and_is_not_repeated<S: TestDb>(db: S, profile: Profile) {
    let app = App::new(Provider::that_ignores_keys());
    let wire = Wire::setup(db, profile).app(&app).start().await;
    let body = json!({ "who": "pilot", "trouble": Trouble::UnknownForeign }).to_string();
    for _ in 0..3 {
        let seen = wire.request("POST", "/notify").key("k").json(&body).send().await;
        is_error(&seen, profile, "outcome_unknown");
        assert!(!String::from_utf8(seen.body).unwrap().contains("operator"));
    }
    assert_eq!(wire.effects(), 1);
    // In a phase without a reconcile function.
    for _ in 0..2 {
        let seen = wire.troubled("l", Trouble::UnknownForeign).send().await;
        is_error(&seen, profile, "outcome_unknown");
        assert_eq!(seen.header("retry-after"), Some("30"), "from reconcile_after");
        assert!(String::from_utf8(seen.body).unwrap().contains("operator"));
    }
    assert_eq!(wire.effects(), 2);
}

/// The holder's client hears that a retry is another request, which is what it would be.
pub async fn g2_a_record_that_was_deleted_is_409_and_not_retryable<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let app = App::new(Provider::that_ignores_keys());
    let wire = Wire::setup(db, profile).app(&app).start().await;
    let mut gate = wire.app.provider.stop_after_the_effect();
    let request = wire.request("POST", "/notify").key("k").json(r#"{"who":"pilot"}"#);
    let first = request.send_in_background();
    let running = gate.recv().await.unwrap();
    wire.app.provider.stop_no_more();
    wire.db.sql("DELETE FROM atomic_phases_keys").await;
    running.send(()).unwrap();
    is_error(&first.await.unwrap(), profile, "record_deleted");
    assert_eq!(wire.effects(), 1);
    let again = request.send().await;
    is_reply(&again, profile, "k", 200, false);
    assert_eq!(wire.effects(), 2, "another request, which the client must not make by itself");
}

pub async fn w35_a_client_that_hangs_up_cancels_nothing<S: TestDb>(db: S, profile: Profile) {
    let wait = OnDuplicate::Wait(Duration::from_secs(30));
    let wire = Wire::setup(db, profile).policy(move |p| p.on_duplicate(wait)).start().await;
    let mut gate = wire.app.provider.stop_after_the_effect();
    let stream = wire.book("k").send_and_leave().await;
    let running = gate.recv().await.unwrap();
    drop(stream);
    running.send(()).unwrap();
    is_reply(&wire.book("k").send().await, profile, "k", 201, true);
    assert_eq!(wire.app.provider.calls().len(), 1);
}

pub async fn w36_a_client_that_hangs_up_at_any_byte_reserves_nothing<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let wire = Wire::start(db, profile).await;
    let mut cut = vec![wire.book("k"), wire.book("k").chunked()];
    // The longest cut body that could still look complete: one that ends in white space.
    cut.push(wire.book("k").json("{\"amount\":20}   "));
    for request in cut {
        for length in 0..request.bytes().len() {
            if let Some(seen) = request.cut_at(length).await {
                assert!(matches!(seen.status, 400 | 408), "cut at {length}: {seen:?}");
            }
        }
    }
    assert_eq!(wire.app.bodies(), [0, 0, 0]);
    // The key stays unused: another request may use it.
    let other = wire.book("k").json(r#"{"amount":77}"#).send().await;
    is_reply(&other, profile, "k", 201, false);
}

pub async fn w37_a_retry_after_the_effect_sends_the_same_derived_key<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let wire = Wire::start(db, profile).await;
    dies_in_the_call(&wire, true).await;
    assert_eq!(wire.effects(), 1);
    wire.db.let_leases_expire().await;
    is_reply(&wire.book("k").send().await, profile, "k", 201, false);
    let calls = wire.app.provider.calls();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0], calls[1]);
    assert_eq!(wire.effects(), 1);
}

pub async fn w38_past_its_expiry_a_key_is_new<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    is_reply(&wire.book("k").send().await, profile, "k", 201, false);
    let over = [
        "UPDATE atomic_phases_keys SET expires_at = created_at",
        // As the reaper leaves it.
        "DELETE FROM atomic_phases_keys",
    ];
    for (count, sql) in over.into_iter().enumerate() {
        wire.db.sql(sql).await;
        let another = format!("{{\"amount\":{count}}}");
        is_reply(&wire.book("k").json(&another).send().await, profile, "k", 201, false);
        assert_eq!(wire.effects(), count + 2);
    }
}

const GONE: &str = "ALTER TABLE atomic_phases_keys RENAME TO away";
const BACK: &str = "ALTER TABLE away RENAME TO atomic_phases_keys";

pub async fn w39_store_down_before_is_503_and_nothing_happened<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    wire.db.sql(GONE).await;
    for _ in 0..2 {
        is_error(&wire.book("k").send().await, profile, "temporarily_unavailable");
    }
    assert_eq!(wire.app.bodies(), [0, 0, 0]);
    wire.db.sql(BACK).await;
    is_reply(&wire.book("k").send().await, profile, "k", 201, false);
    assert_eq!(wire.effects(), 1);
}

pub async fn w40_store_down_at_the_end_is_503_and_resumes<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    let mut gate = wire.app.provider.stop_after_the_effect();
    let first = wire.book("k").send_in_background();
    let running = gate.recv().await.unwrap();
    wire.app.provider.stop_no_more();
    wire.db.sql(GONE).await;
    running.send(()).unwrap();
    is_error(&first.await.unwrap(), profile, "temporarily_unavailable");
    wire.db.sql(BACK).await;
    wire.db.let_leases_expire().await;
    is_reply(&wire.book("k").send().await, profile, "k", 201, false);
    assert_eq!(wire.effects(), 1);
}

pub async fn w41_a_dead_letter_is_409_and_not_retryable<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::setup(db, profile).builder(|engine| engine.max_attempts(2)).start().await;
    let failed = wire.troubled("k", Trouble::RetryForeignAlways).send().await;
    is_error(&failed, profile, "temporarily_unavailable");
    wire.db.let_time_pass().await;
    for _ in 0..2 {
        is_error(&wire.book("k").send().await, profile, "dead_letter");
    }
    let outcome = wire.engine.call(&scope(), &key("k"), book(20));
    let outcome = outcome.origin(RequestOrigin::new("POST", "/book", None)).await;
    assert!(matches!(outcome, Ok(Outcome::DeadLetter)), "{outcome:?}");
    assert_eq!(wire.app.bodies()[1], 2);
    assert_eq!(wire.effects(), 1);
}

pub async fn a_quota_is_429_and_its_requests_are_not_stored<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::setup(db.another().await, profile);
    let wire = wire.builder(|engine| engine.quota(Quota::default().keys(1))).start().await;
    is_reply(&wire.book("a").send().await, profile, "a", 201, false);
    is_error(&wire.book("b").send().await, profile, "too_many_keys");
    is_reply(&wire.book("a").send().await, profile, "a", 201, true);
    assert_eq!(wire.effects(), 1);
    wire.db.sql("DELETE FROM atomic_phases_keys").await;
    is_reply(&wire.book("b").send().await, profile, "b", 201, false);

    let slow = Wire::setup(db, profile);
    let slow =
        slow.builder(|engine| engine.quota(Quota::default().rate(1, Duration::from_secs(600))));
    let slow = slow.start().await;
    let book = |key| slow.book(key).set("x-tenant", "another");
    is_reply(&book("a").send().await, profile, "a", 201, false);
    is_error(&book("b").send().await, profile, "rate_exceeded");
    is_reply(&book("a").send().await, profile, "a", 201, true);
}

pub async fn a_request_without_a_key_is_told_the_truth_by_a_quota_and_takes_no_key_of_it<
    S: TestDb,
>(
    db: S,
    profile: Profile,
) {
    let keyless = |wire: &Wire<S>, tenant: &str| {
        wire.book("").without("idempotency-key").set("x-tenant", tenant)
    };
    let few = Wire::setup(db.another().await, profile).policy(|p| p.key(KeyRule::Optional));
    let few = few.builder(|engine| engine.quota(Quota::default().keys(1))).start().await;
    for effects in 1..=3 {
        assert_eq!(keyless(&few, "tenant-1").send().await.status, 201);
        assert_eq!(few.effects(), effects);
    }
    is_reply(&few.book("a").send().await, profile, "a", 201, false);
    is_error(&few.book("b").send().await, profile, "too_many_keys");
    // A key that looks like one of the server's own does not bypass the rule.
    let stored = "SELECT min(idempotency_key) FROM atomic_phases_keys WHERE idempotency_key <> 'a'";
    let prefix = few.db.text(stored).await.split_once(':').unwrap().0.to_owned();
    let forged = few.book(&format!("{prefix}:b")).send().await;
    is_error(&forged, profile, "idempotency_key_malformed");

    let slow = Wire::setup(db, profile).policy(|p| p.key(KeyRule::Optional));
    let slow =
        slow.builder(|engine| engine.quota(Quota::default().rate(1, Duration::from_secs(600))));
    let slow = slow.start().await;
    assert_eq!(keyless(&slow, "another").send().await.status, 201);
    let refused = keyless(&slow, "another").send().await;
    is_error(&refused, profile, "rate_exceeded");
    let text = String::from_utf8(refused.body.clone()).unwrap();
    assert!(text.contains("Nothing was done") && !text.contains("key"), "{text}");
    assert_eq!(slow.effects(), 1);
}

/// The engine refuses it before it reads anything, so another server can do it without repeating an effect.
pub async fn a_request_without_a_key_that_meets_a_shutdown_may_be_sent_again<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let optional = Wire::setup(db, profile).policy(|p| p.key(KeyRule::Optional));
    let wire = optional.start().await;
    wire.engine.shutdown(Duration::from_secs(30)).await.unwrap();
    let keyless = wire.book("").without("idempotency-key").send().await;
    is_error(&keyless, profile, "temporarily_unavailable");
    let text = String::from_utf8(keyless.body.clone()).unwrap();
    assert!(text.contains("began nothing") && !text.contains("key"), "{text}");
    is_error(&wire.book("k").send().await, profile, "temporarily_unavailable");
    assert_eq!(wire.effects(), 0);
}
