//! Atomic phases: API requests that survive a crash between a charge, a booking and a mail.

// A request must not die of a surprise. (Tests may, so this is no workspace lint.)
#![warn(unreachable_pub)]
#![cfg_attr(not(test), warn(clippy::unwrap_used, clippy::expect_used, clippy::panic))]
#![cfg_attr(not(any(feature = "postgres", feature = "sqlite")), allow(dead_code))]

extern crate self as atomic_phases;

mod codec;
mod config;
mod definition;
mod derived_key;
mod engine;
mod error;
mod fingerprint;
mod key;
mod observe;
mod phase;
mod store;

pub use atomic_phases_macros::{atomic_phases, phase, reconcile};
pub use codec::{Codec, CodecError, Place, PlainCodec};
pub use config::{Limits, OnDuplicate};
pub use definition::{Definition, EffectClass, Isolation, Phase, PhaseKind, RequestDefinition};
pub use derived_key::{DerivedKeys, SecretTooShort};
pub use engine::{
    BuildError, Call, CheckReport, Engine, EngineBuilder, ExecuteError, FailureCause, Finished,
    Outcome, Stranded, StrandedBecause,
};
pub use error::DbError;
pub use fingerprint::{
    Fingerprint, FingerprintError, FingerprintRule, RequestOrigin, Unfingerprinted, fingerprint,
};
pub use key::{IdempotencyKey, InvalidKey, MAX_KEY_LENGTH, Scope};
pub use phase::{
    DerivedKey, Flow, ForeignCall, ForeignError, JobId, PhaseError, PhaseResult, Reconciled, Reply,
    ReplyTooUnusual, RequestContext, Tx,
};
#[cfg(feature = "postgres")]
pub use store::postgres::{DeadPool, Pool, PoolSettings, Postgres};
#[cfg(feature = "sqlite")]
pub use store::sqlite::{Sqlite, SqliteConn};
pub use store::{Standing, Status, Store, StoreError};

/// What the code that `#[atomic_phases]` generates is made of. No part of the public interface:
/// it changes with the macro, in any release.
#[doc(hidden)]
pub mod __private;
