//! How a node's statements travel, and how many there are.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atomic_phases::simulation::{Network, Passage};

use super::{DATABASE, STATEMENTS};
use crate::judge::Watched;
use crate::plan::{HEALED, Plan, Stop};
use crate::provider::Stops;
use crate::trace::Trace;

/// What was sent so far, by all nodes.
#[derive(Default)]
pub(super) struct Sent {
    pub(super) statements: u64,
    pub(super) by_kind: BTreeMap<&'static str, u64>,
    /// The second, and how many statements each node has sent in it.
    pub(super) second: (u64, BTreeMap<String, u64>),
    pub(super) busiest: u64,
}

/// The path of a node's statements.
pub(super) struct Wire {
    pub(super) node: String,
    pub(super) plan: Arc<Plan>,
    pub(super) sent: Arc<Mutex<Sent>>,
    pub(super) trace: Trace,
    pub(super) watched: Arc<Mutex<Watched>>,
    pub(super) stops: Stops,
}

impl Wire {
    /// The statement's number, its number among those of its kind, and the count within this second.
    fn count(&self, what: &'static str) -> (u64, u64, u64) {
        let mut sent = self.sent.lock().unwrap();
        let second = self.trace.elapsed().as_secs();
        if sent.second.0 != second {
            sent.second = (second, BTreeMap::new());
        }
        let in_second = sent.second.1.entry(self.node.clone()).or_default();
        *in_second += 1;
        let in_second = *in_second;
        sent.busiest = sent.busiest.max(in_second);
        let of_kind = sent.by_kind.entry(what).or_default();
        *of_kind += 1;
        let of_kind = *of_kind - 1;
        sent.statements += 1;
        (sent.statements - 1, of_kind, in_second)
    }
}

impl Network for Wire {
    fn passage(&self, what: &'static str) -> Passage {
        let (number, of_kind, in_second) = self.count(what);
        let usual = Passage { there: Duration::from_micros(200), ..Passage::default() };
        if in_second >= STATEMENTS {
            if in_second == STATEMENTS {
                let violation = format!("G17: {} spins: {what}", self.node);
                self.trace.note(|| format!("VIOLATION {violation}"));
                self.watched.lock().unwrap().violations.push(violation);
            }
            return Passage { there: Duration::from_secs(1), ..usual };
        }
        if self.trace.elapsed() >= HEALED {
            return usual;
        }
        let aimed =
            self.plan.aimed.get(what).and_then(|of_kind_faults| of_kind_faults.get(&of_kind));
        let Some(fault) = aimed.or(self.plan.statements.get(&number)) else { return usual };
        self.trace.note(|| format!("{}: statement {number}, {what}: {fault}", self.node));
        let mut watched = self.watched.lock().unwrap();
        match fault.cut {
            Some(cut) => {
                let name = format!("{cut:?}");
                let name = name.split('(').next().unwrap_or_default();
                watched.covers(format!("fault: cut {name}"));
            }
            None => watched.covers("fault: delay".to_owned()),
        }
        if let Some(stop) = fault.stop {
            let _ = self.stops.send((self.node.clone(), stop));
        }
        if fault.away > 0 {
            let stop = Stop { after: 0, lasts: fault.away, kill: true };
            let _ = self.stops.send((DATABASE.to_owned(), stop));
        }
        fault.passage()
    }

    fn client(&self) -> &str {
        &self.node
    }
}
