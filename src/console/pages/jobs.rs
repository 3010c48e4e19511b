//! Staged jobs that gave up, and those that are late.

use axum::body::Bytes;
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use uuid::Uuid;

use super::fields::{Fields, reason_and_confirmation};
use super::format::{Now, bdi, facts, short, table};
use super::frame::{Frame, Section};
use super::guard::{Asked, see_other};
use super::trouble::NoAnswer;
use super::{list, trouble};
use crate::ops::{JobView, OperatorStore, OpsError, Permissions};

const PAGE: u32 = 50;

pub(super) async fn page<S: OperatorStore>(asked: Asked<S>) -> Response {
    asked.frame.answer(Section::Jobs, "Jobs", body(&asked).await)
}

async fn body<S: OperatorStore>(asked: &Asked<S>) -> Result<Markup, OpsError> {
    let Asked { ops, frame, query } = asked;
    let after = match query.text("after") {
        "" => None,
        text => Some(text.parse()?),
    };
    let page = ops.dead_jobs(after, PAGE).await?;
    // They have one page, beside the first of the dead ones.
    let late = match after {
        None => Some(ops.late_jobs(PAGE).await?),
        Some(_) => None,
    };
    let now = asked.now().await?;
    let notice = match query.text("said") {
        "retried" => Some("Done. It is delivered again in a moment."),
        "discarded" => Some("Done. It is never delivered."),
        _ => None,
    };
    Ok(html! {
        @if let Some(notice) = notice { p.notice role="status" { (notice) } }
        h1 { "Jobs" }
        section #dead-jobs data-live="5" aria-label="Dead jobs" {
            h2 { "Dead jobs" }
            p.lead {
                "Staged in the commit of a phase, and given up on after too many failed deliveries. Nothing ends \
                 these but an operator."
            }
            @if list::is_none(&page) {
                (list::none(query, "No job gave up."))
            } @else {
                (dead(frame, &page.rows, now))
                (list::more(&page, now, |next| html! {
                    a.button rel="next" href=(frame.to(format_args!("jobs?after={next}"))) { "Next page" }
                }))
            }
        }
        @if let Some(late) = late {
            section #late-jobs data-live="5" aria-label="Late jobs" {
                h2 { "Late jobs" }
                p.lead {
                    "Due for a minute or longer. One without a reason was taken by no node: none runs workers \
                     with a sink that handles its name, they do not keep up, or an earlier job of its request \
                     comes first."
                }
                @if late.is_empty() {
                    p.empty { "No job is late." }
                } @else {
                    (self::late(frame, &late, now))
                    @if late.len() == PAGE as usize {
                        p.quiet { "These have been due for longest; there may be more." }
                    }
                }
            }
        }
    })
}

fn request(frame: &Frame, job: &JobView) -> Markup {
    html! {
        a.request href=(frame.to(format_args!("requests/{}", job.request_id))) {
            code { (short(job.request_id)) }
        }
    }
}

/// A table of jobs; the last column is of another kind in each.
fn jobs(
    frame: &Frame,
    rows: &[JobView],
    now: Now,
    (caption, last): (&str, &str),
    cell: impl Fn(&JobView) -> Markup,
) -> Markup {
    let cells = rows.iter().map(|job| {
        vec![
            html! { code { (bdi(&job.name)) } },
            request(frame, job),
            html! { (job.attempts) },
            reason(job),
            now.relative(job.staged_at),
            cell(job),
        ]
    });
    table(caption, &["Job", "Request", "Attempts", "Reason", "Staged", last], cells)
}

fn late(frame: &Frame, rows: &[JobView], now: Now) -> Markup {
    jobs(frame, rows, now, ("Late jobs, the longest due first", "Due"), |job| match job.next_at {
        Some(due) => now.relative(due),
        None => html! { span.quiet { "–" } },
    })
}

fn dead(frame: &Frame, rows: &[JobView], now: Now) -> Markup {
    let may_act = frame.may(Permissions::ACT);
    jobs(frame, rows, now, ("Dead jobs, the oldest first", "Act"), |job| {
        html! {
            @if may_act {
                form.row method="post" action=(frame.to("jobs/plan")) {
                    input type="hidden" name="id" value=(job.id);
                    button name="act" value="retry" { "Retry" span.unseen { " job " (short(job.id)) } }
                    button name="act" value="discard" { "Discard" span.unseen { " job " (short(job.id)) } }
                }
            } @else {
                span.quiet { "–" }
            }
        }
    })
}

fn reason(job: &JobView) -> Markup {
    match &job.reason {
        Some(reason) => html! { span.reason { (bdi(reason)) } },
        None => html! { span.quiet { "–" } },
    }
}

#[derive(Clone, Copy)]
enum JobAct {
    Retry,
    Discard,
}

impl JobAct {
    fn read(form: &Fields) -> Result<(Self, Uuid), OpsError> {
        let act = match form.text("act") {
            "retry" => Self::Retry,
            "discard" => Self::Discard,
            _ => return Err(OpsError::BadFilter("choose what to do")),
        };
        let id = Uuid::parse_str(form.text("id")).map_err(|_| OpsError::NoSuchJob)?;
        Ok((act, id))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Retry => "Retry a job",
            Self::Discard => "Discard a job",
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
    asked.frame.review(status, Section::Jobs, review(asked, form, wrong).await)
}

async fn review<S: OperatorStore>(
    asked: &Asked<S>,
    form: &Fields,
    wrong: Option<&str>,
) -> Result<Markup, OpsError> {
    let Asked { ops, frame, .. } = asked;
    if !frame.may(Permissions::ACT) {
        return Err(OpsError::NotAllowed { needs: Permissions::ACT });
    }
    let (act, id) = JobAct::read(form)?;
    let (job, now) = (ops.dead_job(id).await?, asked.now().await?);
    let after = match act {
        JobAct::Retry => {
            "It is delivered again, with a new count of attempts. Its handler may see an id that it \
                          has seen before."
        }
        JobAct::Discard => "It is deleted, and never delivered. This cannot be undone.",
    };
    Ok(html! {
        h1 { "Review: " (act.name()) }
        @if let Some(wrong) = wrong { p.error role="alert" { (wrong) } }
        (facts(vec![
            ("Job", Some(html! { code { (bdi(&job.name)) } " " code { (job.id) } })),
            ("Now", Some(html! { "gave up after " (job.attempts) " attempts: " (reason(&job)) })),
            ("After", Some(html! { (after) })),
            ("Staged", Some(now.relative(job.staged_at))),
            ("By", Some(html! {
                bdi { (super::format::visible(frame.actor())) } ", with your reason, in the audit"
            })),
            ("If", Some(html! { "no other operator has retried or discarded it by then" })),
        ]))
        form.act method="post" action=(frame.to("jobs/act")) {
            input type="hidden" name="act" value=(form.text("act"));
            input type="hidden" name="id" value=(job.id);
            input type="hidden" name="attempts" value=(job.attempts);
            (reason_and_confirmation(form, None, &frame.to("jobs")))
        }
    })
}

/// `POST`: does it, if the job is as it was seen.
pub(super) async fn act<S: OperatorStore>(asked: Asked<S>, form: Bytes) -> Response {
    let Asked { ops, frame, .. } = &asked;
    let form = Fields::read(&form);
    let (act, id) = match JobAct::read(&form) {
        Ok(read) => read,
        Err(error) => return trouble::page(frame, &error),
    };
    // What is not a number matches no job.
    let attempts = form.text("attempts").parse().unwrap_or(u32::MAX);
    let (ops, reason) = (ops.clone(), form.text("reason").to_owned());
    let doing = async move {
        match act {
            JobAct::Retry => ops.retry_job(id, attempts, &reason).await,
            JobAct::Discard => ops.discard_job(id, attempts, &reason).await,
        }
    };
    match (tokio::spawn(doing).await, act) {
        (Ok(Ok(())), JobAct::Retry) => see_other(&frame.to("jobs?said=retried")),
        (Ok(Ok(())), JobAct::Discard) => see_other(&frame.to("jobs?said=discarded")),
        (Err(task), _) => trouble::lost_task(frame, &task),
        (Ok(Err(OpsError::Unavailable(_))), _) => trouble::unanswered(frame, NoAnswer::ToAct),
        (Ok(Err(error @ (OpsError::BadReason | OpsError::MovedOn))), _) => {
            let wrong = match error {
                OpsError::MovedOn => {
                    "Not done: it was tried again since you looked. Now it stands as \
                                      below, and what you typed is kept."
                        .to_owned()
                }
                ref error => format!("Not done: {error}."),
            };
            sheet(&asked, &form, trouble::status(&error), Some(&wrong)).await
        }
        (Ok(Err(error)), _) => trouble::page(frame, &error),
    }
}
