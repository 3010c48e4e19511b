//! [`Pace`]: when a worker searches next.

use std::time::Duration;

use tokio::time::Instant;

use super::by_chance;

/// The longest rest after errors of the store.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// How many times as long as a search that brought nothing, or a batch, took the worker rests behind it: four fifths of a
/// connection's time are left to others.
const REST_RATIO: u32 = 4;

/// And how long at most: a search that the store was slow to answer says nothing about the next.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How long to rest behind a search or a batch that took so long.
pub(super) fn rest_behind(took: Duration) -> Duration {
    (took * REST_RATIO).min(LONGEST_PAUSE)
}

/// How many rows a search reads at least where the last one brought nothing to begin, and nothing continues: a few
/// milliseconds.
pub(super) const PAGE: u32 = 1000;

/// The same where something has continued within this time. Most of what is found then waits behind work of its own scope
/// that is under way, and would be read again and again.
const SHORT_PAGE: u32 = 100;
const CONTINUES: Duration = Duration::from_secs(1);

/// How long to rest behind so many errors in a row, where the worker polls at this pace.
pub(super) fn rest_after_failures(poll: Duration, failures: u32) -> Duration {
    poll.saturating_mul(1 << failures.min(10)).min(LONGEST_REST)
}

/// What a search came to.
pub(super) struct SearchEnd {
    /// Whether it found something to begin.
    pub(super) queued: bool,
    /// Whether the pass goes on behind it.
    pub(super) is_more: bool,
}

/// When to search next, and how many rows.
pub(super) struct Pace {
    began: Instant,
    /// Not before: the rest that a fruitless search is followed by.
    pub(super) earliest: Instant,
    pub(super) planned: Instant,
    /// The pass is not at its end.
    pub(super) in_pass: bool,
    /// The last search brought nothing to begin.
    is_fruitless: bool,
    /// When to look at the end of the index.
    end_at: Instant,
    /// A scope's queue was full, and more of it was passed over, since the last pass began.
    pub(super) passed_over: bool,
    /// By now more may be due than this pass finds.
    again: bool,
    /// Something continued since the last search began.
    progress: bool,
    /// When something continued last.
    progressed_at: Option<Instant>,
    pub(super) failures: u32,
}

impl Pace {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            began: now,
            earliest: now,
            planned: now,
            in_pass: true,
            is_fruitless: false,
            end_at: now,
            passed_over: false,
            again: false,
            progress: false,
            progressed_at: None,
            failures: 0,
        }
    }

    pub(super) fn next(&self) -> Instant {
        self.earliest.max(self.planned)
    }

    /// How many rows the next search reads, where a batch has so many.
    pub(super) fn page(&self, batch: u32) -> u32 {
        match self.progressed_at {
            _ if !self.is_fruitless => batch,
            Some(at) if at.elapsed() < CONTINUES => batch.max(SHORT_PAGE),
            _ => batch.max(PAGE),
        }
    }

    pub(super) fn begin_search(&mut self) {
        if !self.in_pass {
            (self.passed_over, self.again) = (false, false);
        }
        self.in_pass = true;
        self.progress = false;
        self.began = Instant::now();
    }

    pub(super) fn ended_search(&mut self, search: SearchEnd, poll: Duration) {
        let SearchEnd { queued, is_more } = search;
        let now = Instant::now();
        let rest = rest_behind(now - self.began);
        self.failures = 0;
        self.in_pass = is_more;
        self.is_fruitless = !queued;
        self.earliest = if queued { now } else { now + rest };
        self.planned = if is_more || self.again { now } else { now + by_chance(poll) };
    }

    pub(super) fn failed(&mut self, poll: Duration) {
        self.failures += 1;
        self.planned = Instant::now() + by_chance(rest_after_failures(poll, self.failures));
    }

    pub(super) fn wake(&mut self) {
        self.planned = Instant::now();
        self.end_at = Instant::now();
    }

    pub(super) fn is_to_look_at_the_end(&self) -> bool {
        self.end_at <= Instant::now()
    }

    pub(super) fn looked_at_the_end(&mut self, poll: Duration) {
        self.end_at = Instant::now() + by_chance(poll);
    }

    pub(super) fn progressed(&mut self) {
        self.progress = true;
        self.progressed_at = Some(Instant::now());
        if self.passed_over {
            self.search_again();
        }
    }

    pub(super) fn search_again(&mut self) {
        self.again = true;
        if self.failures == 0 {
            self.planned = Instant::now();
        }
    }

    /// What a search brought was not to be run: that counts like a search that found nothing.
    pub(super) fn fruitless(&mut self, poll: Duration) {
        if !self.progress {
            let now = Instant::now();
            let rest = ((now - self.began) * REST_RATIO).min(poll);
            self.earliest = self.earliest.max(now + rest);
        }
    }
}
