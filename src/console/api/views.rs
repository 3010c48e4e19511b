//! What [`ops`](crate::ops) says, as JSON. Times are RFC 3339 in UTC; a stored value is text that holds JSON, so
//! that no number of it loses a digit on its way.

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};

use crate::http::reply_as_json;
use crate::ops::{
    AuditRecord, BulkDetails, BulkPlan, BulkView, Count, Counts, DefinitionView, Details, Event,
    Happened, JobView, NodeView, Page, PauseView, PhaseView, PhaseViewKind, Revealed, Summary, Why,
};

pub(super) fn time(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Micros, true)
}

fn some_time(at: Option<DateTime<Utc>>) -> Option<String> {
    at.map(time)
}

pub(super) fn counts(counts: &Counts) -> Value {
    let count = |count: Count| json!({ "number": count.number, "or_more": count.or_more });
    json!({
        "unknown": count(counts.unknown),
        "dead_letters": count(counts.dead_letters),
        "oldest_waiting": some_time(counts.oldest_waiting),
        "due": count(counts.due),
        "none_announced": counts.none_announced,
        "stranded": count(counts.stranded),
        "dead_jobs": count(counts.dead_jobs),
        "late_jobs": count(counts.late_jobs),
    })
}

pub(super) fn page<T, N: std::fmt::Display>(page: &Page<T, N>, view: fn(&T) -> Value) -> Value {
    json!({
        "rows": page.rows.iter().map(view).collect::<Vec<_>>(),
        "next": page.next.as_ref().map(ToString::to_string),
        "searched_to": some_time(page.searched_to),
    })
}

pub(super) fn summary(row: &Summary) -> Value {
    json!({
        "id": row.request_id.to_string(),
        "version": row.version.as_str(),
        "definition": row.definition.0,
        "definition_version": row.definition.1,
        "state": row.state.as_str(),
        "stranded": row.stranded.map(|because| because.as_str()),
        "recovery_point": row.recovery_point,
        "phase": row.phase,
        "open_call": row.open_intent,
        "may_have_been_called": row.may_have_been_called,
        "perhaps_called": row.perhaps_called,
        "reason": row.reason,
        "attempts": row.attempts,
        "created_at": time(row.created_at),
        "waiting_since": some_time(row.waiting_since),
        "leased_until": some_time(row.leased_until),
        "next_at": some_time(row.next_at),
        "expires_at": time(row.expires_at),
        "scope_hash": row.scope_hash,
        "key_hash": row.key_hash,
    })
}

pub(super) fn why(why: &Why) -> Value {
    json!({
        "held_by": why.held_by.as_str(),
        "ended_by": why.ended_by.as_str(),
        "until": some_time(why.until),
        "window_ends": some_time(why.window_ends),
        "sentence": why.sentence,
    })
}

pub(super) fn details(shown: &Details) -> Value {
    json!({
        "request": summary(&shown.summary),
        "why": why(&shown.why),
        "read_at": time(shown.read_at),
        "phases": shown.phases.iter().map(phase).collect::<Vec<_>>(),
        "timeline": shown.timeline.iter().map(happened).collect::<Vec<_>>(),
        "events_gone": shown.events_gone,
        "earlier_acts": shown.earlier_acts.as_ref().map(ToString::to_string),
        "reconciles": shown.reconciles,
        "resolution": shown.resolution,
        "jobs": shown.jobs.iter().map(job).collect::<Vec<_>>(),
    })
}

fn phase(phase: &PhaseView) -> Value {
    json!({ "name": phase.name, "kind": phase.kind.as_str(), "stands": phase.stands.as_str() })
}

fn happened(happened: &Happened) -> Value {
    let (what, text, act) = match &happened.what {
        Event::Accepted => ("accepted", None, None),
        Event::Committed { recovery_point } => ("committed", Some(recovery_point.clone()), None),
        Event::Waits { reason } => ("waits", reason.clone(), None),
        Event::Left { kind, reason, .. } => (kind.as_str(), reason.clone(), None),
        Event::Staged { job } => ("staged", Some(job.clone()), None),
        Event::Acted(record) => ("acted", None, Some(act(record))),
    };
    let (attempt, phase) = match &happened.what {
        Event::Left { attempt, phase, .. } => (Some(attempt), phase.as_ref()),
        _ => (None, None),
    };
    json!({
        "at": time(happened.at),
        "what": what,
        "text": text,
        "attempt": attempt,
        "phase": phase,
        "act": act,
        "traceparent": happened.trace.map(|trace| trace.to_string()),
    })
}

pub(super) fn definition(one: &DefinitionView) -> Value {
    let phase =
        |(name, kind): &(String, PhaseViewKind)| json!({ "name": name, "kind": kind.as_str() });
    json!({
        "definition": one.definition.0,
        "definition_version": one.definition.1,
        "phases": one.phases.iter().map(phase).collect::<Vec<_>>(),
        "nodes": one.nodes,
        "requests": one.requests,
        "waiting": one.waiting,
        "stranded": one.stranded,
        "or_more": one.or_more,
        "oldest": some_time(one.oldest),
    })
}

pub(super) fn node(node: &NodeView) -> Value {
    let definition = |(name, version): &(String, u32)| json!({ "definition": name, "definition_version": version });
    json!({
        "id": node.id.to_string(),
        "name": node.name,
        "build": node.build,
        "definitions": node.definitions.iter().map(definition).collect::<Vec<_>>(),
        "started_at": time(node.started_at),
        "seen_at": time(node.seen_at),
        "gone": node.is_gone,
    })
}

pub(super) fn job(job: &JobView) -> Value {
    json!({
        "id": job.id.to_string(),
        "version": job.attempts.to_string(),
        "request": job.request_id.to_string(),
        "scope_hash": job.scope_hash,
        "name": job.name,
        "attempts": job.attempts,
        "reason": job.reason,
        "staged_at": time(job.staged_at),
        "next_at": some_time(job.next_at),
    })
}

/// A page that has no next one.
pub(super) fn late_jobs(rows: Vec<JobView>) -> Value {
    page(&Page { rows, next: None::<String>, searched_to: None }, job)
}

pub(super) fn pause(pause: &PauseView) -> Value {
    json!({
        "definition": pause.definition,
        "phase": pause.phase,
        "version": pause.version.as_str(),
        "reason": pause.reason,
        "paused_by": pause.paused_by,
        "paused_at": time(pause.paused_at),
        "ends_at": some_time(pause.ends_at),
    })
}

pub(super) fn plan(plan: &BulkPlan) -> Value {
    let sample: Vec<Value> = plan.sample.iter().map(summary).collect();
    json!({
        "count": plan.count,
        "version": plan.version.as_str(),
        "fitting": plan.fitting,
        "with_call": plan.with_call,
        "sample": sample,
    })
}

pub(super) fn bulk(bulk: &BulkView) -> Value {
    json!({
        "id": bulk.id.to_string(),
        "act": bulk.act,
        "actor": bulk.actor,
        "reason": bulk.reason,
        "count": bulk.count,
        "settled": bulk.settled,
        "applied": bulk.applied,
        "started_at": time(bulk.started_at),
        "ended_at": some_time(bulk.ended_at),
        "stopped_by": bulk.stopped_by,
    })
}

pub(super) fn bulk_details(BulkDetails { bulk: of, refusals, .. }: &BulkDetails) -> Value {
    let refusals: Vec<Value> = refusals
        .iter()
        .map(|refusal| {
            json!({
                "request": refusal.request_id.to_string(),
                "outcome": refusal.outcome,
                "because": refusal.because,
            })
        })
        .collect();
    let mut told = bulk(of);
    told["refusals"] = refusals.into();
    told
}

pub(super) fn act(record: &AuditRecord) -> Value {
    let (definition, version) = record.definition.clone().unzip();
    let phase = record.phase.clone();
    let definition = definition.or_else(|| phase.as_ref().map(|(of, _)| of.clone()));
    json!({
        "at": time(record.at),
        "id": record.id.to_string(),
        "actor": record.actor,
        "act": record.act,
        "outcome": record.outcome,
        "refused_because": record.refused_because,
        "reason": record.reason,
        "scope_hash": record.scope_hash,
        "request": record.request_id.map(|id| id.to_string()),
        "job": record.job_id.map(|id| id.to_string()),
        "bulk": record.bulk_id.map(|id| id.to_string()),
        "definition": definition,
        "definition_version": version,
        "phase": phase.map(|(_, phase)| phase),
        "attempt": record.attempt,
        "value_sha256": record.value_sha256,
        "value_bytes": record.value_bytes,
        "before": record.before,
        "after": record.after,
    })
}

pub(super) fn revealed(revealed: &Revealed) -> Value {
    json!({
        "scope": revealed.scope.as_str(),
        "key": revealed.key.as_str(),
        "json": revealed.json,
        "reply": revealed.reply.as_ref().map(reply_as_json),
    })
}
