//! Pages that say why there is no other.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{HeaderValue, RETRY_AFTER};
use maud::{Markup, html};
use tokio::task::JoinError;

use super::super::origin::CrossOrigin;
use super::fields::{Fields, carried};
use super::format::visible;
use super::frame::{Frame, Section};
use crate::engine::ResolveError;
use crate::ops::OpsError;

/// Here, and not beside [`Frame`], because a frame knows nothing of what can go wrong.
impl Frame {
    /// The page, or why there is none.
    pub(super) fn answer(
        &self,
        section: Section,
        title: &str,
        body: Result<Markup, OpsError>,
    ) -> Response {
        self.page_or_trouble(StatusCode::OK, section, title, body)
    }

    /// What an act will change, for the operator to confirm, or why there is no such page.
    pub(super) fn review(
        &self,
        status: StatusCode,
        section: Section,
        body: Result<Markup, OpsError>,
    ) -> Response {
        self.page_or_trouble(status, section, "Review", body)
    }

    fn page_or_trouble(
        &self,
        status: StatusCode,
        section: Section,
        title: &str,
        body: Result<Markup, OpsError>,
    ) -> Response {
        match body {
            Ok(body) => self.page(status, section, title, body),
            Err(error) => page(self, &error),
        }
    }
}

/// Which status an error has.
pub(super) fn status(error: &OpsError) -> StatusCode {
    match error {
        OpsError::NotAllowed { .. } | OpsError::NotEveryScope => StatusCode::FORBIDDEN,
        OpsError::NoSuchRequest
        | OpsError::NoSuchJob
        | OpsError::NoSuchPhase
        | OpsError::NoSuchBulk => StatusCode::NOT_FOUND,
        OpsError::MovedOn => StatusCode::PRECONDITION_FAILED,
        OpsError::BadFilter(_) | OpsError::BadPage { .. } | OpsError::BadCursor => {
            StatusCode::BAD_REQUEST
        }
        OpsError::BadReason | OpsError::TooLong | OpsError::TooShort => {
            StatusCode::UNPROCESSABLE_ENTITY
        }
        OpsError::Resolve(
            ResolveError::OtherType { .. }
            | ResolveError::NotStorable
            | ResolveError::Undecodable(_),
        ) => StatusCode::UNPROCESSABLE_ENTITY,
        error if error.is_of_a_panic() => StatusCode::INTERNAL_SERVER_ERROR,
        OpsError::Resolve(_)
        | OpsError::Erase(_)
        | OpsError::TooManyPauses
        | OpsError::Unreadable { .. } => StatusCode::CONFLICT,
        OpsError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Why a page is not shown, or an act was not done.
pub(super) fn page(frame: &Frame, error: &OpsError) -> Response {
    let (title, text) = match error {
        OpsError::NotAllowed { needs } => {
            let text = html! {
                p { "This needs the permission to " (needs) ", which you do not have. Ask an operator \
                     who has it." }
            };
            ("Not allowed", text)
        }
        OpsError::NoSuchRequest => ("No such request", not_there()),
        OpsError::NoSuchJob => {
            let text = html! {
                p { "There is no dead job of this id: it was retried, discarded or delivered in the meantime, or \
                     you may not see it." }
                p { a href=(frame.to("jobs")) { "Back to the jobs" } }
            };
            ("No such job", text)
        }
        OpsError::NoSuchBulk => {
            let text = html! {
                p { "There is no bulk act of this id, or you may not see it." }
                p { a href=(frame.to("bulk")) { "Back to the bulk acts" } }
            };
            ("No such bulk act", text)
        }
        OpsError::Unavailable(_) => return unanswered(frame, NoAnswer::ToRead),
        error if error.is_of_a_panic() => return panicked(frame),
        error @ OpsError::Unreadable { .. } => {
            let text = html! {
                p { (visible(&error.to_string())) "." }
                p { "A build that knows it shows it and acts on it. This one leaves it as it is." }
            };
            ("Not readable here", text)
        }
        error => ("Not done", html! { p { (visible(&error.to_string())) } }),
    };
    frame.page(status(error), Section::None, title, titled(title, &text))
}

fn not_there() -> Markup {
    html! {
        p { "There is no request of this id: its retention has passed and it was reaped, or you may \
             not see it. An id has 36 characters; the last eight, which the lists show, do not identify one." }
    }
}

/// The task of an act panicked: a defect of the service, and nothing that the same act again would mend.
fn panicked(frame: &Frame) -> Response {
    let title = "The act ended in a panic";
    let text = html! {
        p { strong { "Whether it was written is not known." } " Read the audit: an act that was done has its row \
             there. The service's log says where it panicked." }
    };
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    frame.page(status, Section::None, title, titled(title, &text))
}

/// The task of an act gave no answer: it panicked, or its runtime is gone.
pub(super) fn lost_task(frame: &Frame, task: &JoinError) -> Response {
    match task.is_panic() {
        true => panicked(frame),
        false => unanswered(frame, NoAnswer::ToAct),
    }
}

/// The database did not answer, in time or at all. Its own words may hold what users gave: they are in no
/// page.
pub(super) fn unanswered(frame: &Frame, no_answer: NoAnswer) -> Response {
    unanswered_to(frame, no_answer, None)
}

/// A form that was sent: what was typed is not lost.
pub(super) struct Sent<'a> {
    /// The last part of its address.
    pub(super) to: &'a str,
    pub(super) form: &'a Fields,
    /// Whether it was to change nothing.
    pub(super) is_read: bool,
}

/// The same with the form that was sent.
pub(super) fn unanswered_to(
    frame: &Frame,
    no_answer: NoAnswer,
    sent: Option<&Sent<'_>>,
) -> Response {
    let title = "The database does not answer";
    let text = html! {
        @if no_answer == NoAnswer::ToRead {
            p { "Nothing was changed. Load the page again in a moment." }
        } @else {
            p { strong { "Whether it was done is not known." } " Read the request and its audit before \
                 you do it again: an act that was done has its row there, and the same act twice is one act." }
        }
        p { "The console reads on few connections. Requests may be served although the console gets no answer." }
    };
    let page = html! {
        (titled(title, &text))
        @if let Some(sent) = sent { (again(sent)) }
    };
    let mut page = frame.page(StatusCode::SERVICE_UNAVAILABLE, Section::None, title, page);
    page.extensions_mut().insert(no_answer);
    with_retry(page)
}

/// On a page that says so: the guard, which has the form, writes it anew.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// Nothing was to be changed.
    ToRead,
    ToAct,
}

/// What was sent, to be sent once more: under the same version, so that it is done once.
fn again(Sent { to, form, is_read }: &Sent<'_>) -> Markup {
    // Of an act on all that a filter finds, which may be by a reason of theirs, the operator's has another name.
    let reason = form.pairs().map(|(name, _)| name).find(|name| *name == "because");
    let is_reason = |name: &str| name == reason.unwrap_or("reason") && !is_read;
    html! {
        form.act method="post" action=(to) {
            @for (name, value) in form.pairs() {
                @if is_reason(name) {
                    div.field.wide {
                        label for=(name) { "Reason" }
                        input id=(name) name=(name) required maxlength="500" autocomplete="off" value=(value);
                    }
                } @else {
                    (carried(name, value))
                }
            }
            p { button { @if *is_read { "Ask again" } @else { "Send it again" } } }
        }
    }
}

/// A form that broke off, or did not arrive in time: the network has it, or a browser that was closed.
pub(super) fn not_arrived(frame: &Frame) -> Response {
    let text =
        html! { p { "It did not arrive, or not in time. Nothing was done: send it again." } };
    let title = "The form did not arrive";
    frame.page(StatusCode::REQUEST_TIMEOUT, Section::None, title, titled(title, &text))
}

/// A form of more than `largest` bytes.
pub(super) fn too_large(frame: &Frame, largest: usize) -> Response {
    let text = html! { p { "A form has " (largest) " bytes at most. Nothing was done: send a shorter one." } };
    let title = "The form is too large";
    frame.page(StatusCode::PAYLOAD_TOO_LARGE, Section::None, title, titled(title, &text))
}

fn with_retry(mut page: Response) -> Response {
    page.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
    page
}

/// A form that no page of this console sent. Who asks is not known by then.
pub(super) fn of_another_site(why: CrossOrigin) -> Response {
    let text = format!(
        "Refused: this form was not sent by a page of this console ({why}), so nothing was done.\nIf it was: a \
         proxy in between takes away Sec-Fetch-Site and Origin, or changes Host.\n"
    );
    (StatusCode::FORBIDDEN, text).into_response()
}

pub(super) fn titled(title: &str, text: &Markup) -> Markup {
    html! { h1 { (title) } div.prose { (text) } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Actor, Permissions, Scopes};

    fn frame() -> Frame {
        Frame::new(
            "/requests/1/act",
            &Actor::new("ada", Permissions::admin(), Scopes::All).unwrap(),
        )
    }

    async fn text(page: Response) -> String {
        let bytes = axum::body::to_bytes(page.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    async fn panics() {
        std::panic::resume_unwind(Box::new("a defect"))
    }

    #[tokio::test]
    async fn an_act_that_panicked_is_not_told_as_a_database_that_does_not_answer() {
        let error = OpsError::Resolve(ResolveError::TaskPanicked);
        let task = tokio::spawn(panics()).await.unwrap_err();
        for told in [page(&frame(), &error), lost_task(&frame(), &task)] {
            assert_eq!(told.status(), StatusCode::INTERNAL_SERVER_ERROR);
            assert!(told.headers().get(RETRY_AFTER).is_none());
            assert!(told.extensions().get::<NoAnswer>().is_none(), "its form is not sent again");
            let text = text(told).await;
            assert!(text.contains("ended in a panic") && text.contains("Read the audit"), "{text}");
            assert!(!text.contains("does not answer"), "{text}");
        }
        let waits = tokio::spawn(std::future::pending::<()>());
        waits.abort();
        let told = lost_task(&frame(), &waits.await.unwrap_err());
        assert_eq!(told.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
