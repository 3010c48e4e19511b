//! The page on which an operator acts on a request: which acts there are for it, and the `POST`.

use axum::body::Bytes;
use axum::extract::Path;
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};

use super::act::Act;
use super::fields::{Fields, id_of};
use super::frame::Frame;
use super::guard::{Asked, see_other};
use super::look::said;
use super::{plan, trouble};
use crate::ops::{
    Details, OperatorStore, OpsError, Permissions, PhaseStands, PhaseViewKind, RowVersion, State,
};

/// `POST`: does it, once: the row's version and the engine's fence see to that, whoever clicks twice.
pub(super) async fn act<S: OperatorStore>(
    Path(id): Path<String>,
    asked: Asked<S>,
    form: Bytes,
) -> Response {
    let Asked { ops, frame, .. } = &asked;
    let form = Fields::read(&form);
    let id = match id_of(&id) {
        Ok(id) => id,
        Err(error) => return trouble::page(frame, &error),
    };
    let act = match Act::read(&form) {
        Ok(act) => act,
        Err(wrong) => return plan::again(&asked, id, &form, StatusCode::BAD_REQUEST, &wrong).await,
    };
    let (version, reason) =
        (RowVersion::from(form.text("version")), form.text("reason").to_owned());
    // A task of its own: who closes the page, or a page that takes too long, breaks no act off.
    let done = tokio::spawn(act.apply(ops.clone(), id, version, reason)).await;
    let there = |said: &str| frame.to(format_args!("requests/{id}?said={said}"));
    match done {
        Ok(Ok(resolved)) => see_other(&there(resolved.as_str())),
        Err(_) => trouble::unanswered(frame, false),
        Ok(Err(error)) if error.is_of_no_answer() => trouble::unanswered(frame, false),
        Ok(Err(error @ (OpsError::NotAllowed { .. } | OpsError::NoSuchRequest))) => {
            trouble::page(frame, &error)
        }
        Ok(Err(OpsError::MovedOn)) => plan::moved_on(&asked, id).await,
        Ok(Err(error)) => {
            let status = trouble::status(&error);
            plan::again(&asked, id, &form, status, &format!("Not done: {error}.")).await
        }
    }
}

/// The phase whose call a word can be about.
fn call_of(details: &Details) -> Option<&str> {
    let next = details.phases.iter().find(|phase| {
        matches!(phase.stands, PhaseStands::Next | PhaseStands::CallOpen)
            && phase.kind != PhaseViewKind::Local
    });
    details.summary.open_intent.as_deref().or(next.map(|phase| phase.name.as_str()))
}

/// The acts that fit where the request stands, and that the actor may do.
pub(super) fn settle(frame: &Frame, details: &Details) -> Markup {
    let row = &details.summary;
    let is_dead = row.state == State::DeadLetter;
    let waits = is_dead || row.state == State::Unknown;
    let is_over = matches!(row.state, State::Finished | State::Erased);
    let may_act = frame.may(Permissions::ACT);
    let call = call_of(details).filter(|_| waits && may_act);
    let is_open = !is_dead || row.open_intent.is_some();
    let may_finish = may_act && !is_over && row.state != State::Running;
    let may_erase = frame.may(Permissions::ERASE) && (is_dead || row.state == State::Finished);
    if call.is_none() && !may_finish && !may_erase {
        return html! {
            @if waits && !may_act {
                p.quiet #settle { "To settle it needs the permission to act." }
            }
        };
    }
    html! {
        section #settle {
            @if waits { h2 { "Settle it" } } @else { h2 { "Act" } }
            form.settle method="post" action=(frame.to(format_args!("requests/{}/plan", row.request_id))) {
                input type="hidden" name="version" value=(row.version.as_str());
                fieldset {
                    legend { "What do you know, or want?" }
                    @if is_dead && row.open_intent.is_none() && may_act {
                        (choice("retry", "Let it try again", html! {
                            "From its last committed phase, with a new count of attempts."
                        }, html! {}))
                    }
                    @if let Some(phase) = call {
                        input type="hidden" name="phase" value=(phase);
                        input type="hidden" name="attempt" value=(row.attempts);
                        (choice("executed", "The call was executed", html! {
                            "You know what " code { (said(phase)) } " would have returned."
                        }, html! {
                            label for="output" { "Its output, as JSON" }
                            textarea #output name="output" rows="4" spellcheck="false"
                                placeholder="{\"id\": \"ntf_00000001\"}" {}
                        }))
                        @if is_open {
                            (choice("not_executed", "The call was not executed", html! {
                                "The call of attempt " (row.attempts) " had no effect and will have none: it may be \
                                 made again."
                            }, html! {}))
                        }
                    }
                    @if may_finish {
                        (choice("finish", "Finish it with a reply", html! {
                            "You have settled it by hand. No later phase runs; each retry is answered with this."
                        }, reply_fields()))
                    }
                    @if may_erase {
                        (choice("erase", "Erase what users gave", html! {
                            "Parameters, outputs and reply go. The key stays used until its retention ends."
                        }, html! {}))
                    }
                }
                p { button { "Review" } " " span.quiet { "Nothing is changed yet." } }
            }
        }
    }
}

fn choice(value: &str, name: &str, hint: Markup, more: Markup) -> Markup {
    let id = format!("act-{value}");
    html! {
        div.choice {
            input type="radio" name="act" id=(id) value=(value) required aria-describedby=(format!("{id}-hint"));
            label for=(id) { (name) }
            p.quiet id=(format!("{id}-hint")) { (hint) }
            div.more-fields { (more) }
        }
    }
}

fn reply_fields() -> Markup {
    html! {
        label for="status" { "Status" }
        input #status name="status" inputmode="numeric" value="200" size="4" autocomplete="off";
        label for="media" { "Body is" }
        select #media name="media" { option value="json" { "JSON" } option value="text" { "plain text" } }
        label for="body" { "Body" }
        textarea #body name="body" rows="4" spellcheck="false" {}
    }
}
