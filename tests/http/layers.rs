//! The boundary among the layers of a real service, the policy's page, and browsers.

use std::borrow::Cow;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::*;
use crate::wire::server::{Wire, router};
use atomic_phases::codec::{Codec, CodecError, Place};
use atomic_phases::config::{Limits, OnDuplicate, Quota};
use atomic_phases::http::{Bodies, IDEMPOTENCY_KEY, KeyRule, KeySyntax, Policy, Profile};
use atomic_phases::store::Sqlite;
use http::header::{CONTENT_TYPE, HeaderName};
use tower_http::compression::CompressionLayer;
use tower_http::cors::{Any, CorsLayer};
use tower_http::trace::TraceLayer;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// In the documented order, from the outside in: tracing, CORS, compression, then the routes.
async fn layered(policy: Policy) -> (crate::wire::client::Request, Provider) {
    let app = App::default();
    let engine = engine_with(&Sqlite::fresh().await, &app, |engine| {
        engine.register::<crate::wire::server::Echo>()
    });
    let cors = CorsLayer::new()
        .allow_origin(Any)
        .allow_headers([IDEMPOTENCY_KEY, CONTENT_TYPE, HeaderName::from_static("x-tenant")])
        .expose_headers(policy.exposed_headers());
    let router = router(engine, policy.bodies(Bodies::JsonOrForm))
        .layer(CompressionLayer::new())
        .layer(cors)
        .layer(TraceLayer::new_for_http());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let request = crate::wire::client::Request::new(address, "POST", "/book")
        .key("canary-key")
        .json(r#"{"amount":20}"#)
        .line("origin", "https://app.example");
    (request, app.provider)
}

#[tokio::test(flavor = "multi_thread")]
async fn compression_cors_and_tracing_in_front_change_nothing() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .init();
    for profile in [Profile::Ietf, Profile::Stripe] {
        let (request, provider) = layered(Policy::default().profile(profile)).await;
        let plain = request.send().await;
        assert_eq!((plain.status, plain.replayed()), (201, false), "{plain:?}");
        // The replay has the same bytes, and is then compressed for clients that accept it.
        let packed = request.clone().line("accept-encoding", "gzip").send().await;
        assert_eq!((packed.status, packed.replayed()), (201, true));
        assert_eq!(packed.header("content-encoding"), Some("gzip"));
        assert_ne!(packed.body, plain.body);
        let again = request.send().await;
        assert_eq!((again.header("content-encoding"), &again.body), (None, &plain.body));
        // A script may read the headers that it needs.
        let exposed = plain.header("access-control-expose-headers").unwrap().to_ascii_lowercase();
        for name in ["idempotency-key", "idempotency-expires", "idempotent-replayed", "retry-after"]
        {
            assert!(exposed.split(',').any(|exposed| exposed == name), "{name} in {exposed}");
        }
        let own = if profile == Profile::Ietf { "link" } else { "stripe-should-retry" };
        assert!(exposed.contains(own), "{exposed}");
        // The log names a header line that replays will lack, without its value.
        let lines = request.clone().path("/echo").set("idempotency-key", "echo");
        assert_eq!(lines.json(r#"{"how":"Logged"}"#).send().await.status, 201);
        let missing = request.clone().without("idempotency-key").send().await;
        crate::wire::expect::is_error(&missing, profile, "idempotency_key_missing");
        assert_eq!(provider.effects(), 2);
    }
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("atomic_phases.request"), "{log}");
    assert!(!log.contains("canary"), "G19");
    let told = |name: &str| {
        log.lines().filter(|line| line.contains("this answer only") && line.contains(name)).count()
    };
    assert_eq!((told("x-logged"), told("set-cookie")), (1, 0), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browsers_preflight_is_answered_and_reserves_nothing() {
    let (request, provider) = layered(Policy::default()).await;
    let url = request.clone();
    let preflight = url
        .method("OPTIONS")
        .line("access-control-request-method", "POST")
        .line("access-control-request-headers", "idempotency-key,content-type,x-tenant");
    let seen = preflight.send().await;
    assert_eq!(seen.status, 200);
    let allowed = seen.header("access-control-allow-headers").unwrap();
    assert!(allowed.contains("idempotency-key"), "{allowed}");
    assert_eq!(provider.effects(), 0);
    assert!(!request.send().await.replayed());
}

/// As one whose key server is away for a moment.
struct CannotEncode;

impl Codec for CannotEncode {
    fn encode<'v>(&self, _: Place<'_>, _: Cow<'v, [u8]>) -> Result<Cow<'v, [u8]>, CodecError> {
        Err(CodecError("the key server does not answer"))
    }

    fn decode<'v>(&self, _: Place<'_>, stored: Cow<'v, [u8]>) -> Result<Cow<'v, [u8]>, CodecError> {
        Ok(stored)
    }
}

/// Nothing was begun, by this version of the service or by another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_codec_that_cannot_encode_a_new_request_is_not_another_version_of_the_service() {
    let wire = Wire::setup(Sqlite::fresh().await, Profile::Ietf);
    let wire = wire.builder(|engine| engine.codec(CannotEncode)).start().await;
    let seen = wire.book("k").send().await;
    assert_eq!(wire.db.number("SELECT count(*) FROM atomic_phases_keys").await, 0);
    crate::wire::expect::is_error(&seen, Profile::Ietf, "temporarily_unavailable");
    // Nor does the application's log say that a stored value is not readable.
    let outcome = wire.engine.call(&scope(), &key("k"), book(20)).await;
    let text = outcome.unwrap_err().to_string();
    assert!(!text.contains("stored"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_page_lists_every_configured_value() {
    let set = |policy: Policy| {
        policy
            .key(KeyRule::Optional)
            .key_syntax(KeySyntax::Quoted)
            .body_limit(12_345)
            .body_timeout(Duration::from_secs(29))
            .on_duplicate(OnDuplicate::Wait(Duration::from_millis(7500)))
            .accept_duplicates("/where/")
            .replay_marker(HeaderName::from_static("x-replayed"))
            .documentation("/about/keys")
    };
    let wire = Wire::setup(Sqlite::fresh().await, Profile::Stripe).policy(set).builder(|engine| {
        let limits = Limits::default().params(23_456).reply_body(34_567).reply_headers(4_567);
        engine
            .lease(Duration::from_secs(17))
            .retention(Duration::from_secs(36 * 3600))
            .max_attempts(13)
            .reconcile_after(Duration::from_secs(19))
            .limits(limits)
            .quota(Quota::default().keys(5678).rate(6789, Duration::from_secs(23)))
            .store_header("X-Total")
    });
    let wire = wire.start().await;
    let page = |accept| wire.request("GET", "/about/keys").line("accept", accept);
    let (html, markdown) = (page("text/html").send().await, page("text/markdown").send().await);
    assert_eq!(html.header("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(markdown.header("content-type"), Some("text/markdown; charset=utf-8"));
    let (html, markdown) =
        (String::from_utf8(html.body).unwrap(), String::from_utf8(markdown.body).unwrap());
    for value in [
        "may have an `Idempotency-Key`",
        "in double quotes",
        "1 to 255",
        "12345 bytes",
        "29 s",
        "compared as they are sent",
        "23456 bytes",
        "34567 bytes",
        "4567 bytes",
        "5678",
        "6789 in 23 s",
        "7500 ms",
        "`/where/`",
        "`x-replayed: true`",
        "36 h",
        "17 s",
        "13 attempts",
        "19 s",
        "`x-total`",
        "`content-language`",
        "application/x-www-form-urlencoded",
        "Stripe-Should-Retry",
    ] {
        assert!(markdown.contains(value), "{value}\n{markdown}");
        let (open, close) = ("<code>", "</code>");
        let coded = value.replacen('`', open, 1).replacen('`', close, 1);
        assert!(html.contains(&coded) || html.contains(&coded.replace('"', "&quot;")), "{coded}");
    }
    // Each error links to its place on the page.
    for (status, code) in
        [("400", "idempotency_key_reused"), ("409", "outcome_unknown"), ("413", "body_too_large")]
    {
        assert!(markdown.contains(&format!("| `{code}` | {status} |")), "{markdown}");
        assert!(html.contains(&format!("<tr id=\"{code}\">")), "{html}");
    }
    // And the marker is the configured one on the wire, too.
    wire.book("\"k\"").send().await;
    let replay = wire.book("\"k\"").send().await;
    assert_eq!(
        (replay.header("x-replayed"), replay.header("idempotent-replayed")),
        (Some("true"), None)
    );
}
