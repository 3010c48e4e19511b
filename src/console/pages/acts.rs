//! What may be done with a request: the choice on its page, and the act itself.

use std::borrow::Cow;

use axum::body::Bytes;
use axum::extract::Path;
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::fields::Fields;
use super::frame::Frame;
use super::guard::{Asked, see_other};
use super::look::said;
use super::request::id_of;
use super::{plan, trouble};
use crate::engine::{Resolution, Resolved};
use crate::ops::{
    Details, OperatorStore, Ops, OpsError, Permissions, PhaseStands, PhaseViewKind, RowVersion,
    State,
};
use crate::phase::Reply;

/// What an operator says about a request.
#[derive(Debug)]
pub(super) enum Act {
    Executed { phase: String, output: Box<RawValue> },
    NotExecuted { phase: String, attempt: u32 },
    Finish { reply: Reply },
    Retry,
    Erase,
}

impl Act {
    /// What a form says, or what is wrong with it.
    pub(super) fn read(form: &Fields) -> Result<Self, Cow<'static, str>> {
        match form.text("act") {
            "executed" => {
                let output = serde_json::from_str(form.text("output")).map_err(|error| {
                    format!("The output is not JSON: {error}. Of a phase that returns nothing it is null.")
                })?;
                Ok(Self::Executed { phase: form.raw("phase").to_owned(), output })
            }
            "not_executed" => {
                let attempt = form.text("attempt").parse();
                let attempt = attempt.map_err(|_| "The attempt is a whole number.")?;
                Ok(Self::NotExecuted { phase: form.raw("phase").to_owned(), attempt })
            }
            "finish" => reply(form).map(|reply| Self::Finish { reply }),
            "retry" => Ok(Self::Retry),
            "erase" => Ok(Self::Erase),
            _ => Err("Choose what to do.".into()),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Executed { .. } => "It was executed",
            Self::NotExecuted { .. } => "It was not executed",
            Self::Finish { .. } => "Finish it with a reply",
            Self::Retry => "Let it try again",
            Self::Erase => "Erase it",
        }
    }

    pub(super) fn needs(&self) -> Permissions {
        match self {
            Self::Erase => Permissions::ERASE,
            _ => Permissions::ACT,
        }
    }

    async fn apply<S: OperatorStore>(
        self,
        ops: Ops<S>,
        id: Uuid,
        version: RowVersion,
        reason: String,
    ) -> Result<Resolved, OpsError> {
        let word = match self {
            Self::Erase => return ops.erase(id, &version, &reason).await,
            Self::Retry => return ops.retry(id, &version, &reason).await,
            Self::Executed { phase, output } => {
                Resolution::executed(phase, &output).map_err(OpsError::from)?
            }
            Self::NotExecuted { phase, attempt } => Resolution::not_executed(phase, attempt),
            Self::Finish { reply } => Resolution::finish(reply),
        };
        ops.resolve(id, &version, word, &reason).await
    }
}

/// The reply that a request is to be finished with.
fn reply(form: &Fields) -> Result<Reply, Cow<'static, str>> {
    let status = form.text("status").parse().ok().filter(|status| (200..=599).contains(status));
    let status: u16 = status.ok_or("The status of a reply is 200 to 599.")?;
    // A form sends each end of a line as two characters.
    let body = form.raw("body").replace("\r\n", "\n");
    match form.text("media") {
        "text" => Ok(Reply::text(status, body)),
        _ => {
            let body: Box<RawValue> = serde_json::from_str(body.trim()).map_err(|error| {
                format!("The body of the reply is not JSON: {error}; send it as plain text, or correct it.")
            })?;
            Reply::json(status, &body).map_err(|_| "The body of the reply has no JSON form.".into())
        }
    }
}

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
        Ok(Ok(Resolved::Already)) => see_other(&there("already")),
        Ok(Ok(_)) => see_other(&there("applied")),
        Ok(Err(OpsError::Unavailable(_))) | Err(_) => trouble::unanswered(frame, false),
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
