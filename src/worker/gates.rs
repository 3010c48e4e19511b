//! [`Gates`]: how much is done at the same time, of each scope and of each name.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::slots::{LONG, STRETCH, share};
use crate::key::Scope;
use crate::moment::Moment;

/// A name of jobs that has a bound is not begun beyond it, and one scope has half of it (rounded up). The jobs of all
/// other names, and requests, pass the gate of their scope: as many at a time as the scope's share of the worker's slots.
/// What was claimed ahead of its turn waits there, behind no other scope's (G16).
pub(super) struct Gates {
    share: usize,
    scopes: HashMap<Scope, Gate>,
    names: HashMap<String, HashMap<Scope, usize>>,
}

struct Gate {
    semaphore: Arc<Semaphore>,
    /// Before it or behind it.
    inside: usize,
}

/// How a job came in, and leaves.
#[derive(Clone)]
pub(super) enum Way {
    Bounded,
    /// Handled while it has a permit of this one.
    Gate(Arc<Semaphore>),
}

impl Gates {
    pub(super) fn new(concurrency: usize) -> Self {
        let share = share(concurrency).min(Semaphore::MAX_PERMITS);
        Self { share, scopes: HashMap::new(), names: HashMap::new() }
    }

    /// Whether another job of the scope that has this name may begin, where the name has a bound.
    pub(super) fn has_room(&self, scope: &Scope, name: &str, most: Option<usize>) -> bool {
        let Some(most) = most else { return true };
        let scopes = self.names.get(name);
        let held = scopes.and_then(|scopes| scopes.get(scope)).copied().unwrap_or(0);
        held < share(most) && self.room_of(name, most) > 0
    }

    /// How many jobs of this name have room, of all scopes.
    pub(super) fn room_of(&self, name: &str, most: usize) -> usize {
        let held = self.names.get(name).map_or(0, |scopes| scopes.values().sum());
        most.saturating_sub(held)
    }

    pub(super) fn enter(&mut self, scope: &Scope, name: &str, most: Option<usize>) -> Way {
        if most.is_some() {
            let scopes = self.names.entry(name.to_owned()).or_default();
            *scopes.entry(scope.clone()).or_default() += 1;
            return Way::Bounded;
        }
        Way::Gate(self.enter_scope(scope))
    }

    /// The gate of the scope, for another piece of work.
    pub(super) fn enter_scope(&mut self, scope: &Scope) -> Arc<Semaphore> {
        let gate = self
            .scopes
            .entry(scope.clone())
            .or_insert_with(|| Gate { semaphore: Arc::new(Semaphore::new(self.share)), inside: 0 });
        gate.inside += 1;
        gate.semaphore.clone()
    }

    /// What has entered leaves, by its way in.
    pub(super) fn leave(&mut self, scope: &Scope, name: &str, way: &Way) {
        if matches!(way, Way::Gate(_)) {
            return self.leave_scope(scope);
        }
        let Some(scopes) = self.names.get_mut(name) else { return };
        match scopes.get_mut(scope) {
            Some(more @ 2..) => *more -= 1,
            _ => drop(scopes.remove(scope)),
        }
        if scopes.is_empty() {
            self.names.remove(name);
        }
    }

    /// What entered by the gate of its scope leaves.
    pub(super) fn leave_scope(&mut self, scope: &Scope) {
        let Some(gate) = self.scopes.get_mut(scope) else { return };
        gate.inside -= 1;
        if gate.inside == 0 {
            self.scopes.remove(scope);
        }
    }

    /// Nothing passes a gate from now on.
    pub(super) fn close(&self) {
        for gate in self.scopes.values() {
            gate.semaphore.close();
        }
    }
}

/// What all scopes share behind their gates: as many pieces of work begin in a second as the worker has slots, and
/// [`STRETCH`] times as many are done at the same time, those that take long included. A scope that hangs has
/// no more before them than its gate lets through.
pub(super) struct WorkLimits {
    recent: Semaphore,
    all: Semaphore,
}

/// Held while a piece of work is done.
pub(super) struct WorkPermit<'t> {
    /// Given back when it has taken long.
    recent: Option<SemaphorePermit<'t>>,
    _rest: [SemaphorePermit<'t>; 2],
}

impl WorkLimits {
    pub(super) fn new(concurrency: usize) -> Self {
        // A semaphore panics above its maximum; `WorkerConfig::check` refuses such a number when the worker runs.
        let semaphore = |permits: usize| Semaphore::new(permits.min(Semaphore::MAX_PERMITS));
        Self { recent: semaphore(concurrency), all: semaphore(concurrency.saturating_mul(STRETCH)) }
    }

    /// `None`: it will not come.
    pub(super) async fn next<'t>(&'t self, gate: &'t Semaphore) -> Option<WorkPermit<'t>> {
        let of_scope = gate.acquire().await.ok()?;
        let of_all = self.all.acquire().await.ok()?;
        let recent = Some(self.recent.acquire().await.ok()?);
        Some(WorkPermit { recent, _rest: [of_scope, of_all] })
    }

    /// `None`: it does not come until then.
    pub(super) async fn by<'t>(
        &'t self,
        gate: &'t Semaphore,
        until: Moment,
    ) -> Option<WorkPermit<'t>> {
        let left = until.since(Moment::now());
        timeout(left, self.next(gate)).await.ok().flatten()
    }

    /// From now on nothing waits.
    pub(super) fn close(&self) {
        self.recent.close();
        self.all.close();
    }
}

impl WorkPermit<'_> {
    /// What takes long most likely waits for a foreign system, and lets another begin.
    pub(super) async fn for_work<T>(mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        match timeout(LONG, &mut work).await {
            Ok(done) => done,
            Err(_) => {
                self.recent = None;
                work.await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g16_a_scope_has_half_of_a_names_bound_and_its_own_gate() {
        let [one, other] = ["one", "other"].map(|name| Scope::new(name).unwrap());
        let mut gates = Gates::new(8);
        let most = Some(3);
        for scope in [&one, &one, &other] {
            assert!(gates.has_room(scope, "mail", most));
            assert!(matches!(gates.enter(scope, "mail", most), Way::Bounded));
        }
        assert!(!gates.has_room(&one, "mail", most) && !gates.has_room(&other, "mail", most));
        assert!(gates.has_room(&one, "print", most));
        gates.leave(&one, "mail", &Way::Bounded);
        assert!(gates.has_room(&one, "mail", most));

        let permits = |way| match way {
            Way::Gate(gate) => gate,
            Way::Bounded => unreachable!("it has no bound"),
        };
        let ones = permits(gates.enter(&one, "any", None));
        assert_eq!(ones.available_permits(), 4);
        let taken = ones.try_acquire_many(4).unwrap();
        assert!(permits(gates.enter(&one, "any", None)).try_acquire().is_err());
        assert!(permits(gates.enter(&other, "any", None)).try_acquire().is_ok());
        gates.close();
        drop(taken);
        assert!(ones.try_acquire().is_err(), "closed");
        for scope in [&one, &one, &other] {
            gates.leave(scope, "any", &Way::Gate(ones.clone()));
        }
        assert!(gates.scopes.is_empty());
    }
}
