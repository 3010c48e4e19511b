//! A provider's webhooks, and what is made of them.

use std::time::Duration;

use atomic_phases::engine::{Resolution, ResolveError, Resolved};
use atomic_phases::{IdempotencyKey, Scope};
use tokio::sync::mpsc;
use tokio::time::sleep;
use uuid::Uuid;

use super::{RunState, SETTLED_BY};
use crate::judge;
use crate::provider::{Hook, Word};
use crate::requests::{Charged, reply};

impl RunState {
    /// Sends a webhook to any running node, again and again until it is accepted, as providers do.
    pub(super) async fn receive_webhooks(self, mut hooked: mpsc::UnboundedReceiver<Hook>) {
        let mut number = 0;
        while let Some(hook) = hooked.recv().await {
            number += 1;
            tokio::spawn(self.clone().webhook(number, hook));
        }
    }

    /// No true resolution of the last call is refused, and a refused one changes nothing (G17).
    pub(super) async fn webhook(self, number: usize, hook: Hook) {
        let row = (hook.scope.clone(), hook.key.clone());
        self.watched.lock().unwrap().word_begins(&row);
        let until = SETTLED_BY.max(self.trace.elapsed()) + self.plan.set_back();
        for again in 0.. {
            let waits = self.watched.lock().unwrap().intended_in(&row);
            let (before, began) =
                (self.watched.lock().unwrap().settled(&row), self.trace.elapsed());
            let told = self.tell(&hook, number + again, again == 0).await;
            self.trace.note(|| format!("webhook {number}, {hook:?}: {told:?}"));
            let still_waits = self.watched.lock().unwrap().intended_in(&row);
            let is_news = match hook.word {
                Word::Executed(_) => true,
                Word::NotExecuted(attempt) => {
                    waits == still_waits && waits == Some(attempt.cast_signed())
                }
            };
            // A resolution of a request that has ended, and whose key belongs to another request by now, or to
            // none.
            let is_gone = self.request_of(&row) != Some(hook.request);
            let (what, is_final) = match &told {
                Some(Ok(Resolved::Applied)) => ("applied", true),
                Some(Ok(Resolved::Finished)) => ("finished", true),
                Some(Ok(_)) => ("known already", true),
                Some(Err(ResolveError::InProgress { .. })) => ("in progress", false),
                Some(Err(ResolveError::Conflict(_) | ResolveError::NotThatPhase)) => {
                    if is_news && !self.plan.is_beyond_promises() {
                        self.complain(format!("G17: a true word is refused: {hook:?}: {told:?}"));
                    }
                    ("contradicts", true)
                }
                Some(Err(ResolveError::AnotherRequest)) => {
                    if !is_gone && !self.plan.is_beyond_promises() {
                        self.complain(format!("G17: a word is told to be of another: {hook:?}"));
                    }
                    ("of another", true)
                }
                Some(Err(ResolveError::NoSuchKey)) if is_gone => ("of none", true),
                Some(Err(ResolveError::NotEncoded { .. })) => ("not encoded", false),
                // A provider would not deliver it again.
                Some(Err(ResolveError::NotStorable)) => {
                    self.complain(format!(
                        "G17: a true resolution is refused as not storable: {hook:?}"
                    ));
                    ("not storable", false)
                }
                Some(Err(_)) => ("refused", false),
                None => ("nothing", false),
            };
            self.covers(format!("webhook: {what}"));
            if what == "finished" && self.plan.erases_row(&row) {
                self.covers("word: behind an erasure".to_owned());
            }
            // A resolution that took longer than a lease may have acquired the row, lost it, and read it again.
            let is_quick = self.trace.elapsed() - began < Duration::from_millis(self.plan.lease);
            let is_its = is_quick && !self.plan.erases_row(&row) && !self.plan.has_other_builds();
            let after = self.watched.lock().unwrap().settled(&row);
            if what == "not encoded" && is_its && before < after && before.is_some() {
                self.complain(format!("G17: a word was refused and has changed the row: {hook:?}"));
            }
            let gives_up = self.plan.is_beyond_promises() && again >= 20;
            if is_final || gives_up {
                break;
            }
            if self.trace.elapsed() > until {
                self.complain(format!("G17: a true word is never taken: {hook:?}: {told:?}"));
                break;
            }
            sleep(Duration::from_secs(3)).await;
        }
        self.watched.lock().unwrap().word_ends(&row);
    }

    /// The id of the request of the key's row.
    pub(super) fn request_of(&self, (scope, key): &judge::Row) -> Option<Uuid> {
        let mut found = None;
        self.database.each_key(|row| {
            if (row.scope(), row.key()) == (scope.as_str(), key.as_str()) {
                found = Some(row.request_id());
            }
        });
        found
    }

    /// One delivery: the node's answer, if there is one. The provider may disconnect during the first delivery.
    pub(super) async fn tell(
        &self,
        hook: &Hook,
        node: usize,
        is_first: bool,
    ) -> Option<Result<Resolved, ResolveError>> {
        let (what, word) = self.word_of(hook)?;
        self.covers(format!("word: {what}"));
        let scope = Scope::new(hook.scope.clone()).unwrap();
        let key = IdempotencyKey::new(hook.key.clone()).unwrap();
        let running = {
            let hosts = self.hosts.lock().unwrap();
            let host = hosts[node % self.plan.nodes].as_ref()?;
            let engine = host.engine.clone();
            let word = word.of_request(hook.request);
            host.node.spawn(async move { engine.resolve(&scope, &key, word).await })
        };
        let handler = running.abort_handle();
        let hung_up = self.plan.hung_up.get(&hook.call).filter(|_| is_first);
        let patience =
            hung_up.map_or(Duration::from_secs(20), |after| Duration::from_micros(*after));
        match tokio::time::timeout(patience, running).await {
            Ok(told) => told.ok(),
            Err(_) => {
                handler.abort();
                self.covers("word: cut off".to_owned());
                None
            }
        }
    }

    /// The resolution that a webhook's handler derives from it. `None`: it is about a request whose first write was lost
    /// in a failover, and the handler has nothing from which it could make the reply.
    pub(super) fn word_of(&self, hook: &Hook) -> Option<(&'static str, Resolution)> {
        Some(match &hook.word {
            Word::NotExecuted(attempt) => {
                ("not executed", Resolution::not_executed(hook.phase, *attempt))
            }
            // It ends with its call.
            Word::Executed(effect) if hook.phase == "alerted" => {
                let rides = self.database.rows("rides");
                let (_, amount) = rides.iter().find(|(life, _)| *life == hook.life)?;
                let amount = amount.as_i64()?;
                ("finish", Resolution::finish(reply(&hook.life, amount, effect).unwrap()))
            }
            Word::Executed(effect) => {
                let output = Charged { id: effect.clone() };
                ("executed", Resolution::executed(hook.phase, &output).unwrap())
            }
        })
    }
}
