//! Redaction: a key, scope, parameter, output or reply leaves only by a reveal. Each reveal is in the audit, which
//! contains none of them either.

use atomic_phases::config::DerivedKeys;
use atomic_phases::engine::Resolution;
use atomic_phases::ops::{
    Actor, Filter, OperatorStore, OpsError, Permissions, Scopes, Selection, What,
};
use atomic_phases::store::Postgres;
use atomic_phases::{IdempotencyKey, Outcome, Reply, Scope};
use diesel_async::SimpleAsyncConnection;

use super::cast::*;
use crate::support::db::{pg, url_of};
use crate::support::*;

on_every_store! {
    g19_nothing_that_users_gave_leaves_without_a_reveal,
    g19_the_audit_holds_no_key_and_no_value,
    g1_the_derived_key_that_is_revealed_is_the_one_that_the_provider_knows,
    of_an_erased_request_nothing_is_left_to_reveal,
}

const CANARY: &str = "canary";

async fn with_canaries<S: TestDb + OperatorStore>(engine: &TestEngine<S>) {
    let (scope, key) = (Scope::new("scope-canary").unwrap(), key("key-canary"));
    let request = Notify { who: "params-canary".into(), trouble: Trouble::None.into() };
    let call = engine.call(&scope, &key, request).context(&"context-canary");
    finished(call.await);
    let request = Notify { who: "params-canary".into(), trouble: Trouble::UnknownForeign.into() };
    let key = support_key("open-canary");
    let call = engine.call(&scope, &key, request).context(&"context-canary");
    assert!(matches!(call.await, Ok(Outcome::Unknown { .. })));
}

fn support_key(name: &str) -> IdempotencyKey {
    key(name)
}

async fn g19_nothing_that_users_gave_leaves_without_a_reveal<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    with_canaries(&engine).await;
    let ops = admin(&engine);
    let page = ops.list(Filter::new().page(1)).await.unwrap();
    let cursor = page.next.clone().unwrap().to_string();
    let mut all = format!("{page:?} {cursor} {ops:?}");
    for row in ops.list(Filter::new()).await.unwrap().rows {
        let id = row.request_id;
        all.push_str(&format!("{row:?} {:?} {:?}", ops.show(id).await, ops.why(id).await));
        for what in What::ALL {
            all.push_str(&format!("{:?}", ops.reveal(id, what, "reason").await));
        }
        all.push_str(&format!("{:?}", ops.retry(id, &row.version, "reason").await));
        all.push_str(&format!("{:?}", ops.erase(id, &row.version, "reason").await));
    }
    all.push_str(&format!("{:?} {:?}", ops.audit(None, None, 100).await, ops.counts().await));
    assert!(!all.contains(CANARY), "{all}");
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(cursor).unwrap();
    assert!(!String::from_utf8_lossy(&bytes).contains(CANARY));

    // A reveal, with the permission for it, shows everything.
    let open = Filter::waiting();
    let id = ops.list(open).await.unwrap().rows[0].request_id;
    let shown = async |what| ops.reveal(id, what, "ticket 7").await.unwrap();
    let key = shown(What::Key).await;
    assert_eq!((key.scope.as_str(), key.key.as_str()), ("scope-canary", "open-canary"));
    assert!(key.json.is_none() && key.reply.is_none());
    assert!(shown(What::Parameters).await.json.unwrap().contains("params-canary"));
    assert!(shown(What::Context).await.json.unwrap().contains("context-canary"));
    assert!(shown(What::Outputs).await.json.unwrap().contains("params-canary"));
    assert!(shown(What::Reply).await.reply.is_none());
    assert!(shown(What::DerivedKey).await.json.is_none(), "no provider of it honors one");
    // Also for a finished request, as long as the values are stored.
    let call = engine.call(&scope(), &support_key("over"), book(20)).context(&"context-canary");
    finished(call.await);
    let over = ops.find(&scope(), &support_key("over")).await.unwrap();
    let context = ops.reveal(over.request_id, What::Context, "ticket 7").await.unwrap();
    assert_eq!(context.json.as_deref(), Some("\"context-canary\""));
    ops.erase(over.request_id, &over.version, "ticket 7").await.unwrap_err();
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    let _ = ops.erase(over.request_id, &over.version, "ticket 7").await.unwrap();
    let finished = Filter::new().states([atomic_phases::ops::State::Finished]);
    let finished = ops.list(finished).await.unwrap().rows;
    // Erased above, unless its jobs prevented it.
    assert!(finished.is_empty());
    let acts = ops.audit(Some(id), None, 6).await.unwrap().rows;
    let told: Vec<_> = acts.iter().map(|act| act.act.as_str()).collect();
    let expected = [
        "reveal.derived_key",
        "reveal.reply",
        "reveal.outputs",
        "reveal.context",
        "reveal.parameters",
        "reveal.key",
    ];
    assert_eq!(told, expected);
    assert!(acts.iter().all(|act| act.reason == "ticket 7" && act.actor == "ada"));
    let viewer = engine.ops(actor(Permissions::responder()));
    assert!(viewer.reveal(id, What::Key, "curious").await.is_err());
}

/// What an operator says, in the log of an application that writes it down.
#[test]
fn g19_what_an_operator_says_is_told_without_values() {
    let secret = || Scope::new("scope-canary").unwrap();
    let filter = || Filter::new().scope(&secret());
    let actor = |scopes| Actor::new("bob", Permissions::viewer(), scopes).unwrap();
    let told = [
        format!("{:?}", Resolution::executed("p", &"output-canary").unwrap()),
        format!("{:?}", Resolution::finish(Reply::text(200, "canary").header("x", "canary"))),
        format!("{:?}", filter()),
        format!("{:?}", Selection::Filter(filter())),
        format!("{:?}", actor(Scopes::Only(vec![secret()]))),
        format!("{:?}", actor(Scopes::Prefix("canary".into()))),
        format!("{:?}", [Scopes::Only(vec![secret()]), Scopes::Prefix("canary".into())]),
    ];
    for text in told {
        assert!(!text.contains(CANARY), "{text}");
    }
}

/// By it, an operator finds the call in the provider's books: also if the keys are made with a secret that is not the current
/// one any more, and after the request has ended.
async fn g1_the_derived_key_that_is_revealed_is_the_one_that_the_provider_knows<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let app = App::default();
    let secret = |text: &str| DerivedKeys::plain().with_secret(text).unwrap();
    let (old, new) = ("a secret of 32 bytes, or of more", "another secret, that replaces that");
    let before = engine_with(&db, &app, |builder| builder.derived_keys(secret(old)));
    let after = secret(new).also_continue(secret(old));
    let after = engine_with(&db, &app, |builder| builder.derived_keys(after));
    let other = engine_with(&db, &app, |builder| builder.derived_keys(secret(new)));
    let request = || troubled(Trouble::RetryForeignOnce);
    failed(before.call(&scope(), &key("k"), request()).await);
    let known = app.provider.ledger().remove(0).key;
    let id = id_of(&before, "k").await;
    let told =
        async |engine: &TestEngine<S>| admin(engine).reveal(id, What::DerivedKey, "ticket 7").await;
    for engine in [&before, &after] {
        let told = told(engine).await.unwrap().json.unwrap();
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        assert_eq!(told, serde_json::json!([{ "phase": "charged", "derived_key": known }]));
    }
    let refused = told(&other).await;
    assert!(matches!(refused, Err(OpsError::Unreadable { .. })), "{refused:?}");
    db.let_time_pass().await;
    finished(after.call(&scope(), &key("k"), request()).await);
    assert!(told(&after).await.unwrap().json.unwrap().contains(&known));
    let may = |permissions| after.ops(actor(permissions));
    let viewer = may(Permissions::responder()).reveal(id, What::DerivedKey, "curious").await;
    assert!(matches!(viewer, Err(OpsError::NotAllowed { .. })), "{viewer:?}");
}

async fn g19_the_audit_holds_no_key_and_no_value<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    with_canaries(&engine).await;
    let ops = admin(&engine);
    for row in ops.list(Filter::new()).await.unwrap().rows {
        for what in What::ALL {
            let _ = ops.reveal(row.request_id, what, "reason").await;
        }
        let output = serde_json::json!({ "canary": 1 });
        let word = Resolution::executed("notified", &output).unwrap();
        let _ = ops.resolve(row.request_id, &row.version, word, "reason").await;
        let word = Resolution::finish(Reply::text(200, "canary"));
        let _ = ops.resolve(row.request_id, &row.version, word, "reason").await;
    }
    let mut held = String::new();
    let columns = [
        "actor",
        "act",
        "outcome",
        "refused_because",
        "reason",
        "definition",
        "phase",
        "value_sha256",
        "status_before",
        "status_after",
    ];
    for column in columns {
        let hex = db.joined("atomic_phases_audit", column).await;
        let digits = hex.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).unwrap());
        let bytes = digits.map(|two| u8::from_str_radix(two, 16).unwrap());
        held.push_str(&String::from_utf8_lossy(&bytes.collect::<Vec<_>>()));
    }
    assert!(held.contains("reveal.key") && held.contains("refused"), "{held}");
    assert!(!held.contains(CANARY), "{held}");
}

async fn of_an_erased_request_nothing_is_left_to_reveal<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    let call = engine.call(&scope(), &key("k"), notify(Trouble::None)).await;
    finished(call);
    let id = id_of(&engine, "k").await;
    let reply = ops.reveal(id, What::Reply, "reason").await.unwrap().reply.unwrap();
    assert_eq!(reply.status(), 200);
    engine.erase(&scope(), &key("k")).await.unwrap();
    for what in What::ALL {
        let revealed = ops.reveal(id, what, "reason").await.unwrap();
        assert!(revealed.json.is_none() && revealed.reply.is_none(), "{what:?}");
    }
}

/// Between the audit row and the read of the value, the request is reaped and its key is used again.
#[tokio::test(flavor = "multi_thread")]
async fn g19_no_other_request_is_revealed_than_the_audit_tells() {
    let db = Postgres::fresh().await;
    let engine = engine(&db, &App::default());
    finish(&engine, "k").await;
    let id = id_of(&engine, "k").await;
    for what in [What::Parameters, What::Context, What::Outputs] {
        let mut lock = pg(&url_of(&db)).await;
        lock.batch_execute("BEGIN; LOCK TABLE atomic_phases_audit IN SHARE MODE").await.unwrap();
        let ops = admin(&engine);
        let looking = tokio::spawn(async move { ops.reveal(id, what, "ticket").await });
        until(async || db.text(WAITS).await == "1").await;
        db.sql("DELETE FROM atomic_phases_keys").await;
        finish(&engine, "k").await;
        lock.batch_execute("ROLLBACK").await.unwrap();
        let told = looking.await.unwrap();
        assert!(
            !told.as_ref().is_ok_and(|told| told.json.is_some()),
            "{what:?}: {:?}",
            told.map(|told| told.json)
        );
        set(&engine, "k", &format!("request_id = '{id}'")).await;
    }
}

const WAITS: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
    AND datname = current_database()";
