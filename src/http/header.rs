//! The `Idempotency-Key` header line: from bytes to an [`IdempotencyKey`], and back.
//!
//! Two forms name the same key. The *quoted* form is a String item of RFC 9651, as the draft requires;
//! a structured-field library parses it. Most clients send the *bare* form; it has a rule
//! of its own here, because the library would parse `8e03…` as a number and `e039…` as a token.
//! Anything else is an error: a present key is never treated as absent. A key as a segment of a path is read here,
//! too.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use crate::key::{IdempotencyKey, InvalidKey, MAX_KEY_LENGTH};

/// `idempotency-key`
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// `idempotency-expires`: until when the key replays, as an HTTP date.
pub const IDEMPOTENCY_EXPIRES: HeaderName = HeaderName::from_static("idempotency-expires");

/// Which forms of the header are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySyntax {
    /// `"8e03…"` and `8e03…`, which name the same key.
    #[default]
    QuotedOrBare,
    /// `"8e03…"` only, as in the draft.
    Quoted,
}

/// Why a request's headers have no valid key. The error never contains the header's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyHeaderError {
    /// There is no such line.
    #[error("Send an Idempotency-Key header with a fresh UUID, and the same one with each retry.")]
    Missing,
    /// More than one line, equal or not: a component on the path has added one, and the intended one is
    /// unknown.
    #[error("Send one Idempotency-Key header line; there are several.")]
    Repeated,
    /// The content is longer than a key may be.
    #[error("The Idempotency-Key is longer than {MAX_KEY_LENGTH} characters. Send a UUID.")]
    TooLong,
    /// Anything else.
    #[error("The Idempotency-Key cannot be read: {0}.")]
    Malformed(&'static str),
}

const EMPTY: &str = "it is empty; send a UUID";

/// The key of a request, from its header lines.
///
/// ```
/// use atomic_phases::http::{KeyHeaderError, KeySyntax, key_of};
/// use http::{HeaderMap, HeaderValue};
///
/// let mut headers = HeaderMap::new();
/// assert_eq!(key_of(&headers, KeySyntax::default()), Err(KeyHeaderError::Missing));
/// headers.insert("idempotency-key", HeaderValue::from_static(r#""8e03978e-40d5""#));
/// assert_eq!(key_of(&headers, KeySyntax::default())?.as_str(), "8e03978e-40d5");
/// headers.append("idempotency-key", HeaderValue::from_static(r#""8e03978e-40d5""#));
/// assert_eq!(key_of(&headers, KeySyntax::default()), Err(KeyHeaderError::Repeated));
/// # Ok::<(), KeyHeaderError>(())
/// ```
///
/// # Errors
/// [`KeyHeaderError`]; only [`Missing`](KeyHeaderError::Missing) says that there is no header.
pub fn key_of(headers: &HeaderMap, syntax: KeySyntax) -> Result<IdempotencyKey, KeyHeaderError> {
    let mut lines = headers.get_all(IDEMPOTENCY_KEY).iter();
    match (lines.next(), lines.next()) {
        (None, _) => Err(KeyHeaderError::Missing),
        (Some(line), None) => parse_key(line.as_bytes(), syntax),
        (Some(_), Some(_)) => Err(KeyHeaderError::Repeated),
    }
}

/// The key in one line's value.
///
/// # Errors
/// [`KeyHeaderError::TooLong`] or [`KeyHeaderError::Malformed`].
pub fn parse_key(value: &[u8], syntax: KeySyntax) -> Result<IdempotencyKey, KeyHeaderError> {
    // White space around a value is not part of it (RFC 9110, 5.5).
    let value = value.trim_ascii();
    let key = match (value.first(), syntax) {
        (None, _) => return Err(KeyHeaderError::Malformed(EMPTY)),
        (Some(b'"'), _) => quoted(value)?,
        (Some(_), KeySyntax::QuotedOrBare) => bare(value)?,
        (Some(_), KeySyntax::Quoted) => {
            return Err(KeyHeaderError::Malformed("it must be in double quotes"));
        }
    };
    IdempotencyKey::new(key).map_err(|error| match error {
        InvalidKey::TooLong { .. } => KeyHeaderError::TooLong,
        InvalidKey::Empty { .. } => KeyHeaderError::Malformed(EMPTY),
        InvalidKey::Character { .. } => {
            KeyHeaderError::Malformed("only visible ASCII characters are allowed, no spaces")
        }
    })
}

/// A String item; its parameters mean nothing here, but must be well formed.
fn quoted(value: &[u8]) -> Result<String, KeyHeaderError> {
    match sfv::Parser::new(value).parse_item::<sfv::Item>() {
        Ok(sfv::Item { bare_item: sfv::BareItem::String(key), .. }) => Ok(key.into()),
        _ => Err(KeyHeaderError::Malformed("it is not a String of RFC 9651; send it in quotes")),
    }
}

/// Visible ASCII without another meaning: no list (a proxy may have joined two lines with a
/// comma), no parameters, no other structured type, no remaining percent-encoding,
/// no other quotes, because each of them could give one logical request two keys.
fn bare(value: &[u8]) -> Result<String, KeyHeaderError> {
    let other_type = matches!(value.first(), Some(b'?' | b':' | b'@' | b'(' | b'\''));
    let unclear = |byte: &u8| !byte.is_ascii_graphic() || b"\",;\\%".contains(byte);
    if other_type || value.iter().any(unclear) {
        return Err(KeyHeaderError::Malformed("put it in double quotes, as a String of RFC 9651"));
    }
    // All ASCII by now.
    Ok(String::from_utf8_lossy(value).into_owned())
}

/// The quoted form of a key.
pub(crate) fn quoted_form(key: &IdempotencyKey) -> Option<HeaderValue> {
    // A key is visible ASCII, which each String may hold.
    let text = sfv::StringRef::from_str(key.as_str()).ok()?;
    HeaderValue::from_str(&sfv::ItemSerializer::new().bare_item(text).finish()).ok()
}

/// The bare form where it reads back as the same key, the quoted form otherwise.
pub(crate) fn bare_form(key: &IdempotencyKey) -> Option<HeaderValue> {
    match bare(key.as_str().as_bytes()) {
        Ok(text) => HeaderValue::from_str(&text).ok(),
        Err(_) => quoted_form(key),
    }
}

/// A key as the last segment of a path, before its percent-encoding: as it is, except that clients
/// resolve `.` and `..`, percent-encoded or not, against the path. Those two are in quotes, as in the
/// header; so that no two keys meet, a key that begins with a quote is, too.
pub(super) fn segment_of_key(key: &IdempotencyKey) -> Cow<'_, str> {
    let text = key.as_str();
    let is_quoted = matches!(text, "." | "..") || text.starts_with('"');
    match quoted_form(key).filter(|_| is_quoted) {
        // Visible ASCII.
        Some(quoted) => String::from_utf8_lossy(quoted.as_bytes()).into_owned().into(),
        None => text.into(),
    }
}

pub(super) fn key_of_segment(segment: &str) -> Option<IdempotencyKey> {
    match segment.starts_with('"') {
        true => parse_key(segment.as_bytes(), KeySyntax::Quoted).ok(),
        false => IdempotencyKey::new(segment).ok(),
    }
}

#[cfg(test)]
mod tests;
