//! Typed parameters from a body. A body that does not parse is refused before anything is reserved, so a
//! corrected body may be sent with the same key.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::{ACCEPT, ACCEPT_ENCODING, HeaderValue};
use serde::de::DeserializeOwned;

use super::objects::Objects;
use super::policy::{Bodies, Encoding, Policy, is_coded};
use super::problem::{Kind, Problem};
use super::respond::Answer;
use super::unique::{names_are_unique, pairs_are_unique};

impl Policy {
    /// The parameters in `body`, whose format the headers declare.
    ///
    /// A duplicate member of a JSON object, at any depth, or of a form, is refused,
    /// even if `T` is a map or a `serde_json::Value`, which would silently keep the last one: two
    /// readers of one body must not see two different requests. For the same reason, an array of a struct's field
    /// values is not accepted in place of the object, and a form with invalid UTF-8 is refused.
    ///
    /// One exception remains: inside values that serde buffers (an `untagged` or internally tagged enum, a `flatten`ed
    /// field, the content of an adjacently tagged enum that comes before its tag), a struct can also be read from an
    /// array of its field values, in the order of its fields. It is the same request as the object with these values.
    /// An enum in serde's default form is not buffered.
    ///
    /// # Errors
    /// The answer for the client: 415, 413, 400 (not JSON, not a form, or a duplicate member) or 422 (not a `T`;
    /// 400 in the Stripe profile). It contains serde's message, which may quote the body: it is meant
    /// for the sender, not for a log.
    pub fn parameters<T: DeserializeOwned>(
        &self,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<T, Answer> {
        self.parse(headers, body).map_err(|problem| self.refuse(&problem))
    }

    /// The answer to parameters that parse, but violate the application's own rules: 422
    /// (Stripe: 400) with this explanation. It is not stored.
    #[must_use]
    pub fn invalid_parameters(&self, detail: impl Into<Cow<'static, str>>) -> Answer {
        self.refuse(&Problem::new(Kind::ParametersInvalid, detail))
    }

    fn parse<T: DeserializeOwned>(&self, headers: &HeaderMap, body: &[u8]) -> Result<T, Problem> {
        let encoding = self.checked_encoding(headers)?;
        if body.len() > self.body_limit {
            return Err(self.body_too_large());
        }
        match encoding {
            Encoding::Json => json(body),
            Encoding::Form => form(body),
        }
    }

    pub(crate) fn checked_encoding(&self, headers: &HeaderMap) -> Result<Encoding, Problem> {
        if is_coded(headers) {
            let problem = Problem::new(Kind::MediaType, "Send the body as it is, not compressed.");
            return Err(problem.with_header(ACCEPT_ENCODING, HeaderValue::from_static("identity")));
        }
        self.encoding(headers).ok_or_else(|| {
            let types = match self.bodies {
                Bodies::Json => "application/json",
                Bodies::Form => "application/x-www-form-urlencoded",
                Bodies::JsonOrForm => "application/json, application/x-www-form-urlencoded",
            };
            let detail = format!("Send one Content-Type of: {types}.");
            Problem::new(Kind::MediaType, detail)
                .with_header(ACCEPT, HeaderValue::from_static(types))
        })
    }

    pub(crate) fn body_too_large(&self) -> Problem {
        let detail =
            format!("A body may have at most {} bytes: send a smaller one.", self.body_limit);
        Problem::new(Kind::BodyTooLarge, detail)
    }
}

fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    names_are_unique(body).map_err(|error| malformed(&error))?;
    let mut json = serde_json::Deserializer::from_slice(body);
    T::deserialize(Objects::new(&mut json)).map_err(|error| match error.is_data() {
        true => invalid(&error),
        false => malformed(&error),
    })
}

fn form<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    form_decodes(body)?;
    pairs_are_unique(body).map_err(|error| malformed(&error))?;
    serde_urlencoded::from_bytes(body).map_err(|error| invalid(&error))
}

/// A form's reader would put U+FFFD for what does not decode, and so take different bytes for equal ones.
fn form_decodes(form: &[u8]) -> Result<(), Problem> {
    let mut decoded = Vec::with_capacity(form.len());
    let mut rest = form;
    while let [byte, after @ ..] = rest {
        rest = after;
        decoded.push(match (byte, after) {
            (b'%', [high, low, after @ ..]) => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                let (Some(high), Some(low)) = (digit(high), digit(low)) else {
                    return Err(malformed(&NOT_ENCODED));
                };
                rest = after;
                (high * 16 + low) as u8
            }
            (b'%', _) => return Err(malformed(&NOT_ENCODED)),
            (byte, _) => *byte,
        });
    }
    // `&` and `=` are not part of a longer character, so that all is UTF-8 where each name and value is.
    std::str::from_utf8(&decoded).map(|_| ()).map_err(|_| malformed(&"the form is not UTF-8"))
}

const NOT_ENCODED: &str = "a percent sign in the form is not followed by two hex digits";

fn malformed(error: &dyn std::fmt::Display) -> Problem {
    Problem::new(Kind::ParametersMalformed, error.to_string())
}

fn invalid(error: &dyn std::fmt::Display) -> Problem {
    Problem::new(Kind::ParametersInvalid, error.to_string())
}
