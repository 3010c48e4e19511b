//! A call that ends without knowing whether it created its row: the engine verifies it behind the call, for its counts
//! and its traces.

use std::time::Duration;

use super::attempt::Attempt;
use super::decide::is_held_by_its_creator;
use super::jitter::jitter;
use crate::moment::Moment;
use crate::observe;
use crate::store::{Status, Store};
use crate::task;

/// For how long the engine verifies at most whether a call that ended without knowing it created its row.
const MAX_VERIFICATION: Duration = Duration::from_secs(60);

impl<S: Store> Attempt<S> {
    /// The call ends, and does not know whether it has created the row. Reads the key for as long as its commit may be
    /// under way, so that a request that was created is counted, and counted as completed where that was the same commit.
    pub(super) fn verify_creation(&self) {
        let (version, is_traced) = (self.definition.version, self.core.is_traced());
        let span = observe::spans::verification(self.subject(), version, is_traced);
        self.core.link_call(&span);
        let (core, creation) = (self.core.clone(), self.creation.clone());
        let (scope, key, began) = (self.scope.clone(), self.key.clone(), self.began);
        let (name, request_id, runs_as) = (self.definition.name, self.request_id, self.runs_as());
        let verification = async move {
            // For as long as another process would wait for our lease.
            let until = Moment::now().after(core.settings.lease.min(MAX_VERIFICATION));
            let mut tries = 0;
            loop {
                match core.store.look_up_key(&scope, &key).await {
                    Ok(Some(row)) => {
                        let is_ours = row.request_id == request_id;
                        if is_ours {
                            core.creation_found(&creation, name);
                        }
                        let is_finished = row.status == Status::Completed;
                        if is_finished && is_held_by_its_creator(&row, runs_as) {
                            core.creation_finished(name, began);
                        }
                        core.traced_verification(if is_ours { "created" } else { "not_created" });
                        return;
                    }
                    Ok(None) | Err(_) if Moment::now() >= until || core.running.is_closing() => {
                        core.traced_verification("unknown");
                        return;
                    }
                    Ok(None) | Err(_) => tries += 1,
                }
                tokio::time::sleep(jitter(tries)).await;
            }
        };
        task::spawn(span.around(Box::pin(verification)));
    }
}
