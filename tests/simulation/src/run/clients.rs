//! The clients: what each sends, and what it is told.

use std::time::Duration;

use atomic_phases::client::{Attempt, Decision, End, Reason, RetryPolicy, Transport, decide};
use atomic_phases::config::OnDuplicate;
use atomic_phases::engine::CallError;
use atomic_phases::http::Policy;
use atomic_phases::request::RequestDefinition;
use atomic_phases::simulation::{Chance, KeyState, Memory};
use atomic_phases::{Engine, IdempotencyKey, Outcome, Scope, client};
use tokio::time::sleep;

use super::RunState;
use crate::judge::{self, Op, Told};
use crate::plan::{Build, Call, HOSTILE, Kind, Manner};
use crate::requests::{
    Alert, App, Fare, Flood, LongRide, NextRide, Note, Parcel, PatientNote, Ride, Stray, Transfer,
};

impl RunState {
    /// A client with its retries.
    pub(super) async fn client(self, call: Call) {
        sleep(Duration::from_millis(call.at)).await;
        if call.manner == Manner::Decide {
            return self.deciding_client(call).await;
        }
        for attempt in 0..call.tries {
            let node = (call.node + usize::from(attempt)) % self.plan.nodes;
            let (told, _) = self.ask(&call, node, Duration::from_millis(call.patience)).await;
            match told {
                Told::Finished { .. }
                | Told::Erased
                | Told::Mismatch
                | Told::Unknown
                | Told::DeadLetter => return,
                _ => sleep(Duration::from_millis(call.pause.max(1))).await,
            }
            if call.pause <= 10 {
                self.covers("client: asks again immediately".to_owned());
            }
        }
    }

    /// A client that uses the library's own half: it gets an HTTP answer, or none, and decides.
    pub(super) async fn deciding_client(self, call: Call) {
        let policy = RetryPolicy::new(Duration::from_secs(120)).attempts(100);
        let mut chance = Chance::from_seed(self.plan.seed ^ call.at);
        let began = self.trace.elapsed();
        for number in 1.. {
            let node = (call.node + number as usize) % self.plan.nodes;
            let within = policy.time_for_attempt(self.trace.elapsed() - began);
            let (told, answer) = self.ask(&call, node, within).await;
            let end = answer.map_or(End::Unanswered(Transport::Unknown), End::Answered);
            let (elapsed, random) = (self.trace.elapsed() - began, chance.number() as u32);
            let decision = decide(&policy, &Attempt { number, end, elapsed, random });
            let (what, fits) = match decision {
                Decision::Done { .. } => ("done", matches!(told, Told::Finished { .. })),
                Decision::RetryAfter(_) => ("again", !told.is_final()),
                Decision::GiveUp(Reason::Deadline | Reason::Attempts) => {
                    ("deadline", !told.is_final())
                }
                Decision::GiveUp(Reason::DeadLetter) => ("dead letter", told == Told::DeadLetter),
                Decision::GiveUp(Reason::ResponseNotRetained) => {
                    ("not retained", told == Told::Erased)
                }
                Decision::GiveUp(Reason::RecordDeleted) => ("record deleted", told == Told::Error),
                Decision::GiveUp(_) => ("refused", told == Told::Mismatch),
            };
            self.covers(format!("decide: {what}"));
            if !fits {
                self.complain(format!(
                    "HTTP client: told {told:?}, and the client decides {decision:?}"
                ));
            }
            match decision {
                Decision::RetryAfter(wait) => sleep(wait).await,
                _ => return,
            }
        }
    }

    /// One request, through a node, until its answer or until the client disconnects.
    pub(super) async fn ask(
        &self,
        call: &Call,
        node: usize,
        patience: Duration,
    ) -> (Told, Option<client::Answer>) {
        let number = self.history.lock().unwrap().ops.len();
        let invoked = self.trace.elapsed();
        let stored = self.fingerprint_of(call);
        let (told, returned, of_nothing) = (Told::Nothing, None, false);
        let op = Op { call: *call, invoked, returned, told, stored, of_nothing };
        self.history.lock().unwrap().ops.push(op);
        self.trace.note(|| {
            let Call { kind, amount, scope, key, manner, .. } = call;
            let (scope, key) = (judge::scope_name(*scope), judge::key_name(*key));
            format!(
                "client {number} asks node {node}: {kind:?} of {amount}, {scope} {key}, {manner:?}"
            )
        });
        let (told, of_nothing, answer) = match self.through(call, node) {
            None => (Told::Error, false, None),
            Some(running) => {
                let abort = running.abort_handle();
                match tokio::time::timeout(patience, running).await {
                    Ok(Ok(told)) => told,
                    Ok(Err(_)) => (Told::Error, false, None),
                    Err(_) => {
                        abort.abort();
                        (Told::Nothing, false, None)
                    }
                }
            }
        };
        self.trace.note(|| format!("client {number} is told {told:?}"));
        self.covers(format!("told: {}", told.name()));
        self.covers(format!("client: {:?}", call.manner));
        if call.scope == HOSTILE {
            self.covers("client: floods".to_owned());
        }
        if told == Told::Nothing {
            self.covers("client: hangs up".to_owned());
        }
        if self.plan.has_another_body(call) {
            self.covers("client: another body".to_owned());
        }
        let returned = Some(self.trace.elapsed());
        // What was true during the whole call.
        let still = self.fingerprint_of(call);
        let mut history = self.history.lock().unwrap();
        let op = &mut history.ops[number];
        (op.returned, op.told, op.of_nothing) = (returned, told.clone(), of_nothing);
        op.stored = op.stored.take().filter(|stored| still.as_ref() == Some(stored));
        (told, answer)
    }

    /// Whether the node waits longer than the others for the call of a note: a rollout that changes a time limit is
    /// always half done.
    pub(super) fn is_patient(&self, index: usize) -> bool {
        index % 2 == 1 && !self.plan.is_calm()
    }

    pub(super) fn through(
        &self,
        call: &Call,
        index: usize,
    ) -> Option<tokio::task::JoinHandle<Heard>> {
        let hosts = self.hosts.lock().unwrap();
        let host = hosts[index].as_ref()?;
        let (engine, state, call, build) = (host.engine.clone(), self.clone(), *call, host.build);
        let is_patient = self.is_patient(index);
        Some(host.node.spawn(async move {
            let amount = call.amount;
            let outcome = match (call.kind, build) {
                (Kind::Ride, Build::First) => execute(&engine, &call, Ride { amount }).await,
                (Kind::Ride, Build::Longer) => execute(&engine, &call, LongRide { amount }).await,
                (Kind::Ride, _) => execute(&engine, &call, NextRide { amount }).await,
                (Kind::Fare, _) => execute(&engine, &call, Fare { amount }).await,
                (Kind::Note, _) if is_patient => {
                    execute(&engine, &call, PatientNote { amount }).await
                }
                (Kind::Note, _) => execute(&engine, &call, Note { amount }).await,
                (Kind::Parcel, _) => execute(&engine, &call, Parcel { amount }).await,
                (Kind::Transfer, _) => execute(&engine, &call, Transfer { amount }).await,
                (Kind::Alert, _) => execute(&engine, &call, Alert { amount }).await,
                (Kind::Stray, _) => execute(&engine, &call, Stray { amount }).await,
                (Kind::Flood, _) => execute(&engine, &call, Flood { amount }).await,
            };
            if let Err(CallError::RateExceeded { .. }) = &outcome {
                state.is_spent(&call);
            }
            let told = Told::of(&outcome);
            // At the same moment: the answer is durable (G8).
            state.is_durable(&call, &told);
            state.is_of_a_row(&call, &outcome);
            let of_nothing = told == Told::InProgress && state.is_nothing(&call);
            (told, of_nothing, Some(read_by_a_client(&call, outcome)))
        }))
    }

    pub(super) fn is_durable(&self, call: &Call, told: &Told) {
        // A late answer may be of a key that was erased or has expired since then.
        let may_have_ended = self.plan.has_many_lives() || self.plan.erases(call.scope, call.key);
        let has_row = match told {
            Told::Finished { status, headers, body, .. } => {
                let mut found = false;
                self.database.each_key(|key| {
                    if is_of(&key, call) {
                        let stored = key.response_headers().map(serde_json::from_slice);
                        let stored: Option<Vec<(String, String)>> = stored.and_then(Result::ok);
                        found = stored.as_ref() == Some(headers)
                            && key.response() == Some((*status as i16, Some(body.as_slice())));
                    }
                });
                found
            }
            Told::Accepted => self.fingerprint_of(call).is_some(),
            _ => return,
        };
        if !has_row && !self.plan.loses_commits() && !may_have_ended {
            self.complain(format!("G8: {told:?} was told, and the row does not say so: {call:?}"));
        }
    }

    /// What is said to be stored, and not readable here, is stored: a new request has no row of another build.
    fn is_of_a_row(&self, call: &Call, outcome: &Result<Outcome, CallError>) {
        let Err(CallError::Unreadable { what, .. }) = outcome else { return };
        let may_have_ended = self.plan.has_many_lives() || self.plan.erases(call.scope, call.key);
        let mut has_row = self.plan.loses_commits() || may_have_ended;
        self.database.each_key(|key| has_row |= is_of(&key, call));
        if !has_row {
            self.complain(format!("the {what} of no row are told to be unreadable: {call:?}"));
        }
    }

    /// A call was refused by the rate: whether as many keys as it allows were created, or may be about to be (G16).
    pub(super) fn is_spent(&self, call: &Call) {
        let Some(quota) = self.plan.quota.filter(|_| self.plan.is_undisturbed()) else { return };
        let history = self.history.lock().unwrap();
        // A call whose client has gone continues without it.
        let continues = |op: &&Op| op.returned.is_none() || op.told == Told::Nothing;
        let of_scope = history.ops.iter().filter(|op| op.call.scope == call.scope);
        // One of them is this call.
        let others = of_scope.filter(continues).count().saturating_sub(1) as u32;
        drop(history);
        let created = self.watched.lock().unwrap().keys_of(&judge::scope_name(call.scope));
        if created + others < quota.rate.0 {
            self.complain(format!(
                "G16: refused by the rate, and {created} keys are there: {call:?}"
            ));
        }
    }

    /// Whether the key has no row, and none is about to be created.
    pub(super) fn is_nothing(&self, call: &Call) -> bool {
        let (scope, key) = (judge::scope_name(call.scope), judge::key_name(call.key));
        self.fingerprint_of(call).is_none() && !self.database.is_locked(&scope, &key)
    }

    /// The fingerprint of the key's row, if the row has not expired.
    pub(super) fn fingerprint_of(&self, call: &Call) -> Option<String> {
        let mut found = None;
        let now = self.database.now();
        self.database.each_key(|key| {
            let is_over = key.status() == "completed" && key.expires_at() <= now;
            if is_of(&key, call) && !is_over {
                found = Some(key.fingerprint().to_owned());
            }
        });
        found
    }
}

pub(super) fn is_of(key: &KeyState<'_>, call: &Call) -> bool {
    key.scope() == judge::scope_name(call.scope) && key.key() == judge::key_name(call.key)
}

/// A client's answer, whether it is *in progress* without a request, and the answer over HTTP.
pub(super) type Heard = (Told, bool, Option<client::Answer>);

/// The HTTP answer to it, as the client half takes it.
fn read_by_a_client(call: &Call, outcome: Result<Outcome, CallError>) -> client::Answer {
    let key = IdempotencyKey::new(judge::key_name(call.key)).unwrap();
    let response = Policy::default().answer(Some(&key), outcome).into_http();
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    client::Answer::read(response.status().as_u16(), header, response.body())
}

pub(super) async fn execute<R: RequestDefinition<Memory, App>>(
    engine: &Engine<Memory, App>,
    call: &Call,
    request: R,
) -> Result<Outcome, CallError> {
    let scope = Scope::new(judge::scope_name(call.scope)).unwrap();
    let key = IdempotencyKey::new(judge::key_name(call.key)).unwrap();
    let asked = engine.call(&scope, &key, request);
    match call.manner {
        Manner::Plain | Manner::Decide => asked.await,
        Manner::Accept => asked.accept().await,
        Manner::Wait => asked.on_duplicate(OnDuplicate::Wait(Duration::from_secs(5))).await,
        Manner::ExpectNew => asked.expect_new().await,
    }
}
