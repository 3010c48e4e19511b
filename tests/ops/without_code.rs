//! An engine without any definition, as of `atomic-phases --database-url`: what it does is what the application would
//! do, and what only the application knows it refuses, or leaves open.

use std::borrow::Cow;
use std::time::Duration;

use atomic_phases::codec::{Codec, CodecError, Place};
use atomic_phases::engine::{Resolution, ResolveError, Resolved};
use atomic_phases::ops::{OperatorStore, Ops, OpsError, Permissions};
use atomic_phases::{Engine, Outcome, Reply};

use super::cast::*;
use crate::support::*;

on_every_store! {
    g8_g10_a_reply_that_only_the_application_can_store_is_refused,
    an_erasure_keeps_a_key_for_as_long_as_the_application_does,
    how_many_are_stranded_is_not_told,
}

fn without_code<S: TestDb + OperatorStore>(db: &S) -> Ops<S> {
    let engine: Engine<S> = Engine::builder(db.clone()).build().unwrap();
    engine.ops(actor(Permissions::admin()))
}

/// An envelope that is JSON itself.
pub(super) struct Envelope;

const HEAD: &str = "{\"sealed\":\"";

impl Codec for Envelope {
    fn encode<'v>(&self, _: Place<'_>, plain: Cow<'v, [u8]>) -> Result<Cow<'v, [u8]>, CodecError> {
        let hex: String = plain.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("{HEAD}{hex}\"}}").into_bytes().into())
    }

    fn decode<'v>(&self, _: Place<'_>, stored: Cow<'v, [u8]>) -> Result<Cow<'v, [u8]>, CodecError> {
        let text = std::str::from_utf8(&stored).map_err(|_| CodecError("no text"))?;
        let hex = text.strip_prefix(HEAD).and_then(|rest| rest.strip_suffix("\"}"));
        let hex = hex.ok_or(CodecError("no envelope"))?;
        let bytes = (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16));
        Ok(bytes.collect::<Result<Vec<u8>, _>>().map_err(|_| CodecError("no hex"))?.into())
    }
}

/// Sealed, or plain: its codec, its header lines and its retention are the application's.
async fn g8_g10_a_reply_that_only_the_application_can_store_is_refused<
    S: TestDb + OperatorStore,
>(
    db: S,
) {
    let app = App::default();
    let sealing = engine_with(&db, &app, |builder| builder.codec(Envelope));
    for (engine, name) in [(&sealing, "sealed"), (&engine(&db, &app), "plain")] {
        unknown(engine, name).await;
        let ops = without_code(&db);
        let row = ops.find(&scope(), &key(name)).await.unwrap();
        let word = || Resolution::finish(Reply::text(200, "settled by hand"));
        let told = ops.resolve(row.request_id, &row.version, word(), "by hand").await;
        assert!(
            matches!(told, Err(OpsError::Resolve(ResolveError::NotKnownHere(_)))),
            "{name}: {told:?}"
        );
        let told = admin(engine).resolve(row.request_id, &row.version, word(), "by hand").await;
        assert_eq!(told.unwrap(), Resolved::Applied, "{name}");
        let replay = engine.call(&scope(), &key(name), notify(Trouble::UnknownForeign)).await;
        assert!(matches!(replay, Ok(Outcome::Finished(_))), "{name}: {replay:?}");
    }
}

async fn an_erasure_keeps_a_key_for_as_long_as_the_application_does<S: TestDb + OperatorStore>(
    db: S,
) {
    let month = Duration::from_secs(30 * 86_400);
    let engine = engine_with(&db, &App::default(), |builder| builder.retention(month));
    dead_letter(&engine, "k").await;
    let ops = without_code(&db);
    let row = ops.find(&scope(), &key("k")).await.unwrap();
    let told = ops.erase(row.request_id, &row.version, "asked by its owner").await;
    assert_eq!(told.unwrap(), Resolved::Applied);
    let row = ops.find(&scope(), &key("k")).await.unwrap();
    let kept = (row.expires_at - row.created_at).to_std().unwrap();
    assert!(kept >= month, "{kept:?}");
}

async fn how_many_are_stranded_is_not_told<S: TestDb + OperatorStore>(db: S) {
    let engine = engine(&db, &App::default());
    back_off(&engine, "k").await;
    let of = |all: Vec<atomic_phases::ops::DefinitionView>| {
        all.iter().map(|one| one.stranded).collect::<Vec<_>>()
    };
    assert_eq!(of(admin(&engine).definitions().await.unwrap()), [Some(0)]);
    assert_eq!(of(without_code(&db).definitions().await.unwrap()), [None]);
}
