//! [`Slots`]: what a worker has under way, and how much of it may belong to one scope.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::key::Scope;

/// What takes longer than this most likely waits for a foreign system, and so holds no connection
/// (G20). It no longer occupies one of the slots that `concurrency` counts.
pub(super) const LONG: Duration = Duration::from_secs(1);

/// How many times `concurrency` may be under way at most, those that take long included.
const STRETCH: usize = 4;

/// The work of one worker that is under way, refilled as each piece of it ends.
///
/// `concurrency` slots are for work that has just begun; work that takes [`LONG`] makes room for
/// other work, up to [`STRETCH`] times `concurrency` in all. One scope holds at most half of
/// `concurrency` (rounded up), however long its work takes. So a scope whose work hangs leaves the
/// other half free, and it takes `STRETCH * 2` such scopes at once before another scope has to wait.
pub(super) struct Slots<Id, T> {
    concurrency: usize,
    under_way: FuturesUnordered<UnderWay<Id, T>>,
    held: HashMap<Id, Held>,
    of_scope: HashMap<Scope, usize>,
}

type UnderWay<Id, T> = Pin<Box<dyn Future<Output = (Id, T)> + Send>>;

struct Held {
    scope: Scope,
    since: Instant,
}

impl<Id, T> Slots<Id, T>
where
    Id: Clone + Eq + Hash + Send + 'static,
    T: 'static,
{
    pub(super) fn new(concurrency: usize) -> Self {
        Self {
            concurrency,
            under_way: FuturesUnordered::new(),
            held: HashMap::new(),
            of_scope: HashMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether this very piece of work is under way.
    pub(super) fn holds(&self, id: &Id) -> bool {
        self.held.contains_key(id)
    }

    pub(super) fn held_by(&self, scope: &Scope) -> usize {
        self.of_scope.get(scope).copied().unwrap_or(0)
    }

    /// Whether the scope may begin another, as far as its share goes.
    pub(super) fn has_share_left(&self, scope: &Scope) -> bool {
        #[cfg(feature = "fault-injection")]
        if mutated!(NoShare) {
            return true;
        }
        self.held_by(scope) < self.concurrency.div_ceil(2)
    }

    /// Whether another piece of work may begin, as far as the number of slots goes.
    pub(super) fn is_free(&self) -> bool {
        #[cfg(feature = "fault-injection")]
        if mutated!(RefillWhenEmpty)
            && self.held.values().any(|held| !held.since.elapsed().is_zero())
        {
            return false;
        }
        self.held.len() < self.concurrency.saturating_mul(STRETCH)
            && self.recent().count() < self.concurrency
    }

    /// When a slot becomes free by the passage of time.
    pub(super) fn free_at(&self) -> Option<Instant> {
        match self.held.len() < self.concurrency.saturating_mul(STRETCH) {
            true => self.recent().min().map(|since| since + LONG),
            false => None,
        }
    }

    fn recent(&self) -> impl Iterator<Item = Instant> + '_ {
        self.held.values().map(|held| held.since).filter(|since| since.elapsed() < LONG)
    }

    pub(super) fn begin(
        &mut self,
        id: Id,
        scope: Scope,
        work: impl Future<Output = T> + Send + 'static,
    ) {
        *self.of_scope.entry(scope.clone()).or_default() += 1;
        self.held.insert(id.clone(), Held { scope, since: Instant::now() });
        self.under_way.push(Box::pin(async move { (id, work.await) }));
    }

    /// The next piece of work that ends. Never, where none is under way.
    pub(super) async fn ended(&mut self) -> T {
        let Some((id, ended)) = self.under_way.next().await else {
            return std::future::pending().await;
        };
        if let Some(Held { scope, .. }) = self.held.remove(&id) {
            let left = self.held_by(&scope).saturating_sub(1);
            match left {
                0 => self.of_scope.remove(&scope),
                left => self.of_scope.insert(scope, left),
            };
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    fn scope(name: &str) -> Scope {
        Scope::new(name).unwrap()
    }

    fn hang(slots: &mut Slots<u32, ()>, id: u32, of: &str) -> bool {
        let may = slots.is_free() && slots.has_share_left(&scope(of));
        if may {
            slots.begin(id, scope(of), pending());
        }
        may
    }

    #[tokio::test(start_paused = true)]
    async fn g16_a_scope_that_hangs_never_holds_more_than_half() {
        let mut slots = Slots::new(8);
        let begun = (0..20).filter(|id| hang(&mut slots, *id, "hung")).count();
        assert_eq!(begun, 4);
        assert!(hang(&mut slots, 20, "other"));
        tokio::time::advance(LONG * 2).await;
        assert!(!hang(&mut slots, 21, "hung"), "not with time either");
    }

    #[tokio::test(start_paused = true)]
    async fn g16_work_that_takes_long_makes_room_within_a_bound() {
        let mut slots = Slots::new(8);
        let mut begun = 0;
        for id in 0..100 {
            let of = format!("hung-{}", id / 4);
            if !hang(&mut slots, id, &of) {
                let Some(at) = slots.free_at() else { break };
                assert!(at <= Instant::now() + LONG);
                tokio::time::sleep_until(at).await;
                assert!(hang(&mut slots, id, &of));
            }
            begun += 1;
        }
        assert_eq!(begun, 32);
        assert_eq!(slots.free_at(), None, "from here on only what ends makes room");
    }

    #[tokio::test]
    async fn what_ends_gives_its_slot_and_its_share_back() {
        let mut slots = Slots::new(1);
        slots.begin(1, scope("one"), std::future::ready("done"));
        assert!(slots.holds(&1) && !slots.is_free() && !slots.has_share_left(&scope("one")));
        assert_eq!(slots.ended().await, "done");
        assert!(slots.is_empty() && slots.is_free() && slots.has_share_left(&scope("one")));
    }
}
