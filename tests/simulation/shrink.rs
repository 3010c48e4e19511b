//! From a run that fails to the least that fails: fewer faults, then fewer calls, then fewer nodes.

use super::plan::Plan;

/// How many runs a shrinking may take.
const RUNS: usize = 2000;

/// The plan without what its failure does not need.
pub fn shrink(plan: &Plan, fails: impl Fn(&Plan) -> bool) -> Plan {
    let (mut best, mut runs) = (plan.clone(), 0);
    let mut chunk = best.size().div_ceil(2);
    while chunk > 0 && runs < RUNS {
        let before = best.size();
        let mut from = 0;
        while from < best.size() && runs < RUNS {
            let less = best.without(from, chunk);
            runs += 1;
            match fails(&less) {
                true => best = less,
                false => from += chunk,
            }
        }
        // The same once more where it helped, then with smaller pieces.
        if best.size() == before || chunk > best.size() {
            chunk /= 2;
        }
    }
    for nodes in 1..best.nodes {
        let fewer = best.on_nodes(nodes);
        if fails(&fewer) {
            return fewer;
        }
    }
    best
}
