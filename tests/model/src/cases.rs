//! Every checked configuration, with its expected verdict.

mod large;

pub use self::large::LARGE;

use crate::case::{Case, engine, harmless, mistake, not_promised};
use crate::config::{
    Budget, CHARGE_AND_MAIL, CHARGE_FIRST, Config, DerivedKey, Fence, Horizon, Intent, LETTER,
    List, NEWER_RIDE, Node, Provider, RIDE, RequestId, Resolve, Role, Rules, TOUR, World,
};
use crate::properties::{
    EFFECT_IS_REAL, FENCED, FINISHED, FOUND_APPLIED, FOUND_NOT_APPLIED, LATE_CALL, LATE_COMMIT,
    LEFT_ALONE, NO_STALE_COMMIT, ONE_EFFECT, ONE_REPLY, PAST_HORIZON, POINT_TELLS,
    REAPED_WHEN_FINISHED, RECONCILED, RECOVERED, REPLAYED, REUSED, ROLLED_BACK, SETTLES,
    TOLD_WHEN_DURABLE, UNKNOWN, WRITES_ONCE,
};

const fn client(key: u8, list: List) -> Node {
    Node { role: Role::Client, key, list }
}
const fn completer(list: List) -> Node {
    Node { role: Role::Completer, key: 0, list }
}
const fn reconciler(list: List) -> Node {
    Node { role: Role::Reconciler, key: 0, list }
}

const TOURS: &[Node] = &[client(0, TOUR), client(0, TOUR)];
const RIDES: &[Node] = &[client(0, RIDE), client(0, RIDE)];
const THREE_RIDES: &[Node] = &[client(0, RIDE), client(0, RIDE), client(0, RIDE)];
const LETTERS: &[Node] = &[client(0, LETTER), client(0, LETTER)];
const RECONCILED_LETTER: &[Node] = &[client(0, LETTER), client(0, LETTER), reconciler(LETTER)];
const TWO_RECONCILERS: &[Node] = &[client(0, LETTER), reconciler(LETTER), reconciler(LETTER)];

const PROMPT: World = World {
    provider: Provider::Honours,
    stalls_past_margin: false,
    outlives_retention: false,
    stalls_past_retention: false,
    calls_after_answer: false,
};
const IGNORES: World = World { provider: Provider::Ignores, ..PROMPT };
const FORGETS: World = World { provider: Provider::Forgets, ..PROMPT };

const ONCE: Budget = Budget::of(1);
const ENGINE: Rules = Rules::ENGINE;

/// Two clients' calls of one request, under the engine's rules.
const BASE: Config = Config { nodes: TOURS, world: PROMPT, budget: ONCE, rules: ENGINE };
const FLAGSHIP: Config =
    Config { nodes: RIDES, budget: Budget { losses: 1, ..Budget::of(2) }, ..BASE };
const LETTER_BASE: Config = Config { nodes: LETTERS, world: IGNORES, ..BASE };

const USUAL: &[&str] =
    &[FINISHED, FENCED, FOUND_APPLIED, FOUND_NOT_APPLIED, RECOVERED, LATE_COMMIT, LATE_CALL];

const fn with(config: Config, rules: Rules) -> Config {
    Config { rules, ..config }
}

const TOKEN_ONLY: Rules = Rules { fence: Fence { point: false, ..Fence::FULL }, ..ENGINE };
const POINT_ONLY: Rules = Rules { fence: Fence { token: false, ..Fence::FULL }, ..ENGINE };
const REAPED: Config = Config { nodes: RIDES, budget: Budget { retentions: 1, ..ONCE }, ..BASE };
const FORGETFUL: Config = Config { world: FORGETS, budget: ONCE, ..BASE };
const OUTLIVED: Config = Config { world: World { outlives_retention: true, ..PROMPT }, ..REAPED };
const REAP_STALLED: Config =
    Config { world: World { stalls_past_retention: true, ..PROMPT }, ..REAPED };
const FORGETFUL_STALLED: Config =
    Config { world: World { stalls_past_margin: true, ..FORGETS }, ..FORGETFUL };
const RECONCILE: Config = Config {
    nodes: RECONCILED_LETTER,
    world: IGNORES,
    budget: Budget { reconciles: 2, ..ONCE },
    rules: ENGINE,
};
const DEPLOY: Config = Config { nodes: &[client(0, RIDE), client(0, NEWER_RIDE)], ..BASE };
const TWO_KEYS: Config =
    Config { nodes: &[client(0, RIDE), client(1, RIDE)], budget: ONCE, ..BASE };
const LOSSY: Config =
    Config { nodes: RIDES, budget: Budget { failovers: 1, losses: 0, ..ONCE }, ..BASE };

/// All of them.
pub const CASES: &[Case] = &[
    // The engine as it is.
    engine("tour", BASE, USUAL),
    engine("ride", FLAGSHIP, USUAL),
    engine("stops", Config { nodes: RIDES, budget: Budget { stops: 1, ..ONCE }, ..BASE }, USUAL),
    engine("ride-3-nodes", Config { nodes: THREE_RIDES, budget: ONCE, ..BASE }, USUAL),
    engine(
        "completer",
        Config { nodes: &[client(0, RIDE), completer(RIDE)], ..BASE },
        &[FINISHED, FENCED],
    ),
    engine(
        "charge-first",
        Config { nodes: &[client(0, CHARGE_FIRST), client(0, CHARGE_FIRST)], ..BASE },
        USUAL,
    ),
    engine("letter", LETTER_BASE, &[FINISHED, FENCED, UNKNOWN, FOUND_APPLIED, FOUND_NOT_APPLIED]),
    engine(
        "charge-and-mail",
        Config { nodes: &[client(0, CHARGE_AND_MAIL), client(0, CHARGE_AND_MAIL)], ..BASE },
        &[FINISHED, FENCED, UNKNOWN],
    ),
    engine("reconcile", RECONCILE, &[FINISHED, FENCED, UNKNOWN, RECONCILED]),
    engine("reap", REAPED, &[FINISHED, FENCED, REUSED]),
    engine(
        "reap-salted",
        with(REAPED, Rules { derived_key: DerivedKey::Salted, ..ENGINE }),
        &[FINISHED, FENCED, REUSED],
    ),
    engine("reap-outlived", OUTLIVED, &[FINISHED, FENCED, REUSED]),
    engine("reap-stalled", REAP_STALLED, &[FINISHED, FENCED, REUSED]),
    engine("forgets", FORGETFUL, &[FINISHED, FENCED, UNKNOWN, PAST_HORIZON]),
    engine("forgets-stalled", FORGETFUL_STALLED, &[FINISHED, FENCED, UNKNOWN, PAST_HORIZON]),
    engine("deploy", DEPLOY, &[FINISHED, FENCED, LEFT_ALONE]),
    engine("two-keys", TWO_KEYS, &[FINISHED]),
    // Other rules, without harm.
    harmless("token-only", with(BASE, TOKEN_ONLY)),
    harmless("plain-read", with(BASE, Rules { resolve: Resolve::PlainRead, ..ENGINE })),
    harmless("assume-failed", with(BASE, Rules { resolve: Resolve::AssumeFailed, ..ENGINE })),
    harmless("locking-read", with(BASE, Rules { resolve: Resolve::LockingRead, ..ENGINE })),
    harmless(
        "reap-stall-new-request-id",
        with(REAP_STALLED, Rules { request_id: RequestId::OfCreation, ..ENGINE }),
    ),
    harmless(
        "letter-plain-read",
        with(LETTER_BASE, Rules { resolve: Resolve::PlainRead, ..ENGINE }),
    ),
    harmless(
        "letter-assume-failed",
        with(LETTER_BASE, Rules { resolve: Resolve::AssumeFailed, ..ENGINE }),
    ),
    // Mistakes.
    mistake(
        "no-fence",
        with(BASE, Rules { fence: Fence::NONE, ..ENGINE }),
        &[NO_STALE_COMMIT, WRITES_ONCE, POINT_TELLS, ONE_REPLY],
    ),
    mistake("point-only", with(BASE, POINT_ONLY), &[NO_STALE_COMMIT, ONE_REPLY]),
    mistake(
        "token-only-plain-read",
        with(BASE, Rules { resolve: Resolve::PlainRead, ..TOKEN_ONLY }),
        &[WRITES_ONCE, POINT_TELLS],
    ),
    mistake(
        "token-only-locking-read",
        with(BASE, Rules { resolve: Resolve::LockingRead, ..TOKEN_ONLY }),
        &[WRITES_ONCE, POINT_TELLS],
    ),
    mistake(
        "token-only-assume-failed",
        with(BASE, Rules { resolve: Resolve::AssumeFailed, ..TOKEN_ONLY }),
        &[WRITES_ONCE, POINT_TELLS],
    ),
    mistake(
        "random-key",
        with(BASE, Rules { derived_key: DerivedKey::PerAttempt, ..ENGINE }),
        &[ONE_EFFECT],
    ),
    mistake("ignores-without-intent", Config { world: IGNORES, ..BASE }, &[ONE_EFFECT]),
    mistake(
        "intent-not-awaited",
        Config {
            budget: Budget { zombies: 0, losses: 0, ..ONCE },
            rules: Rules { intent: Intent::NotAwaited, ..ENGINE },
            ..LETTER_BASE
        },
        &[ONE_EFFECT],
    ),
    mistake(
        "intent-overlooked",
        with(LETTER_BASE, Rules { intent: Intent::Overlooked, ..ENGINE }),
        &[ONE_EFFECT],
    ),
    mistake(
        "letter-point-only",
        with(LETTER_BASE, POINT_ONLY),
        &[ONE_EFFECT, NO_STALE_COMMIT, ONE_REPLY],
    ),
    mistake(
        "take-over-keeps-token",
        with(LETTER_BASE, Rules { take_over_raises: false, ..ENGINE }),
        &[ONE_EFFECT],
    ),
    mistake("lease-for-ever", with(BASE, Rules { leases_end: false, ..ENGINE }), &[SETTLES]),
    mistake(
        "two-commits",
        with(BASE, Rules { one_commit: false, ..ENGINE }),
        &[WRITES_ONCE, POINT_TELLS],
    ),
    mistake(
        "reply-first",
        with(BASE, Rules { reply_after_commit: false, ..ENGINE }),
        &[TOLD_WHEN_DURABLE, ONE_REPLY],
    ),
    mistake(
        "forgets-unchecked",
        with(FORGETFUL, Rules { horizon: Horizon::Unchecked, ..ENGINE }),
        &[ONE_EFFECT],
    ),
    mistake(
        "forgets-checked-at-take-over",
        with(FORGETFUL_STALLED, Rules { horizon: Horizon::AtTakeOver, ..ENGINE }),
        &[ONE_EFFECT],
    ),
    mistake(
        "retention-from-creation",
        with(OUTLIVED, Rules { retention_from_finish: false, ..ENGINE }),
        &[REPLAYED],
    ),
    mistake(
        "reap-stalled-create-again",
        with(REAP_STALLED, Rules { request_id: RequestId::OfCall, ..ENGINE }),
        &[ONE_REPLY],
    ),
    mistake(
        "reap-open",
        Config {
            nodes: LETTERS,
            world: World { outlives_retention: true, ..IGNORES },
            budget: Budget { retentions: 1, losses: 0, ..ONCE },
            rules: Rules { reaps_finished_only: false, ..ENGINE },
        },
        &[REAPED_WHEN_FINISHED],
    ),
    mistake(
        "fence-without-request",
        with(REAPED, Rules { fence: Fence { request: false, ..Fence::FULL }, ..ENGINE }),
        &[NO_STALE_COMMIT, TOLD_WHEN_DURABLE, ONE_REPLY],
    ),
    mistake(
        "reconciler-unfenced",
        Config {
            nodes: TWO_RECONCILERS,
            rules: Rules { reconciler_is_fenced: false, ..ENGINE },
            ..RECONCILE
        },
        &[ONE_EFFECT, NO_STALE_COMMIT, WRITES_ONCE, POINT_TELLS, ONE_REPLY],
    ),
    mistake(
        "place-by-count",
        with(DEPLOY, Rules { place_by_name: false, ..ENGINE }),
        &[POINT_TELLS, EFFECT_IS_REAL],
    ),
    mistake(
        "key-of-phase-only",
        with(TWO_KEYS, Rules { derived_key: DerivedKey::PhaseOnly, ..ENGINE }),
        &[EFFECT_IS_REAL],
    ),
    // Worlds outside of the promises.
    not_promised("lossy-failover", LOSSY, &[ONE_REPLY], &[FINISHED, ROLLED_BACK]),
    not_promised(
        "lossy-failover-letter",
        Config { nodes: LETTERS, world: IGNORES, ..LOSSY },
        &[ONE_EFFECT, ONE_REPLY],
        &[FINISHED, ROLLED_BACK],
    ),
    not_promised(
        "reconcile-too-early",
        Config { world: World { calls_after_answer: true, ..IGNORES }, ..RECONCILE },
        &[ONE_EFFECT],
        &[RECONCILED],
    ),
];
