//! A bulk act from its plan to its start, and its stop.

use axum::body::Bytes;
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};
use uuid::Uuid;

use super::bulk::{Refused, carried, details_page};
use super::fields::{Fields, Named};
use super::format::{Now, facts, visible};
use super::frame::{Frame, Section};
use super::guard::{Asked, see_other};
use super::trouble::NoAnswer;
use super::{list, requests, trouble};
use crate::engine::Resolved;
use crate::ops::{BulkAct, BulkPlan, OperatorStore, OpsError, RowVersion, Selection};

/// What a form asks for.
fn read(form: &Fields) -> Result<(BulkAct, Selection), OpsError> {
    let act = BulkAct::named(form.text("act")).ok_or(OpsError::BadFilter("choose what to do"))?;
    Ok((act, Selection::Filter(requests::filter(form)?)))
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
    let Asked { ops, frame, .. } = asked;
    let planning = async {
        let (act, selection) = read(form)?;
        if !frame.may(act.needs()) {
            return Err(OpsError::NotAllowed { needs: act.needs() });
        }
        let plan = ops.plan_bulk(act, &selection).await?;
        Ok(review(frame, form, &plan, act, asked.now().await?, wrong))
    };
    frame.review(status, Section::Bulk, planning.await)
}

fn review(
    frame: &Frame,
    form: &Fields,
    plan: &BulkPlan,
    act: BulkAct,
    now: Now,
    wrong: Option<&str>,
) -> Markup {
    let others = plan.count - plan.fitting;
    let after = match act {
        BulkAct::Retry => {
            "Each dead letter tries again, with a new count of attempts: a worker, or the client's next retry, goes \
             on with it."
        }
        BulkAct::Erase => {
            "Of each settled request, what users gave is gone for good. Its key stays used. This cannot be undone."
        }
    };
    html! {
        h1 { "Review: " (act.as_str()) " " (plan.count) " requests" }
        @if let Some(wrong) = wrong { p.error role="alert" { (wrong) } }
        (facts(vec![
            ("Requests", Some(html! { strong { (plan.count) } })),
            ("After", Some(html! { (after) })),
            ("Left as they are", (others > 0).then(|| html! {
                (others) ", which do not stand where the act is taken; each is listed with its reason"
            })),
            ("May have been called", (plan.with_call > 0).then(|| html! {
                (plan.with_call) " of them have a call that may have had its effect, and whose outcome is not stored"
                @match act {
                    BulkAct::Retry => { ": it is made again under the same derived key" }
                    BulkAct::Erase => { ": look each up at its provider first" }
                }
            })),
            ("By", Some(html! { bdi { (visible(frame.actor())) } ", with your reason, each in the audit" })),
            ("If", Some(html! { "the request is still as it is now, when its turn comes" })),
        ]))
        form.act method="post" action=(frame.to("bulk/act")) {
            (carried(form))
            input type="hidden" name="act" value=(act.as_str());
            input type="hidden" name="planned" value=(plan.version.as_str());
            div.field.wide {
                label for="because" { "Reason" }
                input #because name="because" required maxlength="500" autocomplete="off" autofocus
                    value=(form.raw("because"));
            }
            p {
                button.primary { "Start it" } " "
                a.button href=(frame.to("requests")) { "Back, change nothing" }
            }
        }
        h2 { "The first of them" }
        (list::requests(frame, &plan.sample, now))
    }
}

/// `POST`: starts it, if it is about the requests that were planned.
pub(super) async fn act<S: OperatorStore>(asked: Asked<S>, form: Bytes) -> Response {
    let form = Fields::read(&form);
    let frame = &asked.frame;
    let (act, selection) = match read(&form) {
        Ok(read) => read,
        Err(error) => return trouble::page(frame, &error),
    };
    // A version that no plan has is refused.
    let planned = RowVersion::from(form.text("planned"));
    let (ops, because) = (asked.ops.clone(), form.text("because").to_owned());
    let starting =
        tokio::spawn(async move { ops.start_bulk(act, &selection, planned, &because).await });
    match starting.await {
        Ok(Ok(id)) => see_other(&frame.to(format_args!("bulk/{id}?said=started"))),
        Err(task) => trouble::lost_task(frame, &task),
        Ok(Err(OpsError::Unavailable(_))) => trouble::unanswered(frame, NoAnswer::ToAct),
        Ok(Err(error @ (OpsError::BadReason | OpsError::MovedOn))) => {
            let wrong = match error {
                OpsError::MovedOn => {
                    "Not started: other requests match by now, or stand otherwise. Plan it again."
                        .to_owned()
                }
                ref error => format!("Not started: {error}."),
            };
            sheet(&asked, &form, trouble::status(&error), Some(&wrong)).await
        }
        Ok(Err(error)) => trouble::page(frame, &error),
    }
}

/// `POST`: no further request is acted on.
pub(super) async fn stop<S: OperatorStore>(
    asked: Asked<S>,
    Named(id): Named,
    form: Bytes,
) -> Response {
    let frame = &asked.frame;
    let Ok(id) = Uuid::parse_str(&id) else {
        return trouble::page(frame, &OpsError::NoSuchBulk);
    };
    let form = Fields::read(&form);
    let (ops, because) = (asked.ops.clone(), form.text("because").to_owned());
    let stopping = tokio::spawn(async move { ops.stop_bulk(id, &because).await });
    let to = |said: &str| see_other(&frame.to(format_args!("bulk/{id}?said={said}")));
    match stopping.await {
        Ok(Ok(Resolved::Applied)) => to("stopped"),
        Ok(Ok(Resolved::Already | Resolved::Finished)) => to("already"),
        Err(task) => trouble::lost_task(frame, &task),
        Ok(Err(OpsError::Unavailable(_))) => trouble::unanswered(frame, NoAnswer::ToAct),
        Ok(Err(error @ OpsError::BadReason)) => {
            let (status, wrong) = (trouble::status(&error), format!("Not stopped: {error}."));
            let looked = async { Ok((asked.ops.bulk(id).await?, asked.now().await?)) };
            match looked.await {
                Ok((details, now)) => {
                    let refused = Refused { wrong: &wrong, because: form.raw("because") };
                    let page = details_page(frame, &asked.query, &details, now, Some(&refused));
                    frame.page(status, Section::Bulk, "Bulk act", page)
                }
                Err(error) => trouble::page(frame, &error),
            }
        }
        Ok(Err(error)) => trouble::page(frame, &error),
    }
}
