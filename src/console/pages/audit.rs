//! Who did what, and why.

use axum::response::Response;
use maud::{Markup, html};
use uuid::Uuid;

use super::fields::Fields;
use super::frame::{Frame, Section};
use super::guard::Asked;
use super::list;
use super::look::{exact, said, short, table};
use crate::ops::{AuditRecord, OperatorStore, OpsError};

const PAGE: u32 = 50;

pub(super) async fn page<S: OperatorStore>(asked: Asked<S>) -> Response {
    asked.frame.answer(Section::Audit, "Audit", body(&asked).await)
}

async fn body<S: OperatorStore>(asked: &Asked<S>) -> Result<Markup, OpsError> {
    let Asked { ops, frame, query } = asked;
    let request = match query.text("request") {
        "" => None,
        text => Some(
            Uuid::parse_str(text).map_err(|_| OpsError::BadFilter("this is not a request's id"))?,
        ),
    };
    let before = match query.text("before") {
        "" => None,
        text => Some(text.parse()?),
    };
    let (now, page) = (asked.now().await?, ops.audit(request, before, PAGE).await?);
    Ok(html! {
        h1 { "Audit" }
        p.lead {
            "What operators did, were refused, and looked at. An act's row is written in the transaction of the \
             act. Rows are never changed."
        }
        (filter(frame, query))
        section #audit data-live="10" aria-label="Acts" {
            @if list::is_none(&page) {
                (list::none(query, "No act."))
            } @else {
                (acts(frame, &page.rows))
                (list::more(&page, now, |place| {
                    let of = query.query_without(&["before"]);
                    let and = if of.is_empty() { "" } else { "&" };
                    let to = frame.to(format_args!("audit?{of}{and}before={place}"));
                    html! { a.button rel="next" href=(to) { "Older" } }
                }))
            }
        }
    })
}

fn filter(frame: &Frame, query: &Fields) -> Markup {
    html! {
        form.finder action=(frame.to("audit")) role="search" aria-label="By request" {
            div.field {
                label for="find" { "Request id" }
                input #find name="request" value=(query.text("request")) autocomplete="off" spellcheck="false";
            }
            button { "Show" }
        }
    }
}

fn acts(frame: &Frame, rows: &[AuditRecord]) -> Markup {
    let cells = rows.iter().map(|row| {
        let of = match (&row.request_id, &row.definition) {
            (Some(id), definition) => html! {
                a.request href=(frame.to(format_args!("requests/{id}"))) {
                    @if let Some((name, version)) = definition {
                        span.definition { (said(name)) " v" (version) } " "
                    }
                    code { (short(*id)) }
                }
                @if let Some(id) = row.bulk_id {
                    " " a href=(frame.to(format_args!("bulk/{id}"))) { "in bulk" }
                }
                @if let Some(job) = row.job_id { " job " code { (short(job)) } }
            },
            (None, _) if row.phase.is_some() => html! {
                @if let Some((name, phase)) = &row.phase {
                    span.definition { (said(name)) } " " code { (said(phase)) }
                }
            },
            (None, _) if row.bulk_id.is_some() => html! {
                @if let Some(id) = row.bulk_id {
                    a href=(frame.to(format_args!("bulk/{id}"))) { "bulk act " code { (short(id)) } }
                }
            },
            (None, _) => html! { span.quiet { "–" } },
        };
        vec![
            exact(row.at),
            said(&row.actor),
            html! { (said(&row.act)) },
            outcome(row),
            of,
            change(row),
            html! { span.reason { (said(&row.reason)) } },
        ]
    });
    let head = ["At (UTC)", "Who", "Act", "Outcome", "About", "Status", "Why"];
    table("Acts, the newest first", &head, cells)
}

pub(super) fn outcome(row: &AuditRecord) -> Markup {
    let class = match row.outcome.as_str() {
        "applied" => "chip finished",
        "refused" => "chip dead_letter",
        _ => "chip erased",
    };
    html! {
        span class=(class) { (said(&row.outcome)) }
        @if let Some(because) = &row.refused_because { span.reason { " " (said(because)) } }
    }
}

fn change(row: &AuditRecord) -> Markup {
    match (&row.before, &row.after) {
        (Some(before), Some(after)) if before != after => {
            html! { (said(before)) " → " (said(after)) }
        }
        (Some(before), _) => html! { (said(before)) },
        _ => html! { span.quiet { "–" } },
    }
}
