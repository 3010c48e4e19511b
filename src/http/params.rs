//! Typed parameters from a body. What does not parse is refused before anything is reserved, so a
//! corrected body may come under the same key.

use std::borrow::Cow;

use http::HeaderMap;
use serde::de::DeserializeOwned;

use super::policy::{Encoding, Policy};
use super::problem::{Kind, Problem};
use super::respond::Answer;
use super::unique::{names_are_unique, pairs_are_unique};

impl Policy {
    /// The parameters in `body`, whose form the headers tell.
    ///
    /// A member that is given twice in one JSON object, at any depth, or in one form, is refused,
    /// also where `T` is a map or a `serde_json::Value` that would keep the last one in silence: two
    /// readers of one body must not see two requests.
    ///
    /// # Errors
    /// The answer to tell the client: 415, 413, 400 (no JSON, or a member twice) or 422 (not a `T`;
    /// 400 in the Stripe profile). It repeats what serde says, which may quote the body: it is meant
    /// for its sender, not for a log.
    pub fn parameters<T: DeserializeOwned>(
        &self,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<T, Answer> {
        self.parse(headers, body).map_err(|problem| self.refuse(&problem))
    }

    /// The answer to parameters that parse, and are refused by the application's own rules: 422
    /// (Stripe: 400) with this explanation, stored nowhere.
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
        self.encoding(headers).ok_or_else(|| {
            let detail = match self.bodies {
                super::Bodies::Json => "Send application/json, not compressed.",
                super::Bodies::Form => "Send application/x-www-form-urlencoded, not compressed.",
                super::Bodies::JsonOrForm => {
                    "Send application/json or application/x-www-form-urlencoded, not compressed."
                }
            };
            Problem::new(Kind::MediaType, detail)
        })
    }

    pub(crate) fn body_too_large(&self) -> Problem {
        let detail = format!("A body may have {} bytes.", self.body_limit);
        Problem::new(Kind::BodyTooLarge, detail)
    }
}

fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    names_are_unique(body).map_err(|error| malformed(&error))?;
    serde_json::from_slice(body).map_err(|error| match error.is_data() {
        true => invalid(&error),
        false => malformed(&error),
    })
}

fn form<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    pairs_are_unique(body).map_err(|error| malformed(&error))?;
    serde_urlencoded::from_bytes(body).map_err(|error| invalid(&error))
}

fn malformed(error: &dyn std::fmt::Display) -> Problem {
    Problem::new(Kind::ParametersMalformed, error.to_string())
}

fn invalid(error: &dyn std::fmt::Display) -> Problem {
    Problem::new(Kind::ParametersInvalid, error.to_string())
}
