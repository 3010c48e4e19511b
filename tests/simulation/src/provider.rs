//! The providers, outside of every node: they complete a call even if its caller is gone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atomic_phases::simulation::{Chance, Database, Memory, Node};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use uuid::Uuid;

use super::judge::Watched;
use super::plan::{End, HEALED, Plan, Stop, Trouble};
use super::trace::Trace;

/// How long the provider of rides remembers a key.
pub const WINDOW: Duration = Duration::from_secs(60);

/// The same for the provider of fares: exactly as long as it promises.
pub const SHORT_WINDOW: Duration = Duration::from_secs(10);

/// When that provider wants to be called again that has refused a call: once it would have forgotten it.
pub const REFUSED_FOR: Duration = Duration::from_secs(25);

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
    Effect { key: String, life: String, at: Duration, honours: Honours },
    /// A call that the engine promises not to make.
    Wrong(String),
    /// The provider reported that it did nothing.
    Denied { key: String },
}

/// Whether the provider honors keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Honours {
    For(Duration),
    ForEver,
    Never,
}

/// The caller.
pub struct Caller {
    pub scope: String,
    pub key: String,
    /// The phase that calls.
    pub phase: &'static str,
    /// The life of the key: by the request's own name for itself, and by its id.
    pub life: String,
    pub request: Uuid,
    pub created_at: String,
    pub store: Memory,
    /// By what factor it waits longer for an answer than others.
    pub patience: u32,
    /// Which attempt of the request it is.
    pub attempt: u32,
}

/// A node that must freeze or die.
pub type Stops = mpsc::UnboundedSender<(String, Stop)>;

/// What the provider reports by a webhook about a call of this phase. It is true.
#[derive(Clone, Debug)]
pub struct Hook {
    /// The number of the call.
    pub call: u64,
    pub scope: String,
    pub key: String,
    pub life: String,
    pub request: Uuid,
    pub phase: &'static str,
    pub word: Word,
}

#[derive(Clone, Debug)]
pub enum Word {
    /// It had this effect.
    Executed(String),
    /// The call of this attempt had no effect, and will have none.
    NotExecuted(u32),
}

/// Where webhooks go.
pub type Hooks = mpsc::UnboundedSender<Hook>;

/// Enough of an id to distinguish it.
fn short(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}

#[derive(Clone)]
pub struct Provider(Arc<Inner>);

struct Inner {
    plan: Arc<Plan>,
    stops: Stops,
    hooks: Hooks,
    database: Database,
    trace: Trace,
    watched: Arc<Mutex<Watched>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    calls: u64,
    effects: u64,
    known: BTreeMap<String, (String, Instant)>,
    ledger: Vec<Entry>,
    created_at: BTreeMap<String, String>,
    /// The last call with each key.
    last: BTreeMap<String, u64>,
}

impl Provider {
    pub fn new(
        plan: &Arc<Plan>,
        database: &Database,
        trace: &Trace,
        watched: &Arc<Mutex<Watched>>,
        stops: Stops,
        hooks: Hooks,
    ) -> Self {
        Self(Arc::new(Inner {
            plan: plan.clone(),
            stops,
            hooks,
            database: database.clone(),
            trace: trace.clone(),
            watched: watched.clone(),
            state: Mutex::default(),
        }))
    }

    pub fn ledger(&self) -> Vec<Entry> {
        self.0.state.lock().unwrap().ledger.clone()
    }

    fn covers(&self, what: String) {
        self.0.watched.lock().unwrap().covers(format!("provider: {what}"));
    }

    pub fn is_slow_for_floods(&self) -> bool {
        self.0.trace.elapsed() < HEALED
    }

    pub async fn call(&self, key: &str, honours: Honours, caller: Caller) -> Answer {
        let wrong = self.wrong_with(&caller, honours);
        let Caller { life, request, store, scope, key: of, phase, patience, attempt, .. } = caller;
        drop(store);
        let number = {
            let mut state = self.0.state.lock().unwrap();
            for what in wrong {
                self.0.trace.note(|| format!("VIOLATION {what}"));
                state.ledger.push(Entry::Wrong(format!("{what}: {life}")));
            }
            let (key, life, key_of_call) = (key.to_owned(), life.clone(), key.to_owned());
            state.ledger.push(Entry::Called { key, life, honours });
            state.calls += 1;
            let number = state.calls - 1;
            state.last.insert(key_of_call, number);
            number
        };
        let row = (scope.clone(), of.clone());
        if matches!(honours, Honours::For(_)) {
            self.0.watched.lock().unwrap().called(&row, number);
        }
        let healed = self.0.trace.elapsed() >= HEALED;
        let trouble = self.0.plan.provider.get(&number).filter(|_| !healed).copied();
        let trouble = trouble.unwrap_or_else(|| {
            // As fast as providers are.
            let mut chance = Chance::from_seed(self.0.plan.seed ^ (number << 32));
            let before = match self.0.plan.slow_provider {
                true => 500 + chance.below(4_000),
                false => 20 + chance.below(200),
            };
            Trouble { before, after: 10, end: End::Answered, stop: None }
        });
        // The margin of a window covers the way to the provider.
        let margin = match honours {
            Honours::For(window) => window.as_millis() as u64 / 10,
            Honours::ForEver | Honours::Never => u64::MAX,
        };
        let trouble = Trouble { before: trouble.before.min(margin - 100), ..trouble };
        self.0.trace.note(|| format!("provider: call {number} for {}: {trouble}", short(&life)));
        self.covers(format!("{:?}", trouble.end));
        if let (Some(stop), Some(node)) = (trouble.stop, Node::current()) {
            let _ = self.0.stops.send((node.name().to_owned(), stop));
        }
        let (answer, answered) = oneshot::channel();
        let (provider, key) = (self.clone(), key.to_owned());
        // On no node.
        tokio::spawn(async move {
            // A caller that waits longer may get its answer later.
            tokio::time::sleep(Duration::from_millis(trouble.before) * patience).await;
            let told = provider.act(&key, &life, honours, trouble.end);
            if told == Some(Answer::Refused) {
                provider.0.watched.lock().unwrap().refused(&row, number);
            }
            let known = provider.0.state.lock().unwrap().known.get(&key).map(|(id, _)| id.clone());
            let came_to_nothing = matches!(trouble.end, End::Lost | End::Refused);
            let word = match known {
                Some(id) => Some(Word::Executed(id)),
                // At a provider that honors keys, the same call is made again in any case.
                None => (honours == Honours::Never && came_to_nothing)
                    .then_some(Word::NotExecuted(attempt)),
            };
            if let (Some(after), Some(word)) = (provider.0.plan.webhooks.get(&number), word) {
                let is_early = told.is_none() || *after < trouble.after;
                provider.covers(format!("a webhook {}", if is_early { "first" } else { "later" }));
                let hook = Hook { call: number, scope, key: of, life, request, phase, word };
                let (provider, key, after) = (provider.clone(), key.clone(), *after);
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(after)).await;
                    provider.tell(&key, hook);
                });
            }
            tokio::time::sleep(Duration::from_millis(trouble.after)).await;
            match told {
                Some(told) => {
                    if answer.send(told).is_err() {
                        provider.covers("its caller has gone".to_owned());
                    }
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

    /// From now on the provider may report that the call did nothing.
    fn tell(&self, key: &str, hook: Hook) {
        let mut state = self.0.state.lock().unwrap();
        let is_last = state.last.get(key) == Some(&hook.call);
        if matches!(hook.word, Word::NotExecuted(_)) && is_last {
            state.ledger.push(Entry::Denied { key: key.to_owned() });
        }
        let _ = self.0.hooks.send(hook);
    }

    /// Checks the engine's promises about a call at the moment when it makes it.
    fn wrong_with(&self, caller: &Caller, honours: Honours) -> Vec<&'static str> {
        let mut wrong = Vec::new();
        let mut state = self.0.state.lock().unwrap();
        let first =
            state.created_at.entry(caller.life.clone()).or_insert(caller.created_at.clone());
        if *first != caller.created_at {
            wrong.push("G5: another creation time than at the first call");
        }
        if caller.store.connections_of_this_task() > 0 {
            wrong.push("G20: a connection is held over a call");
        }
        // After lost commits or a changed clock of the database, leases are not checked.
        if self.0.plan.is_beyond_promises() {
            return wrong;
        }
        let (mut is_leased, mut is_intended) = (false, false);
        let now = self.0.database.now();
        self.0.database.each_key(|key| {
            if (key.scope(), key.key()) == (caller.scope.as_str(), caller.key.as_str()) {
                is_leased = key.locked_until().is_some_and(|until| until > now);
                is_intended = key.open_intent().is_some();
            }
        });
        // The lease as the engine measures it must end before the lease in the database.
        if !is_leased {
            wrong.push("G2/G10: a call under a lease that has ended");
        }
        if honours == Honours::Never && !is_intended {
            wrong.push("G2: a call without its intent");
        }
        wrong
    }

    fn act(&self, key: &str, life: &str, honours: Honours, end: End) -> Option<Answer> {
        let mut state = self.0.state.lock().unwrap();
        let denied = Entry::Denied { key: key.to_owned() };
        let known = state.known.get(key).filter(|(_, at)| match honours {
            Honours::For(window) => at.elapsed() < window,
            Honours::ForEver => true,
            Honours::Never => false,
        });
        let known = known.map(|(id, _)| id.clone());
        match end {
            End::Lost => return None,
            // The provider does not undo its effect.
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
            self.0.trace.note(|| format!("provider: {id} for {}", short(&life)));
            let at = self.0.trace.elapsed();
            state.ledger.push(Entry::Effect { key, life, at, honours });
            id
        });
        match end {
            End::Reset => Some(Answer::Reset),
            End::Hangs => None,
            _ => Some(Answer::Done(id)),
        }
    }

    /// The outcome of the call with this key: `None` if the provider cannot be queried.
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
