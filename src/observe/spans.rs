//! The spans: of a call, of a request that a worker drives on, of the verification whether a call
//! created its row, of a phase, of a job's delivery.
//!
//! Without [`traces`](crate::engine::EngineBuilder::traces) they are at `debug`, for a log. With it they are at
//! `info`, have the names that a view of traces shows, and attributes by the rules of OpenTelemetry. Neither has a
//! key, a parameter or an output (G19).

use tracing::field::Empty;
use uuid::Uuid;

use super::{JobSeen, Span, Subject};
use crate::definition::{Definition, EffectClass, Phase, PhaseKind};
use crate::key::{IdempotencyKey, Scope, ShortHash};

/// Spans as `tracing` has them, made by way of [`Span`].
macro_rules! debug_span {
    ($($span:tt)*) => { Span::make(|| tracing::debug_span!($($span)*)) };
}
macro_rules! info_span {
    ($($span:tt)*) => { Span::make(|| tracing::info_span!($($span)*)) };
}

/// What a span learns later.
pub(crate) const REQUEST_ID: &str = "atomic_phases.request_id";
pub(crate) const ATTEMPT: &str = "atomic_phases.attempt";
pub(crate) const RECOVERY_POINT: &str = "atomic_phases.recovery_point";
pub(crate) const OUTCOME: &str = "atomic_phases.outcome";
pub(crate) const REPLAYED: &str = "atomic_phases.replayed";
pub(crate) const STATUS: &str = "otel.status_code";
pub(crate) const ERROR_TYPE: &str = "error.type";

/// Of one call.
pub(crate) fn request(
    definition: &Definition,
    scope: &Scope,
    key: &IdempotencyKey,
    is_traced: bool,
) -> Span {
    let (scope, key) = (ShortHash(scope.as_str()), ShortHash(key.as_str()));
    if !is_traced {
        return debug_span!(
            target: super::TARGET,
            "atomic_phases.request",
            definition = definition.name,
            version = definition.version,
            %scope,
            %key,
        );
    }
    let name = format!("{} execute", definition.name);
    info_span!(
        target: super::TARGET,
        "atomic_phases.request",
        "otel.name" = name,
        "otel.kind" = "internal",
        "otel.status_code" = Empty,
        "error.type" = Empty,
        "atomic_phases.definition" = definition.name,
        "atomic_phases.version" = definition.version,
        "atomic_phases.scope_hash" = %scope,
        "atomic_phases.key_hash" = %key,
        "atomic_phases.request_id" = Empty,
        "atomic_phases.attempt" = Empty,
        "atomic_phases.recovery_point" = Empty,
        "atomic_phases.outcome" = Empty,
        "atomic_phases.replayed" = Empty,
    )
}

/// Of a request that a worker drives on: a trace of its own.
pub(crate) fn driven(found: Subject<'_>, version: u32, is_traced: bool) -> Span {
    let scope = ShortHash(found.scope.as_str());
    let key = ShortHash(found.key.as_str());
    if !is_traced {
        return debug_span!(target: super::TARGET, "atomic_phases.driven", %scope, %key);
    }
    let name = format!("{} resume", found.definition);
    info_span!(
        target: super::TARGET,
        parent: None,
        "atomic_phases.driven",
        "otel.name" = name,
        "otel.kind" = "consumer",
        "otel.status_code" = Empty,
        "error.type" = Empty,
        "atomic_phases.definition" = found.definition,
        "atomic_phases.version" = version,
        "atomic_phases.scope_hash" = %scope,
        "atomic_phases.key_hash" = %key,
        "atomic_phases.request_id" = %found.request_id,
        "atomic_phases.attempt" = Empty,
        "atomic_phases.recovery_point" = Empty,
        "atomic_phases.outcome" = Empty,
    )
}

/// Verifies whether a call that has ended created its row, where its commit got no answer: a trace of its own, because
/// the call's span ends with the call.
pub(crate) fn verification(behind: Subject<'_>, version: u32, is_traced: bool) -> Span {
    let scope = ShortHash(behind.scope.as_str());
    let key = ShortHash(behind.key.as_str());
    if !is_traced {
        return debug_span!(
            target: super::TARGET,
            parent: None,
            "atomic_phases.verify",
            %scope,
            %key,
        );
    }
    let name = format!("{} verify", behind.definition);
    info_span!(
        target: super::TARGET,
        parent: None,
        "atomic_phases.verify",
        "otel.name" = name,
        "otel.kind" = "internal",
        "atomic_phases.definition" = behind.definition,
        "atomic_phases.version" = version,
        "atomic_phases.scope_hash" = %scope,
        "atomic_phases.key_hash" = %key,
        "atomic_phases.request_id" = %behind.request_id,
        "atomic_phases.outcome" = Empty,
    )
}

/// Of one phase. `of`: where it is traced, the request and the attempt. It may be all that arrives of one whose process
/// is killed.
pub(crate) fn phase(phase: &Phase, of: Option<(Uuid, u32)>) -> Span {
    let Some((request_id, attempt)) = of else {
        return debug_span!(target: super::TARGET, "atomic_phases.phase", phase = phase.name);
    };
    let name = format!("phase {}", phase.name);
    let (span_kind, kind, effect) = match phase.kind {
        PhaseKind::Foreign(EffectClass::AtMostOnce) => ("client", "foreign", Some("at_most_once")),
        PhaseKind::Foreign(_) => ("client", "foreign", Some("idempotent")),
        _ => ("internal", "local", None),
    };
    info_span!(
        target: super::TARGET,
        "atomic_phases.phase",
        "otel.name" = name,
        "otel.kind" = span_kind,
        "atomic_phases.phase" = phase.name,
        "atomic_phases.phase.kind" = kind,
        "atomic_phases.effect" = effect,
        "atomic_phases.request_id" = %request_id,
        "atomic_phases.attempt" = attempt,
    )
}

/// Of one delivery of a job: a trace of its own. None, where nothing is traced.
pub(crate) fn job(job: &JobSeen, is_traced: bool) -> Span {
    if !is_traced {
        return Span::none();
    }
    let name = format!("job {}", job.name);
    info_span!(
        target: super::TARGET,
        parent: None,
        "atomic_phases.job",
        "otel.name" = name,
        "otel.kind" = "consumer",
        "otel.status_code" = Empty,
        "error.type" = Empty,
        "atomic_phases.job" = job.name,
        "atomic_phases.job_id" = %job.id,
        "atomic_phases.request_id" = %job.request_id,
        "atomic_phases.scope_hash" = %ShortHash(job.scope.as_str()),
        "atomic_phases.key_hash" = %ShortHash(job.key.as_str()),
        "atomic_phases.attempt" = job.attempt,
        "atomic_phases.outcome" = Empty,
    )
}
