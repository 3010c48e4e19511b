//! Runs of millions of states, for the command line only.

use super::*;

/// All of them.
pub const LARGE: &[Case] = &[
    engine("large-ride", Config { nodes: THREE_RIDES, budget: Budget::of(2), ..BASE }, USUAL),
    engine(
        "large-letter",
        Config {
            nodes: &[client(0, LETTER), client(0, LETTER), completer(LETTER)],
            world: IGNORES,
            budget: Budget::of(2),
            rules: ENGINE,
        },
        &[FINISHED, FENCED, UNKNOWN],
    ),
    engine(
        "large-reconcile",
        Config {
            budget: Budget { crashes: 2, losses: 2, reconciles: 2, stops: 1, ..ONCE },
            ..RECONCILE
        },
        &[FINISHED, FENCED, UNKNOWN, RECONCILED],
    ),
    engine(
        "large-reap",
        Config { budget: Budget { retentions: 1, ..Budget::of(2) }, ..REAPED },
        &[FINISHED, FENCED, REUSED],
    ),
    engine(
        "large-deploy",
        Config { budget: Budget { stops: 1, ..Budget::of(2) }, ..DEPLOY },
        &[FINISHED, FENCED, LEFT_ALONE],
    ),
];
