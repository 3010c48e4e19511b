//! The `POST` of an act on a request.

use axum::body::Bytes;
use axum::response::Response;
use http::StatusCode;

use super::act::Act;
use super::fields::{Fields, Named, id_of};
use super::guard::{Asked, see_other};
use super::trouble::NoAnswer;
use super::{plan, trouble};
use crate::ops::{OperatorStore, OpsError, RowVersion};

/// `POST`: does it, once: the row's version and the engine's fence see to that, even after a double click.
pub(super) async fn act<S: OperatorStore>(
    Named(id): Named,
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
        Err(task) => trouble::lost_task(frame, &task),
        Ok(Err(error)) if error.is_of_a_panic() => trouble::page(frame, &error),
        Ok(Err(error)) if error.is_of_no_answer() => trouble::unanswered(frame, NoAnswer::ToAct),
        Ok(Err(error @ (OpsError::NotAllowed { .. } | OpsError::NoSuchRequest))) => {
            trouble::page(frame, &error)
        }
        Ok(Err(error)) => {
            let status = trouble::status(&error);
            plan::again(&asked, id, &form, status, &format!("Not done: {error}.")).await
        }
    }
}
