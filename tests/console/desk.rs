//! A console over a socket, and the operator who uses it.

use std::net::SocketAddr;

use atomic_phases::Scope;
use atomic_phases::console::Console;
use atomic_phases::ops::{Actor, OperatorStore, Permissions, Scopes};
use axum::Router;
use axum::http::request::Parts;
use reqwest::header::{HeaderMap, LOCATION};
use reqwest::{Client, Method, RequestBuilder, Url};

use super::html::{Form, forms};
use crate::support::{TestDb, TestEngine};

/// Where the console is mounted.
pub const PREFIX: &str = "/deep/er/ops";

pub struct Desk {
    pub root: Url,
    http: Client,
}

/// An answer, and the address it came from.
#[derive(Debug)]
pub struct Page {
    pub url: Url,
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Page {
    #[track_caller]
    pub fn has(&self, text: &str) -> &Self {
        assert!(self.text.contains(text), "no {text:?} in {}: {}", self.url, self.text);
        self
    }

    #[track_caller]
    pub fn has_not(&self, text: &str) -> &Self {
        assert!(!self.text.contains(text), "{text:?} in {}: {}", self.url, self.text);
        self
    }

    #[track_caller]
    pub fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}: {}", self.url, self.text);
        self
    }

    /// The form with that address.
    #[track_caller]
    pub fn form(&self, action: &str) -> Form {
        let mut all = forms(&self.url, &self.text).into_iter();
        all.find(|form| form.action.path().ends_with(action))
            .unwrap_or_else(|| panic!("no form to {action} in {}: {}", self.url, self.text))
    }

    /// The address to which the answer redirects.
    #[track_caller]
    pub fn location(&self) -> Url {
        assert_eq!(self.status, 303, "{}: {}", self.url, self.text);
        self.url.join(self.headers[LOCATION].to_str().unwrap()).unwrap()
    }
}

/// The operator, named by headers, so that one desk serves all of them.
pub fn operator(head: &Parts) -> Option<Actor> {
    let text = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap());
    let may = match text("x-may").unwrap_or("admin") {
        "stranger" => return None,
        "admin" => Permissions::admin(),
        "responder" => Permissions::responder(),
        "viewer" => Permissions::viewer(),
        names => permissions(names),
    };
    let scopes = match text("x-scopes").unwrap_or("all").split_once('=') {
        Some(("only", "")) => Scopes::Only(Vec::new()),
        Some(("only", scope)) => Scopes::Only(vec![Scope::new(scope).unwrap()]),
        Some(("prefix", prefix)) => Scopes::Prefix(prefix.to_owned()),
        _ => Scopes::All,
    };
    Actor::new(text("x-name").unwrap_or("ada"), may, scopes).ok()
}

/// `read,act`.
pub fn permissions(names: &str) -> Permissions {
    names.split(',').fold(Permissions::NONE, |sum, name| {
        sum | match name {
            "read" => Permissions::READ,
            "reveal" => Permissions::REVEAL,
            "act" => Permissions::ACT,
            "erase" => Permissions::ERASE,
            "audit" => Permissions::AUDIT,
            "pause" => Permissions::PAUSE,
            "bulk" => Permissions::BULK,
            _ => Permissions::NONE,
        }
    })
}

pub async fn serve(app: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}

impl Desk {
    pub async fn of<S: TestDb + OperatorStore>(engine: &TestEngine<S>) -> Self {
        Self::with(Console::new(engine.clone(), operator)).await
    }

    pub async fn with<S: TestDb + OperatorStore>(console: Console<S>) -> Self {
        Self::under(console, PREFIX, PREFIX).await
    }

    /// `route`: as the router has it, of which `path` is one.
    pub async fn under<S: TestDb + OperatorStore>(
        console: Console<S>,
        route: &str,
        path: &str,
    ) -> Self {
        let address = serve(Router::new().nest_service(route, console.router())).await;
        let root = format!("http://{address}{path}/").parse().unwrap();
        let http = Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
        Self { root, http }
    }

    pub fn url(&self, path: &str) -> Url {
        self.root.join(path).unwrap()
    }

    pub fn ask(&self, method: Method, url: Url) -> RequestBuilder {
        self.http.request(method, url)
    }

    pub async fn send(&self, request: RequestBuilder) -> Page {
        let answer = request.send().await.unwrap();
        let (url, status) = (answer.url().clone(), answer.status().as_u16());
        let headers = answer.headers().clone();
        Page { url, status, headers, text: answer.text().await.unwrap() }
    }

    pub async fn get(&self, path: &str) -> Page {
        self.send(self.ask(Method::GET, self.url(path))).await
    }

    /// As a browser sends a form of a page of the console.
    pub fn filled(&self, form: &Form) -> RequestBuilder {
        assert!(form.is_post);
        let request = self.ask(Method::POST, form.action.clone()).form(&form.fields);
        request.header("sec-fetch-site", "same-origin")
    }

    pub async fn submit(&self, form: &Form) -> Page {
        self.send(self.filled(form)).await
    }

    /// The form of a page of another desk, as this one has it.
    pub fn here(&self, form: &Form) -> Form {
        let mut action = self.root.clone();
        action.set_path(form.action.path());
        action.set_query(form.action.query());
        Form { action, ..form.clone() }
    }

    pub async fn follow(&self, page: &Page) -> Page {
        self.send(self.ask(Method::GET, page.location())).await
    }

    pub async fn request(&self, id: uuid::Uuid) -> Page {
        self.get(&format!("requests/{id}")).await.is(200)
    }
}
