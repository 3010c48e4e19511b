//! A cache in front of replays that behaves as a test says, and counts its calls.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use atomic_phases::replay_cache::{Answering, CacheError, CachedReplays, ReplayCache};
use tokio::sync::{mpsc, oneshot};

pub const SECRET: &[u8] = b"32 bytes from your secret store.";

/// How it answers a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Manner {
    #[default]
    Honest,
    /// Forgets everything, tombstones too.
    Forgetful,
    /// Keeps every value for ever, and hears of no tombstone.
    Stale,
    /// Answers with another name's value, where it has one.
    Swapped,
    /// Answers with the value, altered at one place.
    Altered,
    /// Answers with bytes of its own, whether it has a value or not.
    Garbage,
    /// The same, and far too many of them.
    Huge,
    Refusing,
    Unavailable,
    Hanging,
    Panicking,
}

impl Manner {
    pub const ALL: [Self; 11] = [
        Self::Honest,
        Self::Forgetful,
        Self::Stale,
        Self::Swapped,
        Self::Altered,
        Self::Garbage,
        Self::Huge,
        Self::Refusing,
        Self::Unavailable,
        Self::Hanging,
        Self::Panicking,
    ];
}

#[derive(Clone, Default)]
pub struct FakeCache(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    manner: Manner,
    values: BTreeMap<String, Vec<u8>>,
    tombstones: BTreeMap<String, Duration>,
    asked: Asked,
    gate: Option<mpsc::UnboundedSender<oneshot::Sender<()>>>,
}

/// The number of calls of each kind, and of answers with a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    pub gets: u32,
    /// Of these, those that were answered with a value.
    pub found: u32,
    pub puts: u32,
    pub burials: u32,
}

impl FakeCache {
    pub fn new(manner: Manner) -> Self {
        let cache = Self::default();
        cache.becomes(manner);
        cache
    }

    pub fn becomes(&self, manner: Manner) {
        self.state().manner = manner;
    }

    /// With the longest time limit: on a busy machine the default one passes while the database is asked for its time.
    pub fn cached(&self) -> CachedReplays {
        CachedReplays::new(self.clone(), SECRET).time_limit(Duration::from_secs(1))
    }

    pub fn asked(&self) -> Asked {
        self.state().asked
    }

    pub fn values(&self) -> BTreeMap<String, Vec<u8>> {
        self.state().values.clone()
    }

    pub fn tombstones(&self) -> BTreeMap<String, Duration> {
        self.state().tombstones.clone()
    }

    pub fn forget(&self) {
        self.state().values.clear();
    }

    pub fn lose_tombstones(&self) {
        self.state().tombstones.clear();
    }

    /// From now on each value waits on its way into the cache until the test releases it.
    pub fn hold_values_back(&self) -> mpsc::UnboundedReceiver<oneshot::Sender<()>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.state().gate = Some(sender);
        receiver
    }

    /// From now on values do not wait; those that do go on waiting.
    pub fn hold_no_more_back(&self) {
        self.state().gate = None;
    }

    /// Waits until so many values were written.
    pub async fn has_written(&self, puts: u32) {
        super::until(async || self.asked().puts >= puts).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    async fn behaves(&self) -> Result<Manner, CacheError> {
        let manner = self.state().manner;
        match manner {
            Manner::Refusing => Err(CacheError::Refused),
            Manner::Unavailable => Err(CacheError::Unavailable),
            Manner::Hanging => std::future::pending().await,
            Manner::Panicking => panic!("as asked for"),
            manner => Ok(manner),
        }
    }
}

impl State {
    fn found(&self, manner: Manner, name: &str, tombstones: [&str; 2]) -> Option<Vec<u8>> {
        let value = self.values.get(name).cloned();
        let is_buried = tombstones.iter().any(|tombstone| self.tombstones.contains_key(*tombstone));
        match manner {
            Manner::Forgetful => None,
            Manner::Stale => value,
            Manner::Swapped => {
                let other = self.values.iter().find(|(other, _)| *other != name);
                other.map(|(_, value)| value.clone()).or(value)
            }
            Manner::Altered => value.map(|mut value| {
                let middle = value.len() / 2;
                value[middle] ^= 1;
                value
            }),
            Manner::Garbage => Some(b"{\"status\":200}".to_vec()),
            Manner::Huge => Some(vec![1; 4 << 20]),
            _ => value.filter(|_| !is_buried),
        }
    }
}

impl ReplayCache for FakeCache {
    fn get<'a>(
        &'a self,
        name: &'a str,
        tombstones: [&'a str; 2],
        _: usize,
    ) -> Answering<'a, Option<Vec<u8>>> {
        Box::pin(async move {
            self.state().asked.gets += 1;
            let manner = self.behaves().await?;
            let mut state = self.state();
            let found = state.found(manner, name, tombstones);
            state.asked.found += u32::from(found.is_some());
            Ok(found)
        })
    }

    fn put<'a>(&'a self, name: &'a str, value: Vec<u8>, _: Duration) -> Answering<'a, ()> {
        Box::pin(async move {
            let gate = self.state().gate.clone();
            if let Some(gate) = gate {
                let (go, gone) = oneshot::channel();
                gate.send(go).unwrap();
                let _ = gone.await;
            }
            let written = self.behaves().await;
            let mut state = self.state();
            state.asked.puts += 1;
            match written? {
                Manner::Forgetful => {}
                Manner::Stale if state.values.contains_key(name) => {}
                _ if value.is_empty() => drop(state.values.remove(name)),
                _ => drop(state.values.insert(name.to_owned(), value)),
            }
            Ok(())
        })
    }

    fn bury<'a>(
        &'a self,
        tombstone: &'a str,
        name: Option<&'a str>,
        keep_for: Duration,
    ) -> Answering<'a, ()> {
        Box::pin(async move {
            self.state().asked.burials += 1;
            let manner = self.behaves().await?;
            if manner != Manner::Stale {
                let mut state = self.state();
                state.tombstones.insert(tombstone.to_owned(), keep_for);
                name.map(|name| state.values.remove(name));
            }
            Ok(())
        })
    }
}
