//! [`Backlog`]: what a worker has found and not begun yet, by scope.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;

use super::slots::share;
use crate::key::Scope;

/// What a search found.
pub(super) trait Candidate: Send {
    /// Which piece of work it is: never under way twice in one worker.
    type Id: Clone + Eq + Hash + Send + 'static;

    fn id(&self) -> Self::Id;

    fn scope(&self) -> &Scope;

    /// What changes when the row does: its fencing token, and of a job which one of its request's it is.
    fn state(&self) -> [i64; 2];

    /// Whether it may begin ahead of its turn, where its worker allows that.
    fn may_go_ahead(&self) -> bool {
        true
    }

    /// What kind of work it is: one [whose room is bounded](super::source::Source::room_of_kind) has half of
    /// its scope's queue.
    fn kind(&self) -> &str {
        ""
    }
}

/// The outcome of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    Alone,
    InPlaceOfAnother,
    TurnedAway,
}

/// How many blocked candidates may wait if a batch is smaller than this.
pub(super) const BLOCKED: usize = 100;

/// Candidates in the order in which they were found, each scope in a queue of its own, so that none
/// stands in front of another scope's. A queue holds `per_scope` at most; the others are passed over
/// and found again.
pub(super) struct Backlog<C: Candidate> {
    per_scope: usize,
    found: u64,
    queues: HashMap<Scope, VecDeque<Waiting<C>>>,
    ids: HashSet<C::Id>,
    /// How many of them are blocked.
    blocked: usize,
    /// How many of each kind are not.
    startable: HashMap<String, usize>,
}

struct Waiting<C> {
    found: u64,
    candidate: C,
    /// It could not begin when it was found, or not beside those of its kind that waited before it.
    is_blocked: bool,
}

fn blocked_in<C>(queue: &VecDeque<Waiting<C>>) -> usize {
    queue.iter().filter(|waiting| waiting.is_blocked).count()
}

impl<C: Candidate> Backlog<C> {
    pub(super) fn new(per_scope: u32) -> Self {
        Self {
            per_scope: per_scope as usize,
            found: 0,
            queues: HashMap::new(),
            ids: HashSet::new(),
            blocked: 0,
            startable: HashMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn clear(&mut self) {
        self.queues.clear();
        self.ids.clear();
        self.blocked = 0;
        self.startable.clear();
    }

    pub(super) fn holds(&self, id: &C::Id) -> bool {
        self.ids.contains(id)
    }

    /// Whether those of this kind have half of its scope's queue.
    pub(super) fn has_half(&self, candidate: &C) -> bool {
        let Some(queue) = self.queues.get(candidate.scope()) else { return false };
        let alike = queue.iter().filter(|other| other.candidate.kind() == candidate.kind());
        alike.count() >= share(self.per_scope)
    }

    /// How many candidates of this one's kind wait that are not blocked.
    pub(super) fn startable(&self, candidate: &C) -> usize {
        self.startable.get(candidate.kind()).copied().unwrap_or(0)
    }

    /// Queues it, if its scope's queue is not full. Where `most` wait already, a scope that has more in its queue
    /// makes room, or a candidate that is blocked.
    pub(super) fn push(&mut self, candidate: C, most: usize) -> Pushed {
        let waiting = self.queues.get(candidate.scope()).map_or(0, VecDeque::len);
        let is_full = self.len() >= most;
        if waiting >= self.per_scope {
            return Pushed::TurnedAway;
        }
        if is_full && !self.make_room(waiting + 1) && !self.make_room_of_blocked(0) {
            return Pushed::TurnedAway;
        }
        self.queue(Waiting { found: self.found, candidate, is_blocked: false });
        if is_full { Pushed::InPlaceOfAnother } else { Pushed::Alone }
    }

    /// As [`push`](Self::push), for a blocked candidate. At most a batch of these wait, or [`BLOCKED`] if that is more. They
    /// replace only one another, never a candidate that may begin, however many scopes have blocked ones.
    pub(super) fn push_blocked(&mut self, candidate: C, most: usize) -> Pushed {
        let queue = self.queues.get(candidate.scope());
        let (waiting, blocked) = queue.map_or((0, 0), |queue| (queue.len(), blocked_in(queue)));
        let is_full = self.len() >= most || self.blocked >= self.per_scope.max(BLOCKED);
        if waiting >= self.per_scope || is_full && !self.make_room_of_blocked(blocked + 1) {
            return Pushed::TurnedAway;
        }
        self.queue(Waiting { found: self.found, candidate, is_blocked: true });
        if is_full { Pushed::InPlaceOfAnother } else { Pushed::Alone }
    }

    fn queue(&mut self, waiting: Waiting<C>) {
        self.ids.insert(waiting.candidate.id());
        let kind = waiting.candidate.kind();
        match (waiting.is_blocked, self.startable.get_mut(kind)) {
            (true, _) => self.blocked += 1,
            (false, Some(startable)) => *startable += 1,
            (false, None) => drop(self.startable.insert(kind.to_owned(), 1)),
        }
        self.queues.entry(waiting.candidate.scope().clone()).or_default().push_back(waiting);
        self.found += 1;
    }

    /// Takes the last out of the longest queue, if that is longer than so many.
    fn make_room(&mut self, than: usize) -> bool {
        let longest = self.queues.values_mut().max_by_key(|queue| queue.len());
        let last = longest.filter(|queue| queue.len() > than).and_then(VecDeque::pop_back);
        last.is_some_and(|last| self.forget(&last))
    }

    /// Takes the last that is blocked out of the queue with the most of them, if those are more than so many.
    fn make_room_of_blocked(&mut self, than: usize) -> bool {
        let longest = self.queues.values_mut().max_by_key(|queue| blocked_in(queue));
        let longest = longest.filter(|queue| blocked_in(queue) > than);
        let last = longest.and_then(|queue| {
            let last = queue.iter().rposition(|waiting| waiting.is_blocked)?;
            queue.remove(last)
        });
        last.is_some_and(|last| self.forget(&last))
    }

    /// Removes it from the ids and the counts. Returns whether it was waiting.
    fn forget(&mut self, waiting: &Waiting<C>) -> bool {
        let kind = waiting.candidate.kind();
        match (waiting.is_blocked, self.startable.get_mut(kind)) {
            (true, _) => self.blocked -= 1,
            (false, Some(more @ 2..)) => *more -= 1,
            (false, _) => drop(self.startable.remove(kind)),
        }
        self.ids.remove(&waiting.candidate.id())
    }

    /// The next of the scope that `held` says holds the least; among equals, of the one that has waited
    /// for longest. `None` from `held`: the scope must not begin another.
    /// What `may_begin` says no of stays, and those behind it in its queue come first.
    pub(super) fn take(
        &mut self,
        held: impl Fn(&Scope) -> Option<usize>,
        may_begin: impl Fn(&C) -> bool,
    ) -> Option<C> {
        let waiting = self.queues.iter().filter_map(|(scope, queue)| {
            let held = held(scope)?;
            let first = queue.iter().position(|waiting| may_begin(&waiting.candidate))?;
            let found = queue.get(first)?.found;
            Some(((held, found), first, scope))
        });
        let (_, first, scope) = waiting.min_by_key(|(rank, ..)| *rank)?;
        let scope = scope.clone();
        let queue = self.queues.get_mut(&scope)?;
        let next = queue.remove(first)?;
        if queue.is_empty() {
            self.queues.remove(&scope);
        }
        self.forget(&next);
        Some(next.candidate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Found(u32, Scope);

    impl Candidate for Found {
        type Id = u32;

        fn id(&self) -> u32 {
            self.0
        }

        fn scope(&self) -> &Scope {
            &self.1
        }

        fn state(&self) -> [i64; 2] {
            [0, 0]
        }
    }

    #[test]
    fn g16_scopes_take_turns_and_a_full_queue_turns_away_only_its_own_scope() {
        let [many, few] = ["many", "few"].map(|name| Scope::new(name).unwrap());
        let mut backlog = Backlog::new(3);
        let pushed =
            (0..10).filter(|id| backlog.push(Found(*id, many.clone()), 9) == Pushed::Alone).count();
        assert_eq!((pushed, backlog.len()), (3, 3));
        assert_eq!(backlog.push(Found(10, few.clone()), 9), Pushed::Alone);
        assert!(backlog.holds(&10) && !backlog.holds(&9));
        let mut held: HashMap<Scope, usize> = HashMap::new();
        let mut order = Vec::new();
        while let Some(next) =
            backlog.take(|scope| Some(held.get(scope).copied().unwrap_or(0)), |_| true)
        {
            *held.entry(next.1).or_default() += 1;
            order.push(next.0);
        }
        assert_eq!(order, [0, 10, 1, 2]);
        assert_eq!(backlog.push(Found(11, many.clone()), 9), Pushed::Alone);
        let next = backlog.take(|scope| (*scope != many).then_some(0), |_| true);
        assert!(next.is_none(), "at its share");
        assert!(backlog.take(|_| Some(0), |found| found.0 != 11).is_none(), "not this one");
        backlog.clear();
        assert_eq!(backlog.len(), 0);
    }

    #[test]
    fn g16_a_scope_that_filled_the_batch_makes_room_for_one_that_is_found_later() {
        let [many, few] = ["many", "few"].map(|name| Scope::new(name).unwrap());
        let mut backlog = Backlog::new(9);
        let pushed = [0, 1, 2, 3, 4].map(|id| backlog.push(Found(id, many.clone()), 4));
        assert_eq!(pushed[3..], [Pushed::Alone, Pushed::TurnedAway]);
        let pushed = [5, 6, 7].map(|id| backlog.push(Found(id, few.clone()), 4));
        let [another, away] = [Pushed::InPlaceOfAnother, Pushed::TurnedAway];
        assert_eq!(pushed, [another, another, away], "as much as the other");
        assert_eq!(backlog.len(), 4);
        assert!(!backlog.holds(&3) && !backlog.holds(&2) && backlog.holds(&1));
    }

    #[test]
    fn g16_blocked_candidates_replace_only_one_another_and_are_bounded() {
        let [many, few, free] = ["many", "few", "free"].map(|name| Scope::new(name).unwrap());
        let mut backlog = Backlog::new(500);
        let blocked = 100..700;
        let queued = blocked
            .filter(|id| backlog.push_blocked(Found(*id, many.clone()), 1000) == Pushed::Alone);
        assert_eq!(queued.count(), 500, "as many as a scope may have");
        let pushed = [1, 2].map(|id| backlog.push_blocked(Found(id, few.clone()), 1000));
        assert_eq!(pushed, [Pushed::InPlaceOfAnother; 2]);
        assert_eq!(backlog.push(Found(3, free.clone()), 1000), Pushed::Alone);
        assert_eq!((backlog.len(), backlog.blocked), (501, 500));
        assert!(backlog.holds(&597) && !backlog.holds(&598) && !backlog.holds(&599));
        let next = backlog.take(|_| Some(0), |found| found.0 < 3).unwrap();
        assert_eq!((next.0, backlog.blocked), (1, 499));
        backlog.clear();
        assert_eq!((backlog.len(), backlog.blocked), (0, 0));
        // What may begin is taken out for none that is blocked.
        let mut backlog = Backlog::new(3);
        for id in 0..3 {
            assert_eq!(backlog.push(Found(id, free.clone()), 1000), Pushed::Alone);
        }
        for id in 0..300 {
            let scope = Scope::new(format!("tenant-{id}")).unwrap();
            backlog.push_blocked(Found(1000 + id, scope), 1000);
        }
        assert_eq!((backlog.len(), backlog.blocked), (3 + BLOCKED, BLOCKED));
        assert!([0, 1, 2].iter().all(|id| backlog.holds(id)));
        // Not where as many wait as may, either.
        let mut backlog = Backlog::new(9);
        for id in 0..4 {
            assert_eq!(backlog.push(Found(id, free.clone()), 6), Pushed::Alone);
        }
        let mut push = |id, of: &Scope| backlog.push_blocked(Found(id, of.clone()), 6);
        let pushed = [push(4, &many), push(5, &many), push(6, &few), push(7, &few)];
        let [alone, another, away] = [Pushed::Alone, Pushed::InPlaceOfAnother, Pushed::TurnedAway];
        assert_eq!(pushed, [alone, alone, another, away], "as much as the other");
        assert!([0, 1, 2, 3, 4, 6].iter().all(|id| backlog.holds(id)) && backlog.len() == 6);
        assert_eq!(backlog.blocked, 2);
    }
}
