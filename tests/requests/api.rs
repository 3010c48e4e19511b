//! What an application relies on without a word: what threads may share, what may move to another one, and what is an
//! error like any other. The compiler checks each line; a field that takes it away breaks this file first.

// The types of every feature.
#![cfg(all(
    feature = "mysql",
    feature = "redis",
    feature = "reqwest",
    feature = "console",
    feature = "ops-api",
    feature = "encryption",
    feature = "simulation"
))]

use std::error::Error;
use std::fmt::Debug;

use atomic_phases::store::{Mysql, Postgres, Sqlite};
use atomic_phases::{
    Batch, Engine, ForeignCall, IdempotencyKey, Outcome, Reply, RequestContext, Scope, Tx, client,
    codec, compat, config, console, definition, engine, fault, fingerprint, http, key, ops, phase,
    replay_cache, simulation, store, traces, worker,
};

/// Threads may share it.
fn is_shared<T: Send + Sync + Debug + 'static>() {}

/// It may move to another thread, and belongs to one task.
fn moves<T: Send + Debug>() {}

/// `?` takes it into an error of any application.
fn is_an_error<T: Error + Send + Sync + 'static>() {}

macro_rules! all {
    ($check:ident: $($type:ty),* $(,)?) => { $($check::<$type>();)* };
}

fn over<S: ops::OperatorStore + Debug>() {
    all!(is_shared: S, Engine<S>, engine::EngineBuilder<S, (), engine::Unregistered>, ops::Ops<S>);
    all!(is_shared: worker::Reaper<S>, worker::BulkRunner<S>, worker::Census<S>, worker::Announcer<S>);
    // Each is one task's: it has work under way.
    all!(moves: worker::Completer<S>, worker::Reconciler<S>, worker::Enqueuer<S>);
    all!(is_shared:
        http::Idempotency<S>, http::Keyed<S>, http::Health<S>, console::Console<S>, console::Api<S>);
    all!(is_shared: compat::Definitions<S>);
    all!(moves: Tx<'_, S>, Batch<'_, S>);
}

#[test]
fn what_an_application_holds_may_cross_threads() {
    over::<Postgres>();
    over::<Sqlite>();
    over::<Mysql>();
    over::<simulation::Memory>();
    all!(is_shared: IdempotencyKey, Scope, Reply, RequestContext, phase::DerivedKey, fingerprint::Fingerprint);
    all!(is_shared: Outcome, engine::Finished, engine::RequestStatus, engine::CheckReport, engine::Resolution);
    all!(is_shared:
        config::Limits, config::Quota, config::DerivedKeys, config::OnDuplicate, store::PoolSettings,
        worker::WorkerConfig, http::Policy, client::RetryPolicy);
    all!(is_shared:
        worker::Workers, worker::Job, worker::Handlers, worker::Webhook, worker::RedisStream,
        replay_cache::CachedReplays, replay_cache::RedisReplays, codec::EncryptingCodec, codec::PlainCodec);
    all!(is_shared: client::Caller, client::KeyedCall, client::Response, client::Tried);
    all!(is_shared:
        definition::Definition, ops::Actor, ops::Filter, ops::Details, ops::BulkView, ops::AuditRecord, ops::Revealed,
        compat::InFlight, compat::Locks, traces::Traceparent);
    all!(is_shared: fault::Report, fault::Fault, simulation::Database, simulation::Node);
    all!(moves: ForeignCall, phase::ForeignError, atomic_phases::PhaseError, store::ConnectionGuard);
    all!(moves: store::MysqlConn, store::MysqlHandle, store::WatchedConnection);
}

#[test]
fn what_fails_is_an_error_like_any_other() {
    all!(is_an_error:
        engine::CallError, engine::BuildError, engine::EraseError, engine::ResolveError, engine::StillRunning,
        store::StoreError, store::DbError, ops::OpsError, ops::InvalidActor);
    all!(is_an_error:
        key::InvalidKey, config::SettingError, config::SecretTooShort, codec::CodecError,
        fingerprint::FingerprintError, fingerprint::FingerprintRule, phase::ReplyNotJson);
    all!(is_an_error:
        worker::DeliveryError, worker::WebhookError, worker::StillWorking, replay_cache::CacheError,
        traces::NotATraceparent, compat::NotLocked, fault::NoSuchPoint);
    all!(is_an_error:
        client::SendError, client::Reason, http::KeyHeaderError, http::UnknownProfile);
    all!(is_an_error: compat::LockError, compat::LevelError, compat::ShapeError, compat::FolderError);
}
