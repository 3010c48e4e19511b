//! [`Local`]: the library's own API, in here, without a socket.

use std::time::Duration;

use atomic_phases::Engine;
use atomic_phases::console::Api;
use atomic_phases::ops::{Actor, OperatorStore};
use axum::Router;
use axum::body::Body;
use http::Request;
use tower::ServiceExt;

use super::ask::{Answer, Asking};
use super::end::Failure;

pub(crate) struct Local {
    routes: Router,
    within: Duration,
    /// Whether the engine is the application's.
    has_code: bool,
}

impl Local {
    pub(crate) fn new<S, A>(engine: Engine<S, A>, actor: Actor, within: Duration) -> Self
    where
        S: OperatorStore,
        A: Send + Sync + 'static,
    {
        let access = move |_: &http::request::Parts| Some(actor.clone());
        Self { routes: Api::new(engine, access).router(), within, has_code: true }
    }

    /// Of an engine that knows no definition and has no key.
    #[cfg(feature = "programs")]
    pub(crate) fn without_code(self) -> Self {
        Self { has_code: false, ..self }
    }

    pub(crate) fn has_code(&self) -> bool {
        self.has_code
    }

    pub(crate) async fn ask(&self, asking: &Asking<'_>) -> Result<Answer, Failure> {
        let mut request =
            Request::builder().uri(asking.path).header("authorization", "Bearer local");
        if let Some(version) = asking.version {
            request = request.header("if-match", version);
        }
        let request = match asking.body {
            None => request.body(Body::empty()),
            Some(body) => request
                .method("POST")
                .header("content-type", "application/json")
                .body(Body::from(body.to_owned())),
        }?;
        let answering = async {
            let response = match self.routes.clone().oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            let (head, body) = response.into_parts();
            let body = axum::body::to_bytes(body, usize::MAX).await?;
            Ok(asking.answer_of(head.status.as_u16(), &head.headers, &body))
        };
        let too_late = |_| {
            asking.unanswered(&format!("the database does not answer within {:?}", self.within))
        };
        tokio::time::timeout(self.within, answering).await.map_err(too_late)?
    }
}
