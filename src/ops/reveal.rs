//! [`Ops::reveal`]: the key, the scope and the stored values of a request. There is no other way to read
//! them, and each use is audited before anything is shown.

use uuid::Uuid;

use super::{Ops, OpsError, Permissions};
use crate::engine::CallError;
use crate::key::{IdempotencyKey, Scope};
use crate::observe;
use crate::phase::Reply;
use crate::store::operators::{FoundRequest, OperatorStore};

/// What to reveal of a request, besides its scope and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum What {
    /// Scope and key, and no value.
    Key,
    /// The parameters.
    Parameters,
    /// The context of its first call.
    Context,
    /// The outputs of committed phases.
    Outputs,
    /// The stored reply.
    Reply,
    /// The derived keys under which its idempotent phases call their providers, to look a call up there. Every such phase
    /// has one, even if it has not called. If a call may have been made and its outcome is not stored, its key is certain.
    /// The keys are made with the secret of the last attempt. Phases that were committed before the secret was replaced had
    /// other keys, and so will phases that call after the next replacement.
    DerivedKey,
}

impl What {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Key, Self::Parameters, Self::Context, Self::Outputs, Self::Reply, Self::DerivedKey];

    /// Its name, for example `parameters`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Parameters => "parameters",
            Self::Context => "context",
            Self::Outputs => "outputs",
            Self::Reply => "reply",
            Self::DerivedKey => "derived_key",
        }
    }

    fn act(self) -> &'static str {
        match self {
            Self::Key => "reveal.key",
            Self::Parameters => "reveal.parameters",
            Self::Context => "reveal.context",
            Self::Outputs => "reveal.outputs",
            Self::Reply => "reveal.reply",
            Self::DerivedKey => "reveal.derived_key",
        }
    }
}

/// What was revealed. Its `Debug` shows none of it.
#[derive(Clone)]
#[non_exhaustive]
pub struct Revealed {
    /// Whose request it is.
    pub scope: Scope,
    /// Its key.
    pub key: IdempotencyKey,
    /// The value, decoded by the codec, as JSON. `None` if there is none, or none any more. Derived keys are an array of
    /// objects with `phase` and `derived_key`.
    pub json: Option<String>,
    /// The reply, if it was requested and is retained.
    pub reply: Option<Reply>,
}

impl std::fmt::Debug for Revealed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { scope, key, json, .. } = self;
        write!(f, "Revealed({scope:?}, {key:?}, {} bytes)", json.as_ref().map_or(0, String::len))
    }
}

impl From<CallError> for OpsError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Unavailable(error) => error.into(),
            CallError::Unreadable { what, why } => Self::Unreadable { what, why },
            _ => {
                Self::Unreadable { what: "values", why: "of a form that this build does not know" }
            }
        }
    }
}

impl<S: OperatorStore> Ops<S> {
    /// Returns the key and the scope of a request, and one of its stored values. Needs
    /// [`Permissions::REVEAL`] and a reason. The audit records who looks at what, and why, before the value
    /// is returned.
    ///
    /// # Errors
    /// [`OpsError::Unreadable`] if the codec of this process cannot decode the value, or if derived keys are made with a
    /// secret that this process does not have.
    pub async fn reveal(
        &self,
        request_id: Uuid,
        what: What,
        reason: &str,
    ) -> Result<Revealed, OpsError> {
        let id = Some(request_id);
        let mut entry = self.begin(Permissions::REVEAL, what.act(), id, reason).await?;
        let found = match self.find_by_id(request_id).await {
            Ok(found) => found,
            Err(refused) => return Err(self.refused(entry, refused).await),
        };
        entry.scope = Some(found.scope.as_str().to_owned());
        entry.definition = Some(found.row.definition.clone());
        entry.version = Some(found.row.version);
        self.store.record(&entry).await?;
        observe::operated(entry.act, entry.outcome);
        self.read_values(found, what).await
    }

    async fn read_values(&self, found: FoundRequest, what: What) -> Result<Revealed, OpsError> {
        let FoundRequest { scope, key, row, .. } = found;
        let core = &self.core;
        let (mut bytes, mut reply) = (None, None);
        match what {
            What::Key => {}
            What::Parameters => {
                let given = self.store.read_params(&scope, &key, row.request_id).await?;
                // Of an erased row there are none.
                bytes = given
                    .map(|(params, _)| params)
                    .filter(|stored| !stored.is_empty())
                    .map(|stored| core.decode(&scope, &key, "params", stored))
                    .transpose()?;
            }
            What::Context => {
                let given = self.store.read_params(&scope, &key, row.request_id).await?;
                bytes = given
                    .and_then(|(_, context)| context)
                    .map(|stored| core.decode(&scope, &key, "context", stored))
                    .transpose()?;
            }
            What::Outputs => {
                let stored = self.store.read_outputs(&scope, &key).await?;
                // The key may be another request's by now, and what was read with it.
                self.find_by_id(row.request_id).await?;
                bytes = stored
                    .map(|stored| core.decode(&scope, &key, "outputs", stored))
                    .transpose()?;
            }
            What::Reply if row.response.is_some() => {
                reply = core.decode_reply(&scope, &key, row.response)?.ok();
            }
            What::Reply => {}
            What::DerivedKey => {
                let keys = core.provider_keys(&scope, &key, &row).map_err(|because| {
                    OpsError::Unreadable { what: "phases", why: because.as_str() }
                })?;
                let told = keys.iter().map(|(phase, derived)| {
                    serde_json::json!({ "phase": phase, "derived_key": derived.as_str() })
                });
                let told = serde_json::Value::Array(told.collect());
                bytes = (!keys.is_empty()).then(|| told.to_string().into_bytes());
            }
        }
        let json = bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(Revealed { scope, key, json, reply })
    }
}
