//! A crowd: one scope has accepted more requests than its share of the workers. While calls hang, each node has many of
//! them in its backlog, and claims others ahead of their turn; meanwhile another node begins them, and dies or freezes.

use atomic_phases::simulation::Chance;

use super::super::plan::{CROWDED, Call, End, Kind, Manner, Plan, Stop, Trouble};
use super::pick;

/// In milliseconds. A call that hangs takes longer, so a request may lose its lease while it is in another backlog.
const LEASE: u64 = 3_000;

/// The first key of the crowd, which is not one of another scope.
const FIRST: u8 = 50;

/// How a call of the crowd ends: more often than not with an answer, so that nodes claim ahead.
const ENDS: [End; 5] = [End::Answered, End::Answered, End::Answered, End::Hangs, End::Lost];

pub(super) fn crowded(chance: &mut Chance, plan: &mut Plan) {
    if !chance.happens(1, 16) {
        return;
    }
    plan.nodes = plan.nodes.max(2);
    (plan.lease, plan.poll) = (LEASE, 1_000);
    let from = chance.below(10_000);
    let kind = *pick(chance, &[Kind::Note, Kind::Note, Kind::Alert, Kind::Ride]);
    let crowd = 12 + chance.below(20) as u8;
    plan.calls.extend((FIRST..FIRST + crowd).map(|key| Call {
        at: from + chance.below(500),
        node: chance.below(plan.nodes as u64) as usize,
        scope: CROWDED,
        key,
        kind,
        tries: 3,
        manner: Manner::Accept,
        ..Call::default()
    }));
    for number in 0..40 {
        let before = match chance.happens(1, 3) {
            true => chance.below(4_500),
            false => chance.below(300),
        };
        let end = *pick(chance, &ENDS);
        let stop = chance.happens(1, 10).then(|| Stop {
            after: chance.below(before.max(1)),
            lasts: LEASE + chance.below(3 * LEASE),
            kill: chance.happens(1, 2),
        });
        plan.provider.insert(number, Trouble { before, after: 10, end, stop });
    }
}
