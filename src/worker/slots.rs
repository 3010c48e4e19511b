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
pub(super) const STRETCH: usize = 4;

/// How much of so much may belong to one scope.
pub(super) fn share(of: usize) -> usize {
    of.div_ceil(2)
}

/// The work of one worker that is under way, refilled as each piece of it ends.
///
/// `concurrency` slots are for work that has just begun; work that takes [`LONG`] makes room for
/// other work, up to [`STRETCH`] times `concurrency` in all. One scope holds at most half of
/// `concurrency` (rounded up), however long its work takes. So a scope whose work hangs leaves the
/// other half free, and it takes `STRETCH * 2` such scopes concurrently before another scope has to wait.
///
/// Work that waits for its turn by itself may begin ahead of it: as much as ended quickly of late, and of a scope
/// beyond its share as much as of its own did. It occupies no slot, so that no other scope has to wait where all
/// of it comes to hang.
pub(super) struct Slots<Id, T> {
    concurrency: usize,
    /// What ended quickly of late, where that gives leave to begin more.
    ahead: Ahead,
    under_way: FuturesUnordered<UnderWay<Id, T>>,
    held: HashMap<Id, Held>,
    of_scope: HashMap<Scope, OfScope>,
    /// What did not begin ahead of its turn.
    occupied: usize,
}

type UnderWay<Id, T> = Pin<Box<dyn Future<Output = (Id, T)> + Send>>;

/// What one scope has under way: in slots, and ahead of its turn.
#[derive(Clone, Copy, Default)]
struct OfScope {
    occupied: usize,
    ahead: usize,
}

impl OfScope {
    fn all(self) -> usize {
        self.occupied + self.ahead
    }
}

struct Held {
    scope: Scope,
    since: Instant,
    is_ahead: bool,
    /// Whether its kind may begin ahead of its turn.
    may_go_ahead: bool,
}

impl<Id, T> Slots<Id, T>
where
    Id: Clone + Eq + Hash + Send + 'static,
    T: 'static,
{
    /// `ahead`: how much may be under way beyond that, of scopes whose work ends quickly.
    pub(super) fn new(concurrency: usize, ahead: usize) -> Self {
        Self {
            concurrency,
            ahead: Ahead::new(ahead),
            under_way: FuturesUnordered::new(),
            held: HashMap::new(),
            of_scope: HashMap::new(),
            occupied: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether this very piece of work is under way.
    pub(super) fn holds(&self, id: &Id) -> bool {
        self.held.contains_key(id)
    }

    fn under_way_of(&self, scope: &Scope) -> OfScope {
        self.of_scope.get(scope).copied().unwrap_or_default()
    }

    /// How much of one scope may be in slots.
    fn share(&self) -> usize {
        if mutated!(NoShare) {
            return usize::MAX;
        }
        share(self.concurrency)
    }

    /// What may begin at this moment.
    pub(super) fn room(&self) -> Room<'_, Id, T> {
        Room { slots: self, has_slot: self.has_slot(), has_room_ahead: self.has_room_ahead() }
    }

    /// Whether another piece of work of any scope may begin.
    pub(super) fn is_free(&self) -> bool {
        self.has_slot() || self.has_room_ahead()
    }

    fn has_slot(&self) -> bool {
        if mutated!(RefillWhenEmpty)
            && self.held.values().any(|held| !held.since.elapsed().is_zero())
        {
            return false;
        }
        self.occupied < self.most() && self.recent().count() < self.concurrency
    }

    /// Whether some of what is under way waits for its turn.
    pub(super) fn is_ahead(&self) -> bool {
        self.held.len() > self.occupied
    }

    /// Whether so much waits that there is time to gather what is to begin next.
    pub(super) fn is_well_ahead(&self) -> bool {
        (self.held.len() - self.occupied) * 4 > self.ahead.of_all()
    }

    /// Where one scope has as much ahead as it may, there is as much for the others.
    fn has_room_ahead(&self) -> bool {
        self.held.len() - self.occupied < self.ahead.of_all()
    }

    fn most(&self) -> usize {
        self.concurrency.saturating_mul(STRETCH)
    }

    /// Where no slot is free: when one becomes free by the passage of time.
    pub(super) fn free_at(&self) -> Option<Instant> {
        match !self.has_slot() && self.occupied < self.most() {
            true => self.recent().min().map(|since| since + LONG),
            false => None,
        }
    }

    /// When what occupies a slot began, if that was a moment ago.
    fn recent(&self) -> impl Iterator<Item = Instant> + '_ {
        // The clock is read once, and not for each: this is asked several times for each piece of work.
        let now = Instant::now();
        let occupying = self.held.values().filter(|held| !held.is_ahead);
        occupying.map(|held| held.since).filter(move |since| now.duration_since(*since) < LONG)
    }

    pub(super) fn begin(
        &mut self,
        id: Id,
        scope: Scope,
        may_go_ahead: bool,
        work: impl Future<Output = T> + Send + 'static,
    ) {
        let is_ahead = !self.room().has_slot_for(&scope);
        self.occupied += usize::from(!is_ahead);
        let of_scope = self.of_scope.entry(scope.clone()).or_default();
        *(if is_ahead { &mut of_scope.ahead } else { &mut of_scope.occupied }) += 1;
        self.held.insert(id.clone(), Held { scope, since: Instant::now(), is_ahead, may_go_ahead });
        self.under_way.push(Box::pin(async move { (id, work.await) }));
    }

    /// The next piece of work that ends. Never, where none is under way.
    pub(super) async fn ended(&mut self) -> T {
        let Some((id, ended)) = self.under_way.next().await else {
            return std::future::pending().await;
        };
        if let Some(Held { scope, since, is_ahead, may_go_ahead }) = self.held.remove(&id) {
            // What may not go ahead makes no room for it: the worker would search for more than it may begin.
            if may_go_ahead && since.elapsed() < LONG {
                self.ahead.ended(&scope);
            }
            self.occupied -= usize::from(!is_ahead);
            let of_scope = self.of_scope.entry(scope.clone()).or_default();
            *(if is_ahead { &mut of_scope.ahead } else { &mut of_scope.occupied }) -= 1;
            if of_scope.all() == 0 {
                self.of_scope.remove(&scope);
            }
        }
        ended
    }
}

/// What may begin at one moment: worked out once, for however many scopes it is asked.
pub(super) struct Room<'s, Id, T> {
    slots: &'s Slots<Id, T>,
    has_slot: bool,
    /// Whether anything may begin ahead of its turn.
    has_room_ahead: bool,
}

impl<Id, T> Room<'_, Id, T>
where
    Id: Clone + Eq + Hash + Send + 'static,
    T: 'static,
{
    /// How much the scope has under way, if it may begin another.
    pub(super) fn held_by(&self, scope: &Scope) -> Option<usize> {
        let under_way = self.slots.under_way_of(scope);
        let may_begin = self.is_slot_for(under_way) || self.may_go_ahead(scope, under_way);
        may_begin.then(|| under_way.all())
    }

    /// Whether another of the scope would be in a slot, and not ahead of its turn.
    pub(super) fn has_slot_for(&self, scope: &Scope) -> bool {
        self.is_slot_for(self.slots.under_way_of(scope))
    }

    /// Whether the scope may begin another, as far as what it has under way goes.
    pub(super) fn has_share_left(&self, scope: &Scope) -> bool {
        let under_way = self.slots.under_way_of(scope);
        under_way.occupied < self.slots.share() || self.may_go_ahead(scope, under_way)
    }

    fn is_slot_for(&self, under_way: OfScope) -> bool {
        self.has_slot && under_way.occupied < self.slots.share()
    }

    fn may_go_ahead(&self, scope: &Scope, under_way: OfScope) -> bool {
        self.has_room_ahead
            && (under_way.all() < self.slots.share()
                || under_way.ahead < self.slots.ahead.of(scope))
    }
}

/// How many pieces of work ended within [`LONG`] of their beginning, by scope: in this second or the last. As
/// many more may begin, of a scope `most` at most, and of all twice that. A scope whose work does not end gets
/// no more than its share.
struct Ahead {
    most: usize,
    since: Instant,
    now: HashMap<Scope, usize>,
    before: HashMap<Scope, usize>,
    /// Of all scopes, now and before.
    in_all: [usize; 2],
}

impl Ahead {
    fn new(most: usize) -> Self {
        let (now, before) = (HashMap::new(), HashMap::new());
        Self { most, since: Instant::now(), now, before, in_all: [0; 2] }
    }

    fn ended(&mut self, scope: &Scope) {
        if self.most == 0 {
            return;
        }
        let age = self.since.elapsed();
        if age >= LONG {
            self.before = std::mem::take(&mut self.now);
            self.in_all = [0, self.in_all[0]];
            if age >= LONG * 2 {
                (self.before, self.in_all) = (HashMap::new(), [0; 2]);
            }
            self.since = Instant::now();
        }
        *self.now.entry(scope.clone()).or_default() += 1;
        self.in_all[0] += 1;
    }

    fn of_all(&self) -> usize {
        let [now, before] = self.in_all;
        match self.since.elapsed() >= LONG * 2 {
            true => 0,
            false => now.max(before).min(self.most.saturating_mul(2)),
        }
    }

    /// As far as it is not over, which [`of_all`](Self::of_all) says.
    fn of(&self, scope: &Scope) -> usize {
        let count = |ended: &HashMap<Scope, usize>| ended.get(scope).copied().unwrap_or(0);
        count(&self.now).max(count(&self.before)).min(self.most)
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
        let may = slots.room().held_by(&scope(of)).is_some();
        if may {
            slots.begin(id, scope(of), true, pending());
        }
        may
    }

    #[tokio::test(start_paused = true)]
    async fn g16_a_scope_that_hangs_never_holds_more_than_half() {
        let mut slots = Slots::new(8, 0);
        let begun = (0..20).filter(|id| hang(&mut slots, *id, "hung")).count();
        assert_eq!(begun, 4);
        assert!(hang(&mut slots, 20, "other"));
        tokio::time::advance(LONG * 2).await;
        assert!(!hang(&mut slots, 21, "hung"), "not with time either");
    }

    #[tokio::test(start_paused = true)]
    async fn g16_work_that_takes_long_makes_room_within_a_bound() {
        let mut slots = Slots::new(8, 0);
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
        let mut slots = Slots::new(1, 0);
        slots.begin(1, scope("one"), true, std::future::ready("done"));
        assert!(
            slots.holds(&1) && !slots.is_free() && slots.room().held_by(&scope("one")).is_none()
        );
        assert_eq!(slots.ended().await, "done");
        assert!(slots.is_empty() && slots.is_free() && slots.room().has_share_left(&scope("one")));
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_ends_quickly_makes_room_for_as_much_and_what_hangs_for_none() {
        let mut slots = Slots::new(8, 20);
        let mut ids = 0..;
        for most in [4, 8, 16, 24, 24] {
            let mut begun = 0;
            while slots.room().held_by(&scope("quick")).is_some() {
                slots.begin(ids.next().unwrap(), scope("quick"), true, std::future::ready(()));
                begun += 1;
            }
            assert_eq!(begun, most);
            for _ in 0..begun {
                slots.ended().await;
            }
        }
        let begun = (0..40).filter(|id| hang(&mut slots, 1000 + id, "hung")).count();
        assert_eq!(begun, 4, "its share, whatever the others do");
        tokio::time::advance(LONG * 2).await;
        let begun = (0..40).filter(|id| hang(&mut slots, 2000 + id, "quick")).count();
        assert_eq!(begun, 4, "it was quick once");
    }

    /// Else its worker would look for more all the time, while its slots are full.
    #[tokio::test(start_paused = true)]
    async fn what_may_not_go_ahead_makes_no_room_for_more() {
        let mut slots = Slots::new(8, 100);
        for id in 0..40 {
            slots.begin(id, scope("tried"), false, std::future::ready(()));
            slots.ended().await;
        }
        for (id, of) in (100..).zip(["tried", "other"].repeat(4)) {
            assert!(hang(&mut slots, id, of));
        }
        assert!(!slots.is_free());
    }

    #[tokio::test(start_paused = true)]
    async fn g16_what_began_ahead_and_hangs_occupies_no_slot_of_another_scopes() {
        let mut slots = Slots::new(8, 100);
        let mut ids = 0..;
        for _ in 0..10 {
            while slots.room().held_by(&scope("quick")).is_some() {
                slots.begin(ids.next().unwrap(), scope("quick"), true, std::future::ready(()));
            }
            while !slots.is_empty() {
                slots.ended().await;
            }
        }
        let begun = (1000..2000).filter(|id| hang(&mut slots, *id, "quick")).count();
        assert_eq!(begun, 104, "its share, and a batch");
        for wait in [LONG / 2, LONG * 10] {
            tokio::time::advance(wait).await;
            let free = (0..10).filter(|id| {
                let of = format!("other-{wait:?}");
                hang(&mut slots, 2000 + id + wait.as_millis() as u32, &of)
            });
            assert_eq!(free.count(), 4, "after {wait:?}");
        }
    }
}
