//! [`Remote`]: the API of a service.

use std::time::Duration;

use ureq::Agent;
use ureq::tls::{RootCerts, TlsConfig};

use super::ask::{Answer, Asking};
use super::end::Failure;

/// The largest answer that is read: more than a stored value may have.
const MAX_BYTES: u64 = 64 << 20;

pub(crate) struct Remote {
    agent: Agent,
    base: String,
    token: Option<String>,
}

impl Remote {
    pub(crate) fn to(url: &str, token: Option<&str>, within: Duration) -> Result<Self, Failure> {
        let is_tls = url.starts_with("https://");
        if !is_tls && !url.starts_with("http://") {
            return Err(Failure::usage("the URL of a service starts with https:// or http://"));
        }
        if !is_tls && !is_loopback(url) && token.is_some() {
            let text = "a token is sent over https, or to this machine, and nowhere else";
            return Err(Failure::usage(text));
        }
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let mut config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            // A token is sent to the named host and to no other.
            .max_redirects(0)
            .timeout_global(Some(within))
            .user_agent(concat!("atomic-phases/", env!("CARGO_PKG_VERSION")));
        if !is_tls {
            // The client takes a proxy from the environment, also for this machine, and such a proxy reads all of it.
            // Over https a proxy sees the name of the host only.
            config = config.proxy(None);
        }
        let agent = config.build().into();
        let base = url.trim_end_matches('/').to_owned();
        Ok(Self { agent, base, token: token.map(ToOwned::to_owned) })
    }

    pub(crate) fn ask(&self, asking: &Asking<'_>) -> Result<Answer, Failure> {
        let url = format!("{}{}", self.base, asking.path);
        let mut request = ureq::http::Request::builder().uri(url);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some(version) = asking.version {
            request = request.header("if-match", version);
        }
        let sent = match asking.body {
            None => self.agent.run(request.method("GET").body(())?),
            Some(body) => {
                let request = request.method("POST").header("content-type", "application/json");
                self.agent.run(request.body(body)?)
            }
        };
        let unanswered = |error: ureq::Error| {
            asking.unanswered(&format!("the service does not answer: {error}"))
        };
        let mut response = sent.map_err(unanswered)?;
        let body = response.body_mut().with_config().limit(MAX_BYTES).read_to_vec();
        let body = body.map_err(unanswered)?;
        Ok(asking.answer_of(response.status().as_u16(), response.headers(), &body))
    }
}

fn is_loopback(url: &str) -> bool {
    let place = url.strip_prefix("http://").unwrap_or_default();
    let place = place.split(['/', '?', '#']).next().unwrap_or_default();
    if place.contains('@') {
        return false;
    }
    let host = place.rsplit_once(':').map_or(place, |(host, _)| host);
    matches!(host, "localhost" | "127.0.0.1" | "[::1]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_over_http_goes_to_this_machine_only() {
        for url in ["http://localhost", "http://127.0.0.1:3000/ops", "http://[::1]:1/x"] {
            assert!(is_loopback(url), "{url}");
        }
        for url in [
            "http://example.com",
            "http://localhost.example.com",
            "http://localhost@example.com",
            "http://localhost:x@example.com/",
            "http://example.com/localhost",
            "ftp://localhost",
            "http://10.0.0.1",
            "http://",
        ] {
            assert!(!is_loopback(url), "{url}");
        }
    }
}
