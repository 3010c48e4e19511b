//! Which foreign phases operators have paused, as far as this process knows: asked for every few seconds, beside
//! the requests and not on their way. A phase that is paused is not begun; one that is under way continues.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::timeout;

use super::Core;
use crate::definition::Phase;
use crate::moment::Moment;
use crate::observe;
use crate::store::Store;
use crate::store::pauses::PausedPhase;

/// How long a request that met a pause rests before it is tried again, where the pause does not end before
/// that: an operator's end of the pause is noticed by then.
const REST: Duration = Duration::from_secs(30);

/// How long a foreign phase waits to hear what is paused, where the process has not read them for long. A store that does
/// not answer holds nothing back for longer: what was paused since is read by the next poll.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// The same where the process has not read them yet. The connection of the workers may be in use, and then the read may wait
/// for those of requests, for five seconds (the pool's `wait`, by default). The leases of the requests that wait for it are
/// renewed meanwhile; to release each, and run it again, is more work.
const FIRST_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// How soon a request asks again, where no read has been answered yet.
const UNREAD_AGAIN: Duration = Duration::from_secs(4);

/// No read has been answered yet, so what operators have paused is not known: no foreign phase is begun.
pub(super) struct Unread;

/// The pauses, as they were read last.
#[derive(Default)]
pub(crate) struct Pauses {
    read: RwLock<Read>,
    /// One read by requests at a time: a process that has just started, or stood still, asks once.
    reading: Mutex<()>,
    is_watched: AtomicBool,
}

#[derive(Default)]
struct Read {
    known: Vec<Known>,
    /// When the read began that they come from.
    asked: Option<Moment>,
    /// The same of the last read, or when the last one ended that heard nothing.
    tried: Option<Moment>,
}

/// A pause, and when it ends by this machine's monotonic clock.
struct Known {
    pause: PausedPhase,
    ends: Option<Moment>,
}

impl Pauses {
    fn are_older_than(&self, age: Duration) -> bool {
        self.read().tried.is_none_or(|tried| tried.elapsed() > age)
    }

    /// What a read heard that began then. An answer to an older question replaces none to a newer one.
    fn learn(&self, asked: Moment, heard: Vec<PausedPhase>) {
        let mut read = self.change();
        read.tried = read.tried.max(Some(asked));
        if read.asked > Some(asked) {
            return;
        }
        let known =
            |pause: PausedPhase| Known { ends: pause.left.map(|left| asked.after(left)), pause };
        read.known = heard.into_iter().map(known).collect();
        read.asked = Some(asked);
    }

    /// A read that began and ended then heard nothing. Those that waited for its end do not ask again. One that took longer
    /// than any of them waits was held up with the network or the process: it says nothing of how the store answers now.
    fn learn_nothing(&self, asked: Moment, ended: Moment) {
        let was_held_up = ended.since(asked) > FIRST_READ_TIMEOUT + READ_TIMEOUT;
        let tried = if was_held_up { asked } else { ended };
        let mut read = self.change();
        read.tried = read.tried.max(Some(tried));
    }

    fn change(&self) -> RwLockWriteGuard<'_, Read> {
        self.read.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, Read> {
        self.read.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn are_unread(&self) -> bool {
        self.read().asked.is_none()
    }

    /// How long a request waits for a read.
    fn read_timeout(&self) -> Duration {
        if self.are_unread() { FIRST_READ_TIMEOUT } else { READ_TIMEOUT }
    }

    /// After how long to try the phase again, if it is paused. Under each of its names.
    fn rest(&self, definition: &str, phase: &Phase) -> Option<Duration> {
        let read = self.read();
        if read.known.is_empty() {
            return None;
        }
        let now = Moment::now();
        let mut ours = read.known.iter().filter(|known| {
            known.pause.definition == definition
                && phase.is_called(&known.pause.phase)
                && known.ends.is_none_or(|ends| ends > now)
        });
        let pause = ours.next()?;
        Some(pause.ends.map_or(REST, |ends| ends.since(now).min(REST)))
    }
}

impl<S: Store> Core<S> {
    /// After how long to try the phase again, if operators have paused it.
    ///
    /// The first to ask waits for the answer of the store, and the others for the end of its read, so that a process that
    /// was started while a phase is paused does not begin it; without an answer it begins none. A caller in a process that
    /// stood still, and has missed its polls, waits, too: without an answer it goes by what was known. If the caller that
    /// reads is on a blocked runtime, the others do not wait for it much longer than for a read. A shutdown ends the wait.
    pub(super) async fn paused(
        self: &Arc<Self>,
        definition: &str,
        phase: &Phase,
    ) -> Result<Option<Duration>, Unread> {
        if !self.pauses.is_watched.swap(true, Ordering::Relaxed) {
            self.watch_pauses();
        }
        let latest = self.settings.pauses_every * 2;
        let latest = if self.pauses.are_unread() { latest.min(UNREAD_AGAIN) } else { latest };
        if self.pauses.are_older_than(latest) {
            tokio::select! {
                biased;
                () = self.running.closing() => {}
                // On the heap, so that the future of a request is not as large as that of a read.
                () = Box::pin(self.refresh_pauses(latest)) => {}
            }
        }
        match self.pauses.are_unread() {
            true => Err(Unread),
            false => Ok(self.pauses.rest(definition, phase)),
        }
    }

    /// Reads them, unless another caller has done so by the time that it may.
    async fn refresh_pauses(&self, latest: Duration) {
        let patience = self.pauses.read_timeout() + READ_TIMEOUT;
        let _alone = timeout(patience, self.pauses.reading.lock()).await;
        let asked = Moment::now();
        if self.pauses.are_older_than(latest)
            && timeout(self.pauses.read_timeout(), self.read_pauses()).await.is_err()
        {
            observe::pauses_unread("no answer in time");
            self.pauses.learn_nothing(asked, Moment::now());
        }
    }

    /// Asks as long as the engine lives. What could not be asked stays as it was known.
    fn watch_pauses(self: &Arc<Self>) {
        let core = Arc::downgrade(self);
        crate::task::spawn(async move {
            while let Some(every) = core.upgrade().map(|core| core.settings.pauses_every) {
                tokio::time::sleep(every).await;
                match core.upgrade().filter(|core| !core.running.is_closing()) {
                    Some(core) => core.read_pauses().await,
                    None => return,
                }
            }
        });
    }

    /// Reads what is paused; a pause by an operator of this process is known here immediately.
    pub(crate) async fn read_pauses(&self) {
        let asked = Moment::now();
        match self.store.paused_phases().await {
            Ok(heard) => self.pauses.learn(asked, heard),
            Err(error) => {
                observe::pauses_unread(error.kind());
                self.pauses.learn_nothing(asked, Moment::now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::definition::{EffectClass, PhaseKind};

    fn pause(phase: &str, left: Option<Duration>) -> PausedPhase {
        PausedPhase {
            definition: "rides.create".into(),
            phase: phase.into(),
            reason: "maintenance".into(),
            paused_by: "ada".into(),
            paused_at: DateTime::UNIX_EPOCH,
            ends_at: None,
            left,
        }
    }

    #[test]
    fn a_pause_is_of_one_phase_under_all_its_names_and_ends() {
        let phase = Phase {
            name: "charge_made",
            was: &["charge_created"],
            kind: PhaseKind::Foreign(EffectClass::AtMostOnce),
            commit: false,
            timeout: None,
            reconciles: true,
        };
        let pauses = Pauses::default();
        let rest = |definition| pauses.rest(definition, &phase);
        assert_eq!(rest("rides.create"), None);
        pauses.learn(Moment::now(), vec![pause("charge_created", None)]);
        assert_eq!((rest("rides.create"), rest("rides.cancel")), (Some(REST), None));
        pauses.learn(Moment::now(), vec![pause("other", None)]);
        assert_eq!(rest("rides.create"), None);
        let ends_soon = pause("charge_made", Some(Duration::from_secs(3)));
        pauses.learn(Moment::now(), vec![ends_soon]);
        assert!(rest("rides.create").is_some_and(|rest| rest <= Duration::from_secs(3)));
        pauses.learn(Moment::now(), vec![pause("charge_made", Some(Duration::ZERO))]);
        assert_eq!(rest("rides.create"), None);
        let asked = Moment::now();
        let later = asked.after(Duration::from_secs(1));
        pauses.learn(later, vec![pause("charge_made", None)]);
        pauses.learn(asked, Vec::new());
        pauses.learn_nothing(asked, later);
        assert_eq!(rest("rides.create"), Some(REST), "by the newest question that was answered");
    }

    #[test]
    fn those_that_waited_for_a_read_that_failed_do_not_read_again() {
        let pauses = Pauses::default();
        assert!(pauses.are_older_than(UNREAD_AGAIN));
        assert_eq!(pauses.read_timeout(), FIRST_READ_TIMEOUT);
        let now = Moment::now();
        pauses.learn_nothing(now, now);
        assert!(pauses.are_unread() && !pauses.are_older_than(UNREAD_AGAIN));
        pauses.learn(Moment::now(), Vec::new());
        assert_eq!(pauses.read_timeout(), READ_TIMEOUT);
    }

    /// It failed when the process went on, say. What was paused meanwhile is not known, and no request has asked since.
    #[test]
    fn behind_a_read_that_was_held_up_for_long_requests_ask() {
        let asked = Moment::now();
        let after = |seconds| asked.after(Duration::from_secs(seconds));
        for (ended, tried) in [(after(12), after(12)), (after(13), asked)] {
            let pauses = Pauses::default();
            pauses.learn_nothing(asked, ended);
            assert_eq!(pauses.read().tried, Some(tried));
        }
    }
}
