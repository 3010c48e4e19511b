//! The thin layer for axum: extractors, and the policy's page.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{FromRef, FromRequest, FromRequestParts, OptionalFromRequestParts};
use axum::extract::{OriginalUri, RawPathParams, Request};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use http::HeaderMap;
use http::header::{ACCEPT, ALLOW, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, VARY};
use http::request::Parts;
use serde::de::DeserializeOwned;

use super::body::{NotRead, read_whole};
use super::boundary::{Idempotency, Keyed};
use super::policy::Policy;
use super::problem::{Kind, Problem};
use super::respond::Answer;
use crate::fingerprint::RequestOrigin;
use crate::store::Store;

type PathParams = Result<RawPathParams, RawPathParamsRejection>;

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        self.into_http().map(Body::from)
    }
}

/// Rejects with 401, 400, or with 405 if a route for a method other than POST or PATCH uses it.
impl<St, S, A> FromRequestParts<St> for Keyed<S, A>
where
    S: Store,
    A: Send + Sync + 'static,
    Idempotency<S, A>: FromRef<St>,
    St: Sync,
{
    type Rejection = Answer;

    async fn from_request_parts(head: &mut Parts, state: &St) -> Result<Self, Answer> {
        let keyed = <Self as OptionalFromRequestParts<St>>::from_request_parts(head, state).await?;
        keyed.ok_or_else(|| {
            let idempotency = Idempotency::<S, A>::from_ref(state);
            let problem =
                Problem::new(Kind::MethodNotAllowed, "This route takes POST and PATCH requests.")
                    .with_header(ALLOW, HeaderValue::from_static("POST, PATCH"));
            idempotency.policy().refuse(&problem)
        })
    }
}

/// `None` for methods that take no key. [`Params`] and [`Checked`] follow the boundary's policy all the same.
impl<St, S, A> OptionalFromRequestParts<St> for Keyed<S, A>
where
    S: Store,
    A: Send + Sync + 'static,
    Idempotency<S, A>: FromRef<St>,
    St: Sync,
{
    type Rejection = Answer;

    async fn from_request_parts(head: &mut Parts, state: &St) -> Result<Option<Self>, Answer> {
        let idempotency = Idempotency::<S, A>::from_ref(state);
        // First, because `Params` and `Checked` follow it in a request that passes through, too.
        head.extensions.insert(idempotency.policy.clone());
        let Some(mut keyed) = idempotency.admit(head)? else { return Ok(None) };
        // A nested router strips its prefix from the URI; the client sent the whole.
        if let Some(OriginalUri(uri)) = head.extensions.get::<OriginalUri>() {
            keyed.origin = RequestOrigin::new(head.method.as_str(), uri.path(), uri.query());
        }
        Ok(Some(keyed))
    }
}

/// The typed parameters of a request's body, by the policy of the [`Keyed`] or `Option<Keyed>` before it (or the
/// default one, without).
///
/// # Rejections
///
/// 415 if the policy does not read the body's type, 413 over [`Policy::body_limit`], 408 if the body does
/// not arrive completely within [`Policy::body_timeout`], 400 if it is not JSON or has a duplicate member, 422
/// (Stripe: 400) if it is not a `T`. Nothing is reserved by then: a corrected body may be sent with the same key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Params<T>(pub T);

impl<St: Sync, T: DeserializeOwned> FromRequest<St> for Params<T> {
    type Rejection = Answer;

    async fn from_request(request: Request, _: &St) -> Result<Self, Answer> {
        let (head, body) = request.into_parts();
        let policy = policy_of(&head);
        let refuse = |problem| policy.refuse(&problem);
        policy.checked_encoding(&head.headers).map_err(refuse)?;
        let body = read_body(&policy, &head.headers, body).await.map_err(refuse)?;
        policy.parameters(&head.headers, &body).map(Self)
    }
}

/// Another extractor (axum's `Path`, `Query`, …), whose rejection is answered in the dialect of the
/// [`Keyed`] before it: `Checked(Path(id)): Checked<Path<u64>>`.
///
/// A rejection of the client's parameters is a 400 with its text as `detail`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checked<E>(pub E);

impl<St: Sync, E> FromRequestParts<St> for Checked<E>
where
    E: FromRequestParts<St, Rejection: IntoResponse + std::fmt::Display>,
{
    type Rejection = Answer;

    async fn from_request_parts(head: &mut Parts, state: &St) -> Result<Self, Answer> {
        let rejection = match E::from_request_parts(head, state).await {
            Ok(extracted) => return Ok(Self(extracted)),
            Err(rejection) => rejection,
        };
        let policy = policy_of(head);
        let detail = rejection.to_string();
        let status = rejection.into_response().status();
        Err(policy.refuse(&match status.is_client_error() {
            true => Problem::new(Kind::ParametersMalformed, detail),
            // A route without the parameter that its handler asks for.
            false => Problem::new(
                Kind::Misconfigured,
                "This route is not set up right. The service's operator must act.",
            ),
        }))
    }
}

/// The policy that a [`Keyed`] before left.
fn policy_of(head: &Parts) -> Arc<Policy> {
    head.extensions.get::<Arc<Policy>>().cloned().unwrap_or_default()
}

/// The whole body in time, or nothing of it.
async fn read_body(policy: &Policy, headers: &HeaderMap, body: Body) -> Result<Bytes, Problem> {
    let announced =
        headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > policy.body_limit as u64) {
        return Err(policy.body_too_large());
    }
    let read = read_whole(body, policy.body_limit, policy.body_timeout).await;
    read.map_err(|not_read| match not_read {
        NotRead::TooLarge => policy.body_too_large(),
        NotRead::NotArrived => Problem::new(Kind::BodyNotRead, "Nothing was done. Send it again."),
    })
}

impl<S: Store, A: Send + Sync + 'static> Idempotency<S, A> {
    /// Serves the [description](Self::describe) of this boundary: HTML, or Markdown if the request accepts
    /// `text/markdown`. Mount it at the path of [`Policy::documentation`].
    pub fn page<St: Clone + Send + Sync + 'static>(&self) -> MethodRouter<St, Infallible> {
        let description = self.describe();
        let (html, markdown) =
            (Bytes::from(description.html()), Bytes::from(description.markdown()));
        get(async move |headers: HeaderMap| {
            let wants_markdown = headers
                .get_all(ACCEPT)
                .iter()
                .any(|accept| accept.to_str().is_ok_and(|accept| accept.contains("text/markdown")));
            let (content_type, body) = match wants_markdown {
                true => ("text/markdown; charset=utf-8", markdown),
                false => ("text/html; charset=utf-8", html),
            };
            ([(CONTENT_TYPE, content_type), (VARY, "accept")], body)
        })
    }

    /// A router that serves the [page](Self::page) at the path of [`Policy::documentation`], to be
    /// merged into the application's, once for each path. Empty if the documentation is elsewhere
    /// (no `/path`).
    pub fn documentation<St: Clone + Send + Sync + 'static>(&self) -> Router<St> {
        let uri = self.policy().documentation_uri();
        match uri.starts_with('/') {
            true => Router::new().route(uri, self.page()),
            false => Router::new(),
        }
    }

    /// A router with the [status resource](Self::status) at the prefix of
    /// [`Policy::accept_duplicates`], to be merged into the application's behind its authentication.
    /// Empty if the policy has no such prefix, or one that is not a path.
    pub fn status_resource<St: Clone + Send + Sync + 'static>(&self) -> Router<St> {
        let Some(route) = self.policy().status_route() else { return Router::new() };
        let idempotency = self.clone();
        let status = async move |params: PathParams, request: Request| {
            // A path that is not text names no request, as the empty key: the answer is a problem, behind the authentication.
            let key = params.iter().flatten().last().map(|(_, key)| key.to_owned());
            idempotency.status(&request.into_parts().0, &key.unwrap_or_default()).await
        };
        Router::new().route(&route, get(status))
    }
}
