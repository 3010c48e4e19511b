//! A provider in this process, with a ledger that the engine cannot touch: the judge of effects.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::gate::{Calls, Gate, gate};

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
    gate: Option<Gate>,
    gate_before: Option<Gate>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    pub key: String,
    pub what: String,
}

impl Provider {
    pub fn that_ignores_keys() -> Self {
        let provider = Self::default();
        provider.0.lock().unwrap().ignores_keys = true;
        provider
    }

    /// From now on each call stops after its effect and hands out the means to let it answer.
    pub fn stop_after_the_effect(&self) -> Calls {
        let (gate, calls) = gate();
        self.0.lock().unwrap().gate = Some(gate);
        calls
    }

    /// From now on each call stops before its effect.
    pub fn stop_before_the_effect(&self) -> Calls {
        let (gate, calls) = gate();
        self.0.lock().unwrap().gate_before = Some(gate);
        calls
    }

    pub fn stop_no_more(&self) {
        let mut state = self.0.lock().unwrap();
        state.gate = None;
        state.gate_before = None;
    }

    /// One call: the effect if the key is new, and its id.
    pub async fn call(&self, key: &str, what: &str) -> String {
        let before = self.0.lock().unwrap().gate_before.clone();
        if let Some(gate) = before {
            gate.pass().await;
        }
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
        if let Some(gate) = gate {
            gate.pass().await;
        }
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
