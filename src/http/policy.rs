//! [`Policy`]: what a boundary requires of its clients, and how it answers.

use std::time::Duration;

use http::HeaderMap;
use http::Method;
use http::Uri;
use http::header::{HeaderName, HeaderValue, LINK, LOCATION, RETRY_AFTER};

use super::header::{IDEMPOTENCY_EXPIRES, IDEMPOTENCY_KEY, KeySyntax, segment_of_key};
use super::profile::{Profile, SHOULD_RETRY};
use crate::config::{NEVER_STORED, OnDuplicate, REPLAY_MARKER};
use crate::key::IdempotencyKey;
use crate::setting::{HOUR, MILLISECOND, SettingError, duration, number, refused};

/// Whether a request needs a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyRule {
    /// A request without one is a 400.
    #[default]
    Required,
    /// A request without one runs once, under a key that the server generates and does not reveal: phase by
    /// phase, but the client cannot retry it. A malformed key is still a 400.
    Optional,
}

/// Which bodies are read as parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bodies {
    /// `application/json` and `…+json`.
    #[default]
    Json,
    /// `application/x-www-form-urlencoded`.
    Form,
    /// Either. Equal parameters are the same request in both forms.
    JsonOrForm,
}

/// How a boundary behaves. The defaults are those of the IETF draft; each method names its own.
///
/// ```
/// use atomic_phases::http::{Bodies, KeyRule, Policy, Profile};
///
/// let policy = Policy::default()
///     .profile(Profile::Stripe)
///     .bodies(Bodies::JsonOrForm)
///     .body_limit(64 << 10)
///     .key(KeyRule::Optional);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Policy {
    pub(crate) profile: Profile,
    pub(crate) key: KeyRule,
    pub(crate) syntax: KeySyntax,
    pub(crate) bodies: Bodies,
    pub(crate) body_limit: usize,
    pub(crate) body_timeout: Duration,
    pub(crate) on_duplicate: Option<OnDuplicate>,
    pub(crate) challenge: HeaderValue,
    pub(crate) status_prefix: Option<String>,
    pub(crate) marker: HeaderName,
    pub(crate) documentation: String,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            profile: Profile::default(),
            key: KeyRule::default(),
            syntax: KeySyntax::default(),
            bodies: Bodies::default(),
            body_limit: 256 << 10,
            body_timeout: Duration::from_secs(30),
            on_duplicate: None,
            challenge: HeaderValue::from_static("Bearer"),
            status_prefix: None,
            marker: HeaderName::from_static(REPLAY_MARKER),
            documentation: "/idempotency".to_owned(),
        }
    }
}

impl Policy {
    /// Whether its settings can work, with an engine that stores these headers of a reply.
    pub(crate) fn check(&self, stored: &[String]) -> Result<(), SettingError> {
        number("Policy::body_limit", self.body_limit, 1, i32::MAX as u64)?;
        duration("Policy::body_timeout", self.body_timeout, MILLISECOND, HOUR)?;
        self.on_duplicate.map_or(Ok(()), OnDuplicate::check)?;
        if self.challenge.is_empty() {
            return Err(refused("Policy::challenge", "", "a scheme, for example Bearer"));
        }
        let places = [
            ("Policy::documentation", Some(&self.documentation)),
            ("Policy::accept_duplicates", self.status_prefix.as_ref()),
        ];
        for (setting, place) in places {
            if let Some(place) = place.filter(|place| !is_place(place)) {
                return Err(refused(setting, place, PLACE));
            }
        }
        self.check_marker(stored)
    }

    /// The boundary removes the marker from replies, so no reply may need it, and not the boundary or the server itself.
    fn check_marker(&self, stored: &[String]) -> Result<(), SettingError> {
        let marker = self.marker.as_str();
        let mut taken = stored.iter().map(String::as_str).chain(NEVER_STORED);
        if marker != REPLAY_MARKER && taken.any(|name| name == marker) {
            let bound = "a header that no answer has for another reason";
            return Err(refused("Policy::replay_marker", marker, bound));
        }
        Ok(())
    }

    /// The methods that take a key. The others are idempotent by themselves, and pass
    /// through with whatever header they have.
    pub(crate) fn guards(method: &Method) -> bool {
        matches!(*method, Method::POST | Method::PATCH)
    }

    /// The dialect of the answers; default [`Profile::Ietf`].
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// Whether a request needs a key; default [`KeyRule::Required`].
    pub fn key(mut self, rule: KeyRule) -> Self {
        self.key = rule;
        self
    }

    /// Which forms of the header are accepted; default [`KeySyntax::QuotedOrBare`].
    pub fn key_syntax(mut self, syntax: KeySyntax) -> Self {
        self.syntax = syntax;
        self
    }

    /// Which bodies are accepted; default [`Bodies::Json`].
    pub fn bodies(mut self, bodies: Bodies) -> Self {
        self.bodies = bodies;
        self
    }

    /// Maximum size of a body in bytes, checked before anything is reserved; default 256 KiB.
    pub fn body_limit(mut self, bytes: usize) -> Self {
        self.body_limit = bytes;
        self
    }

    /// How long a body may take to arrive, before anything is reserved; default 30 s. Past it the answer is
    /// a retryable 408. Applies only if the boundary reads the body, as with axum.
    pub fn body_timeout(mut self, within: Duration) -> Self {
        self.body_timeout = within;
        self
    }

    /// The answer to a duplicate of a running request: 409 immediately, or the result of a wait of limited
    /// length. Overrides the engine's own setting.
    ///
    /// [`OnDuplicate::Answer`] in the profile [`Ietf`](Profile::Ietf), whose clients read `Retry-After`.
    /// In the profile [`Stripe`](Profile::Stripe) a wait of 20 s: Stripe's SDKs do not read
    /// `Retry-After`, retry twice within two seconds, and then give up. They wait 80 s for an answer,
    /// and proxies for a minute or half of one. If [`accept_duplicates`](Self::accept_duplicates) is
    /// on, 202 immediately.
    pub fn on_duplicate(mut self, on_duplicate: OnDuplicate) -> Self {
        self.on_duplicate = Some(on_duplicate);
        self
    }

    /// The `WWW-Authenticate` header of a 401: the scheme by which the layer in front authenticates its callers,
    /// for example `Basic realm="rides"`; default `Bearer`.
    pub fn challenge(mut self, challenge: HeaderValue) -> Self {
        self.challenge = challenge;
        self
    }

    /// Answers a duplicate of a running request with 202 instead of 409, with a `location` of its status: `prefix`
    /// followed by the percent-encoded key, as in `/rides/requests/8e03…`. The answer to an
    /// [accepted](super::Keyed::accept) request has it too. The prefix is an absolute path without a query, or a URI. Off by
    /// default.
    ///
    /// It applies to each route of the boundary, also to those that run their requests immediately. For some routes only,
    /// give them a boundary of their own: a clone [with another policy](super::Idempotency::with_policy).
    pub fn accept_duplicates(mut self, prefix: impl Into<String>) -> Self {
        self.status_prefix = Some(prefix.into());
        self
    }

    /// The header that marks a replay; default `idempotent-replayed`.
    pub fn replay_marker(mut self, name: HeaderName) -> Self {
        self.marker = name;
        self
    }

    /// Where the policy's page is served: an absolute path without a query, or a URI, to which the errors link;
    /// default `/idempotency`.
    pub fn documentation(mut self, uri: impl Into<String>) -> Self {
        self.documentation = uri.into();
        self
    }

    /// Where the policy's page is served.
    #[must_use]
    pub fn documentation_uri(&self) -> &str {
        &self.documentation
    }

    /// The response headers that a script in a browser needs to read, for
    /// `Access-Control-Expose-Headers`. Its request header is `idempotency-key`.
    #[must_use]
    pub fn exposed_headers(&self) -> Vec<HeaderName> {
        let mut names =
            vec![IDEMPOTENCY_KEY, IDEMPOTENCY_EXPIRES, self.marker.clone(), RETRY_AFTER, LOCATION];
        names.push(match self.profile {
            Profile::Ietf => LINK,
            Profile::Stripe => SHOULD_RETRY,
        });
        names
    }

    /// Where to ask for the end of a request that is not finished, if there is such a place.
    pub(crate) fn status_uri(&self, key: &IdempotencyKey) -> Option<String> {
        let prefix = self.status_prefix.clone()?;
        Some(segment_of_key(key).bytes().fold(prefix, percent_encode))
    }

    /// The route of the status resource, as axum writes it.
    #[cfg(feature = "axum")]
    pub(crate) fn status_route(&self) -> Option<String> {
        let prefix = self.status_prefix.as_deref()?;
        prefix.starts_with('/').then(|| format!("{prefix}{{key}}"))
    }

    pub(crate) fn on_duplicate_or_default(&self) -> OnDuplicate {
        const LONGER_THAN_MOST_REQUESTS: Duration = Duration::from_secs(20);
        match (self.on_duplicate, self.profile) {
            (Some(on_duplicate), _) => on_duplicate,
            (None, Profile::Stripe) if self.status_prefix.is_none() => {
                OnDuplicate::Wait(LONGER_THAN_MOST_REQUESTS)
            }
            (None, _) => OnDuplicate::Answer,
        }
    }

    /// How long a duplicate waits, if it does.
    pub(crate) fn wait(&self) -> Option<Duration> {
        match self.on_duplicate_or_default() {
            OnDuplicate::Wait(bound) => Some(bound),
            OnDuplicate::Answer => None,
        }
    }

    /// Whether a body of these headers is read, and as what. Two lines of a type are none: the next
    /// reader may take the other.
    pub(crate) fn encoding(&self, headers: &HeaderMap) -> Option<Encoding> {
        let mut lines = headers.get_all(http::header::CONTENT_TYPE).iter();
        let (Some(content_type), None) = (lines.next(), lines.next()) else { return None };
        let content_type = content_type.to_str().ok()?;
        // Parameters (a charset) change nothing: JSON is UTF-8, and so are these forms.
        let essence = content_type.split(';').next()?.trim().to_ascii_lowercase();
        let json = essence == "application/json"
            || (essence.starts_with("application/") && essence.ends_with("+json"));
        match self.bodies {
            Bodies::Json | Bodies::JsonOrForm if json => Some(Encoding::Json),
            Bodies::Form | Bodies::JsonOrForm if essence == FORM => Some(Encoding::Form),
            _ => None,
        }
    }
}

const PLACE: &str = "an http or https URI, or an absolute path without `//` in front, without a query, and without a segment \
    that begins with `:` or `*`; in ASCII, and without `#`, `\\`, `{` and `}`";

/// Whether headers and problems can link to it, and a path can be a route.
fn is_place(text: &str) -> bool {
    // `Uri` drops what is behind `#`, and takes braces and letters that no URI has. Browsers take `\` for `/`.
    let is_plain = text.is_ascii() && !text.contains(['#', '\\', '{', '}']);
    let Ok(uri) = text.parse::<Uri>() else { return false };
    match uri.scheme_str() {
        Some(scheme) => is_plain && ["http", "https"].contains(&scheme),
        None => is_plain && is_route(text),
    }
}

/// Whether a path is one of this host (behind `//` is another's name) that the router of `axum` takes: it refuses segments that
/// were parameters in its version 0.7, and a route with a query would match nothing.
fn is_route(path: &str) -> bool {
    let is_of_this_host = path.starts_with('/') && !path.starts_with("//");
    is_of_this_host
        && !path.contains('?')
        && !path.split('/').any(|segment| segment.starts_with([':', '*']))
}

/// Whether the body is encoded otherwise than as it is (RFC 9110, 8.4: a list, in any letter case, over
/// all lines).
pub(crate) fn is_coded(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(http::header::CONTENT_ENCODING).iter();
    let codings = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    codings
        .map(<[u8]>::trim_ascii)
        .any(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity"))
}

const FORM: &str = "application/x-www-form-urlencoded";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Json,
    Form,
}

/// All but the unreserved characters (RFC 3986, 2.3).
fn percent_encode(mut uri: String, byte: u8) -> String {
    use std::fmt::Write as _;
    if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
        uri.push(char::from(byte));
    } else {
        // Writing to a String cannot fail.
        let _ = write!(uri, "%{byte:02X}");
    }
    uri
}
