//! Who did what, and why.

use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use uuid::Uuid;

use super::fields::Fields;
use super::format::{Now, bdi, exact, short, table};
use super::frame::{Frame, Section};
use super::guard::Asked;
use super::{list, trouble};
use crate::ops::{
    ACTS, AuditFilter, AuditRecord, OperatorStore, OpsError, Page, Permissions, Place,
};

const PAGE: u32 = 50;

pub(super) async fn page<S: OperatorStore>(asked: Asked<S>) -> Response {
    let Asked { ops, frame, query } = &asked;
    if !frame.may(Permissions::AUDIT) {
        return trouble::page(frame, &OpsError::NotAllowed { needs: Permissions::AUDIT });
    }
    let listed = async {
        let (filter, before) = (filter(query)?, before(query)?);
        Ok((ops.audit(filter, before, PAGE).await?, asked.now().await?))
    };
    let (status, list) = match listed.await {
        Ok((page, now)) => (StatusCode::OK, results(frame, query, &page, now)),
        Err(error @ (OpsError::BadFilter(_) | OpsError::BadCursor)) => {
            (trouble::status(&error), html! { p.error role="alert" { (error) "." } })
        }
        Err(error) => return trouble::page(frame, &error),
    };
    let body = html! {
        h1 { "Audit" }
        p.lead {
            "What operators did, were refused, and revealed. An act's row is written in the transaction of the \
             act. Rows are never changed."
        }
        (finder(frame, query))
        (list)
    };
    frame.page(status, Section::Audit, "Audit", body)
}

fn filter(query: &Fields) -> Result<AuditFilter, OpsError> {
    let mut filter = AuditFilter::new();
    if !query.text("request").is_empty() {
        let id = Uuid::parse_str(query.text("request"));
        filter = filter.request(id.map_err(|_| {
            OpsError::BadFilter("this is not a request's id, which has 36 characters")
        })?);
    }
    if !query.text("actor").is_empty() {
        filter = filter.actor(query.text("actor"));
    }
    if !query.text("act").is_empty() {
        filter = filter.act(query.text("act"));
    }
    Ok(filter)
}

/// Where the page of before ended.
fn before(query: &Fields) -> Result<Option<Place>, OpsError> {
    match query.text("before") {
        "" => Ok(None),
        text => text.parse().map(Some),
    }
}

fn finder(frame: &Frame, query: &Fields) -> Markup {
    html! {
        form.finder action=(frame.to("audit")) role="search" aria-label="By request, operator and act" {
            div.field {
                label for="find" { "Request id" }
                input #find name="request" value=(query.text("request")) autocomplete="off" spellcheck="false";
            }
            div.field {
                label for="by-actor" { "Operator" }
                input #by-actor name="actor" value=(query.text("actor")) autocomplete="off" spellcheck="false";
            }
            div.field {
                label for="by-act" { "Act" }
                select #by-act name="act" {
                    option value="" { "all" }
                    @for (act, name) in choices() {
                        option value=(act) selected[query.text("act") == act] { (name) }
                    }
                }
            }
            button { "Show" }
        }
    }
}

/// Each act, and before the first of a kind its kind: `reveal` is every reveal.
fn choices() -> Vec<(&'static str, String)> {
    let mut all: Vec<(&str, String)> = Vec::new();
    for act in ACTS {
        if let Some((kind, _)) = act.split_once('.')
            && !all.iter().any(|(known, _)| *known == kind)
        {
            all.push((kind, format!("{kind}: all")));
        }
        all.push((act, act.to_owned()));
    }
    all
}

fn results(frame: &Frame, query: &Fields, page: &Page<AuditRecord, Place>, now: Now) -> Markup {
    html! {
        section #audit data-live="10" aria-label="Acts" {
            @if list::is_none(page) {
                (list::none(query, "No act."))
            } @else {
                (acts(frame, &page.rows))
                (list::more(page, now, |place| {
                    let of = query.query_without(&["before"]);
                    let and = if of.is_empty() { "" } else { "&" };
                    let to = frame.to(format_args!("audit?{of}{and}before={place}"));
                    html! { a.button rel="next" href=(to) { "Older" } }
                }))
            }
        }
    }
}

fn acts(frame: &Frame, rows: &[AuditRecord]) -> Markup {
    let cells = rows.iter().map(|row| {
        let of = match (&row.request_id, &row.definition) {
            (Some(id), definition) => html! {
                a.request href=(frame.to(format_args!("requests/{id}"))) {
                    @if let Some((name, version)) = definition {
                        span.definition { (bdi(name)) " v" (version) } " "
                    }
                    code { (short(*id)) }
                }
                @if let Some((_, phase)) = &row.phase { " " code { (bdi(phase)) } }
                (given(row))
                @if let Some(id) = row.bulk_id {
                    " " a href=(frame.to(format_args!("bulk/{id}"))) { "in bulk" }
                }
                @if let Some(job) = row.job_id { " job " code { (short(job)) } }
            },
            (None, _) if row.phase.is_some() => html! {
                @if let Some((name, phase)) = &row.phase {
                    span.definition { (bdi(name)) } " " code { (bdi(phase)) }
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
            bdi(&row.actor),
            html! { (bdi(&row.act)) },
            outcome(row),
            of,
            change(row),
            html! { span.reason { (bdi(&row.reason)) } },
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
        span class=(class) { (bdi(&row.outcome)) }
        @if let Some(because) = &row.refused_because { span.reason { " " (bdi(because)) } }
    }
}

/// What a resolution names or gives: an attempt; or the length of a value, and its hash for those who may see values.
pub(super) fn given(row: &AuditRecord) -> Markup {
    html! {
        @if let Some(attempt) = row.attempt { " attempt " (attempt) }
        @if let Some(bytes) = row.value_bytes {
            span.reason {
                " value of " (bytes) " bytes"
                @if let Some(sha256) = &row.value_sha256 { ", SHA-256 " code { (sha256) } }
            }
        }
    }
}

fn change(row: &AuditRecord) -> Markup {
    match (&row.before, &row.after) {
        (Some(before), Some(after)) if before != after => {
            html! { (bdi(before)) " → " (bdi(after)) }
        }
        (Some(before), _) => html! { (bdi(before)) },
        _ => html! { span.quiet { "–" } },
    }
}
