//! [`Api`]: the JSON API, wherever it is.

use serde_json::Value;

use super::end::{End, Failure};
use super::local::Local;
#[cfg(feature = "programs")]
use super::remote::Remote;

/// The JSON API: of a service, or of the library in here.
pub(crate) enum Api {
    #[cfg(feature = "programs")]
    Remote(Remote),
    Local(Local),
}

/// What was answered, of whatever status.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) version: Option<String>,
    pub(crate) json: Value,
}

impl Answer {
    /// The answer, which has a member of this name. One of another program, a proxy's page say, has not; read as one of
    /// ours, it would say that nothing is stuck.
    pub(crate) fn with(self, member: &str) -> Result<Value, Failure> {
        match self.json.get(member) {
            Some(_) => Ok(self.json),
            None => Err(not_ours(self.status)),
        }
    }

    /// The rows of a page, and the rest of it.
    pub(crate) fn rows(self) -> Result<(Vec<Value>, Value), Failure> {
        let status = self.status;
        let mut page = self.with("rows")?;
        match page["rows"].take() {
            Value::Array(rows) => Ok((rows, page)),
            _ => Err(not_ours(status)),
        }
    }
}

fn not_ours(status: u16) -> Failure {
    let text = format!("HTTP {status}, and it is none of atomic-phases' API");
    Failure { end: End::Error, text }
}

/// One request.
pub(crate) struct Asking<'a> {
    pub(crate) path: &'a str,
    /// JSON; `None`: a GET.
    pub(crate) body: Option<&'a str>,
    /// What an act is about.
    pub(crate) version: Option<&'a str>,
}

impl Asking<'_> {
    /// Whether it may change something. A search is a POST, too, because it has in it what belongs into no URL.
    fn acts(&self) -> bool {
        let looks = ["/requests/search", "/requests/find", "/bulk/plan"];
        self.body.is_some() && !looks.contains(&self.path)
    }

    /// Why there is no answer, though the question may have arrived.
    pub(crate) fn unanswered(&self, why: &str) -> Failure {
        let audit = if self.acts() { ". Whether the act was done is in the audit" } else { "" };
        Failure { end: End::Error, text: format!("{why}{audit}") }
    }
}

impl Api {
    /// Whether the application's code answers: only it can open values and judge outputs.
    pub(crate) fn has_code(&self) -> bool {
        match self {
            #[cfg(feature = "programs")]
            Self::Remote(_) => true,
            Self::Local(local) => local.has_code(),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Answer, Failure> {
        self.ask(&Asking { path, body: None, version: None }).await
    }

    pub(crate) async fn post(
        &self,
        path: &str,
        body: &str,
        version: Option<&str>,
    ) -> Result<Answer, Failure> {
        self.ask(&Asking { path, body: Some(body), version }).await
    }

    async fn ask(&self, asking: &Asking<'_>) -> Result<Answer, Failure> {
        let answer = match self {
            #[cfg(feature = "programs")]
            Self::Remote(remote) => remote.ask(asking),
            Self::Local(local) => local.ask(asking).await,
        }?;
        if answer.status == 200 {
            return Ok(answer);
        }
        let (code, detail) = (answer.json["code"].as_str(), answer.json["detail"].as_str());
        let Some(code) = code else { return Err(not_ours(answer.status)) };
        let title = answer.json["title"].as_str().unwrap_or(code);
        let mut text = format!("{title}: {}", detail.unwrap_or_default());
        if code == "unauthenticated" {
            text.push_str(" A token is said by --token, ATOMIC_PHASES_TOKEN or a profile.");
        }
        Err(Failure { end: End::of_problem(code), text })
    }
}
