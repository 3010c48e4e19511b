//! `build` refuses settings that cannot work, and names their limits.

use std::time::Duration;

use atomic_phases::client::{Caller, KeyedCall, RetryPolicy, SendError};
#[cfg(feature = "encryption")]
use atomic_phases::codec::EncryptingCodec;
use atomic_phases::compat::InFlight;
use atomic_phases::config::{Limits, OnDuplicate, Quota};
#[cfg(all(feature = "console", feature = "ops-api"))]
use atomic_phases::console::{Api, Console};
use atomic_phases::engine::{BuildError, EngineBuilder, Unregistered};
use atomic_phases::http::{IDEMPOTENCY_KEY, Idempotency, Policy, single_tenant};
use atomic_phases::phase::ForeignError;
use atomic_phases::store::{PoolSettings, Postgres, Sqlite, StoreError};
use atomic_phases::worker::{Completer, Enqueuer, Handlers, Webhook, WebhookError, WorkerConfig};
use atomic_phases::{Batch, Engine, ForeignCall, PhaseResult, Reply, atomic_phases};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, UPGRADE};
use serde::{Deserialize, Serialize};

use crate::support::*;

#[tokio::test]
async fn numbers_that_cannot_work_are_refused_with_their_bounds() {
    let db = Sqlite::connect(":memory:").await.unwrap();
    let (zero, ever, second) = (Duration::ZERO, Duration::MAX, Duration::from_secs(1));
    type Builder = EngineBuilder<Sqlite, (), Unregistered>;
    type Set = Box<dyn Fn(Builder) -> Builder>;
    let limits = |limits: Limits| -> Set { Box::new(move |builder| builder.limits(limits)) };
    let quota = |quota: Quota| -> Set { Box::new(move |builder| builder.quota(quota)) };
    let cases: Vec<(&str, Set)> = vec![
        ("lease", Box::new(move |b| b.lease(zero))),
        ("lease", Box::new(move |b| b.lease(ever).retention(ever))),
        ("retention", Box::new(move |b| b.retention(second))),
        ("retention", Box::new(move |b| b.retention(ever))),
        ("creation_wait", Box::new(move |b| b.creation_wait(zero))),
        ("creation_wait", Box::new(move |b| b.creation_wait(second * 40 * 24 * 3600))),
        ("on_duplicate", Box::new(move |b| b.on_duplicate(OnDuplicate::Wait(ever)))),
        ("max_attempts", Box::new(|b| b.max_attempts(0))),
        ("max_attempts", Box::new(|b| b.max_attempts(u32::MAX))),
        ("back_off", Box::new(move |b| b.back_off(second, ever))),
        ("back_off", Box::new(move |b| b.back_off(second * 2, second))),
        ("back_off", Box::new(move |b| b.back_off(zero, second))),
        ("reconcile_after", Box::new(move |b| b.reconcile_after(ever))),
        ("max_reconciles", Box::new(|b| b.max_reconciles(0))),
        ("window_margin", Box::new(move |b| b.window_margin(ever))),
        ("pauses_every", Box::new(move |b| b.pauses_every(zero))),
        ("pauses_every", Box::new(move |b| b.pauses_every(ever))),
        ("store_header", Box::new(|b| b.store_header(""))),
        ("store_header", Box::new(|b| b.store_header("x-total: 1"))),
        ("scopes_in_metrics", Box::new(|b| b.scopes_in_metrics(0))),
        ("scopes_in_metrics", Box::new(|b| b.scopes_in_metrics(1001))),
        ("Limits::params", limits(Limits::default().params(0))),
        ("Limits::outputs", limits(Limits::default().outputs(usize::MAX))),
        ("Limits::context", limits(Limits::default().context(1 << 30))),
        ("Limits::reply_headers", limits(Limits::default().reply_headers(1))),
        ("Limits::reply_body", limits(Limits::default().reply_body(1 << 30))),
        ("Limits::job_args", limits(Limits::default().job_args(1 << 30))),
        ("Quota::keys", quota(Quota::default().keys(0))),
        ("Quota::rate", quota(Quota::default().rate(0, second))),
        ("Quota::rate", quota(Quota::default().rate(1, zero))),
        ("Quota::rate", quota(Quota::default().rate(1, ever))),
    ];
    for (setting, set) in cases {
        let Err(BuildError::Setting(error)) = set(Engine::builder(db.clone())).build() else {
            panic!("{setting} is not refused")
        };
        assert!(error.setting.starts_with(setting), "{error}");
        assert!(error.to_string().contains("but it must be"), "{error}");
    }
    let workers: [(&str, WorkerConfig); 14] = [
        ("WorkerConfig::poll", WorkerConfig::default().poll(zero)),
        ("WorkerConfig::batch", WorkerConfig::default().batch(0)),
        ("WorkerConfig::concurrency", WorkerConfig::default().concurrency(0)),
        ("WorkerConfig::concurrency", WorkerConfig::default().concurrency(usize::MAX)),
        ("WorkerConfig::grace", WorkerConfig::default().grace(ever)),
        ("WorkerConfig::full_sweep", WorkerConfig::default().full_sweep(ever)),
        ("WorkerConfig::full_sweep", WorkerConfig::default().full_sweep(second / 2)),
        ("WorkerConfig::reap_every", WorkerConfig::default().reap_every(zero)),
        ("WorkerConfig::reap_batch", WorkerConfig::default().reap_batch(0)),
        ("WorkerConfig::census_every", WorkerConfig::default().census_every(zero)),
        ("WorkerConfig::delivery", WorkerConfig::default().delivery(second / 2)),
        ("WorkerConfig::max_deliveries", WorkerConfig::default().max_deliveries(0)),
        ("WorkerConfig::node (name)", WorkerConfig::default().node("a".repeat(101), "")),
        ("WorkerConfig::node (build)", WorkerConfig::default().node("", "1\n2")),
    ];
    let engine = Engine::builder(db.clone()).build().unwrap();
    for (setting, config) in workers {
        let Err(error) = engine.spawn_workers(config.clone()) else { panic!("{setting}") };
        assert_eq!(error.setting, setting);
        let told = Completer::new(&engine, config).run_once().await;
        assert!(matches!(told, Err(StoreError::Setting(_))), "{setting}");
    }
    let pools = [
        ("PoolSettings::max_size", PoolSettings::default().max_size(0)),
        ("PoolSettings::wait", PoolSettings::default().wait(zero)),
        ("PoolSettings::max_age", PoolSettings::default().max_age(zero)),
    ];
    for (setting, pool) in pools {
        match Postgres::connect_with("postgres://localhost/none", pool).await {
            Err(StoreError::Setting(error)) => assert_eq!(error.setting, setting),
            _ => panic!("{setting} is not refused"),
        }
    }
    for lease in [zero, ever] {
        let refused = InFlight::read_with_lease(&db, lease).await;
        assert!(matches!(refused, Err(StoreError::Setting(_))), "{refused:?}");
    }
}

/// WIRE 75: a replay would set an old cookie, or describe a message or a connection that is not its own.
#[tokio::test]
async fn a_header_of_a_single_exchange_or_of_the_boundary_cannot_be_stored() {
    let db = Sqlite::connect(":memory:").await.unwrap();
    for name in [
        "Set-Cookie",
        "Date",
        "Connection",
        "Keep-Alive",
        "Upgrade",
        "Trailer",
        "TE",
        "Proxy-Connection",
        "Proxy-Authenticate",
        "Proxy-Authorization",
        "Content-Length",
        "Transfer-Encoding",
        "Vary",
        "Retry-After",
        "Stripe-Should-Retry",
        "Idempotency-Key",
        "Idempotency-Expires",
        // The default policy of a boundary marks replays by it.
        "Idempotent-Replayed",
    ] {
        let builder = Engine::builder(db.clone()).store_header(name);
        let Err(BuildError::Setting(error)) = builder.build() else { panic!("{name} is stored") };
        let told = error.to_string();
        let name = name.to_ascii_lowercase();
        let says = format!("store_header is {name:?}, but it must be a header that describes");
        assert!(told.starts_with(&says), "{told}");
        assert!(told.contains("belongs to a single answer or connection"), "{told}");
    }
}

/// Its provider forgets a key after half an hour.
#[derive(Serialize, Deserialize)]
struct Forgotten;

#[atomic_phases(name = "forgotten", version = 1)]
impl<Db: TestDb> Forgotten {
    #[phase(foreign(idempotent, window = "30m"))]
    async fn asked(&self, call: ForeignCall) -> PhaseResult<u8, ForeignError> {
        call.make(async |_| Ok::<_, ForeignError>(1)).await
    }

    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Db>, _asked: &u8) -> PhaseResult<Reply> {
        Db::add_step(batch, "forgotten", "answered");
        Ok(Reply::new(204))
    }
}

/// The default margin fits each window. One that was set is not made shorter.
#[tokio::test]
async fn a_margin_that_is_too_long_for_a_window_is_refused() {
    let db = Sqlite::connect(":memory:").await.unwrap();
    let minutes = |number: u64| Duration::from_secs(60 * number);
    let of_a_day = || Engine::builder(db.clone()).app(App::default()).register::<Book>();
    let of_both = || of_a_day().register::<Forgotten>();
    assert!(of_both().build().is_ok(), "five minutes are too long, and were not set");
    assert!(of_a_day().window_margin(minutes(144)).build().is_ok(), "a tenth of its window");
    assert!(of_both().window_margin(minutes(3)).build().is_ok(), "a tenth of the shorter window");
    let of_none = Engine::builder(db.clone()).window_margin(minutes(365 * 24 * 60));
    assert!(of_none.build().is_ok(), "no window is registered");
    for (builder, set, most, of) in [
        (of_a_day().window_margin(minutes(145)), "8700s", "8640s", "`charged` in `book`"),
        (of_both().window_margin(minutes(4)), "240s", "180s", "`asked` in `forgotten`"),
    ] {
        let Err(BuildError::Setting(error)) = builder.build() else { panic!("{set}") };
        let says = format!(
            "window_margin is {set}, but it must be 0ns to {most}, a tenth of the window of {of}"
        );
        assert_eq!(error.to_string(), says);
    }
}

#[tokio::test]
async fn a_policy_of_a_client_or_a_boundary_that_cannot_work_is_refused_before_it_is_used() {
    let (zero, ever, second) = (Duration::ZERO, Duration::MAX, Duration::from_secs(1));
    let policy = || RetryPolicy::new(second);
    assert_eq!(policy().check(), Ok(()));
    let client = [
        ("RetryPolicy::new", RetryPolicy::new(zero)),
        ("RetryPolicy::new", RetryPolicy::new(ever)),
        ("RetryPolicy::attempts", policy().attempts(0)),
        ("RetryPolicy::attempt_timeout", policy().attempt_timeout(zero)),
        ("RetryPolicy::backoff (the first)", policy().backoff(second * 2, second)),
        ("RetryPolicy::backoff (the first)", policy().backoff(zero, second)),
        ("RetryPolicy::backoff (the longest)", policy().backoff(zero, zero)),
    ];
    for (setting, policy) in client {
        assert_eq!(policy.check().unwrap_err().setting, setting);
        // Nothing is sent, so no server has to be there.
        let caller = Caller::new(reqwest::Client::builder()).unwrap();
        let request = caller.http().post("http://127.0.0.1:9/").build().unwrap();
        match caller.send(KeyedCall::new(policy), request).await {
            Err(SendError::Policy(error)) => assert_eq!(error.setting, setting),
            other => panic!("{setting}: {other:?}"),
        }
    }
    // The engine below stores it.
    let stored = HeaderName::from_static("x-total");
    let boundary = [
        ("Policy::body_limit", Policy::default().body_limit(0)),
        ("Policy::body_limit", Policy::default().body_limit(usize::MAX)),
        ("Policy::body_timeout", Policy::default().body_timeout(zero)),
        ("Policy::body_timeout", Policy::default().body_timeout(ever)),
        ("on_duplicate (Wait)", Policy::default().on_duplicate(OnDuplicate::Wait(ever))),
        ("Policy::challenge", Policy::default().challenge(HeaderValue::from_static(""))),
        ("Policy::replay_marker", Policy::default().replay_marker(CONTENT_TYPE)),
        ("Policy::replay_marker", Policy::default().replay_marker(IDEMPOTENCY_KEY)),
        ("Policy::replay_marker", Policy::default().replay_marker(CONTENT_LENGTH)),
        ("Policy::replay_marker", Policy::default().replay_marker(UPGRADE)),
        ("Policy::replay_marker", Policy::default().replay_marker(stored)),
        ("Policy::accept_duplicates", Policy::default().accept_duplicates("")),
        ("Policy::accept_duplicates", Policy::default().accept_duplicates("payouts/status/")),
        ("Policy::accept_duplicates", Policy::default().accept_duplicates("/payouts/{id}/")),
        ("Policy::accept_duplicates", Policy::default().accept_duplicates("/payouts/\nstatus/")),
        ("Policy::accept_duplicates", Policy::default().accept_duplicates("/rides/:id/")),
        ("Policy::accept_duplicates", Policy::default().accept_duplicates("/rides/*rest/")),
        ("Policy::accept_duplicates", Policy::default().accept_duplicates("//evil.example/x/")),
        ("Policy::accept_duplicates", Policy::default().accept_duplicates("/\\evil.example/x/")),
        ("Policy::accept_duplicates", Policy::default().accept_duplicates("/status?key=")),
        ("Policy::documentation", Policy::default().documentation("idempotency")),
        ("Policy::documentation", Policy::default().documentation("mailto:keys@example.com")),
        ("Policy::documentation", Policy::default().documentation("/idempotency#keys")),
        ("Policy::documentation", Policy::default().documentation("/schlüssel")),
        ("Policy::documentation", Policy::default().documentation("/keys/:v")),
        ("Policy::documentation", Policy::default().documentation("/*")),
        ("Policy::documentation", Policy::default().documentation("/keys?v=2")),
    ];
    let db = Sqlite::connect(":memory:").await.unwrap();
    let engine = Engine::builder(db).store_header("X-Total").build().unwrap();
    for (setting, policy) in boundary {
        let refused = Idempotency::new(engine.clone(), single_tenant()).with_policy(policy);
        assert_eq!(refused.err().map(|error| error.setting), Some(setting));
    }
    let elsewhere = Policy::default()
        .accept_duplicates("https://api.example.com/status?key=")
        .documentation("https://example.com/keys");
    for works in [Policy::default(), elsewhere] {
        assert!(Idempotency::new(engine.clone(), single_tenant()).with_policy(works).is_ok());
    }
    // A caller has no `check`: its setter refuses.
    for limit in [0, usize::MAX] {
        let caller = Caller::new(reqwest::Client::builder()).unwrap();
        let error = caller.response_limit(limit).unwrap_err();
        let says = format!("Caller::response_limit is {limit}, but it must be 1 to ");
        assert!(error.to_string().starts_with(&says), "{error}");
    }
}

#[cfg(feature = "encryption")]
#[test]
fn two_keys_of_one_number_are_refused() {
    let codec = EncryptingCodec::new(1, &[1; 32]).also_read(2, &[2; 32]).unwrap();
    let error = codec.also_read(1, &[3; 32]).unwrap_err();
    let says = "EncryptingCodec::also_read (id) is 1, but it must be the number of no other key";
    assert_eq!(error.to_string(), says);
}

#[test]
fn a_limit_of_a_name_of_jobs_that_cannot_work_is_refused() {
    for most in [0, 100_001, usize::MAX] {
        let error = Handlers::new().concurrency("receipt", most).unwrap_err();
        assert_eq!(error.setting, "Handlers::concurrency");
        let says = format!("is {most}, but it must be 1 to 100000");
        assert!(error.to_string().contains(&says), "{error}");
    }
    assert!(Handlers::new().concurrency("receipt", 1).is_ok());
}

/// It would limit nothing: most often the name is mistyped. The function may be added behind the limit, so the workers
/// find it.
#[tokio::test]
async fn a_limit_of_a_name_of_jobs_without_a_function_is_refused_when_workers_start() {
    let engine = Engine::builder(Sqlite::connect(":memory:").await.unwrap()).build().unwrap();
    let receipts = |jobs: Handlers| jobs.on("receipt", async |_: String, _| Ok(()));
    let limited = |name| Handlers::new().concurrency(name, 2).unwrap();
    let before = || receipts(limited("receipts"));
    let behind = || receipts(Handlers::new()).concurrency("receipts", 2).unwrap();
    let webhook = Webhook::new("http://127.0.0.1:9/", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    let beside = webhook.unwrap().beside(before());
    let config = WorkerConfig::default;
    for refused in [config().sink(before()), config().sink(behind()), config().sink(beside)] {
        let error = engine.spawn_workers(refused).unwrap_err();
        assert_eq!(error.setting, "Handlers::concurrency (name)");
        let text = error.to_string();
        assert!(text.contains("is \"receipts\", but it must be a name"), "{error}");
        assert!(text.ends_with("it does not limit the jobs that another sink takes"), "{error}");
    }
    let told = Enqueuer::new(&engine, before(), config()).run_once().await;
    assert!(matches!(told, Err(StoreError::Setting(_))), "{told:?}");
    for taken in [receipts(limited("receipt")), receipts(Handlers::new())] {
        assert_eq!(config().sink(taken).check(), Ok(()));
    }
}

#[test]
fn a_webhook_refuses_what_cannot_work() {
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let webhook = Webhook::new("http://127.0.0.1:9/", secret).unwrap();
    for limit in [Duration::ZERO, Duration::MAX] {
        match webhook.clone().within(limit) {
            Err(WebhookError::Setting(error)) => assert_eq!(error.setting, "Webhook::within"),
            other => panic!("{limit:?}: {other:?}"),
        }
    }
    assert!(webhook.clone().within(Duration::from_millis(1)).is_ok());
    let cannot_work = [
        "",
        "/ops/requests/",
        "example.com/ops/requests/",
        "ftp://example.com/ops/requests/",
        // The id would be part of the host, or of the port.
        "https://example.com",
        "https://example.com:443",
        " https://example.com/ops/requests/",
        "https://example.com/ops/requests/\n",
    ];
    for link in cannot_work {
        match webhook.clone().link(link) {
            Err(WebhookError::Setting(error)) => {
                assert_eq!(error.setting, "Webhook::link");
                assert!(error.to_string().contains("https://example.com/ops/requests/"), "{error}");
            }
            other => panic!("{link:?}: {other:?}"),
        }
    }
    for link in ["https://example.com/ops/requests/", "http://10.0.0.1:8080/?id=", "http://a/#"] {
        assert!(webhook.clone().link(link).is_ok(), "{link}");
    }
    let signed = webhook.clone().also_signed_with("whsec_c2hvcnQ=");
    assert!(matches!(signed, Err(WebhookError::Secret)), "{signed:?}");
    let over = webhook.over(reqwest::Client::builder().user_agent("two\nlines"));
    assert!(matches!(over, Err(WebhookError::Client(_))), "{over:?}");
}

#[cfg(all(feature = "console", feature = "ops-api"))]
#[tokio::test]
async fn the_console_and_the_api_refuse_what_cannot_work() {
    let engine = Engine::builder(Sqlite::connect(":memory:").await.unwrap()).build().unwrap();
    let within = |limit| Console::new(engine.clone(), |_| None).time_limit(limit);
    for limit in [Duration::ZERO, Duration::MAX] {
        assert_eq!(within(limit).unwrap_err().setting, "Console::time_limit");
    }
    assert!(within(Duration::from_secs(1)).is_ok());
    let console = || Console::new(engine.clone(), |_| None);
    let api = || Api::new(engine.clone(), |_| None);
    for origin in ["ops.example.com", "https://ops.example.com/console", "null", "*"] {
        let must_be = "but it must be the origin of a page, for example https://ops.example.com";
        let told = console().allow_origin(origin).unwrap_err().to_string();
        assert!(
            told.starts_with(&format!("Console::allow_origin is {origin:?}, {must_be}")),
            "{told}"
        );
        let told = api().allow_origin(origin).unwrap_err().to_string();
        assert!(told.starts_with(&format!("Api::allow_origin is {origin:?}, {must_be}")), "{told}");
    }
    let long = console().allow_origin("a".repeat(101)).unwrap_err();
    assert_eq!(long.value, format!("{:?}…", "a".repeat(100)), "it was cut");
    assert!(console().allow_origin("https://ops.example.com").is_ok());
    assert!(api().allow_origin("https://ops.example.com").is_ok());
}
