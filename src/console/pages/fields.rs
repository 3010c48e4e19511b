//! [`Fields`]: what stands in a query or in a form; and the id in an address.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use axum::extract::{FromRequestParts, RawPathParams};
use http::request::Parts;
use maud::{Markup, html};
use uuid::Uuid;

use crate::ops::OpsError;

/// The id in a page's address.
pub(super) fn id_of(text: &str) -> Result<Uuid, OpsError> {
    Uuid::parse_str(text).map_err(|_| OpsError::NoSuchRequest)
}

/// The last part of an address, which is an id or a name. A console that is mounted under a path with parameters gets
/// those, too: they come before its own. What is not text names nothing.
pub(super) struct Named(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let params = RawPathParams::from_request_parts(parts, state).await;
        let last = params.iter().flatten().last().map(|(_, value)| value.to_owned());
        Ok(Self(last.unwrap_or_default()))
    }
}

/// Names and values, in their order; a name may come several times.
pub(super) struct Fields(Vec<(String, String)>);

/// The names: an operator types a scope, a key or a reply here (G19).
impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.pairs().map(|(name, _)| name)).finish()
    }
}

impl Fields {
    /// What is not encoded as a form is not a field.
    pub(super) fn read(bytes: &[u8]) -> Self {
        Self(serde_urlencoded::from_bytes(bytes).unwrap_or_default())
    }

    /// The first of this name, without white space around it; empty, where there is none.
    pub(super) fn text(&self, name: &str) -> &str {
        self.raw(name).trim()
    }

    /// The same as it was sent.
    pub(super) fn raw(&self, name: &str) -> &str {
        let mut all = self.0.iter().filter(|(other, _)| other == name);
        all.next().map_or("", |(_, value)| value)
    }

    /// All of this name.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// All of them, in their order.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// What is filled in, for another page of the same; without these names.
    pub(super) fn query_without(&self, names: &[&str]) -> String {
        let filled = self
            .0
            .iter()
            .filter(|(name, value)| !names.contains(&name.as_str()) && !value.is_empty());
        serde_urlencoded::to_string(filled.collect::<Vec<_>>()).unwrap_or_default()
    }
}

/// The end of each form that does something: the reason, which every act has, and the button; or back.
pub(super) fn reason_and_confirmation(form: &Fields, example: Option<&str>, back: &str) -> Markup {
    html! {
        div.field.wide {
            label for="reason" { "Reason" }
            input #reason name="reason" required maxlength="500" autocomplete="off" autofocus
                placeholder=[example] value=(form.raw("reason"));
        }
        p { button.primary { "Do it" } " " a.button href=(back) { "Back, change nothing" } }
    }
}

/// A value on its way to an act. A text area keeps the ends of its lines, which an input does not.
pub(super) fn carried(name: &str, value: &str) -> Markup {
    html! {
        @if value.contains('\n') {
            textarea name=(name) hidden readonly aria-hidden="true" { "\n" (value) }
        } @else {
            input type="hidden" name=(name) value=(value);
        }
    }
}

/// Ten years, in seconds: a database's interval holds it.
const LONGEST: u64 = 10 * 365 * 86_400;

/// `90s`, `15m`, `2h`, `3d`; a number alone is of minutes.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: u64 = digits.trim_end().parse().ok()?;
    let seconds = match &text[digits.len()..] {
        "s" => 1,
        "m" | "min" | "" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    number.checked_mul(seconds).filter(|all| *all <= LONGEST).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_number_and_a_unit() {
        let seconds = |text| duration(text).map(|time| time.as_secs());
        assert_eq!(seconds("90s"), Some(90));
        assert_eq!(seconds("15"), Some(900));
        assert_eq!(seconds("15 min"), Some(900));
        assert_eq!(seconds("2h"), Some(7200));
        assert_eq!(seconds("3d"), Some(259_200));
        for bad in ["", "h", "-1h", "1.5h", "1w", "99999999999999999999d", "9999999999d", "ä"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }

    #[test]
    fn fields_come_back_as_a_query() {
        let fields = Fields::read(b"state=unknown&state=due&phase=&reason=a%26b&after=x");
        assert_eq!(fields.all("state").collect::<Vec<_>>(), ["unknown", "due"]);
        assert_eq!(fields.query_without(&["after"]), "state=unknown&state=due&reason=a%26b");
        assert_eq!(Fields::read(b"%ff=%ff").text("x"), "");
    }
}
