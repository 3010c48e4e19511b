//! Limits that are reached: a scope asks for more keys than its quota has, and reconcile functions never find out.

use atomic_phases::simulation::Chance;

use super::super::plan::{CROWDED, Call, DAY, End, Kind, LIMITED, Limits, Manner, Plan, Trouble};
use super::super::requests::REJECTED;
use super::pick;

/// In milliseconds.
const HOUR: u64 = 3_600_000;

/// The first key of the limited scope, which is not one of another scope.
const FIRST: u8 = 90;

/// The key of a note whose outcome is never found out.
const IN_VAIN: u8 = 120;

/// Many first phases run at a time, some fail whenever they run, and keys have duplicates, some of which claim that their
/// key is new. In half of the runs no more goes wrong than one call at a provider.
pub(super) fn limited(chance: &mut Chance, plan: &mut Plan) {
    if !chance.happens(1, 16) || plan.calls.iter().any(|call| call.scope == CROWDED) {
        return;
    }
    plan.quota = Some(Limits {
        keys: *pick(chance, &[2, 4, 100]),
        rate: (*pick(chance, &[2, 4, 100]), *pick(chance, &[20_000, HOUR])),
    });
    if chance.happens(1, 2) {
        undisturbed(plan);
    }
    // No promise of a calm run: so many at a time may be in each other's way.
    let lost = Trouble { before: 100, after: 10, end: End::Reset, stop: None };
    plan.provider.entry(0).or_insert(lost);
    let manners = [Manner::Plain, Manner::Plain, Manner::Accept, Manner::Wait, Manner::ExpectNew];
    let (from, keys) = (chance.below(10_000), 4 + chance.below(12) as u8);
    // Most of them at one moment at one node: each is counted before another is committed.
    let (at_one_moment, node) = (chance.happens(1, 2), chance.below(plan.nodes as u64) as usize);
    let (all_within, nodes) = if at_one_moment { (10, 1) } else { (20_000, plan.nodes) };
    for key in FIRST..FIRST + keys {
        let kind = *pick(chance, &[Kind::Parcel, Kind::Parcel, Kind::Ride, Kind::Transfer]);
        let amount = *pick(chance, &[20, REJECTED]);
        for _ in 0..1 + chance.below(2) {
            let within = *pick(chance, &[10, all_within]);
            plan.calls.push(Call {
                at: from + chance.below(within),
                node: (node + chance.below(nodes as u64) as usize) % plan.nodes,
                scope: LIMITED,
                key,
                kind,
                amount,
                tries: 1 + chance.below(3) as u8,
                pause: 500 + chance.below(5_000),
                manner: *pick(chance, &manners),
                ..Call::default()
            });
        }
    }
}

/// Calls whose outcome is unknown, at a provider that cannot be asked, and a small cap.
pub(super) fn asked_in_vain(chance: &mut Chance, plan: &mut Plan) {
    if !chance.happens(1, 24) {
        return;
    }
    undisturbed(plan);
    (plan.searchable, plan.max_reconciles) = (false, 1 + chance.below(2) as u32);
    for number in 0..12 {
        let end = *pick(chance, &[End::Reset, End::Reset, End::Lost]);
        plan.provider.insert(number, Trouble { before: 100, after: 10, end, stop: None });
    }
    plan.calls.push(Call {
        at: chance.below(5_000),
        key: IN_VAIN,
        kind: Kind::Note,
        ..Call::default()
    });
}

fn undisturbed(plan: &mut Plan) {
    plan.events.clear();
    plan.builds.clear();
    plan.statements.clear();
    plan.aimed.clear();
    plan.provider.clear();
    plan.webhooks.clear();
    plan.hung_up.clear();
    plan.codec.clear();
    plan.retention = DAY;
}
