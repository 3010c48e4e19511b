//! Bulk acts: how far each came, and what it left as it was.

use axum::response::Response;
use maud::{Markup, html};
use uuid::Uuid;

use super::fields::{Fields, Named};
use super::format::{Now, bdi, facts, short, table};
use super::frame::{Frame, Section};
use super::guard::Asked;
use super::{list, trouble};
use crate::ops::{BulkDetails, BulkView, OperatorStore, OpsError, Permissions};

const PAGE: u32 = 20;

/// What a filter is made of, on its way through the forms.
pub(super) const FILTER: [&str; 8] =
    ["state", "stranded", "definition", "version", "phase", "reason", "older", "waiting"];

pub(super) async fn page<S: OperatorStore>(asked: Asked<S>) -> Response {
    asked.frame.answer(Section::Bulk, "Bulk acts", body(&asked).await)
}

async fn body<S: OperatorStore>(asked: &Asked<S>) -> Result<Markup, OpsError> {
    let Asked { ops, frame, query } = asked;
    let before = match query.text("before") {
        "" => None,
        text => Some(text.parse()?),
    };
    let (page, now) = (ops.bulks(before, PAGE).await?, asked.now().await?);
    Ok(html! {
        h1 { "Bulk acts" }
        p.lead {
            "One act on many requests: chosen on the page of requests by a filter, done by the workers one request at \
             a time."
        }
        section #bulk data-live="5" aria-label="Bulk acts" {
            @if list::is_none(&page) {
                (list::none(query, "No bulk act."))
            } @else {
                (bulks(frame, &page.rows, now))
                (list::more(&page, now, |next| html! {
                    a.button rel="next" href=(frame.to(format_args!("bulk?before={next}"))) { "Older" }
                }))
            }
        }
    })
}

fn bulks(frame: &Frame, rows: &[BulkView], now: Now) -> Markup {
    let cells = rows.iter().map(|bulk| {
        vec![
            html! {
                a href=(frame.to(format_args!("bulk/{}", bulk.id))) { (bdi(&bulk.act)) " " code { (short(bulk.id)) } }
            },
            state(bulk, now),
            html! { (bulk.applied) " of " (bulk.count) },
            html! { (bulk.settled - bulk.applied) },
            html! { (bdi(&bulk.actor)) " " (now.relative(bulk.started_at)) },
            html! { span.reason { (bdi(&bulk.reason)) } },
        ]
    });
    let head = ["Act", "State", "Done", "Left as it was", "By", "Reason"];
    table("Bulk acts, the newest first", &head, cells)
}

fn state(bulk: &BulkView, now: Now) -> Markup {
    match (&bulk.ended_at, &bulk.stopped_by) {
        (None, None) => {
            html! { span.chip.running { "under way" } " " (bulk.settled) " of " (bulk.count) }
        }
        (None, Some(by)) => {
            html! { span.chip.running { "stopping" } " by " (bdi(by)) }
        }
        (Some(at), None) => html! { span.chip.finished { "ended" } " " (now.relative(*at)) },
        (Some(at), Some(by)) => {
            html! { span.chip.dead_letter { "stopped" } " by " (bdi(by)) " " (now.relative(*at)) }
        }
    }
}

pub(super) async fn one<S: OperatorStore>(asked: Asked<S>, Named(id): Named) -> Response {
    let Asked { ops, frame, query } = &asked;
    let Ok(id) = Uuid::parse_str(&id) else {
        return trouble::page(frame, &OpsError::NoSuchBulk);
    };
    let body = async {
        let (details, now) = (ops.bulk(id).await?, asked.now().await?);
        Ok(details_page(frame, query, &details, now, None))
    };
    frame.answer(Section::Bulk, "Bulk act", body.await)
}

/// A stop that was refused: why, and the reason that was typed.
pub(super) struct Refused<'a> {
    pub(super) wrong: &'a str,
    pub(super) because: &'a str,
}

/// The page of one, with what is wrong with an act.
pub(super) fn details_page(
    frame: &Frame,
    query: &Fields,
    details: &BulkDetails,
    now: Now,
    refused: Option<&Refused<'_>>,
) -> Markup {
    let bulk = &details.bulk;
    let notice = match query.text("said") {
        "started" => Some("Started. The workers do it, one request at a time."),
        "stopped" => Some("Stopped. What was done stays done."),
        "already" => Some("It was stopped before, or at its end."),
        _ => None,
    };
    html! {
        @if let Some(notice) = notice { p.notice role="status" { (notice) } }
        @if let Some(Refused { wrong, .. }) = refused { p.error role="alert" { (wrong) } }
        h1 { "Bulk act: " (bdi(&bulk.act)) }
        p.id { code { (bulk.id) } }
        section #progress data-live="2" aria-label="Progress" {
            (facts(vec![
                ("State", Some(state(bulk, now))),
                ("Done", Some(html! { (bulk.applied) " of " (bulk.count) " requests" })),
                ("Left as it was", Some(html! { (bulk.settled - bulk.applied) })),
                ("By", Some(html! { (bdi(&bulk.actor)) " " (now.relative(bulk.started_at)) })),
                ("Reason", Some(html! { span.reason { (bdi(&bulk.reason)) } })),
            ]))
            @if !details.refusals.is_empty() {
                h2 { "Left as it was" }
                (refusals(frame, details))
            }
        }
        // It goes with the end of the act. What was typed before a refusal stays, until it is sent again.
        div #stop data-live=[refused.is_none().then_some("2")] {
            @if bulk.ended_at.is_none() && frame.may(Permissions::BULK) {
                form.act method="post" action=(frame.to(format_args!("bulk/{}/stop", bulk.id))) {
                    div.field.wide {
                        label for="because" { "Why stop it" }
                        input #because name="because" required maxlength="500" autocomplete="off"
                            value=(refused.map_or("", |refused| refused.because));
                    }
                    p { button { "Stop it" } }
                }
            }
        }
    }
}

fn refusals(frame: &Frame, details: &BulkDetails) -> Markup {
    let cells = details.refusals.iter().map(|refusal| {
        vec![
            html! {
                a.request href=(frame.to(format_args!("requests/{}", refusal.request_id))) {
                    code { (short(refusal.request_id)) }
                }
            },
            bdi(&refusal.outcome),
            match &refusal.because {
                Some(because) => html! { span.reason { (bdi(because)) } },
                None => html! { span.quiet { "it was so before" } },
            },
        ]
    });
    table("Requests that were left as they were", &["Request", "Outcome", "Why"], cells)
}

/// Under a list of a filter: an act on all that the filter finds.
pub(super) fn choice(frame: &Frame, query: &Fields) -> Markup {
    let is_asked = FILTER.iter().any(|name| !query.text(name).is_empty());
    if !is_asked || !frame.may(Permissions::BULK) {
        return html! {};
    }
    html! {
        form.row method="post" action=(frame.to("bulk/plan")) aria-label="All that match" {
            (carried(query))
            @if frame.may(Permissions::ACT) { button name="act" value="retry" { "Retry all that match…" } }
            @if frame.may(Permissions::ERASE) { button name="act" value="erase" { "Erase all that match…" } }
        }
    }
}

/// The filter as hidden fields.
pub(super) fn carried(fields: &Fields) -> Markup {
    html! {
        @for name in FILTER {
            @for value in fields.all(name).filter(|value| !value.is_empty()) {
                input type="hidden" name=(name) value=(value);
            }
        }
    }
}
