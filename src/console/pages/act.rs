//! [`Act`]: an act on a request, as a form says it, and as the operators' layer takes it.

use std::borrow::Cow;
use std::fmt;

use serde_json::value::RawValue;
use uuid::Uuid;

use super::fields::Fields;
use crate::engine::{Resolution, ResolveError, Resolved};
use crate::ops::{OperatorStore, Ops, OpsError, Permissions, RowVersion};
use crate::phase::Reply;
use crate::store::REPLY_STATUSES;

/// What an operator says about a request.
pub(super) enum Act {
    Executed { phase: String, output: Box<RawValue> },
    NotExecuted { phase: String, attempt: u32 },
    Finish { reply: Reply },
    Retry,
    Erase,
}

/// Without the output or the reply (G19).
impl fmt::Debug for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Act {
    /// What a form says, or what is wrong with it.
    pub(super) fn read(form: &Fields) -> Result<Self, Cow<'static, str>> {
        match form.text("act") {
            "executed" => {
                let output = serde_json::from_str(form.text("output")).map_err(|error| {
                    format!("The output is not JSON: {error}. Of a phase that returns nothing it is null.")
                })?;
                Ok(Self::Executed { phase: form.raw("phase").to_owned(), output })
            }
            "not_executed" => {
                let attempt = form.text("attempt").parse();
                let attempt = attempt.map_err(|_| "The attempt is a whole number.")?;
                Ok(Self::NotExecuted { phase: form.raw("phase").to_owned(), attempt })
            }
            "finish" => reply(form).map(|reply| Self::Finish { reply }),
            "retry" => Ok(Self::Retry),
            "erase" => Ok(Self::Erase),
            _ => Err("Choose what to do.".into()),
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Executed { .. } => "It was executed",
            Self::NotExecuted { .. } => "It was not executed",
            Self::Finish { .. } => "Finish it with a reply",
            Self::Retry => "Let it try again",
            Self::Erase => "Erase it",
        }
    }

    pub(super) fn needs(&self) -> Permissions {
        match self {
            Self::Erase => Permissions::ERASE,
            _ => Permissions::ACT,
        }
    }

    /// Why it would be refused for the type of what it says.
    pub(super) async fn misfit<S: OperatorStore>(
        &self,
        ops: &Ops<S>,
        id: Uuid,
    ) -> Option<OpsError> {
        let Self::Executed { phase, output } = self else { return None };
        let word = Resolution::executed(phase, output).ok()?;
        let is_of_type = |error: &OpsError| {
            matches!(
                error,
                OpsError::Resolve(ResolveError::OtherType { .. } | ResolveError::Undecodable(_))
            )
        };
        ops.check_type(id, &word).await.err().filter(is_of_type)
    }

    pub(super) async fn apply<S: OperatorStore>(
        self,
        ops: Ops<S>,
        id: Uuid,
        version: RowVersion,
        reason: String,
    ) -> Result<Resolved, OpsError> {
        let word = match self {
            Self::Erase => return ops.erase(id, &version, &reason).await,
            Self::Retry => return ops.retry(id, &version, &reason).await,
            Self::Executed { phase, output } => {
                Resolution::executed(phase, &output).map_err(OpsError::from)?
            }
            Self::NotExecuted { phase, attempt } => Resolution::not_executed(phase, attempt),
            Self::Finish { reply } => Resolution::finish(reply),
        };
        ops.resolve(id, &version, word, &reason).await
    }
}

/// The reply that a request is to be finished with.
fn reply(form: &Fields) -> Result<Reply, Cow<'static, str>> {
    let status = form.text("status").parse::<u16>().ok();
    let status = status
        .filter(|status| REPLY_STATUSES.contains(status))
        .ok_or("The status of a reply is 200 to 599.")?;
    // A form sends each end of a line as two characters.
    let body = form.raw("body").replace("\r\n", "\n");
    match form.text("media") {
        "text" => Ok(Reply::text(status, body)),
        _ => {
            let body: Box<RawValue> = serde_json::from_str(body.trim()).map_err(|error| {
                format!("The body of the reply is not JSON: {error}; send it as plain text, or correct it.")
            })?;
            Reply::json(status, &body).map_err(|_| "The body of the reply has no JSON form.".into())
        }
    }
}
