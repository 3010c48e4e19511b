//! A provider in this process, with a ledger that the engine cannot touch: the judge of effects.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

/// Charges cards. Each effect is in its ledger, with its key.
#[derive(Clone, Default)]
pub struct Provider(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    ledger: Vec<Effect>,
    calls: Vec<String>,
    known: HashMap<String, String>,
    ignores_keys: bool,
    searchable: bool,
    gate: Option<mpsc::UnboundedSender<Waiting>>,
    gate_before: Option<mpsc::UnboundedSender<Waiting>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    pub key: String,
    pub what: String,
}

/// A call that waits inside the provider until the test releases it (or drops this, which releases it, too).
pub type Waiting = oneshot::Sender<()>;

/// The calls that wait, one after the other.
pub struct Calls(mpsc::UnboundedReceiver<Waiting>);

impl Calls {
    /// The next call. If none comes, the test fails and says where it waited.
    #[track_caller]
    pub fn recv(&mut self) -> impl Future<Output = Option<Waiting>> {
        let place = std::panic::Location::caller();
        async move {
            let next = tokio::time::timeout(Duration::from_secs(120), self.0.recv()).await;
            next.unwrap_or_else(|_| panic!("no call comes: {place}"))
        }
    }

    pub fn try_recv(&mut self) -> Result<Waiting, mpsc::error::TryRecvError> {
        self.0.try_recv()
    }
}

impl Provider {
    pub fn that_ignores_keys() -> Self {
        let provider = Self::default();
        provider.0.lock().unwrap().ignores_keys = true;
        provider
    }

    /// From now on each call stops after its effect and hands out the means to let it answer.
    pub fn stop_after_the_effect(&self) -> Calls {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.lock().unwrap().gate = Some(sender);
        Calls(receiver)
    }

    /// From now on each call stops before its effect.
    pub fn stop_before_the_effect(&self) -> Calls {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.0.lock().unwrap().gate_before = Some(sender);
        Calls(receiver)
    }

    pub fn stop_no_more(&self) {
        let mut state = self.0.lock().unwrap();
        state.gate = None;
        state.gate_before = None;
    }

    /// One call: the effect if the key is new, and its id.
    pub async fn call(&self, key: &str, what: &str) -> String {
        let before = self.0.lock().unwrap().gate_before.clone();
        wait_at(before).await;
        let (id, gate) = {
            let mut state = self.0.lock().unwrap();
            state.calls.push(key.to_owned());
            let known = state.known.get(key).filter(|_| !state.ignores_keys).cloned();
            let id = known.unwrap_or_else(|| {
                let id = format!("effect-{}", state.ledger.len() + 1);
                state.ledger.push(Effect { key: key.to_owned(), what: what.to_owned() });
                state.known.insert(key.to_owned(), id.clone());
                id
            });
            (id, state.gate.clone())
        };
        wait_at(gate).await;
        id
    }

    /// From now on the provider can be queried about a call.
    pub fn answer_searches(&self) {
        self.0.lock().unwrap().searchable = true;
    }

    /// The outcome of the call with this key: `None` if the provider cannot be queried.
    pub fn search(&self, key: &str) -> Option<Option<String>> {
        let state = self.0.lock().unwrap();
        state.searchable.then(|| state.known.get(key).cloned())
    }

    pub fn ledger(&self) -> Vec<Effect> {
        self.0.lock().unwrap().ledger.clone()
    }

    pub fn effects(&self) -> usize {
        self.ledger().len()
    }

    pub fn calls(&self) -> Vec<String> {
        self.0.lock().unwrap().calls.clone()
    }
}

async fn wait_at(gate: Option<mpsc::UnboundedSender<Waiting>>) {
    let Some(gate) = gate else { return };
    let (go, gone) = oneshot::channel();
    if gate.send(go).is_ok() {
        let _ = gone.await;
    }
}
