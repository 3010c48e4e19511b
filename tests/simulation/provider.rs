//! The providers, outside of every node: what they do, they do although their caller is gone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atomic_phases::RequestContext;
use atomic_phases::simulation::{Chance, Database};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::plan::{End, Plan, Trouble};
use super::trace::Trace;

/// How long the provider of rides remembers a key.
pub const WINDOW: Duration = Duration::from_secs(60);

/// What the provider answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done(String),
    Refused,
    Declined,
    /// The connection ended without an answer.
    Reset,
}

/// One entry of the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It was called, for this life of a request.
    Called { key: String, life: String, honours: Honours },
    /// The effect.
    Effect { key: String, life: String },
    /// The call was made by a holder whose lease had ended by the database's clock.
    WithoutLease { life: String },
    /// It told that it did nothing.
    Denied { key: String },
}

/// Whether the provider honours keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Honours {
    ForSixtySeconds,
    ForEver,
    Never,
}

#[derive(Clone)]
pub struct Provider(Arc<Inner>);

struct Inner {
    plan: Arc<Plan>,
    database: Database,
    trace: Trace,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calls: u64,
    effects: u64,
    known: BTreeMap<String, (String, Instant)>,
    ledger: Vec<Entry>,
}

impl Provider {
    pub fn new(plan: &Arc<Plan>, database: &Database, trace: &Trace) -> Self {
        Self(Arc::new(Inner {
            plan: plan.clone(),
            database: database.clone(),
            trace: trace.clone(),
            state: Mutex::default(),
        }))
    }

    pub fn ledger(&self) -> Vec<Entry> {
        self.0.state.lock().unwrap().ledger.clone()
    }

    pub async fn call(
        &self,
        key: &str,
        life: &str,
        honours: Honours,
        ctx: &RequestContext,
    ) -> Answer {
        let is_leased = self.is_leased(ctx);
        let number = {
            let mut state = self.0.state.lock().unwrap();
            if !is_leased {
                state.ledger.push(Entry::WithoutLease { life: life.to_owned() });
            }
            let (key, life) = (key.to_owned(), life.to_owned());
            state.ledger.push(Entry::Called { key, life, honours });
            state.calls += 1;
            state.calls - 1
        };
        let healed = self.0.trace.elapsed() >= super::plan::HEALED;
        let trouble = self.0.plan.provider.get(&number).filter(|_| !healed).copied();
        let trouble = trouble.unwrap_or_else(|| {
            // As fast as providers are.
            let mut chance = Chance::from_seed(self.0.plan.seed ^ (number << 32));
            let before = match self.0.plan.slow_provider {
                true => 500 + chance.below(4_000),
                false => 20 + chance.below(200),
            };
            Trouble { before, after: 10, end: End::Answered }
        });
        self.0.trace.note(|| format!("provider: call {number} for {life}: {trouble:?}"));
        let (answer, answered) = oneshot::channel();
        let (provider, key, life) = (self.clone(), key.to_owned(), life.to_owned());
        // On no node.
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(trouble.before)).await;
            let told = provider.act(&key, &life, honours, trouble.end);
            tokio::time::sleep(Duration::from_millis(trouble.after)).await;
            match told {
                Some(told) => {
                    let _ = answer.send(told);
                }
                // The caller's end of the connection stays open.
                None => {
                    tokio::time::sleep(Duration::from_secs(3600)).await;
                    drop(answer);
                }
            }
        });
        answered.await.unwrap_or(Answer::Reset)
    }

    /// Whether the database grants the request's lease to somebody at this moment: what the engine
    /// believes of its lease must end before the lease does.
    fn is_leased(&self, ctx: &RequestContext) -> bool {
        let (database, mut leased) = (&self.0.database, false);
        let now = database.now();
        database.each_key(|key| {
            if (key.scope(), key.key()) == (ctx.scope().as_str(), ctx.key().as_str()) {
                leased = key.locked_until().is_some_and(|until| until > now);
            }
        });
        leased
    }

    fn act(&self, key: &str, life: &str, honours: Honours, end: End) -> Option<Answer> {
        let mut state = self.0.state.lock().unwrap();
        let denied = Entry::Denied { key: key.to_owned() };
        let known = state.known.get(key).filter(|(_, at)| match honours {
            Honours::ForSixtySeconds => at.elapsed() < WINDOW,
            Honours::ForEver => true,
            Honours::Never => false,
        });
        let known = known.map(|(id, _)| id.clone());
        match end {
            End::Lost => return None,
            // What it has done, it does not take back.
            End::Refused if known.is_none() => {
                state.ledger.push(denied);
                return Some(Answer::Refused);
            }
            End::Declined if known.is_none() => {
                state.ledger.push(denied);
                return Some(Answer::Declined);
            }
            _ => {}
        }
        let id = known.unwrap_or_else(|| {
            let id = format!("effect-{}", state.effects);
            state.effects += 1;
            state.known.insert(key.to_owned(), (id.clone(), Instant::now()));
            let (key, life) = (key.to_owned(), life.to_owned());
            self.0.trace.note(|| format!("provider: effect {id} for {life}"));
            state.ledger.push(Entry::Effect { key, life });
            id
        });
        match end {
            End::Reset => Some(Answer::Reset),
            End::Hangs => None,
            _ => Some(Answer::Done(id)),
        }
    }

    /// What became of the call with this key: `None` where the provider does not tell.
    pub fn search(&self, key: &str) -> Option<Option<String>> {
        let mut state = self.0.state.lock().unwrap();
        if !self.0.plan.searchable {
            return None;
        }
        let found = state.known.get(key).map(|(id, _)| id.clone());
        if found.is_none() {
            state.ledger.push(Entry::Denied { key: key.to_owned() });
        }
        self.0.trace.note(|| format!("provider: asked about a call, found {found:?}"));
        Some(found)
    }
}
