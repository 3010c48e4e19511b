//! What an act will change, before it is done.

use axum::body::Bytes;
use axum::extract::Path;
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use uuid::Uuid;

use super::act::Act;
use super::fields::{Fields, id_of};
use super::frame::{Frame, Section};
use super::guard::Asked;
use super::look::{chip, facts, relative, said, sentence};
use super::trouble;
use crate::ops::{Details, OperatorStore, OpsError, PhaseView, State};
use crate::phase::Reply;

/// `POST`, and changes nothing: what is said about a request does not belong in a URL.
pub(super) async fn page<S: OperatorStore>(
    Path(id): Path<String>,
    asked: Asked<S>,
    form: Bytes,
) -> Response {
    let form = Fields::read(&form);
    let id = match id_of(&id) {
        Ok(id) => id,
        Err(error) => return trouble::page(&asked.frame, &error),
    };
    match Act::read(&form) {
        Ok(_) => sheet(&asked, id, &form, StatusCode::OK, None).await,
        Err(wrong) => again(&asked, id, &form, StatusCode::BAD_REQUEST, &wrong).await,
    }
}

/// The same page, with what was wrong.
pub(super) async fn again<S: OperatorStore>(
    asked: &Asked<S>,
    id: Uuid,
    form: &Fields,
    status: StatusCode,
    wrong: &str,
) -> Response {
    sheet(asked, id, form, status, Some(wrong)).await
}

async fn sheet<S: OperatorStore>(
    asked: &Asked<S>,
    id: Uuid,
    form: &Fields,
    status: StatusCode,
    wrong: Option<&str>,
) -> Response {
    let Asked { ops, frame, .. } = asked;
    let details = match ops.show(id).await {
        Ok(details) => details,
        Err(error) => return trouble::page(frame, &error),
    };
    if details.summary.version.as_str() != form.text("version") {
        return moved(frame, &details);
    }
    let act = Act::read(form);
    if let Ok(act) = &act
        && !frame.may(act.needs())
    {
        return trouble::page(frame, &OpsError::NotAllowed { needs: act.needs() });
    }
    frame.page(status, Section::Requests, "Review", body(frame, &details, act.ok(), form, wrong))
}

/// The row is not as it was when the operator looked at it.
pub(super) async fn moved_on<S: OperatorStore>(asked: &Asked<S>, id: Uuid) -> Response {
    match asked.ops.show(id).await {
        Ok(details) => moved(&asked.frame, &details),
        Err(error) => trouble::page(&asked.frame, &error),
    }
}

fn moved(frame: &Frame, details: &Details) -> Response {
    let row = &details.summary;
    let text = html! {
        p {
            strong { "Nothing was done." }
            " Between your look and your act another operator, a worker or the client moved the request. Now it \
             is " (chip(row.state)) ":"
        }
        blockquote { p { (sentence(&details.why.sentence)) } }
        p { a.button href=(frame.to(format_args!("requests/{}", row.request_id))) { "Look again" } }
    };
    let title = "It has moved on";
    let page = trouble::titled(title, &text);
    frame.page(StatusCode::PRECONDITION_FAILED, Section::Requests, title, page)
}

fn body(
    frame: &Frame,
    details: &Details,
    act: Option<Act>,
    form: &Fields,
    wrong: Option<&str>,
) -> Markup {
    let row = &details.summary;
    let (name, version) = &row.definition;
    let back = frame.to(format_args!("requests/{}", row.request_id));
    html! {
        h1 { "Review: " @if let Some(act) = &act { (act.name()) } @else { "not understood" } }
        p.id { (said(name)) " v" (version) " " code { (row.request_id) } }
        @if let Some(wrong) = wrong { p.error role="alert" { (wrong) } }
        @if let Some(act) = &act {
            (facts(vec![
                ("Now", Some(html! { (chip(row.state)) " " (sentence(&details.why.sentence)) })),
                ("After", Some(after(act, details))),
                ("By", Some(html! {
                    bdi { (super::look::visible(frame.actor())) } ", with your reason, in the audit"
                })),
                ("If", Some(html! {
                    "the request is still as you saw it (row " code { (row.version.as_str()) } "); otherwise \
                     nothing is written"
                })),
            ]))
            (given(act))
            @if let Act::NotExecuted { .. } = act {
                p.warning {
                    "If the call did have its effect, this makes a second one. Ask the provider first: the request's \
                     own words cannot tell."
                }
            }
            form.act method="post" action=(frame.to(format_args!("requests/{}/act", row.request_id))) {
                @for name in ["act", "version", "phase", "attempt", "output", "status", "media", "body"] {
                    @if !form.raw(name).is_empty() { (carried(name, form.raw(name))) }
                }
                div.field.wide {
                    label for="reason" { "Reason" }
                    input #reason name="reason" required maxlength="500" autocomplete="off" autofocus
                        placeholder="the pilot's log of 14:05, ticket 88" value=(form.raw("reason"));
                }
                p { button.primary { "Do it" } " " a.button href=(back) { "Back, change nothing" } }
            }
        } @else {
            p { a.button href=(format!("{back}#settle")) { "Back" } }
        }
    }
}

/// A value on its way to the act. A text area keeps the ends of its lines, which an input does not.
fn carried(name: &str, value: &str) -> Markup {
    html! {
        @if value.contains('\n') {
            textarea name=(name) hidden readonly aria-hidden="true" { "\n" (value) }
        } @else {
            input type="hidden" name=(name) value=(value);
        }
    }
}

fn after(act: &Act, details: &Details) -> Markup {
    match act {
        Act::Executed { phase, .. } => html! {
            (chip(State::Due)) " The output below is committed as what " code { (said(phase)) } " returned. A \
             worker, or the client's next retry, goes on with "
            @match behind(&details.phases, phase) {
                Some(next) => { code { (said(&next.name)) } }
                None => { "the end" }
            }
            "."
        },
        Act::NotExecuted { phase, attempt } => html! {
            (chip(State::Due)) " A worker, or the client's next retry, makes the call of " code { (said(phase)) }
            " again. Said of attempt " (attempt) "."
        },
        Act::Finish { reply } => html! {
            (chip(State::Finished)) " No later phase runs. Each retry of the key is answered with the reply below, \
             status " (reply.status()) "."
        },
        Act::Retry => html! {
            (chip(State::Due)) " A worker, or the client's next retry, goes on behind "
            code { (said(&details.summary.recovery_point)) } ", with a new count of attempts."
        },
        Act::Erase => html! {
            (chip(State::Erased)) " Parameters, context, outputs and reply are gone for good, and so are its dead \
             jobs. The key stays used "
            @if details.summary.state == State::Finished { "until " (relative(details.summary.expires_at)) }
            @else { "for a whole retention from now" }
            ": a retry is told that it was erased."
        },
    }
}

fn behind<'a>(phases: &'a [PhaseView], name: &str) -> Option<&'a PhaseView> {
    let at = phases.iter().position(|phase| phase.name == name)?;
    phases.get(at + 1)
}

/// What the operator gave, as it will be stored.
fn given(act: &Act) -> Markup {
    match act {
        Act::Executed { output, .. } => html! {
            h2 { "Output" }
            pre.value tabindex="0" { (super::look::visible(output.get())) }
        },
        Act::Finish { reply } => html! {
            h2 { "Reply " (reply.status()) }
            pre.value tabindex="0" { (super::look::visible(&text_of(reply))) }
        },
        _ => html! {},
    }
}

pub(super) fn text_of(reply: &Reply) -> String {
    String::from_utf8_lossy(reply.bytes()).into_owned()
}
