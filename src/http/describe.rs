//! The published policy. The draft says that a resource MUST publish how it treats keys, including
//! their expiry. The page is generated from the configured values of the boundary and its engine, so
//! that it cannot differ from them.

use std::time::Duration;

use super::boundary::Idempotency;
use super::header::KeySyntax;
use super::page::{Page, Table};
use super::policy::{Bodies, KeyRule, Policy};
use super::problem::Kind;
use super::profile::Profile;
use crate::config::Settings;
use crate::key::MAX_KEY_LENGTH;
use crate::store::Store;

/// How a boundary treats keys, described for its clients.
#[derive(Clone, Debug)]
pub struct Description(Page);

impl Description {
    /// As Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        self.0.markdown()
    }

    /// As a complete HTML page; each error has its code as an anchor, to which the errors link.
    #[must_use]
    pub fn html(&self) -> String {
        self.0.html()
    }
}

impl<S: Store, A: Send + Sync + 'static> Idempotency<S, A> {
    /// Describes how this boundary treats keys: every configured value, and every error.
    #[must_use]
    pub fn describe(&self) -> Description {
        let (policy, settings) = (self.policy(), self.engine().settings());
        let mut page = Page::new("Idempotency");
        key(&mut page, policy);
        same_request(&mut page, policy);
        answers(&mut page, policy, settings);
        retries(&mut page, policy, settings);
        limits(&mut page, policy, settings);
        errors(&mut page, policy);
        Description(page)
    }
}

fn key(page: &mut Page, policy: &Policy) {
    page.section("The key");
    page.says(match policy.key {
        KeyRule::Required => {
            "`POST` and `PATCH` requests need an `Idempotency-Key` header. Other methods ignore it. A route \
             with a key answers a method that it does not take with 405 `method_not_allowed`."
        }
        KeyRule::Optional => {
            "`POST` and `PATCH` requests may have an `Idempotency-Key` header; without one, a \
             request cannot be retried safely. Other methods ignore it. A route with a key answers a \
             method that it does not take with 405 `method_not_allowed`."
        }
    });
    page.says(format!(
        "A key is 1 to {MAX_KEY_LENGTH} visible ASCII characters, compared byte by byte. Make a new \
         one, a UUID for example, for each request that is meant to do something, and send the same \
         one with each of its retries. Keys of different callers never meet."
    ));
    page.says(match policy.syntax {
        KeySyntax::Quoted => {
            "It is sent in double quotes, as a String of RFC 9651: `\"8e03978e\"`."
        }
        KeySyntax::QuotedOrBare => {
            "It is sent in double quotes, as a String of RFC 9651, or bare where it holds none of \
             `\"`, `,`, `;`, `%`, a backslash and does not begin with `?`, `:`, `@`, `(` or `'`: \
             `\"8e03978e\"` and `8e03978e` are the same key."
        }
    });
}

fn same_request(page: &mut Page, policy: &Policy) {
    page.section("The same request");
    page.says(
        "Two requests are the same if method, path, query and the values of the parameters are. \
         The order of members, white space, escapes and headers do not matter; the order of \
         elements and each value do. A member may be given once. Path and query are compared as they \
         are sent: `/rides?` is not `/rides`, and `%31` is not `1`.",
    );
    page.says(match policy.bodies {
        Bodies::Json => "Bodies are `application/json`.",
        Bodies::Form => "Bodies are `application/x-www-form-urlencoded`.",
        Bodies::JsonOrForm => {
            "Bodies are `application/json` or `application/x-www-form-urlencoded`; equal parameters \
             are the same request either way."
        }
    });
}

fn answers(page: &mut Page, policy: &Policy, settings: &Settings) {
    page.section("Answers");
    page.says(format!(
        "A finished request, a rejected one too, is answered again for {} after its key was first \
         used: same status, same body, same {} headers. Past the time in `Idempotency-Expires`, the \
         key is new.",
        duration(settings.retention),
        names(settings.stored_headers.iter().map(String::as_str)),
    ));
    page.says(format!(
        "Such an answer has the key in `Idempotency-Key`; a repeated one has `{}: true`.",
        policy.marker
    ));
    page.says(match (policy.wait(), &policy.status_prefix) {
        (None, None) => "A retry that arrives while the request is in progress is a 409.".to_owned(),
        (Some(bound), None) => format!(
            "A retry that arrives while the request is in progress waits for its end, {} at most; then \
             it is a 409.",
            duration(bound)
        ),
        (wait, Some(prefix)) => format!(
            "A retry that arrives while the request is in progress is a 202{}, with the place to ask \
             for its end in `Location`: `{prefix}` and the key.",
            wait.map_or_else(String::new, |bound| format!(" after {} at most", duration(bound)))
        ),
    });
}

fn retries(page: &mut Page, policy: &Policy, settings: &Settings) {
    page.section("Retries");
    page.says(format!(
        "Retry with the same key if there is no answer, or if an error says so ({}), but not \
         before the seconds of `Retry-After` have passed. What was done is not done twice.",
        match policy.profile {
            Profile::Ietf => "`\"retryable\": true`",
            Profile::Stripe => "`Stripe-Should-Retry: true`",
        }
    ));
    page.says(format!(
        "If the server died while it ran a request, a retry continues it within {}. A request is given up \
         after {} attempts, which are {} to {} apart. An unknown outcome is first checked after {}, and \
         the request is given up after {} checks.",
        duration(settings.lease),
        settings.max_attempts,
        duration(settings.back_off),
        duration(settings.max_back_off),
        duration(settings.reconcile_after),
        settings.max_reconciles,
    ));
}

fn limits(page: &mut Page, policy: &Policy, settings: &Settings) {
    page.section("Limits");
    let limits = &settings.limits;
    let mut table = Table::new(["What", "At most"]);
    for (what, bytes) in [
        ("Body of a request", policy.body_limit),
        ("Parameters, as stored", limits.params),
        ("Body of an answer that is repeated", limits.reply_body),
        ("Headers of an answer that is repeated", limits.reply_headers),
    ] {
        table.row(None, [what.to_owned(), format!("{bytes} bytes")]);
    }
    table.row(None, ["Time for a body to arrive".to_owned(), duration(policy.body_timeout)]);
    if let Some(keys) = settings.quota.keys {
        table.row(None, ["Keys of one caller, until they expire".to_owned(), keys.to_string()]);
    }
    if let Some((requests, period)) = settings.quota.rate {
        let rate = format!("{requests} in {}", duration(period));
        table.row(None, ["New keys of one caller".to_owned(), rate]);
    }
    page.shows(table);
}

fn errors(page: &mut Page, policy: &Policy) {
    page.section("Errors");
    page.says(match policy.profile {
        Profile::Ietf => "Errors are `application/problem+json` (RFC 9457).",
        Profile::Stripe => "Errors are `{\"error\": {\"type\", \"code\", \"message\"}}`.",
    });
    let mut table = Table::new(["Code", "Status", "Meaning", "Retry with the same key"]);
    for kind in Kind::ALL {
        let facts = kind.facts();
        table.row(
            Some(facts.code),
            [
                format!("`{}`", facts.code),
                policy.profile.status(&facts).to_string(),
                facts.title.to_owned(),
                if facts.retryable { "yes" } else { "no" }.to_owned(),
            ],
        );
    }
    page.shows(table);
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// In the largest unit that is exact.
fn duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    let units = [(3_600_000, "h"), (60_000, "min"), (1000, "s")];
    match units.into_iter().find(|(unit, _)| millis > 0 && millis.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", millis / unit),
        None => format!("{millis} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_exact() {
        for (millis, text) in
            [(0, "0 ms"), (1500, "1500 ms"), (90_000, "90 s"), (86_400_000, "24 h")]
        {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
    }
}
