//! [`Local`]: the library's own API, in here, on a database. It has none of the application's code, so it
//! opens no value and judges no output.

use atomic_phases::Engine;
use atomic_phases::console::Api;
use atomic_phases::ops::{Actor, Permissions, Scopes};
use axum::Router;
use axum::body::Body;
use http::Request;
use tokio::runtime::Runtime;
use tower::ServiceExt;

use crate::arguments::Way;
use crate::ask::{Answer, Asking};
use crate::end::Failure;
use crate::open::{Database, NotOpened, on, open};

pub(crate) struct Local {
    runtime: Runtime,
    routes: Router,
    within: std::time::Duration,
}

pub(crate) fn runtime() -> Result<Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

pub(crate) async fn opened(url: &str) -> Result<Database, Failure> {
    open(url).await.map_err(|error| match error {
        NotOpened::Unknown => Failure::usage(error.to_string()),
        error => error.into(),
    })
}

impl Local {
    pub(crate) fn on(url: &str, way: &Way) -> Result<Self, Failure> {
        let name = way.name.as_deref().unwrap_or_default();
        // What is stored may be sealed, and this process has no key: it reveals nothing.
        let may = Permissions::READ | Permissions::ACT | Permissions::ERASE | Permissions::AUDIT;
        let actor = Actor::new(name, may, Scopes::All)
            .map_err(|error| Failure::usage(format!("--as (USER): {error}")))?;
        let runtime = runtime()?;
        let routes = runtime.block_on(async {
            let access = move |_: &http::request::Parts| Some(actor.clone());
            let database = opened(url).await?;
            let routes = on!(database, store => {
                Api::new(Engine::builder(store).build()?, access).router()
            });
            Ok::<_, Failure>(routes)
        })?;
        Ok(Self { runtime, routes, within: std::time::Duration::from_secs(way.timeout) })
    }

    pub(crate) fn ask(&self, asking: &Asking<'_>) -> Result<Answer, Failure> {
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
        self.runtime.block_on(async {
            let answering = async {
                let response = match self.routes.clone().oneshot(request).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                };
                let (head, body) = response.into_parts();
                let body = axum::body::to_bytes(body, usize::MAX).await?;
                let version = head.headers.get("etag").and_then(|tag| tag.to_str().ok());
                Ok(Answer {
                    status: head.status.as_u16(),
                    version: version.map(ToOwned::to_owned),
                    json: serde_json::from_slice(&body).unwrap_or_default(),
                })
            };
            tokio::time::timeout(self.within, answering).await?
        })
    }
}
