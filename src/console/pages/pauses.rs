//! Foreign phases that are paused, or may be.

use std::time::Duration;

use axum::body::Bytes;
use axum::response::Response;
use chrono::{DateTime, SecondsFormat};
use http::StatusCode;
use maud::{Markup, html};

use super::fields::{Fields, carried, duration, reason_and_confirmation};
use super::format::{Now, bdi, exact, facts, table, visible};
use super::frame::{Frame, Section};
use super::guard::{Asked, see_other};
use super::trouble::{self, NoAnswer};
use crate::ops::{OperatorStore, Ops, OpsError, PauseView, Permissions, RowVersion};

pub(super) async fn page<S: OperatorStore>(asked: Asked<S>) -> Response {
    asked.frame.answer(Section::Pauses, "Pauses", body(&asked).await)
}

const BEGINS_NOT: &str = "Within five seconds no engine begins the phase.";

async fn body<S: OperatorStore>(asked: &Asked<S>) -> Result<Markup, OpsError> {
    let Asked { ops, frame, query } = asked;
    let (rows, now) = (rows(ops).await?, asked.now().await?);
    let notice = match query.text("said") {
        "paused" => Some(html! { "Done. " (BEGINS_NOT) }),
        "replaced" => Some(html! {
            "Done. It replaced a pause that "
            @match DateTime::parse_from_rfc3339(query.text("until")) {
                Ok(until) => { "lasted until " (exact(until.to_utc())) }
                Err(_) => { "had no end" }
            }
            ". " (BEGINS_NOT)
        }),
        "ended" => Some(html! { "Done. Engines begin the phase again within five seconds." }),
        "still_paused" => Some(html! {
            "Done. The phase is still paused, as below: it had another pause, under another of its names."
        }),
        "already" => Some(html! { "It was not paused any more." }),
        _ => None,
    };
    Ok(html! {
        @if let Some(notice) = notice { p.notice role="status" { (notice) } }
        h1 { "Pauses" }
        p.lead {
            "Foreign phases, which call a provider. A paused one is not begun: its requests keep what they have \
             committed, and wait. That counts as no attempt. A call that is under way goes on."
        }
        section #pauses data-live="5" aria-label="Foreign phases" {
            @if rows.is_empty() {
                p.empty { "No definition here has a foreign phase." }
            } @else {
                (phases(frame, &rows, now, may_set(ops, frame).is_ok()))
            }
        }
    })
}

/// A phase that is registered here, or that is paused.
struct Row {
    definition: String,
    phase: String,
    pause: Option<PauseView>,
}

/// The paused first.
async fn rows<S: OperatorStore>(ops: &Ops<S>) -> Result<Vec<Row>, OpsError> {
    let paused = ops.pauses().await?;
    let known = ops.foreign_phases()?;
    let is_unknown = |pause: &&PauseView| !known.iter().any(|phase| phase.is_paused_by(pause));
    let of_others = paused.iter().filter(is_unknown).map(|pause| Row {
        definition: pause.definition.clone(),
        phase: pause.phase.clone(),
        pause: Some(pause.clone()),
    });
    let ours = known.iter().map(|phase| Row {
        definition: phase.definition.clone(),
        phase: phase.phase.clone(),
        // Under whichever of its names.
        pause: paused.iter().find(|pause| phase.is_paused_by(pause)).cloned(),
    });
    let mut rows: Vec<Row> = of_others.chain(ours).collect();
    rows.sort_by_key(|row| row.pause.is_none());
    Ok(rows)
}

/// Whether the actor may pause a phase.
fn may_set<S: OperatorStore>(ops: &Ops<S>, frame: &Frame) -> Result<(), OpsError> {
    match (frame.may(Permissions::PAUSE), ops.actor().sees_every_scope()) {
        (false, _) => Err(OpsError::NotAllowed { needs: Permissions::PAUSE }),
        (true, false) => Err(OpsError::NotEveryScope),
        (true, true) => Ok(()),
    }
}

fn phases(frame: &Frame, rows: &[Row], now: Now, may_set: bool) -> Markup {
    let cells = rows.iter().map(|Row { definition, phase, pause }| {
        let (act, name) = match pause {
            Some(_) => ("unpause", "End the pause"),
            None => ("pause", "Pause"),
        };
        vec![
            html! { span.definition { (bdi(definition)) } },
            html! { code { (bdi(phase)) } },
            state(pause.as_ref(), now),
            match pause {
                Some(pause) => html! { (bdi(&pause.paused_by)) " " (now.relative(pause.paused_at)) },
                None => html! { span.quiet { "–" } },
            },
            match pause {
                Some(pause) => html! { span.reason { (bdi(&pause.reason)) } },
                None => html! { span.quiet { "–" } },
            },
            html! {
                @if may_set {
                    form.row method="post" action=(frame.to("pauses/plan")) {
                        input type="hidden" name="definition" value=(definition);
                        input type="hidden" name="phase" value=(phase);
                        button name="act" value=(act) { (name) span.unseen { " of " (visible(phase)) } }
                    }
                } @else {
                    span.quiet { "–" }
                }
            },
        ]
    });
    let head = ["Definition", "Phase", "State", "By", "Reason", "Act"];
    table("Foreign phases, the paused first", &head, cells)
}

fn state(pause: Option<&PauseView>, now: Now) -> Markup {
    match pause.map(|pause| pause.ends_at) {
        None => html! { span.chip.finished { "runs" } },
        Some(None) => html! { span.chip.dead_letter { "paused" } " until it is ended" },
        Some(Some(ends)) => {
            html! { span.chip.dead_letter { "paused" } ", ends " (now.relative(ends)) }
        }
    }
}

enum PauseAct {
    Begin(Option<Duration>),
    Replace(RowVersion, Option<Duration>),
    End(RowVersion),
}

/// What a form asks for, with the phase as it stands.
async fn wanted<S: OperatorStore>(
    asked: &Asked<S>,
    form: &Fields,
) -> Result<(bool, Row), OpsError> {
    may_set(&asked.ops, &asked.frame)?;
    let begins = match form.text("act") {
        "pause" => true,
        "unpause" => false,
        _ => return Err(OpsError::BadFilter("choose what to do")),
    };
    let is_meant =
        |row: &Row| row.definition == form.raw("definition") && row.phase == form.raw("phase");
    let row = rows(&asked.ops).await?.into_iter().find(is_meant);
    Ok((begins, row.ok_or(OpsError::NoSuchPhase)?))
}

impl PauseAct {
    fn read(form: &Fields) -> Result<Self, OpsError> {
        let version = form.text("version");
        let length = match (form.text("act"), form.text("for")) {
            ("unpause", _) => return Ok(Self::End(version.into())),
            ("pause", "") => None,
            ("pause", text) => Some(duration(text).ok_or(OpsError::BadFilter(
                "how long is a number and a unit: 15m, 2h, 3d; or nothing",
            ))?),
            _ => return Err(OpsError::BadFilter("choose what to do")),
        };
        Ok(match version {
            "" => Self::Begin(length),
            version => Self::Replace(version.into(), length),
        })
    }

    /// Does the act, and returns what the next page says of it.
    async fn apply<S: OperatorStore>(
        self,
        ops: Ops<S>,
        (definition, phase): (String, String),
        reason: String,
    ) -> Result<String, OpsError> {
        match self {
            Self::Begin(length) => {
                ops.pause(&definition, &phase, length, &reason).await?;
                Ok("paused".to_owned())
            }
            Self::Replace(version, length) => {
                let replaced =
                    ops.replace_pause(&definition, &phase, &version, length, &reason).await?;
                Ok(match replaced.ends_at {
                    Some(ends) => {
                        let ends = ends.to_rfc3339_opts(SecondsFormat::Secs, true);
                        format!("replaced&until={ends}")
                    }
                    None => "replaced".to_owned(),
                })
            }
            Self::End(version) => {
                let still_paused = ops.unpause(&definition, &phase, &version, &reason).await?;
                let said = if still_paused.is_some() { "still_paused" } else { "ended" };
                Ok(said.to_owned())
            }
        }
    }
}

/// `POST`, and changes nothing.
pub(super) async fn plan<S: OperatorStore>(asked: Asked<S>, form: Bytes) -> Response {
    sheet(&asked, &Fields::read(&form), StatusCode::OK, None).await
}

async fn sheet<S: OperatorStore>(
    asked: &Asked<S>,
    form: &Fields,
    status: StatusCode,
    wrong: Option<&str>,
) -> Response {
    asked.frame.review(status, Section::Pauses, review(asked, form, wrong).await)
}

async fn review<S: OperatorStore>(
    asked: &Asked<S>,
    form: &Fields,
    wrong: Option<&str>,
) -> Result<Markup, OpsError> {
    let frame = &asked.frame;
    let ((begins, row), now) = (wanted(asked, form).await?, asked.now().await?);
    let Row { definition, phase, .. } = &row;
    let (name, after) = match begins {
        true => (
            "Pause a phase",
            "No engine begins it, in any version of the definition. Requests that come to it wait, and their \
             clients get the answer to try again. A provider's window goes on: a pause that outlasts it leaves \
             requests that made an earlier attempt unknown.",
        ),
        false => (
            "End a pause",
            "Engines begin the phase again within five seconds, and the requests that wait at it within half a \
             minute.",
        ),
    };
    Ok(html! {
        h1 { "Review: " (name) }
        @if let Some(wrong) = wrong { p.error role="alert" { (wrong) } }
        (facts(vec![
            ("Phase", Some(html! { code { (bdi(phase)) } " of " span.definition { (bdi(definition)) } })),
            ("Now", Some(html! {
                (state(row.pause.as_ref(), now))
                @if let Some(pause) = &row.pause {
                    " by " (bdi(&pause.paused_by)) ": " span.reason { (bdi(&pause.reason)) }
                }
            })),
            ("After", Some(html! { (after) })),
            ("By", Some(html! { bdi { (visible(frame.actor())) } ", with your reason, in the audit" })),
            ("If", Some(html! { "no other operator has changed that by then" })),
        ]))
        form.act method="post" action=(frame.to("pauses/act")) {
            input type="hidden" name="act" value=(form.text("act"));
            input type="hidden" name="definition" value=(definition);
            input type="hidden" name="phase" value=(phase);
            (carried("version", row.pause.as_ref().map_or("", |pause| pause.version.as_str())))
            @if begins {
                div.field {
                    label for="for" { "For how long " span.quiet { "(empty: until it is ended)" } }
                    input #for name="for" placeholder="15m, 2h, 3d" autocomplete="off" value=(form.text("for"));
                }
            }
            (reason_and_confirmation(form, None, &frame.to("pauses")))
        }
    })
}

/// `POST`: does it, if the phase stands as it was reviewed.
pub(super) async fn act<S: OperatorStore>(asked: Asked<S>, form: Bytes) -> Response {
    let form = Fields::read(&form);
    let (ops, reason) = (asked.ops.clone(), form.text("reason").to_owned());
    let at = (form.raw("definition").to_owned(), form.raw("phase").to_owned());
    let act = match PauseAct::read(&form) {
        Ok(act) => act,
        Err(error) => return again(&asked, &form, &error).await,
    };
    match tokio::spawn(act.apply(ops, at, reason)).await {
        Ok(Ok(said)) => back_to_list(&asked.frame, &said),
        Err(task) => trouble::lost_task(&asked.frame, &task),
        Ok(Err(OpsError::Unavailable(_))) => trouble::unanswered(&asked.frame, NoAnswer::ToAct),
        Ok(Err(OpsError::MovedOn)) => moved_on(&asked, &form).await,
        Ok(Err(
            error @ (OpsError::BadReason
            | OpsError::TooLong
            | OpsError::TooShort
            | OpsError::TooManyPauses),
        )) => again(&asked, &form, &error).await,
        Ok(Err(error)) => trouble::page(&asked.frame, &error),
    }
}

fn back_to_list(frame: &Frame, said: &str) -> Response {
    see_other(&frame.to(format_args!("pauses?said={said}")))
}

/// The act was refused: the phase does not stand as it was reviewed. Where the first click of a double click has done the act,
/// the page says that it is done.
async fn moved_on<S: OperatorStore>(asked: &Asked<S>, form: &Fields) -> Response {
    let frame = &asked.frame;
    match wanted(asked, form).await {
        Ok((true, Row { pause: Some(pause), .. })) if is_asked_for(&pause, form, frame.actor()) => {
            back_to_list(frame, "paused")
        }
        Ok((false, Row { pause: None, .. })) => back_to_list(frame, "already"),
        _ => {
            let wrong = "Not done: the phase was paused, or its pause was replaced or ended, since you looked. Now it \
                         stands as below, and what you typed is kept.";
            sheet(asked, form, StatusCode::PRECONDITION_FAILED, Some(wrong)).await
        }
    }
}

/// Whether the pause is one as the form asks for, and by the same operator.
fn is_asked_for(pause: &PauseView, form: &Fields, actor: &str) -> bool {
    let length = match PauseAct::read(form) {
        Ok(PauseAct::Begin(length) | PauseAct::Replace(_, length)) => length,
        Ok(PauseAct::End(_)) | Err(_) => return false,
    };
    let lasts = pause.ends_at.map(|ends| (ends - pause.paused_at).num_seconds().unsigned_abs());
    let is_own = pause.paused_by == actor && pause.reason == form.text("reason");
    is_own && lasts == length.map(|length| length.as_secs())
}

/// The review once more, with what was given and what is wrong with it.
async fn again<S: OperatorStore>(asked: &Asked<S>, form: &Fields, error: &OpsError) -> Response {
    let wrong = format!("Not done: {error}.");
    sheet(asked, form, trouble::status(error), Some(&wrong)).await
}
