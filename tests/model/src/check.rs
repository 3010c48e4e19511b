//! Checks every reachable state of a configuration.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use stateright::{Checker, Expectation, HasDiscoveries, Model};

use crate::actions::Action;
use crate::config::Config;
use crate::state::State;

/// What the checker found.
pub struct Verdict {
    /// Different states.
    pub states: usize,
    /// The length of the longest of all shortest paths.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// The properties that do not hold.
    pub violated: BTreeSet<&'static str>,
    /// The situations that were reached.
    pub reached: BTreeSet<&'static str>,
}

/// Visits every state.
#[must_use]
pub fn check(config: Config, threads: usize) -> Verdict {
    let began = Instant::now();
    let checker = config.checker().threads(threads).spawn_bfs().join();
    let found = checker.discoveries();
    let of = |expectation| {
        let properties = config.properties().into_iter();
        properties
            .filter(|property| property.expectation == expectation)
            .map(|property| property.name)
            .filter(|name| found.contains_key(name))
            .collect()
    };
    Verdict {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        took: began.elapsed(),
        violated: of(Expectation::Always),
        reached: of(Expectation::Sometimes),
    }
}

/// Whether some run returns to an earlier state, and so may never end. Visits every state.
#[must_use]
pub fn has_circle(config: &Config) -> bool {
    // A depth-first walk: `true` while the state is on the current path.
    let mut seen = HashMap::new();
    let mut walk = vec![Walk::To(State::initial(config))];
    let mut actions = Vec::new();
    while let Some(step) = walk.pop() {
        match step {
            Walk::Back(state) => drop(seen.insert(state, false)),
            Walk::To(state) => match seen.get(&state) {
                Some(true) => return true,
                Some(false) => {}
                None => {
                    seen.insert(state.clone(), true);
                    config.possible(&state, &mut actions);
                    let next: Vec<_> = actions
                        .drain(..)
                        .filter_map(|action| config.after(&state, action))
                        .collect();
                    walk.push(Walk::Back(state));
                    walk.extend(next.into_iter().map(Walk::To));
                }
            },
        }
    }
    false
}

enum Walk {
    To(State),
    Back(State),
}

/// A shortest path to a state in which `property` does not hold, or, for a situation, to one in which it is
/// reached. stateright keeps the last one that it found in a block of states, so the depth is raised step by step
/// until there is one.
#[must_use]
pub fn shortest(config: Config, property: &'static str) -> Option<Vec<(State, Option<Action>)>> {
    let deepest = check(config, 1).depth;
    (1..=deepest + 1).find_map(|depth| {
        let checker = config
            .checker()
            .target_max_depth(depth + 1)
            .finish_when(HasDiscoveries::AnyOf(BTreeSet::from([property])))
            .spawn_bfs()
            .join();
        checker.discovery(property).map(|path| path.into_vec())
    })
}
