//! What an operator gave with a resolution. Its audit row proves which value it was and holds no value, and the hash is for
//! those who may see values.

use std::process::Command;

use atomic_phases::Reply;
use atomic_phases::engine::{Resolution, ResolveError, Resolved};
use atomic_phases::ops::{
    AuditRecord, Event, Happened, OperatorStore, Ops, OpsError, Permissions, RowVersion,
};
use atomic_phases::store::Sqlite;
use serde_json::value::RawValue;

use super::cast::*;
use super::without_code::Envelope;
use crate::support::*;

on_every_store! {
    g19_the_audit_proves_what_was_given_and_holds_no_value,
}

/// As an operator types it: the bytes are not those of a serialized [`Charge`].
const OUTPUT: &str = r#"{ "padding": "", "id": "canary" }"#;
const BODY: &str = "canary by hand";

/// Attempt, hash and length.
type Given = (Option<u32>, Option<String>, Option<u64>);

fn given(act: &AuditRecord) -> Given {
    (act.attempt, act.value_sha256.clone(), act.value_bytes)
}

fn digest(value: &str) -> Given {
    (None, Some(sha256(value)), Some(value.len() as u64))
}

async fn of_request<S: OperatorStore>(ops: &Ops<S>, name: &str) -> Vec<(String, Given)> {
    let id = ops.find(&scope(), &key(name)).await.unwrap().request_id;
    let acts = ops.audit(Some(id), None, 10).await.unwrap().rows;
    let mut told: Vec<_> = acts.iter().map(|act| (act.outcome.clone(), given(act))).collect();
    let act_of = |one: &Happened| match &one.what {
        Event::Acted(act) => Some((act.outcome.clone(), given(act))),
        _ => None,
    };
    let timeline = ops.show(id).await.unwrap().timeline;
    let mut shown: Vec<_> = timeline.iter().filter_map(act_of).collect();
    shown.sort();
    told.sort();
    assert_eq!(shown, told, "the page of a request tells the same");
    told
}

async fn g19_the_audit_proves_what_was_given_and_holds_no_value<S: TestDb + OperatorStore>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let engine = engine_with(&db, &app, |builder| builder.codec(Envelope));
    let ops = admin(&engine);
    let responder = engine.ops(actor(Permissions::responder()));
    let reader = engine.ops(actor(Permissions::READ | Permissions::AUDIT));
    let output = RawValue::from_string(OUTPUT.to_owned()).unwrap();
    let executed = || Resolution::executed("notified", &output).unwrap();
    let not_executed = || Resolution::not_executed("notified", 1);
    let finish = || Resolution::finish(Reply::text(409, BODY));
    let words: [(&str, &dyn Fn() -> Resolution, Given); 3] = [
        ("executed", &executed, digest(OUTPUT)),
        ("not_executed", &not_executed, (Some(1), None, None)),
        ("finish", &finish, digest(BODY)),
    ];
    let another = RowVersion::from("another version");
    for (name, word, expected) in words {
        unknown(&engine, name).await;
        let row = ops.find(&scope(), &key(name)).await.unwrap();
        let say = async |by: &Ops<S>, version: &RowVersion| {
            by.resolve(row.request_id, version, word(), "the pilot's log").await
        };
        let refused = say(&reader, &row.version).await;
        assert!(matches!(refused, Err(OpsError::NotAllowed { .. })), "{refused:?}");
        let refused = say(&ops, &another).await;
        assert!(matches!(refused, Err(OpsError::MovedOn)), "{refused:?}");
        assert_eq!(say(&ops, &row.version).await.unwrap(), Resolved::Applied);
        assert_eq!(say(&ops, &row.version).await.unwrap(), Resolved::Already);
        let each = |given: &Given| {
            let outcomes = ["already", "applied", "refused", "refused"];
            outcomes.map(|outcome| (outcome.to_owned(), given.clone())).to_vec()
        };
        assert_eq!(of_request(&ops, name).await, each(&expected), "{name}");
        let (attempt, _, bytes) = expected;
        assert_eq!(of_request(&responder, name).await, each(&(attempt, None, bytes)), "{name}");
    }

    // What does not fit, and an attempt that there cannot be.
    unknown(&engine, "refused").await;
    let row = ops.find(&scope(), &key("refused")).await.unwrap();
    let word = Resolution::executed("notified", &"canary").unwrap();
    let refused = ops.resolve(row.request_id, &row.version, word, "a slip").await;
    let is_misfit = matches!(refused, Err(OpsError::Resolve(ResolveError::OtherType { .. })));
    assert!(is_misfit, "{refused:?}");
    let word = Resolution::not_executed("notified", u32::MAX);
    ops.resolve(row.request_id, &row.version, word, "a slip").await.unwrap_err();
    let refused = "refused".to_owned();
    let expected =
        [(refused.clone(), digest("\"canary\"")), (refused, (Some(u32::MAX), None, None))];
    assert_eq!(of_request(&ops, "refused").await, expected);

    // An act without a value has none.
    dead_letter(&engine, "dead").await;
    let row = ops.find(&scope(), &key("dead")).await.unwrap();
    let _ = ops.retry(row.request_id, &row.version, "it is back").await.unwrap();
    assert_eq!(of_request(&ops, "dead").await, [("applied".to_owned(), (None, None, None))]);

    // The columns: the hash as its bytes, and no value in any.
    let hashes = db.joined("atomic_phases_audit", "value_sha256").await.to_lowercase();
    assert!(hashes.contains(&sha256(OUTPUT)) && hashes.contains(&sha256(BODY)), "{hashes}");
    let canary: String = "canary".bytes().map(|byte| format!("{byte:02x}")).collect();
    for column in [
        "actor",
        "act",
        "outcome",
        "refused_because",
        "reason",
        "scope",
        "definition",
        "phase",
        "status_before",
        "status_after",
        "value_sha256",
    ] {
        let held = db.joined("atomic_phases_audit", column).await.to_lowercase();
        assert!(!held.contains(&canary), "{column}");
    }
}

/// An auditor compares as docs/operating.md says.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_of_the_page_prints_the_hash_of_the_audit() {
    let page = include_str!("../../docs/operating.md");
    let (_, rest) = page.split_once("```sh\n").unwrap();
    let (command, _) = rest.split_once("```").unwrap();
    let body = command.split('\'').nth(1).unwrap();
    let printed = Command::new("sh").args(["-c", command]).output().unwrap().stdout;
    let printed = String::from_utf8(printed).unwrap();

    let db = Sqlite::fresh().await;
    let engine = engine(&db, &App::default());
    let ops = admin(&engine);
    unknown(&engine, "k").await;
    let row = ops.find(&scope(), &key("k")).await.unwrap();
    let word = Resolution::finish(Reply::text(200, body));
    let _ = ops.resolve(row.request_id, &row.version, word, "by hand").await.unwrap();
    let act = ops.audit(Some(row.request_id), None, 1).await.unwrap().rows.remove(0);
    assert_eq!(printed.split_whitespace().next(), act.value_sha256.as_deref(), "{printed}");
    assert_eq!(act.value_bytes, Some(body.len() as u64));
}
