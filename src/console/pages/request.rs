//! One request: where it stands, what ends that, what happened, and what may be done.

use axum::response::Response;
use maud::{Markup, html};
use uuid::Uuid;

use super::fields::{Fields, Named, id_of};
use super::format::{Now, bdi, chip, exact, facts, sentence, table};
use super::frame::{Frame, Section};
use super::guard::Asked;
use super::timeline::happened;
use super::{settle, trouble};
use crate::ops::{
    Details, EndedBy, HeldBy, OperatorStore, Permissions, PhaseStands, PhaseView, PhaseViewKind,
    What,
};

pub(super) async fn page<S: OperatorStore>(Named(id): Named, asked: Asked<S>) -> Response {
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
            h1 { (bdi(name)) " v" (version) " " (chip(row.state)) }
            p.id { code data-copy="" { (row.request_id) } }
            div class=(format!("why {}", tone(details))) {
                p { (sentence(&details.why.sentence)) }
            }
            (track(&details.phases))
        }
        // Always there: the form of an act comes, goes and changes with the request.
        div #acts data-live="5" { (settle::form(frame, details, &Fields::read(b""))) }
        div.columns {
            section #timeline data-live="5" {
                h2 { "What happened" }
                ol.timeline { @for one in &details.timeline { (happened(one)) } }
                @if let Some(place) = &details.earlier_acts {
                    p.quiet {
                        "Of what operators did, the latest hundred are shown. "
                        a href=(frame.to(format_args!("audit?request={}&before={place}", row.request_id))) {
                            "Earlier acts"
                        }
                    }
                }
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
        div #staged data-live="5" { @if !details.jobs.is_empty() { (jobs(frame, details)) } }
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
        PhaseStands::MayHaveBeenCalled => ("open", "may have been called"),
        PhaseStands::Next => ("next", "next"),
        PhaseStands::Later => ("later", "later"),
        PhaseStands::Over => ("over", "may have run"),
        PhaseStands::NotCommitted => ("over", "not committed"),
        PhaseStands::NotRun => ("over", "not run"),
    };
    html! {
        ol.track aria-label="Phases" {
            @for phase in phases {
                @let (class, words) = stands(phase);
                li class=(class) {
                    span.phase { (bdi(&phase.name)) }
                    span.kind { (kind(phase)) }
                    span.stands { (words) }
                }
            }
        }
    }
}

fn row_facts(details: &Details) -> Markup {
    let (row, now) = (&details.summary, Now(details.read_at));
    let at = |time: Option<_>| time.map(|time| now.relative(time));
    let code = |text: &str| Some(html! { code { (bdi(text)) } });
    facts(vec![
        ("Accepted", Some(now.relative(row.created_at))),
        ("Attempt", Some(html! { (row.attempts) })),
        ("Last committed", code(&row.recovery_point)),
        ("Open call", row.open_intent.as_deref().and_then(code)),
        ("Reason", row.reason.as_deref().map(bdi)),
        ("Waiting since", at(row.waiting_since)),
        ("Lease ends", at(row.leased_until)),
        ("Due for a worker", at(row.next_at)),
        ("Times looked into", (details.reconciles > 0).then(|| html! { (details.reconciles) })),
        ("Last word", details.resolution.as_deref().map(bdi)),
        ("Stranded", row.stranded.map(|because| html! { (because) })),
        ("Key kept until", Some(now.relative(row.expires_at))),
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
        What::DerivedKey => "derived key",
    }
}

/// The door to what users gave.
fn values(frame: &Frame, details: &Details) -> Markup {
    html! {
        section #values {
            h2 { "Values" }
            @if frame.may(Permissions::REVEAL) {
                p.quiet {
                    "Key, scope and values are hidden. That you looked, at what and why, is in the audit before it \
                     is shown."
                }
                (reveal_form(frame, details.summary.request_id, None, ""))
            } @else {
                p.quiet { "Key, scope and values are hidden; to see them needs the permission to reveal." }
            }
        }
    }
}

/// What is to be revealed, and why; as it was chosen and typed before.
pub(super) fn reveal_form(frame: &Frame, id: Uuid, chosen: Option<What>, reason: &str) -> Markup {
    html! {
        form.finder method="post" action=(frame.to(format_args!("requests/{id}/reveal")))
            aria-label="Reveal a value" {
            div.field {
                label for="what" { "Reveal" }
                select #what name="what" {
                    @for what in What::ALL {
                        @let name = match what { What::Key => "scope and key only", what => name_of(what) };
                        option value=(name_of(what)) selected[chosen == Some(what)] { (name) }
                    }
                }
            }
            div.field.wide {
                label for="reveal-reason" { "Reason" }
                input #reveal-reason name="reason" required maxlength="500" autocomplete="off"
                    placeholder="ticket 88" value=(reason);
            }
            button { "Reveal" }
        }
    }
}

fn jobs(frame: &Frame, details: &Details) -> Markup {
    let (jobs, now) = (&details.jobs, Now(details.read_at));
    let rows = jobs.iter().map(|job| {
        let next = match job.next_at {
            Some(at) => now.relative(at),
            None => html! { a href=(frame.to("jobs")) { "gave up" } },
        };
        let reason = job.reason.as_deref().map_or_else(|| html! { span.quiet { "–" } }, bdi);
        let name = html! { code { (bdi(&job.name)) } };
        vec![name, now.relative(job.staged_at), html! { (job.attempts) }, reason, next]
    });
    html! {
        section #jobs {
            h2 { "Staged jobs" }
            (table("Staged jobs that are not delivered", &["Job", "Staged", "Attempts", "Reason", "Next"], rows))
            @if jobs.len() >= MAX_JOBS { p.quiet { "The first hundred are shown; there may be more." } }
        }
    }
}

/// How many jobs of a request are told.
const MAX_JOBS: usize = 100;

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
