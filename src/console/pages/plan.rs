//! What an act will change, before it is done.

use axum::body::Bytes;
use axum::response::Response;
use chrono::DateTime;
use http::StatusCode;
use maud::{Markup, html};
use uuid::Uuid;

use super::act::Act;
use super::fields::{Fields, Named, carried, id_of, reason_and_confirmation};
use super::format::{Now, bdi, chip, facts, sentence, visible};
use super::frame::{Frame, Section};
use super::guard::Asked;
use super::settle::Offered;
use super::timeline::happened;
use super::{settle, trouble};
use crate::ops::{Details, Happened, OperatorStore, OpsError, PhaseStands, PhaseView, State};
use crate::phase::Reply;

/// `POST`, and changes nothing: what is said about a request does not belong in a URL.
pub(super) async fn page<S: OperatorStore>(
    Named(id): Named,
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
    let act = Act::read(form);
    if let Ok(act) = &act
        && !frame.may(act.needs())
    {
        return trouble::page(frame, &OpsError::NotAllowed { needs: act.needs() });
    }
    let has_moved = details.summary.version.as_str() != form.text("version");
    let attempt = form.text("attempt").parse().unwrap_or(details.summary.attempts);
    let offered = Offered::of(frame, &details);
    let misfit = match &act {
        Ok(act) => act.misfit(ops, id).await,
        Err(_) => None,
    };
    let act = act.ok().filter(|act| !has_moved || offered.has(act, attempt, &details));
    // It is shown where it can be typed anew.
    let act = act.filter(|_| misfit.is_none());
    let status = misfit.as_ref().map_or(status, trouble::status);
    let misfit = misfit.map(|error| format!("Not done: {error}."));
    let wrong = misfit.as_deref().or(wrong);
    let (status, title) = match (has_moved, &act) {
        (true, _) => {
            (StatusCode::PRECONDITION_FAILED, "It has changed since it was read".to_owned())
        }
        (false, Some(act)) => (status, format!("Review: {}", act.name())),
        (false, None) => (status, "Review: not understood".to_owned()),
    };
    let (name, version) = &details.summary.definition;
    let page = html! {
        h1 { (title) }
        p.id { (bdi(name)) " v" (version) " " code { (details.summary.request_id) } }
        @if has_moved {
            (moved(&details, form))
        } @else if let Some(wrong) = wrong {
            p.error role="alert" { (wrong) }
        }
        @if let Some(act) = &act {
            @if has_moved { h2 { "Still so? " (act.name()) } }
            (review(frame, &details, act, form))
        } @else {
            (choose_again(frame, &details, form, &offered))
        }
    };
    frame.page(status, Section::Requests, &title, page)
}

/// The request is not as it was when the operator read it: how it stands now, and what happened in between.
fn moved(details: &Details, form: &Fields) -> Markup {
    let row = &details.summary;
    let was = State::ALL.into_iter().find(|state| state.as_str() == form.text("was"));
    let read_at = DateTime::parse_from_rfc3339(form.text("read_at")).ok();
    let news: Vec<&Happened> = match read_at {
        Some(read_at) => details.timeline.iter().filter(|one| one.at > read_at).collect(),
        None => Vec::new(),
    };
    html! {
        p.error role="alert" {
            strong { "Nothing was done." }
            " Between your review and your act another operator, a worker or the client moved the request. What you \
             typed is kept."
        }
        (facts(vec![
            ("When you read it", was.map(chip)),
            ("Now", Some(html! { (chip(row.state)) " " (sentence(&details.why.sentence)) })),
            ("In between", (!news.is_empty()).then(|| html! {
                ol.timeline { @for one in news { (happened(one)) } }
            })),
        ]))
    }
}

/// What cannot be reviewed, in the form in which it was chosen; where none is left for the request, as a text.
fn choose_again(frame: &Frame, details: &Details, form: &Fields, offered: &Offered<'_>) -> Markup {
    let back = frame.to(format_args!("requests/{}", details.summary.request_id));
    let typed = [("Output", "output"), ("Body", "body"), ("Reason", "reason")].into_iter();
    let left = typed.filter(|(_, name)| !form.raw(name).is_empty() && !offered.asks_for(name));
    html! {
        (settle::form(frame, details, form))
        @for (title, name) in left {
            h2 { (title) ", as you typed it" }
            pre.value tabindex="0" { (visible(form.raw(name))) }
        }
        p { a.button href=(back) { "Read it again" } }
    }
}

/// What the act will change, and its form. It is about the request as it is now.
fn review(frame: &Frame, details: &Details, act: &Act, form: &Fields) -> Markup {
    let row = &details.summary;
    let back = frame.to(format_args!("requests/{}", row.request_id));
    html! {
        (facts(vec![
            ("Now", Some(html! { (chip(row.state)) " " (sentence(&details.why.sentence)) })),
            ("After", Some(after(act, details))),
            ("By", Some(html! { bdi { (visible(frame.actor())) } ", with your reason, in the audit" })),
            ("If", Some(html! {
                "the request is still as you see it (row " code { (row.version.as_str()) } "); otherwise \
                 nothing is written"
            })),
        ]))
        (values_of(act))
        (warning(act, details))
        form.act method="post" action=(frame.to(format_args!("requests/{}/act", row.request_id))) {
            (settle::read_at(details))
            @for name in ["act", "phase", "attempt", "output", "status", "media", "body"] {
                @if !form.raw(name).is_empty() { (carried(name, form.raw(name))) }
            }
            (reason_and_confirmation(form, Some("the pilot's log of 14:05, ticket 88"), &back))
        }
    }
}

/// What the act does not take back, and what an operator has to look up first.
fn warning(act: &Act, details: &Details) -> Markup {
    let called = details.summary.perhaps_called.as_deref();
    let committed = details.phases.iter().filter(|phase| phase.stands == PhaseStands::Done);
    let committed: Vec<Markup> =
        committed.map(|phase| html! { code { (bdi(&phase.name)) } }).collect();
    match act {
        Act::Executed { .. } => html! {},
        Act::NotExecuted { .. } => html! {
            p.warning {
                "If the call did have its effect, this makes a second one. Ask the provider first: the engine \
                 does not know."
            }
        },
        Act::Retry => html! {
            @if let Some(phase) = called {
                p.warning {
                    code { (bdi(phase)) } " may have been called. It is called again under the same derived \
                     key: look it up at the provider first, if that may have forgotten the key."
                }
            }
        },
        Act::Finish { .. } | Act::Erase => html! {
            @if let Some(phase) = called {
                p.warning {
                    code { (bdi(phase)) } " may have been called. Look it up at the provider first: its effect, \
                     if there is one, stays, and the request does not show it any more."
                }
            }
            // Of a finished request it is as it was meant.
            @if !committed.is_empty() && details.summary.state != State::Finished {
                p.warning {
                    "What is committed stays, and nothing undoes it: "
                    @for (index, name) in committed.iter().enumerate() {
                        @if index > 0 { ", " }
                        (name)
                    }
                    "."
                }
            }
        },
    }
}

fn after(act: &Act, details: &Details) -> Markup {
    match act {
        Act::Executed { phase, .. } => html! {
            (chip(State::Due)) " The output below is committed as what " code { (bdi(phase)) } " returned. A \
             worker, or the client's next retry, goes on with "
            @match behind(&details.phases, phase) {
                Some(next) => { code { (bdi(&next.name)) } }
                None => { "the end" }
            }
            "."
        },
        Act::NotExecuted { phase, attempt } => html! {
            (chip(State::Due)) " A worker, or the client's next retry, makes the call of " code { (bdi(phase)) }
            " again. Said of attempt " (attempt) "."
        },
        Act::Finish { reply } => html! {
            (chip(State::Finished)) " No later phase runs. Each retry of the key is answered with the reply below, \
             status " (reply.status()) "."
        },
        Act::Retry => html! {
            (chip(State::Due)) " A worker, or the client's next retry, goes on behind "
            code { (bdi(&details.summary.recovery_point)) } ", with a new count of attempts."
        },
        Act::Erase => html! {
            (chip(State::Erased)) " Parameters, context, outputs and reply are gone for good, and so are its dead \
             jobs. The key stays used "
            @if details.summary.state == State::Finished {
                "until " (Now(details.read_at).relative(details.summary.expires_at))
            }
            @else { "for a whole retention from now" }
            ": a retry gets the answer that it was erased."
        },
    }
}

fn behind<'a>(phases: &'a [PhaseView], name: &str) -> Option<&'a PhaseView> {
    let at = phases.iter().position(|phase| phase.name == name)?;
    phases.get(at + 1)
}

/// What the operator gave, as it will be stored.
fn values_of(act: &Act) -> Markup {
    match act {
        Act::Executed { output, .. } => html! {
            h2 { "Output" }
            pre.value tabindex="0" { (visible(output.get())) }
        },
        Act::Finish { reply } => html! {
            h2 { "Reply " (reply.status()) }
            pre.value tabindex="0" { (visible(&text_of(reply))) }
        },
        _ => html! {},
    }
}

fn text_of(reply: &Reply) -> String {
    String::from_utf8_lossy(reply.bytes()).into_owned()
}
