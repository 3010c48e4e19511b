//! What every request passes: who asks, from where, for how long; and what every answer forbids.

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, OriginalUri, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, LOCATION, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::request::Parts;
use http::{Method, StatusCode, Uri};
use maud::html;

use super::super::access::NotLetIn;
use super::fields::Fields;
use super::format::Now;
use super::frame::{Frame, Section};
use super::trouble::{NoAnswer, Sent};
use super::{Console, trouble};
use crate::http::{NotRead, read_whole};
use crate::ops::{Actor, OperatorStore, Ops, OpsError};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// What a page is made from: who asks, and for what.
pub(super) struct Asked<S: OperatorStore> {
    pub(super) ops: Ops<S>,
    pub(super) frame: Frame,
    pub(super) query: Fields,
}

impl<S: OperatorStore> Asked<S> {
    /// What ages are counted from. Read last: it may take a statement, which is not for a page that is refused.
    pub(super) async fn now(&self) -> Result<Now, OpsError> {
        self.ops.now().await.map(Now)
    }
}

impl<S: OperatorStore> FromRequestParts<Console<S>> for Asked<S> {
    type Rejection = StatusCode;

    async fn from_request_parts(
        parts: &mut Parts,
        console: &Console<S>,
    ) -> Result<Self, StatusCode> {
        // The guard has put it there.
        let actor = parts.extensions.get::<Actor>().ok_or(StatusCode::NOT_FOUND)?;
        Ok(Self {
            frame: Frame::new(parts.uri.path(), actor),
            ops: console.shared.engine.ops(actor.clone()),
            query: Fields::read(parts.uri.query().unwrap_or_default().as_bytes()),
        })
    }
}

/// Refuses a visitor that the application does not know, then a form of another site; gives a page up that
/// takes too long.
pub(super) async fn guard<S: OperatorStore>(
    State(console): State<Console<S>>,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let actor = match console.shared.access.admit(&parts) {
        Ok(actor) => actor,
        Err(NotLetIn::Unknown) => {
            return with_headers((StatusCode::NOT_FOUND, "not found\n").into_response());
        }
        Err(NotLetIn::CrossOrigin(why)) => return with_headers(trouble::of_another_site(why)),
    };
    let frame = Frame::new(parts.uri.path(), &actor);
    parts.extensions.insert(actor);
    let (is_read, to) = (is_read(&parts), last_of(&parts).to_owned());
    let is_form = parts.method == Method::POST;
    let limit = console.shared.time_limit;
    let form = match is_form {
        true => {
            let largest = console.largest_form();
            match read_whole(body, largest, limit).await {
                Ok(form) => form,
                Err(NotRead::TooLarge) => return with_headers(trouble::too_large(&frame, largest)),
                Err(NotRead::NotArrived) => return with_headers(trouble::not_arrived(&frame)),
            }
        }
        false => Bytes::new(),
    };
    let page = next.run(Request::from_parts(parts, Body::from(form.clone())));
    let answer = tokio::time::timeout(limit, page).await;
    let too_late = if is_read { NoAnswer::ToRead } else { NoAnswer::ToAct };
    let no_answer = match &answer {
        Ok(answer) => answer.extensions().get().copied(),
        Err(_) => Some(too_late),
    };
    with_headers(match (answer, no_answer) {
        (Ok(answer), None) => answer,
        (_, Some(no_answer)) => {
            let form = Fields::read(&form);
            let sent = Sent { to: &to, form: &form, is_read };
            trouble::unanswered_to(&frame, no_answer, is_form.then_some(&sent))
        }
        (Err(_), None) => trouble::unanswered(&frame, too_late),
    })
}

fn last_of(parts: &Parts) -> &str {
    parts.uri.path().rsplit('/').next().unwrap_or_default()
}

/// Whether nothing is changed: a search and a review are forms, too, because what they are asked for belongs into no URL.
fn is_read(parts: &Parts) -> bool {
    matches!(parts.method, Method::GET | Method::HEAD) || matches!(last_of(parts), "find" | "plan")
}

fn with_headers(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    let mut set = |name: HeaderName, value: &'static str| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    set(CONTENT_SECURITY_POLICY, POLICY);
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    // With none at all a browser says `Origin: null` with our own forms, which over plain HTTP is all that it says.
    set(REFERRER_POLICY, "same-origin");
    set(X_FRAME_OPTIONS, "DENY");
    set(HeaderName::from_static("cross-origin-opener-policy"), "same-origin");
    set(HeaderName::from_static("cross-origin-resource-policy"), "same-origin");
    // The files of the console say otherwise.
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    answer
}

/// `/ops`, without a slash at its end, is a page of `/`: links are relative to that.
pub(super) async fn entrance(OriginalUri(uri): OriginalUri) -> Response {
    let folder = uri.path().rsplit('/').next().unwrap_or_default();
    // What would be another scheme is a folder.
    see_other(&match folder {
        "" => "overview".to_owned(),
        folder => format!("./{folder}/overview"),
    })
}

/// A form's address that was asked for by itself, by a reload say: the page above it has the form.
pub(super) async fn back(uri: Uri) -> Response {
    let above = uri.path().rsplit('/').nth(1).unwrap_or_default();
    see_other(&format!("../{above}"))
}

pub(super) async fn nowhere<S: OperatorStore>(asked: Asked<S>) -> Response {
    let (title, text) = ("Not found", html! { p { "There is no such page." } });
    let page = trouble::titled(title, &text);
    asked.frame.page(StatusCode::NOT_FOUND, Section::None, title, page)
}

/// Go there, with a `GET`.
pub(super) fn see_other(to: &str) -> Response {
    match HeaderValue::from_str(to) {
        Ok(to) => (StatusCode::SEE_OTHER, [(LOCATION, to)]).into_response(),
        Err(_) => StatusCode::NOT_FOUND.into_response(),
    }
}
