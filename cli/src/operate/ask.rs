//! [`Api`]: the JSON API, wherever it is.

use http::HeaderMap;
use serde_json::Value;

use super::end::{End, Failure};
use super::local::Local;
#[cfg(feature = "programs")]
use super::remote::Remote;
use super::table::Now;

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
    /// The database's time, from which ages are counted.
    pub(crate) now: Now,
    /// Whether it is one to an act.
    to_act: bool,
}

impl Answer {
    /// The answer, which has a member of this name. One of another program, a proxy's page say, has not; read as one of
    /// ours, it would say that nothing is stuck.
    pub(crate) fn with(self, member: &str) -> Result<Value, Failure> {
        match self.json.get(member) {
            Some(_) => Ok(self.json),
            None => Err(self.not_ours()),
        }
    }

    /// The rows of a page, the rest of it, and the time from which their ages are counted.
    pub(crate) fn rows(self) -> Result<(Vec<Value>, Value, Now), Failure> {
        let (not_ours, now) = (self.not_ours(), self.now);
        let mut page = self.with("rows")?;
        match page["rows"].take() {
            Value::Array(rows) => Ok((rows, page, now)),
            _ => Err(not_ours),
        }
    }

    /// Of another program: a gateway, whose page says nothing of what became of the question behind it.
    fn not_ours(&self) -> Failure {
        let text = format!("HTTP {}, and it is none of atomic-phases' API", self.status);
        unanswered(self.to_act, &text)
    }

    /// Why it does not answer what was asked.
    fn problem(&self) -> Failure {
        let (code, detail) = (self.json["code"].as_str(), self.json["detail"].as_str());
        let Some(code) = code else { return self.not_ours() };
        let title = self.json["title"].as_str().unwrap_or(code);
        let mut text = format!("{title}: {}", detail.unwrap_or_default());
        if code == "unauthenticated" {
            text.push_str(" A token is given by --token, ATOMIC_PHASES_TOKEN or a profile.");
        }
        // The API's own problem of this kind says so by itself.
        if self.status >= 500 && code != "unavailable" {
            return unanswered(self.to_act, &text);
        }
        Failure { end: End::of_problem(code), text }
    }
}

/// Why there is no answer, though the question may have arrived.
fn unanswered(to_act: bool, why: &str) -> Failure {
    let audit = if to_act { ". Whether the act was done is in the audit" } else { "" };
    Failure { end: End::Error, text: format!("{}{audit}", why.trim_end_matches(['.', ' ', ':'])) }
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
        unanswered(self.acts(), why)
    }

    /// The answer to it.
    pub(crate) fn answer_of(&self, status: u16, headers: &HeaderMap, body: &[u8]) -> Answer {
        let line = |name: &str| headers.get(name).and_then(|line| line.to_str().ok());
        let (version, to_act) = (line("etag").map(ToOwned::to_owned), self.acts());
        // A service of an earlier version does not report it, nor does one that could not ask the database.
        let now = Now::of_answer(line("database-time").and_then(|time| time.parse().ok()));
        let json = serde_json::from_slice(body).unwrap_or_default();
        Answer { status, version, json, now, to_act }
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
        match answer.status {
            200 => Ok(answer),
            _ => Err(answer.problem()),
        }
    }
}
