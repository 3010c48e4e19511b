//! One request: where it stands, what ends that, what happened, and what may be done.

use axum::extract::Path;
use axum::response::Response;
use maud::{Markup, html};

use super::audit::outcome;
use super::fields::{Fields, id_of};
use super::frame::{Frame, Section};
use super::guard::Asked;
use super::look::{chip, exact, facts, relative, said, sentence, table};
use super::{acts, trouble};
use crate::ops::{
    Details, EndedBy, Event, EventKind, Happened, HeldBy, JobView, OperatorStore, Permissions,
    PhaseStands, PhaseView, PhaseViewKind, What,
};

pub(super) async fn page<S: OperatorStore>(Path(id): Path<String>, asked: Asked<S>) -> Response {
    let Asked { ops, frame, query } = &asked;
    let details = match id_of(&id) {
        Ok(id) => ops.show(id).await,
        Err(error) => Err(error),
    };
    match details {
        Ok(details) => {
            let title = format!("{} {}", details.summary.definition.0, details.summary.request_id);
            frame.answer(Section::Requests, &title, Ok(body(frame, query, &details)))
        }
        Err(error) => trouble::page(frame, &error),
    }
}

fn body(frame: &Frame, query: &Fields, details: &Details) -> Markup {
    let row = &details.summary;
    let (name, version) = &row.definition;
    html! {
        @if let Some(notice) = notice(query) { p.notice role="status" { (notice) } }
        section #head data-live="5" aria-label="Where it stands" {
            h1 { (said(name)) " v" (version) " " (chip(row.state)) }
            p.id { code data-copy="" { (row.request_id) } }
            div class=(format!("why {}", tone(details))) {
                p { (sentence(&details.why.sentence)) }
            }
            (track(&details.phases))
        }
        (acts::settle(frame, details))
        div.columns {
            section #timeline data-live="5" {
                h2 { "What happened" }
                ol.timeline { @for one in &details.timeline { (happened(one)) } }
                @if details.events_gone > 0 {
                    p.quiet { (details.events_gone) " earlier events are not kept." }
                }
                @if !frame.may(Permissions::AUDIT) {
                    p.quiet { "What operators did is shown to who may read the audit." }
                }
            }
            section #facts data-live="5" {
                h2 { "The row" }
                (row_facts(details))
            }
        }
        (values(frame, details))
        @if !details.jobs.is_empty() { (jobs(frame, &details.jobs)) }
    }
}

/// What was done a moment ago. The words are of the program: the address chooses among them.
fn notice(query: &Fields) -> Option<&'static str> {
    match query.text("said") {
        "applied" => Some("Done. It is written, and its row in the audit with it."),
        "already" => Some("It was so already: nothing was changed."),
        "finished" => Some(
            "The request was at its end before: nothing was written. Whether its call had this outcome is not kept.",
        ),
        _ => None,
    }
}

/// How loud the sentence is.
fn tone(details: &Details) -> &'static str {
    match (details.why.held_by, details.why.ended_by) {
        (HeldBy::Finished | HeldBy::Erased | HeldBy::Expired, _) => "calm",
        (_, EndedBy::Operator) => "needs-you",
        (_, EndedBy::Deploy | EndedBy::Reconciler) => "waits",
        _ => "works",
    }
}

fn kind(phase: &PhaseView) -> &'static str {
    match phase.kind {
        PhaseViewKind::Local => "local",
        PhaseViewKind::Idempotent => "foreign, idempotent",
        PhaseViewKind::AtMostOnce => "foreign, at most once",
    }
}

fn track(phases: &[PhaseView]) -> Markup {
    let stands = |phase: &PhaseView| match phase.stands {
        PhaseStands::Done => ("done", "committed"),
        PhaseStands::CallOpen => ("open", "call without an outcome"),
        PhaseStands::Next => ("next", "next"),
        PhaseStands::Later => ("later", "later"),
        PhaseStands::Over => ("over", "finished"),
    };
    html! {
        ol.track aria-label="Phases" {
            @for phase in phases {
                @let (class, words) = stands(phase);
                li class=(class) {
                    span.phase { (said(&phase.name)) }
                    span.kind { (kind(phase)) }
                    span.stands { (words) }
                }
            }
        }
    }
}

fn happened(one: &Happened) -> Markup {
    html! {
        li {
            (exact(one.at)) " "
            @match &one.what {
                Event::Accepted => { "accepted" }
                Event::Committed { recovery_point } => { "committed " code { (said(recovery_point)) } }
                Event::Waits { reason } => {
                    "stopped, and waits"
                    @if let Some(reason) = reason { ": " span.reason { (said(reason)) } }
                }
                Event::Left { kind, attempt, phase, reason } => {
                    (left(*kind)) ", attempt " (attempt)
                    @if let Some(phase) = phase { " at " code { (said(phase)) } }
                    @if let Some(reason) = reason { ": " span.reason { (said(reason)) } }
                }
                Event::Staged { job } => { "staged the job " code { (said(job)) } }
                Event::Acted(act) => {
                    strong { (said(&act.actor)) } " " (said(&act.act)) " " (outcome(act))
                    span.reason { " “" (said(&act.reason)) "”" }
                }
            }
            @if let Some(trace) = &one.trace {
                span.quiet { ", trace " code { (trace.trace_hex()) } }
            }
        }
    }
}

fn left(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Released => "failed, and was released",
        EventKind::TakenOver => "taken over",
        EventKind::Unknown => "became unknown",
        EventKind::WindowPassed => "its window passed, so that no call may be repeated",
        EventKind::StillUnknown => "looked into, and still unknown",
        EventKind::DeadLetter => "gave up",
        EventKind::Reconciled => "reconciled",
        EventKind::Resolved => "resolved",
    }
}

fn row_facts(details: &Details) -> Markup {
    let row = &details.summary;
    let at = |time: Option<_>| time.map(relative);
    let code = |text: &str| Some(html! { code { (said(text)) } });
    facts(vec![
        ("Accepted", Some(relative(row.created_at))),
        ("Attempts", Some(html! { (row.attempts) })),
        ("Recovery point", code(&row.recovery_point)),
        ("Open call", row.open_intent.as_deref().and_then(code)),
        ("Reason", row.reason.as_deref().map(said)),
        ("Waiting since", at(row.waiting_since)),
        ("Lease ends", at(row.leased_until)),
        ("A worker looks", at(row.next_at)),
        ("Times looked into", (details.reconciles > 0).then(|| html! { (details.reconciles) })),
        ("Last word", details.resolution.as_deref().map(said)),
        ("Stranded", row.stranded.map(|because| html! { (because) })),
        ("Key kept until", Some(relative(row.expires_at))),
        ("Scope (hash)", code(&row.scope_hash)),
        ("Key (hash)", code(&row.key_hash)),
        ("Read at", Some(exact(details.read_at))),
    ])
}

/// What a value is called.
pub(super) fn name_of(what: What) -> &'static str {
    match what {
        What::Key => "key",
        What::Parameters => "parameters",
        What::Context => "context",
        What::Outputs => "outputs",
        What::Reply => "reply",
    }
}

/// The door to what users gave.
fn values(frame: &Frame, details: &Details) -> Markup {
    let to = frame.to(format_args!("requests/{}/reveal", details.summary.request_id));
    html! {
        section #values {
            h2 { "Values" }
            @if frame.may(Permissions::REVEAL) {
                p.quiet {
                    "Key, scope and values are hidden. That you looked, at what and why, is in the audit before it \
                     is shown."
                }
                form.finder method="post" action=(to) aria-label="Reveal a value" {
                    div.field {
                        label for="what" { "Reveal" }
                        select #what name="what" {
                            @for what in What::ALL {
                                @let name = match what { What::Key => "scope and key only", what => name_of(what) };
                                option value=(name_of(what)) { (name) }
                            }
                        }
                    }
                    div.field.wide {
                        label for="reveal-reason" { "Reason" }
                        input #reveal-reason name="reason" required maxlength="500" autocomplete="off"
                            placeholder="ticket 88";
                    }
                    button { "Reveal" }
                }
            } @else {
                p.quiet { "Key, scope and values are hidden; to see them needs the permission to reveal." }
            }
        }
    }
}

fn jobs(frame: &Frame, jobs: &[JobView]) -> Markup {
    let rows = jobs.iter().map(|job| {
        let next = match job.next_at {
            Some(at) => relative(at),
            None => html! { a href=(frame.to("jobs")) { "gave up" } },
        };
        let reason = job.reason.as_deref().map_or_else(|| html! { span.quiet { "–" } }, said);
        let name = html! { code { (said(&job.name)) } };
        vec![name, relative(job.staged_at), html! { (job.attempts) }, reason, next]
    });
    html! {
        section #jobs data-live="5" {
            h2 { "Staged jobs" }
            (table("Staged jobs that are not delivered", &["Job", "Staged", "Attempts", "Reason", "Next"], rows))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Resolved;

    #[test]
    fn each_end_of_an_act_has_a_notice_of_its_own() {
        let all = [Resolved::Applied, Resolved::Already, Resolved::Finished];
        let told =
            all.map(|end| notice(&Fields::read(format!("said={}", end.as_str()).as_bytes())));
        let is_written = told.map(|told| told.is_some_and(|told| told.starts_with("Done.")));
        assert_eq!(is_written, [true, false, false]);
        assert!(told[1].is_some() && told[2].is_some() && told[1] != told[2], "{told:?}");
    }
}
