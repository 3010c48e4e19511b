//! What a call answers with, where the key's row is left as it is.

use super::attempt::Attempt;
use super::decide::{Answer, is_held_by_its_creator};
use super::outcome::{CallError, Finished, Outcome};
use crate::definition::STARTED;
use crate::observe::Subject;
use crate::store::{KeySummary, Store};

impl<S: Store> Attempt<S> {
    pub(super) fn answer(&self, answer: Answer, row: KeySummary) -> Result<Outcome, CallError> {
        Ok(match answer {
            Answer::Mismatch => Outcome::Mismatch,
            Answer::InProgress { retry_after: lease_left } => {
                let retry_after = self.core.settings.ask_again_after(lease_left);
                self.core.traced_result_of(row.request_id, None);
                Outcome::InProgress { retry_after }
            }
            Answer::Unknown { looked_into } => {
                self.core.traced_result_of(row.request_id, None);
                self.core.unknown(looked_into)
            }
            Answer::DeadLetter => {
                self.core.traced_result_of(row.request_id, row.trace.as_deref());
                Outcome::DeadLetter
            }
            Answer::Erased => Outcome::Erased,
            Answer::NotKnownHere => {
                let subject = Subject { request_id: row.request_id, ..self.subject() };
                self.core.left_alone(subject, self.unknown_because(&row))
            }
            Answer::Replay => {
                // Ours, where the commit that created and finished it got no answer.
                let ours = is_held_by_its_creator(&row, self.runs_as());
                let (replayed, expires_at) = (!ours, row.expires_at);
                match (replayed, &row.response) {
                    // Its commit arrived, and the answer to that did not: it is counted here.
                    (false, Some(stored)) => {
                        self.core.attempt_begins(row.request_id, 1, STARTED, None);
                        self.core.creation_finished(self.definition.name, self.began);
                        self.core.traced_end(stored.status);
                    }
                    _ => self.core.traced_result_of(row.request_id, row.trace.as_deref()),
                }
                match self.core.decode_reply(&self.scope, &self.key, row.response)? {
                    Ok(reply) => Outcome::Finished(Finished { reply, replayed, expires_at }),
                    Err(status) => Outcome::ReplyNotRetained { status },
                }
            }
        })
    }
}
