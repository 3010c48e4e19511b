//! Which foreign phases operators have paused, as far as this process knows: asked for every few seconds, beside
//! the requests and not on their way. A phase that is paused is not begun; one that is under way continues.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::OnceCell;

use super::Core;
use crate::definition::Phase;
use crate::moment::Moment;
use crate::store::Store;
use crate::store::pauses::PausedPhase;

/// How long a request that met a pause rests before it is tried again, where the pause does not end before
/// that: an operator's end of the pause is noticed by then.
const REST: Duration = Duration::from_secs(30);

/// How long a foreign phase waits to hear what is paused, where the process has not looked yet, or not for long. A
/// store that does not answer holds nothing back for longer: what was paused is heard of by the next look.
const WAITS_FOR_LOOK: Duration = Duration::from_secs(2);

/// The pauses, as they were read last.
#[derive(Default)]
pub(crate) struct Pauses {
    known: RwLock<Vec<Known>>,
    /// When the last look began that has ended, whatever it found.
    looked: RwLock<Option<Moment>>,
    watched: OnceCell<()>,
}

/// A pause, and when it ends by this machine's monotonic clock.
struct Known {
    pause: PausedPhase,
    ends: Option<Moment>,
}

impl Pauses {
    fn are_older_than(&self, age: Duration) -> bool {
        let looked = *self.looked.read().unwrap_or_else(PoisonError::into_inner);
        looked.is_none_or(|looked| looked.elapsed() > age)
    }

    fn looked(&self, asked: Moment) {
        *self.looked.write().unwrap_or_else(PoisonError::into_inner) = Some(asked);
    }

    fn learn(&self, read: Vec<PausedPhase>, asked: Moment) {
        let known =
            |pause: PausedPhase| Known { ends: pause.left.map(|left| asked.after(left)), pause };
        let known = read.into_iter().map(known).collect();
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
    }

    /// After how long to try the phase again, if it is paused. Under each of its names.
    fn rest(&self, definition: &str, phase: &Phase) -> Option<Duration> {
        let now = Moment::now();
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut ours = known.iter().filter(|known| {
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
    /// The first to ask waits for the answer of the store, so that a process that was started while a phase is
    /// paused does not begin it. So does a caller in a process that stood still: the process has missed its looks.
    pub(super) async fn paused(
        self: &Arc<Self>,
        definition: &str,
        phase: &Phase,
    ) -> Option<Duration> {
        let look = async || {
            let asked = Moment::now();
            if tokio::time::timeout(WAITS_FOR_LOOK, self.look_at_pauses()).await.is_err() {
                self.pauses.looked(asked);
            }
        };
        let watch = async || {
            look().await;
            self.watch_pauses();
        };
        self.pauses.watched.get_or_init(watch).await;
        if self.pauses.are_older_than(self.settings.pauses_every * 2) {
            look().await;
        }
        self.pauses.rest(definition, phase)
    }

    /// Asks as long as the engine lives. What could not be asked stays as it was known.
    fn watch_pauses(self: &Arc<Self>) {
        let core = Arc::downgrade(self);
        crate::task::spawn(async move {
            while let Some(every) = core.upgrade().map(|core| core.settings.pauses_every) {
                tokio::time::sleep(every).await;
                match core.upgrade().filter(|core| !core.running.is_closing()) {
                    Some(core) => core.look_at_pauses().await,
                    None => return,
                }
            }
        });
    }

    /// Reads what is paused; a pause by an operator of this process is known here immediately.
    pub(crate) async fn look_at_pauses(&self) {
        let asked = Moment::now();
        if let Ok(read) = self.store.pauses().await {
            self.pauses.learn(read, asked);
        }
        self.pauses.looked(asked);
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
        pauses.learn(vec![pause("charge_created", None)], Moment::now());
        assert_eq!((rest("rides.create"), rest("rides.cancel")), (Some(REST), None));
        pauses.learn(vec![pause("other", None)], Moment::now());
        assert_eq!(rest("rides.create"), None);
        let ends_soon = pause("charge_made", Some(Duration::from_secs(3)));
        pauses.learn(vec![ends_soon], Moment::now());
        assert!(rest("rides.create").is_some_and(|rest| rest <= Duration::from_secs(3)));
        pauses.learn(vec![pause("charge_made", Some(Duration::ZERO))], Moment::now());
        assert_eq!(rest("rides.create"), None);
    }
}
