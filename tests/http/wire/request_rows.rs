//! Rows 50 to 79: which requests are the same, whose they are, and what is stored of a reply.

use std::time::Duration;

use atomic_phases::http::{Policy, Profile};
use http::HeaderValue;
use serde_json::json;

use super::client::Request;
use super::expect::{does_not_reflect, is_error, is_reply};
use super::server::{BYTES, Wire};
use crate::support::*;

/// With one key, `second` is the same request as `first`.
async fn same(first: Request, second: Request, profile: Profile) {
    let (first, second) = (first.send().await, second.send().await);
    assert_eq!((first.status, first.replayed()), (200, false), "{first:?}");
    is_reply(&second, profile, "k", 200, true);
    assert_eq!(second.kept(), first.kept());
}

/// With one key, `second` is a different request from `first`.
async fn other(first: Request, second: Request, profile: Profile) {
    let first = first.send().await;
    assert_eq!(first.status, 200, "{first:?}");
    is_error(&second.send().await, profile, "idempotency_key_reused");
}

/// Two bodies for `/echo`, under the key `k` of a tenant of their own.
fn pair<S: TestDb>(wire: &Wire<S>, case: usize, bodies: [&str; 2]) -> [Request; 2] {
    let tenant = format!("case-{case}");
    bodies.map(|body| wire.echo("k", body).set("x-tenant", &tenant))
}

pub async fn w50_another_value_method_path_or_query_is_a_mismatch<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let wire = Wire::start(db, profile).await;
    let [first, second] = pair(&wire, 0, [r#"{"count":1}"#, r#"{"count":2}"#]);
    other(first, second, profile).await;
    let origins = [
        ["POST /echo", "PATCH /echo"],
        ["POST /echo", "POST /echo?a=1"],
        ["POST /echo?a=1", "POST /echo?a=2"],
        ["POST /echo?", "POST /echo"],
        ["POST /in/a", "POST /in/b"],
        // A nested router removes the prefix that the client sent.
        ["POST /in/a", "POST /out/a"],
    ];
    for (case, origins) in origins.into_iter().enumerate() {
        let [first, second] = origins.map(|origin| {
            let (method, path) = origin.split_once(' ').unwrap();
            let method = if method == "POST" { "POST" } else { "PATCH" };
            let request = wire.request(method, path).key("k").json("{}");
            request.set("x-tenant", format!("origin-{case}"))
        });
        other(first, second, profile).await;
    }
    assert_eq!(wire.effects(), 7);
}

pub async fn w51_what_the_handler_does_not_see_is_the_same_request<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let wire = Wire::start(db, profile).await;
    let bodies = [
        // The order of members, at any depth.
        [
            r#"{"count":1,"note":"a","extra":{"x":{"y":1,"z":2},"w":3}}"#,
            r#"{"extra":{"w":3,"x":{"z":2,"y":1}},"note":"a","count":1}"#,
        ],
        [r#"{"tags":[1,2]}"#, "{ \"tags\" :\n\t[ 1 , 2 ]\r\n}\n"],
        [r#"{"note":"caf\u00e9\/\ud83d\ude97"}"#, r#"{"note":"café/🚗"}"#],
        [r#"{"not\u0065":"x"}"#, r#"{"note":"x"}"#],
        [r#"{"amount":1.0}"#, r#"{"amount":1}"#],
        [r#"{"amount":100}"#, r#"{"amount":1e2}"#],
        // Members that the type does not have.
        [r#"{"count":1,"unknown":[1]}"#, r#"{"count":1}"#],
    ];
    for (case, bodies) in bodies.into_iter().enumerate() {
        let [first, second] = pair(&wire, case, bodies);
        same(first, second, profile).await;
    }
    let body = r#"{"count":1}"#;
    let request = |case: &str| wire.echo("k", body).set("x-tenant", case);
    same(request("a"), request("a").body("Application/JSON; charset=utf-8", body), profile).await;
    same(request("b"), request("b").chunked(), profile).await;
    same(request("c"), request("c").line("user-agent", "another"), profile).await;
    same(request("d"), request("d").body("application/vnd.api+json", body), profile).await;
}

pub async fn w52_the_order_of_elements_counts<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    let [first, second] = pair(&wire, 0, [r#"{"tags":[1,2]}"#, r#"{"tags":[2,1]}"#]);
    other(first, second, profile).await;
}

pub async fn w53_integers_past_2_to_the_53_count<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    for (case, field) in ["count", "extra"].into_iter().enumerate() {
        let bodies = [993, 992].map(|end| format!("{{\"{field}\":9007199254740{end}}}"));
        let [first, second] = pair(&wire, case, [&bodies[0], &bodies[1]]);
        other(first, second, profile).await;
    }
}

pub async fn w54_normalization_forms_count<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    let bodies = ["{\"note\":\"\u{e9}\"}", "{\"note\":\"e\u{301}\"}"];
    let [first, second] = pair(&wire, 0, bodies);
    other(first, second, profile).await;
}

pub async fn w55_a_member_given_twice_is_400_and_not_stored<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    for body in [
        r#"{"count":1,"count":1}"#,
        r#"{"count":1,"c\u006funt":2}"#,
        // With a type of serde_json::Value, or one without the member.
        r#"{"extra":{"canary":1,"canary":2}}"#,
        r#"{"extra":[{"x":{"canary":1,"canary":1}}]}"#,
        r#"{"unknown":1,"unknown":2}"#,
    ] {
        let seen = wire.echo("k", body).send().await;
        is_error(&seen, profile, "parameters_malformed");
        does_not_reflect(&seen, "canary");
    }
    let form = wire.book("k").body("application/x-www-form-urlencoded", "amount=1&amount=2");
    is_error(&form.send().await, profile, "parameters_malformed");
    assert_eq!(wire.effects(), 0);
    is_reply(&wire.echo("k", "{}").send().await, profile, "k", 200, false);
}

pub async fn w56_an_unfingerprinted_field_does_not_count<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    let bodies = [r#"{"count":1,"sent_at":"10:00"}"#, r#"{"count":1,"sent_at":"10:01"}"#];
    let [first, second] = pair(&wire, 0, bodies);
    same(first, second, profile).await;
    let [first, second] = pair(&wire, 1, [bodies[0], r#"{"count":1}"#]);
    same(first, second, profile).await;
}

pub async fn w57_json_and_form_of_equal_parameters_are_one_request<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let wire = Wire::start(db, profile).await;
    let first = wire.book("k").send().await;
    is_reply(&first, profile, "k", 201, false);
    let form = wire.book("k").body("application/x-www-form-urlencoded;charset=UTF-8", "amount=20");
    let again = form.send().await;
    is_reply(&again, profile, "k", 201, true);
    assert_eq!(again.kept(), first.kept());
    let form = wire.book("k").body("application/x-www-form-urlencoded", "amount=21");
    is_error(&form.send().await, profile, "idempotency_key_reused");
    assert_eq!(wire.effects(), 1);
}

pub async fn w58_another_key_is_another_request<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    for (count, key) in ["a", "b", "c"].into_iter().enumerate() {
        is_reply(&wire.book(key).send().await, profile, key, 201, false);
        assert_eq!(wire.effects(), count + 1);
    }
}

/// There is one version so far. A row of an unknown version belongs to a newer build: it is neither a different
/// request nor run again.
pub async fn w59_a_row_of_a_newer_fingerprint_is_left_alone<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    let first = wire.book("k").send().await;
    let to = |from: &str, to: &str| {
        format!(
            "UPDATE atomic_phases_keys SET fingerprint = replace(fingerprint, '{from}:', '{to}:')"
        )
    };
    wire.db.sql(&to("v1", "v9")).await;
    is_error(&wire.book("k").send().await, profile, "not_continued_here");
    wire.db.sql(&to("v9", "v1")).await;
    assert_eq!(wire.book("k").send().await.kept(), first.kept());
    assert_eq!(wire.effects(), 1);
}

pub async fn w70_scopes_are_independent<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    for (count, tenant) in ["tenant-1", "tenant-2", "Tenant-1"].into_iter().enumerate() {
        let body = format!("{{\"amount\":{count}}}");
        let seen = wire.book("k").set("x-tenant", tenant).json(body).send().await;
        is_reply(&seen, profile, "k", 201, false);
    }
    assert_eq!(wire.effects(), 3);
}

pub async fn w71_scope_and_key_are_never_joined<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    for (tenant, key) in [("a:b", "c"), ("a", "b:c"), ("a:", "b:c"), ("a", ":b:c")] {
        let quoted = format!("\"{key}\"");
        let seen = wire.book(&quoted).set("x-tenant", tenant).send().await;
        assert_eq!((seen.status, seen.replayed()), (201, false), "{tenant} {key}");
    }
    assert_eq!(wire.effects(), 4);
}

pub async fn w73_other_methods_pass_through<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    is_reply(&wire.book("k").send().await, profile, "k", 201, false);
    for method in ["GET", "HEAD", "OPTIONS", "PUT", "DELETE"] {
        // With a used key, a fresh one, a malformed one, and two keys.
        for keys in [&["k"][..], &["fresh"], &["a b"], &["a", "b"]] {
            // With a separate handler, and with one for every method.
            for path in ["/book", "/maybe"] {
                let mut request = wire.request(method, path);
                for key in keys {
                    request = request.key(key);
                }
                let seen = request.send().await;
                assert_eq!(seen.status, 200, "{method}");
                assert_eq!(seen.body, if method == "HEAD" { &b""[..] } else { b"passed" });
                assert_eq!(seen.header("idempotency-key"), None);
            }
        }
    }
    let seen = wire.request("POST", "/maybe").key("a b").send().await;
    is_error(&seen, profile, "idempotency_key_malformed");
    assert_eq!(wire.effects(), 1);
    is_reply(&wire.book("fresh").send().await, profile, "fresh", 201, false);
    // A route with phases that is mounted for another method reports it.
    let seen = wire.request("GET", "/wrong").key("k").send().await;
    is_error(&seen, profile, "method_not_allowed");
    assert_eq!(seen.header("allow"), Some("POST, PATCH"));
}

/// Bodies, limit and dialect are the boundary's, not the defaults.
pub async fn w73_what_passes_through_is_read_by_the_same_policy<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let wire = Wire::setup(db, profile).policy(|policy| policy.body_limit(100)).start().await;
    for (method, status) in [("POST", 201), ("PUT", 200), ("DELETE", 200)] {
        let request = wire.request(method, "/each").key("k");
        let form = |body: &str| request.clone().body("application/x-www-form-urlencoded", body);
        assert_eq!(form("amount=20").send().await.status, status, "{method}");
        let long = form(&format!("amount=20&x={}", "x".repeat(100)));
        is_error(&long.send().await, profile, "body_too_large");
        is_error(&form("amount=x").send().await, profile, "parameters_invalid");
        let query = form("amount=20").path("/each?level=x");
        is_error(&query.send().await, profile, "parameters_malformed");
    }
    assert_eq!(wire.effects(), 1);
}

pub async fn w74_headers_of_the_allow_list_are_replayed_in_order<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let wire = Wire::start(db, profile).await;
    for replayed in [false, true, true] {
        let seen = wire.echo("k", r#"{"how":"Headers"}"#).send().await;
        is_reply(&seen, profile, "k", 201, replayed);
        assert_eq!(seen.header("location"), Some("/echo/1"));
        assert_eq!(seen.header("content-location"), Some("/echo/1;v=1"));
        assert_eq!(seen.header("etag"), Some("\"1\""));
        assert_eq!(seen.header("last-modified"), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
        assert_eq!(seen.all("link"), ["</a>; rel=\"next\"", "</b>; rel=\"prev\""]);
        assert_eq!(seen.header("content-type"), Some("application/json"));
        assert_eq!(seen.header("content-language"), Some("de"));
    }
}

pub async fn w74_what_a_phase_says_replaces_and_is_never_doubled<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let wire = Wire::start(db, profile).await;
    for replayed in [false, true] {
        let seen = wire.echo("k", r#"{"how":"Forged"}"#).send().await;
        // The key, its expiry and the marker are the server's to tell.
        is_reply(&seen, profile, "k", 200, replayed);
        assert_eq!(seen.header("content-type"), Some("application/vnd.api+json"));
        assert_eq!(seen.header("location"), Some("/echo/2"));
        // It belongs to the bytes that it describes.
        assert_eq!(seen.header("content-encoding"), Some("gzip"));
        assert_eq!(seen.body, BYTES);
    }
}

pub async fn w74_a_header_line_that_would_be_two_is_an_error<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    let seen = wire.echo("k", r#"{"how":"Split"}"#).send().await;
    is_error(&seen, profile, "temporarily_unavailable");
    assert_eq!(seen.header("set-cookie"), None);
    let reason = wire.db.text("SELECT reason FROM atomic_phases_keys").await;
    assert!(reason.contains("header"), "{reason}");
}

pub async fn w75_any_other_header_is_on_the_first_answer_only_and_not_stored<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let wire = Wire::start(db, profile).await;
    let first = wire.echo("k", r#"{"how":"Headers"}"#).send().await;
    assert_eq!(first.all("set-cookie"), ["session=canary-cookie", "other=canary-cookie"]);
    assert_eq!(first.header("x-request-id"), Some("canary-id"));
    assert_eq!(first.header("date"), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
    let again = wire.echo("k", r#"{"how":"Headers"}"#).send().await;
    is_reply(&again, profile, "k", 201, true);
    does_not_reflect(&again, "canary");
    assert_ne!(again.header("date"), first.header("date"), "the server's own");
    let stored = "SELECT count(*) FROM atomic_phases_keys WHERE CAST(response_headers AS TEXT) LIKE '%canary%'";
    assert_eq!(wire.db.number(stored).await, 0);
}

pub async fn w76_empty_204_and_binary_bodies_are_exact<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    for (how, status, body) in
        [("NoContent", 204, &b""[..]), ("Empty", 200, b""), ("Bytes", 200, BYTES)]
    {
        for replayed in [false, true] {
            let seen = wire.echo(how, json!({ "how": how }).to_string()).send().await;
            is_reply(&seen, profile, how, status, replayed);
            assert_eq!(seen.body, body);
            let length = body.len().to_string();
            let expected = (status != 204).then_some(length.as_str());
            assert_eq!(seen.header("content-length"), expected);
        }
    }
}

pub async fn w77_a_reply_over_the_cap_is_410_on_replay<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    let first = wire.troubled("k", Trouble::HugeReply).send().await;
    is_reply(&first, profile, "k", 200, false);
    assert_eq!(first.body.len(), 3 << 20);
    for _ in 0..2 {
        is_error(&wire.book("k").send().await, profile, "response_not_retained");
    }
    assert_eq!(wire.effects(), 1);
    assert_eq!(wire.app.bodies(), [1, 1, 1]);
}

pub async fn w78_a_body_over_the_cap_is_413_and_nothing_is_reserved<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let wire = Wire::setup(db, profile).policy(|policy| policy.body_limit(100)).start().await;
    let of_length = |length: usize| format!("{:length$}", r#"{"amount":20}"#);
    for length in [101, 10_000] {
        let over = wire.book("k").json(of_length(length));
        is_error(&over.send().await, profile, "body_too_large");
        // Without an announced length, the server counts the bytes.
        is_error(&over.chunked().send().await, profile, "body_too_large");
    }
    // With an announced length, the server does not wait for the body.
    let announced = wire.book("k").json(of_length(10_000));
    let head = announced.bytes().len() - 10_000;
    let seen = announced.cut_at(head).await.expect("an answer to the head alone");
    is_error(&seen, profile, "body_too_large");
    assert_eq!(wire.app.bodies(), [0, 0, 0]);
    // The header is checked before the body.
    let seen = wire.book("a b").json(of_length(101)).send().await;
    is_error(&seen, profile, "idempotency_key_malformed");
    is_reply(&wire.book("k").json(of_length(100)).send().await, profile, "k", 201, false);
}

pub async fn a_body_that_does_not_arrive_in_time_is_408<S: TestDb>(db: S, profile: Profile) {
    let short = |policy: Policy| policy.body_timeout(Duration::from_millis(50));
    let wire = Wire::setup(db, profile).policy(short).start().await;
    for request in [wire.book("k"), wire.book("k").chunked()] {
        let seen = request.stop_at(request.bytes().len() - 4).await;
        is_error(&seen, profile, "body_not_read");
    }
    assert_eq!(wire.effects(), 0);
    is_reply(&wire.book("k").send().await, profile, "k", 201, false);
}

pub async fn a_401_says_how_to_authenticate<S: TestDb>(db: S, profile: Profile) {
    let basic = HeaderValue::from_static("Basic realm=\"rides\"");
    let wire = Wire::setup(db, profile).policy(|policy| policy.challenge(basic)).start().await;
    let seen = wire.book("k").without("x-tenant").send().await;
    is_error(&seen, profile, "unauthenticated");
    assert_eq!(seen.header("www-authenticate"), Some("Basic realm=\"rides\""));
}

pub async fn w79_hostile_json_is_400<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    let deep = |open: &str, times: usize| format!("{{\"extra\":{}", open.repeat(times));
    let nested = format!("{{\"extra\":{}{}}}", "[".repeat(1000), "]".repeat(1000));
    let bodies: Vec<Vec<u8>> = vec![
        deep("[", 100_000).into(),
        deep("{\"a\":", 40_000).into(),
        nested.into(),
        r#"{"amount":1e400}"#.into(),
        r#"{"extra":-1e400}"#.into(),
        r#"{"unknown":1e400}"#.into(),
        r#"{"note":"\ud800"}"#.into(),
        r#"{"note":"\ude97\ud83d"}"#.into(),
        r#"{"unknown":"\ud800"}"#.into(),
        b"{\"note\":\"\xff\"}".to_vec(),
        b"{\"note\":\"\x00\"}".to_vec(),
        "\u{feff}{}".into(),
        r#"{"amount":NaN}"#.into(),
        r#"{"amount":01}"#.into(),
        r#"{"count":1,}"#.into(),
        "{}{}".into(),
    ];
    for body in bodies {
        let start = String::from_utf8_lossy(&body[..body.len().min(30)]).into_owned();
        let seen = wire.echo("k", body).send().await;
        assert_eq!(seen.status, 400, "{start}");
        is_error(&seen, profile, "parameters_malformed");
    }
    assert_eq!(wire.effects(), 0);
    is_reply(&wire.echo("k", "{}").send().await, profile, "k", 200, false);
}

pub async fn w55_nothing_hides_a_member_that_is_given_twice<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    for name in ["RawValue", "Number"] {
        let hidden = format!(r#"{{"$serde_json::private::{name}":"{{\"a\":1,\"a\":2}}"}}"#);
        let at_any_depth = format!(r#"{{"note":"x","extra":[{{"deep":{hidden}}}]}}"#);
        for body in [format!(r#"{{"extra":{hidden}}}"#), at_any_depth, hidden] {
            let seen = wire.echo("k", &body).send().await;
            is_error(&seen, profile, "parameters_malformed");
        }
        // `{"a":1,"a":2}`, in a form, before and behind another parameter.
        let pair =
            format!("%24serde_json%3A%3Aprivate%3A%3A{name}=%7B%22a%22%3A1%2C%22a%22%3A2%7D");
        for body in [pair.clone(), format!("{pair}&amount=20"), format!("amount=20&{pair}")] {
            let form = wire.book("k").body("application/x-www-form-urlencoded", &body);
            is_error(&form.send().await, profile, "parameters_malformed");
        }
    }
    assert_eq!(wire.effects(), 0);
}

pub async fn an_array_is_no_object<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    for body in ["[]", "[20.0,1]", r#"[20.0,1,"note",[],null,null,"Plain"]"#] {
        is_error(&wire.echo("k", body).send().await, profile, "parameters_invalid");
    }
    let nested = wire.request("POST", "/parcel").key("k");
    is_error(
        &nested.clone().json(r#"{"to":["street",5]}"#).send().await,
        profile,
        "parameters_invalid",
    );
    assert_eq!(wire.effects(), 0);
    let seen = nested.json(r#"{"to":{"street":"street","number":5}}"#).send().await;
    assert_eq!(seen.status, 200, "{seen:?}");
}

pub async fn forms_that_do_not_decode_are_400<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    let form = |body: &str| wire.book("k").body("application/x-www-form-urlencoded", body);
    for body in
        ["amount=20&x=%zz", "amount=20&x=%", "amount=20&x=%4", "amount=20&x=%ff%fe", "%c3=1"]
    {
        is_error(&form(body).send().await, profile, "parameters_malformed");
    }
    let raw = wire.book("k").body("application/x-www-form-urlencoded", b"amount=20&x=\xff");
    is_error(&raw.send().await, profile, "parameters_malformed");
    assert_eq!(wire.effects(), 0);
    is_reply(&form("amount=%320&x=%C3%A9+%25").send().await, profile, "k", 201, false);
}

pub async fn types_and_codings_are_compared_as_http_says<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    for (case, lines) in [
        &["identity"][..],
        &["Identity"],
        &["identity, IDENTITY"],
        &["identity", "identity"],
        &[""],
    ]
    .into_iter()
    .enumerate()
    {
        let request = wire.book("k").set("x-tenant", format!("case-{case}"));
        let request = lines.iter().fold(request, |r, coding| r.line("content-encoding", coding));
        is_reply(&request.send().await, profile, "k", 201, false);
    }
    let effects = wire.effects();
    for lines in [&["gzip"][..], &["identity, gzip"], &["identity", "gzip"], &["gzip", "identity"]]
    {
        let request = wire.book("l");
        let request = lines.iter().fold(request, |r, coding| r.line("content-encoding", coding));
        let seen = request.send().await;
        is_error(&seen, profile, "unsupported_media_type");
        assert_eq!(seen.header("accept-encoding"), Some("identity"));
    }
    // Two parsers of two lines may see two types.
    let two = wire.book("l").line("content-type", "application/x-www-form-urlencoded");
    is_error(&two.send().await, profile, "unsupported_media_type");
    let seen = wire.book("l").body("text/plain", "{}").send().await;
    assert_eq!(seen.header("accept-encoding"), None);
    assert_eq!(seen.header("accept"), Some("application/json, application/x-www-form-urlencoded"));
    assert_eq!(wire.effects(), effects);
}

pub async fn bodies_of_another_type_are_415<S: TestDb>(db: S, profile: Profile) {
    let wire = Wire::start(db, profile).await;
    let json = r#"{"amount":20}"#;
    for content_type in ["text/plain", "multipart/form-data; boundary=x", "application/jsonx", ""] {
        let seen = wire.book("k").body(content_type, json).send().await;
        is_error(&seen, profile, "unsupported_media_type");
    }
    let seen = wire.book("k").without("content-type").send().await;
    is_error(&seen, profile, "unsupported_media_type");
    let seen = wire.book("k").line("content-encoding", "gzip").send().await;
    is_error(&seen, profile, "unsupported_media_type");
    assert_eq!(wire.effects(), 0);
    is_reply(&wire.book("k").send().await, profile, "k", 201, false);
}

pub async fn a_caller_without_a_scope_is_401_before_its_key_is_read<S: TestDb>(
    db: S,
    profile: Profile,
) {
    let wire = Wire::start(db, profile).await;
    for key in ["k", "a b"] {
        let seen = wire.book(key).without("x-tenant").send().await;
        is_error(&seen, profile, "unauthenticated");
        assert_eq!(seen.header("www-authenticate"), Some("Bearer"));
    }
    assert_eq!(wire.effects(), 0);
}
