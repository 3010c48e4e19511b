//! Between the engine's values and the bytes of a row: the codec, the caps, and the form of a reply.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::Core;
use super::outcome::{CallError, FailureCause, unreadable};
use crate::codec::{CodecError, Place};
use crate::config::NEVER_STORED;
use crate::job::{JobId, StagedJob};
use crate::key::{IdempotencyKey, Scope};
use crate::panics;
use crate::phase::{Outputs, Reply};
use crate::store::{REPLY_STATUSES, Store, StoredResponse, Work};

/// Why a value of a phase cannot be stored.
pub(super) enum Unstorable {
    /// It breaks this rule, and would again.
    Rule(&'static str),
    /// The codec failed, for this reason: a passing failure, which is not the phase's.
    Codec(&'static str),
}

impl Unstorable {
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Rule(reason) | Self::Codec(reason) => reason,
        }
    }

    /// What stops the request at this phase.
    pub(super) fn at(&self, phase: &'static str) -> FailureCause {
        match *self {
            Self::Rule(rule) => FailureCause::Misuse { phase, rule },
            Self::Codec(reason) => FailureCause::Codec { phase, reason },
        }
    }
}

impl From<CodecError> for Unstorable {
    fn from(CodecError(why): CodecError) -> Self {
        Self::Codec(why)
    }
}

/// What a run needs, as the codec gave it back.
pub(super) struct Plain {
    pub(super) params: Vec<u8>,
    context: Option<Vec<u8>>,
    outputs: Option<Vec<u8>>,
}

impl Plain {
    /// `None` where what is stored is not what the engine writes there.
    pub(super) fn context(&self) -> Option<Option<Box<RawValue>>> {
        self.context
            .as_deref()
            .map(|json| serde_json::from_slice(json).ok())
            .map_or(Some(None), |context| context.map(Some))
    }

    /// `None` where what is stored is not what the engine writes there.
    pub(super) fn outputs(&self) -> Option<Outputs> {
        self.outputs
            .as_deref()
            .map_or(Some(Outputs::default()), |json| Outputs::from_json(json).ok())
    }
}

/// A codec that panics fails for this one value, and not for the worker that it runs in.
fn caught<T>(codec: impl FnOnce() -> Result<T, CodecError>) -> Result<T, CodecError> {
    panics::catch(codec)
        .unwrap_or(Err(CodecError("the codec panicked: the process's log says where")))
}

impl<S: Store> Core<S> {
    pub(super) fn encode<'v>(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        column: &'static str,
        plain: &'v [u8],
    ) -> Result<Cow<'v, [u8]>, CodecError> {
        let place = Place { scope, key, column, job: None };
        caught(|| self.codec.encode(place, Cow::Borrowed(plain)))
    }

    /// The arguments of a staged job, as they are stored.
    pub(super) fn encode_args<'v>(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        job: &'v StagedJob,
    ) -> Result<Cow<'v, [u8]>, CodecError> {
        let place = Place { scope, key, column: "args", job: Some(job.id) };
        caught(|| self.codec.encode(place, Cow::Borrowed(&job.args)))
    }

    /// The arguments of a staged job, as they were given.
    pub(super) fn decode_args(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        job: JobId,
        stored: Vec<u8>,
    ) -> Result<Vec<u8>, CallError> {
        self.decode_at(Place { scope, key, column: "args", job: Some(job) }, stored)
    }

    pub(crate) fn decode(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        column: &'static str,
        stored: Vec<u8>,
    ) -> Result<Vec<u8>, CallError> {
        self.decode_at(Place { scope, key, column, job: None }, stored)
    }

    fn decode_at(&self, place: Place<'_>, stored: Vec<u8>) -> Result<Vec<u8>, CallError> {
        caught(|| self.codec.decode(place, Cow::Owned(stored)).map(Cow::into_owned))
            .map_err(|CodecError(why)| CallError::Unreadable { what: place.column, why })
    }

    /// The stored values as they were given to the codec.
    pub(super) fn open(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        work: &Work,
    ) -> Result<Plain, CallError> {
        let decode = |column, stored: &Option<Vec<u8>>| {
            stored.clone().map(|stored| self.decode(scope, key, column, stored)).transpose()
        };
        Ok(Plain {
            params: self.decode(scope, key, "params", work.params.clone())?,
            context: decode("context", &work.context)?,
            outputs: decode("outputs", &work.outputs)?,
        })
    }

    pub(super) fn decode_outputs(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        stored: Option<Vec<u8>>,
    ) -> Result<Outputs, CallError> {
        let Some(stored) = stored else { return Ok(Outputs::default()) };
        let json = self.decode(scope, key, "outputs", stored)?;
        Outputs::from_json(&json).map_err(|_| unreadable("outputs"))
    }

    pub(super) fn encode_outputs(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        outputs: &Outputs,
    ) -> Result<Vec<u8>, Unstorable> {
        let no_json =
            |_| Unstorable::Rule("an output has no JSON form: use maps whose keys are strings");
        let json = outputs.to_json().map_err(no_json)?;
        if json.len() > self.settings.limits.outputs {
            let rule = "the outputs together are over Limits::outputs: return less, or raise it";
            return Err(Unstorable::Rule(rule));
        }
        Ok(self.encode(scope, key, "outputs", &json)?.into_owned())
    }

    /// A reply over its cap is stored as a marker: it finishes the key all the same, because its
    /// effects happened.
    pub(super) fn encode_reply(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        reply: &Reply,
    ) -> Result<StoredResponse, Unstorable> {
        if !REPLY_STATUSES.contains(&reply.status) {
            return Err(Unstorable::Rule("a reply's status must be 200 to 599"));
        }
        if !reply.headers.iter().all(|(name, value)| is_header_line(name, value)) {
            let rule =
                "a reply's header line has a character that HTTP does not carry there: remove it";
            return Err(Unstorable::Rule(rule));
        }
        let kept: Vec<_> = self.kept_headers(reply).collect();
        let no_json = |_| Unstorable::Rule("a header has no JSON form");
        let headers = serde_json::to_vec(&kept).map_err(no_json)?;
        let limits = &self.settings.limits;
        if headers.len() > limits.reply_headers || reply.body.len() > limits.reply_body {
            return Ok(StoredResponse { status: reply.status, headers: Vec::new(), body: None });
        }
        let encode = |column, bytes| self.encode(scope, key, column, bytes).map(Cow::into_owned);
        Ok(StoredResponse {
            status: reply.status,
            headers: encode("response_headers", &headers)?,
            body: Some(encode("response_body", &reply.body)?),
        })
    }

    /// The reply's header lines that are stored with it.
    fn kept_headers<'r>(&self, reply: &'r Reply) -> impl Iterator<Item = &'r (String, String)> {
        let stored = &self.settings.stored_headers;
        let lines = reply.headers.iter();
        lines.filter(move |(name, _)| stored.iter().any(|kept| kept.eq_ignore_ascii_case(name)))
    }

    /// Whether this is what was stored of the reply.
    pub(super) fn is_kept_of(&self, stored: &Reply, reply: &Reply) -> bool {
        (stored.status, &stored.body) == (reply.status, &reply.body)
            && stored.headers.iter().eq(self.kept_headers(reply))
    }

    /// The names of the reply's header lines that a replay will not have, and is not known to do without.
    pub(super) fn not_replayed<'r>(&self, reply: &'r Reply) -> impl Iterator<Item = &'r str> {
        let names = reply.headers.iter().map(|(name, _)| name.as_str());
        let known = |name: &&str| {
            let stored = self.settings.stored_headers.iter().map(String::as_str);
            stored.chain(NEVER_STORED).any(|known| known.eq_ignore_ascii_case(name))
        };
        names.filter(move |name| !known(name))
    }

    /// The reply of a finished row; its status alone where it was not retained.
    pub(crate) fn decode_reply(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        response: Option<StoredResponse>,
    ) -> Result<Result<Reply, u16>, CallError> {
        let response = response.ok_or(unreadable("response"))?;
        let Some(body) = response.body else { return Ok(Err(response.status)) };
        let headers = match mutated!(ReplayWithoutHeaders) {
            true => b"[]".to_vec(),
            false => self.decode(scope, key, "response_headers", response.headers)?,
        };
        Ok(Ok(Reply {
            status: response.status,
            headers: serde_json::from_slice(&headers)
                .map_err(|_| unreadable("response_headers"))?,
            body: self.decode(scope, key, "response_body", body)?,
        }))
    }
}

pub(super) fn is_header_name(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_token)
}

/// Whether it is one line (RFC 9110, 5.1 and 5.5): a line break in a value would begin another.
fn is_header_line(name: &str, value: &str) -> bool {
    is_header_name(name)
        && value.bytes().all(|byte| byte == b'\t' || (byte >= b' ' && byte != 0x7f))
}
