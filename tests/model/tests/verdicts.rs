//! Each configuration has its expected verdict: the engine's protocol violates nothing, and every mistake is found.

use atomic_phases_model::case::{Case, Sort};
use atomic_phases_model::cases::CASES;
use atomic_phases_model::check::{check, has_circle, shortest};
use atomic_phases_model::script::script;

fn case(name: &str) -> &'static Case {
    CASES.iter().find(|case| case.name == name).expect("a configuration of that name")
}

fn verdict(name: &str) {
    let case = case(name);
    let verdict = check(case.config, 1);
    let surprises = case.surprises(&verdict);
    let unexpected = verdict.violated.iter().find(|name| !case.violated.contains(name));
    let way = unexpected.and_then(|property| shortest(case.config, property));
    let way = way.map(|path| script(&case.config, &path)).unwrap_or_default();
    assert!(surprises.is_empty(), "{name}: {surprises:#?}\n{way}");
}

macro_rules! verdicts {
    ($($test:ident: $name:literal,)*) => {
        $(#[test] fn $test() { verdict($name); })*

        #[test]
        fn every_configuration_has_a_test() {
            let tested = [$($name),*];
            for case in CASES {
                assert!(tested.contains(&case.name), "{} has no test", case.name);
            }
        }
    };
}

verdicts! {
    // The engine.
    g1_g3_g4_g7_g17_the_engine_holds: "tour",
    the_flagship_holds_under_more_faults: "ride",
    a_run_that_stops_is_resumed: "stops",
    three_nodes_hold: "ride-3-nodes",
    the_completer_beside_a_client_holds: "completer",
    a_request_whose_first_phase_is_foreign_holds: "charge-first",
    g2_a_call_with_an_intent_is_made_at_most_once: "letter",
    both_classes_of_foreign_phases_hold: "charge-and-mail",
    the_reconciler_settles_what_is_unknown: "reconcile",
    g15_a_reaped_key_is_a_new_request: "reap",
    g15_a_reaped_key_may_be_charged_anew: "reap-salted",
    g8_g15_a_request_that_outlives_its_retention_is_replayed: "reap-outlived",
    g15_a_call_that_stalls_past_the_retention_creates_no_second_request: "reap-stalled",
    g11_no_call_is_repeated_past_the_window: "forgets",
    g11_a_holder_that_stalls_past_the_margin_repeats_no_call: "forgets-stalled",
    g14_a_deploy_in_the_middle_of_a_request_holds: "deploy",
    two_keys_at_one_provider_hold: "two-keys",
    // Harmless.
    a_fence_of_token_alone_is_enough_where_commits_are_resolved_rightly: "token-only",
    the_full_fence_survives_a_plain_read: "plain-read",
    the_full_fence_survives_a_guess: "assume-failed",
    the_full_fence_survives_a_read_that_raises_nothing: "locking-read",
    a_plain_read_is_survived_with_intents_too: "letter-plain-read",
    a_guess_is_survived_with_intents_too: "letter-assume-failed",
    a_new_request_id_for_each_creation_survives_any_stall: "reap-stall-new-request-id",
    // Mistakes.
    found_no_fence: "no-fence",
    found_a_fence_of_the_recovery_point_alone: "point-only",
    found_a_plain_read: "token-only-plain-read",
    found_a_locking_read_that_raises_nothing: "token-only-locking-read",
    found_a_guessed_commit: "token-only-assume-failed",
    found_a_random_key: "random-key",
    found_a_provider_without_keys_and_no_intent: "ignores-without-intent",
    found_an_intent_that_is_not_awaited: "intent-not-awaited",
    found_an_intent_that_is_overlooked: "intent-overlooked",
    found_a_fence_of_the_recovery_point_alone_by_its_effects: "letter-point-only",
    found_a_take_over_that_keeps_the_token: "take-over-keeps-token",
    found_a_lease_without_end: "lease-for-ever",
    found_a_recovery_point_in_a_second_commit: "two-commits",
    found_a_reply_before_its_commit: "reply-first",
    found_a_window_that_nobody_checks: "forgets-unchecked",
    found_a_window_that_is_checked_at_the_take_over_only: "forgets-checked-at-take-over",
    found_a_retention_from_the_creation: "retention-from-creation",
    found_a_creation_that_is_repeated_past_the_retention: "reap-stalled-create-again",
    found_a_reaper_of_open_rows: "reap-open",
    found_a_fence_without_the_request: "fence-without-request",
    found_an_unfenced_reconciler: "reconciler-unfenced",
    found_a_place_by_count: "place-by-count",
    found_a_key_of_the_phase_alone: "key-of-phase-only",
    // Not promised.
    g1_survives_a_failover_that_loses_commits: "lossy-failover",
    g2_does_not_survive_a_failover_that_loses_commits: "lossy-failover-letter",
    not_executed_has_to_be_final: "reconcile-too-early",
}

#[test]
fn every_run_ends() {
    for name in ["tour", "letter", "reconcile", "reap", "forgets", "deploy"] {
        assert!(!has_circle(&case(name).config), "{name}: a run may go on for ever");
    }
}

#[test]
fn only_the_engine_and_what_is_harmless_hold() {
    for case in CASES {
        let holds = matches!(case.sort, Sort::Engine | Sort::Harmless);
        assert_eq!(case.violated.is_empty(), holds, "{}", case.name);
    }
}

#[test]
fn a_violation_is_told_as_a_short_script() {
    let case = case("random-key");
    let path = shortest(case.config, case.violated[0]).expect("a way to the violation");
    let told = script(&case.config, &path);
    // Which of the two nodes is which does not matter.
    let told = told.replace("node 1", "node A").replace("node 0", "node B");
    let told = if told.starts_with("   1. node A") { told } else { swapped(&told) };
    assert_eq!(
        told,
        "   1. node A inserts request 0 and runs what shares its commit
   2. node A's \"create at Ride (request 0, token 1)\" commits
   3. node A calls: Charge
   4. node A's call has its EFFECT
   5. the lease ends
   6. node B takes the row over, token 2
   7. node B calls: Charge
   8. node B's call has its EFFECT
"
    );
}

fn swapped(told: &str) -> String {
    told.replace("node A", "node ?").replace("node B", "node A").replace("node ?", "node B")
}
