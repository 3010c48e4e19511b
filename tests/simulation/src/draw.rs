//! From a seed to a plan. A seed has some kinds of fault and not others, because each would hide in the noise of
//! all; and many faults are aimed at moments at which a request is in the middle of something.

mod crowd;
mod limited;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use atomic_phases::simulation::Chance;

use super::plan::{
    Build, Call, End, Event, Fault, HOSTILE, Kind, Manner, Plan, Stop, Trouble, What, Where,
};
use super::provider::SHORT_WINDOW;
use super::requests::REJECTED;

/// The general conditions of a run.
struct Weather {
    nodes: usize,
    /// Milliseconds.
    lease: u64,
    /// How many of a thousand statements have a fault.
    statements: u64,
    longest: Duration,
    cuts: bool,
    silence: bool,
    slow_commits: bool,
    /// Whether faults come in clusters.
    spells: bool,
    /// How many statements of certain kinds have one.
    aimed: u64,
    events: u64,
    /// Of a hundred calls at the provider.
    provider: u64,
    /// Whether the provider refuses them.
    refuses: bool,
    /// Of a hundred calls, the caller dies or stands still.
    stops: u64,
    deploys: bool,
    bad_manners: bool,
    /// Whether clients retry immediately, and often.
    impatient: bool,
    /// Whether one of the strange requests is among them.
    strays: bool,
}

impl Plan {
    pub fn of_seed(seed: u64) -> Self {
        let mut chance = Chance::from_seed(seed);
        let nodes = 1 + chance.below(3) as usize;
        let lease = *pick(&mut chance, &[3_000, 5_000, 10_000]);
        let fair = Self {
            seed,
            nodes,
            lease,
            poll: *pick(&mut chance, &[1_000, 1_000, 5_000]),
            searchable: chance.happens(3, 4),
            slow_provider: chance.happens(1, 2),
            ..Self::default()
        };
        match seed % 10 {
            // In a run without faults, strange requests are excluded.
            0 => Self { calls: calls(&mut chance, &Weather::fair(nodes, lease)), ..fair },
            5 => flooded(&mut chance, fair),
            _ => stormy(&mut chance, fair),
        }
    }
}

fn stormy(chance: &mut Chance, fair: Plan) -> Plan {
    let weather = Weather::of(chance, fair.nodes, fair.lease);
    let mut events: Vec<Event> = (0..weather.events).map(|_| event(chance, &weather)).collect();
    let mut builds = Vec::new();
    if weather.deploys {
        let all = [Build::First, Build::Longer, Build::Second, Build::Both];
        builds = (0..fair.nodes).map(|_| *pick(chance, &all)).collect();
        for _ in 0..chance.below(4) {
            let (at, node) = (chance.below(60_000), chance.below(fair.nodes as u64) as usize);
            events.push(Event { at, lasts: 0, what: What::Deploy(node, *pick(chance, &all)) });
        }
    }
    let mut plan = Plan {
        max_attempts: if weather.impatient { 5 } else { fair.max_attempts },
        calls: calls(chance, &weather),
        builds,
        events,
        statements: statements(chance, &weather),
        aimed: aimed(chance, &weather),
        provider: provider(chance, &weather),
        ..fair
    };
    endings(chance, &mut plan);
    deciders(chance, &mut plan);
    webhooks(chance, &mut plan);
    alerts(chance, &mut plan);
    plan.codec = codec(chance);
    fares(chance, &mut plan);
    stalled_claims(chance, &mut plan);
    crowd::crowded(chance, &mut plan);
    refused_fares(chance, &mut plan);
    limited::limited(chance, &mut plan);
    limited::asked_in_vain(chance, &mut plan);
    plan.aimed.retain(|_, faults| !faults.is_empty());
    plan
}

/// Some of the rides are fares, whose provider forgets a key within seconds. The provider has the effect and loses
/// the answer, the clients retry within the window, and the process that takes the request over learns late that it
/// has.
fn fares(chance: &mut Chance, plan: &mut Plan) {
    if !chance.happens(1, 3) {
        return;
    }
    let keys: BTreeSet<u8> = plan.calls.iter().map(|call| call.key).collect();
    let fares: BTreeSet<u8> = keys.into_iter().filter(|_| chance.happens(2, 3)).collect();
    for call in &mut plan.calls {
        if call.kind == Kind::Ride && fares.contains(&call.key) {
            call.kind = Kind::Fare;
            call.pause = chance.below(SHORT_WINDOW.as_millis() as u64);
        }
    }
    for number in 0..12 {
        if chance.happens(1, 2) {
            let end = *pick(chance, &[End::Reset, End::Reset, End::Hangs]);
            let trouble = Trouble { before: chance.below(500), after: 10, end, stop: None };
            plan.provider.insert(number, trouble);
        }
    }
    let late = plan.aimed.entry("take over the key".to_owned()).or_default();
    for number in 0..16 {
        if chance.happens(1, 2) {
            let back = chance.below(SHORT_WINDOW.as_micros() as u64);
            late.insert(number, Fault { back, ..Fault::default() });
        }
    }
}

/// Fares whose provider refuses calls, for longer than it remembers one, or whose call is paused for as long. Nothing else
/// goes wrong, so each refusal is heard.
fn refused_fares(chance: &mut Chance, plan: &mut Plan) {
    if plan.has_other_builds() || plan.has_many_lives() || !chance.happens(1, 12) {
        return;
    }
    for call in plan.calls.iter_mut().filter(|call| call.kind == Kind::Ride) {
        call.kind = Kind::Fare;
    }
    plan.statements.clear();
    plan.aimed.clear();
    plan.codec.clear();
    plan.events.clear();
    plan.webhooks.clear();
    plan.provider.clear();
    let ends = [End::Refused, End::Refused, End::Refused, End::Reset, End::Answered];
    for number in 0..16 {
        let (before, end) = (chance.below(500), *pick(chance, &ends));
        plan.provider.insert(number, Trouble { before, after: 10, end, stop: None });
    }
    for _ in 0..chance.below(3) {
        let (at, lasts) = (chance.below(20_000), 1_000 + chance.below(40_000));
        let node = chance.below(plan.nodes as u64) as usize;
        plan.events.push(Event { at, lasts, what: What::Pause(node) });
    }
}

/// Nodes that freeze between the claim of a job and its answer, for longer than the claim lasts.
fn stalled_claims(chance: &mut Chance, plan: &mut Plan) {
    if plan.events.is_empty() || !chance.happens(1, 4) {
        return;
    }
    for what in ["claim a staged job", "claim staged jobs"] {
        let claims = plan.aimed.entry(what.to_owned()).or_default();
        for number in 0..4 {
            if chance.happens(1, 3) {
                let lasts = 15_000 + chance.below(30_000);
                let stop = Some(Stop { after: 0, lasts, kill: false });
                claims.insert(number, Fault { back: 1_000, stop, ..Fault::default() });
            }
        }
    }
}

/// Clients that use the library's own client half.
fn deciders(chance: &mut Chance, plan: &mut Plan) {
    for call in &mut plan.calls {
        if call.manner == Manner::Plain && chance.happens(1, 3) {
            call.manner = Manner::Decide;
        }
    }
}

/// Providers that report their effects by a webhook, often before the call is answered.
fn webhooks(chance: &mut Chance, plan: &mut Plan) {
    if !chance.happens(1, 3) {
        return;
    }
    // If a key has several requests, a resolution of the first one may arrive during another one.
    let longest = Duration::from_secs(if plan.has_many_lives() { 60 } else { 20 });
    for number in 0..40 {
        if chance.happens(2, 3) {
            plan.webhooks.insert(number, chance.duration(longest).as_millis() as u64);
        }
        // Its handler takes a millisecond or two.
        if chance.happens(1, 3) {
            let after = chance.duration(Duration::from_millis(10)).as_micros() as u64;
            plan.hung_up.insert(number, after);
        }
    }
}

/// Some of the notes end with their call.
fn alerts(chance: &mut Chance, plan: &mut Plan) {
    let keys: BTreeSet<u8> = plan.calls.iter().map(|call| call.key).collect();
    let alerts: BTreeSet<u8> = keys.into_iter().filter(|_| chance.happens(1, 3)).collect();
    for call in &mut plan.calls {
        if call.kind == Kind::Note && alerts.contains(&call.key) {
            call.kind = Kind::Alert;
        }
    }
}

/// The calls of a codec.
const CODED: &[&str] = &[
    "encode params",
    "encode outputs",
    "encode outputs",
    "encode response_headers",
    "encode response_body",
    "encode response_body",
    "encode args",
    "decode params",
    "decode outputs",
    "decode response_headers",
    "decode response_body",
    "decode args",
];

/// A codec whose key service is unavailable from time to time, for some consecutive calls.
fn codec(chance: &mut Chance) -> BTreeMap<String, BTreeSet<u64>> {
    let mut fails: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    if !chance.happens(1, 4) {
        return fails;
    }
    for _ in 0..1 + chance.below(12) {
        let (what, first) = ((*pick(chance, CODED)).to_owned(), chance.below(16));
        fails.entry(what).or_default().extend(first..=first + chance.below(3));
    }
    fails
}

/// Keys that end while their clients still retry: an operator erases them, or they expire.
fn endings(chance: &mut Chance, plan: &mut Plan) {
    // A lost commit may be an erasure's, or that of a row from whose life the provider's key is derived.
    if plan.loses_commits() {
        return;
    }
    for event in &mut plan.events {
        if let What::ClockJump(by) = event.what
            && chance.happens(1, 2)
        {
            event.what = What::ClockBack(by);
        }
    }
    if chance.happens(1, 5) {
        for _ in 0..1 + chance.below(4) {
            let Some(call) = chance.one_of(&plan.calls).copied() else { break };
            let node = chance.below(plan.nodes as u64) as usize;
            let what = What::Erase { node, scope: call.scope, key: call.key };
            plan.events.push(Event { at: call.at + chance.below(40_000), lasts: 0, what });
        }
    }
    // If the clock is set back, an expired key is no longer expired. If it is set forward, a key that was created a
    // moment ago has expired, and a call whose creation was not answered cannot know that the row existed.
    let is_set = |event: &Event| matches!(event.what, What::ClockBack(_) | What::ClockJump(_));
    if chance.happens(1, 6) && !plan.events.iter().any(is_set) {
        let longest = *pick(chance, &[2_000, 40_000]);
        plan.retention = plan.lease + chance.below(longest);
        late_creators(chance, plan);
        for call in &mut plan.calls {
            call.at += chance.below(2) * chance.below(50_000);
        }
    }
}

/// The creator of a row learns late that its commit has no answer: by then another process has finished the
/// request, and the row has expired.
fn late_creators(chance: &mut Chance, plan: &mut Plan) {
    let creations = plan.aimed.entry("create".to_owned()).or_default();
    for number in 0..6 {
        if chance.happens(1, 3) {
            let back = 5_000_000 + chance.below(9_000_000);
            let cut = Some(Where::After);
            creations.insert(number, Fault { back, cut, ..Fault::default() });
        }
    }
}

/// One scope has accepted more requests than the workers can run concurrently, and each of them hangs.
fn flooded(chance: &mut Chance, fair: Plan) -> Plan {
    let mut calls = calls(chance, &Weather::fair(fair.nodes, fair.lease));
    for call in calls.iter_mut().filter(|_| chance.happens(2, 3)) {
        call.manner = Manner::Accept;
    }
    let flood = 16 * fair.nodes as u64;
    calls.extend((0..flood).map(|key| Call {
        at: chance.below(1_000),
        node: chance.below(fair.nodes as u64) as usize,
        scope: HOSTILE,
        key: 100 + key as u8,
        kind: Kind::Flood,
        amount: chance.below(2) as i64,
        manner: Manner::Accept,
        ..Call::default()
    }));
    Plan { calls, ..fair }
}

impl Weather {
    fn fair(nodes: usize, lease: u64) -> Self {
        Self {
            nodes,
            lease,
            statements: 0,
            longest: Duration::from_secs(1),
            cuts: false,
            silence: false,
            slow_commits: false,
            spells: false,
            aimed: 0,
            events: 0,
            provider: 0,
            refuses: false,
            stops: 0,
            deploys: false,
            bad_manners: false,
            impatient: false,
            strays: true,
        }
    }

    fn of(chance: &mut Chance, nodes: usize, lease: u64) -> Self {
        Self {
            nodes,
            lease,
            statements: *pick(chance, &[0, 0, 5, 20, 60, 150]),
            longest: Duration::from_secs(*pick(chance, &[1, 10, 20, 60])),
            cuts: chance.happens(1, 2),
            silence: chance.happens(1, 4),
            slow_commits: chance.happens(1, 2),
            spells: chance.happens(1, 2),
            aimed: *pick(chance, &[0, 2, 4, 8]),
            events: *pick(chance, &[0, 0, 1, 2, 4]),
            provider: *pick(chance, &[0, 20, 60]),
            refuses: chance.happens(1, 6),
            stops: *pick(chance, &[0, 0, 25, 60]),
            deploys: chance.happens(1, 5),
            bad_manners: chance.happens(1, 2),
            impatient: chance.happens(1, 6),
            strays: chance.happens(1, 3),
        }
    }

    /// A delay: of any length, or of about a lease.
    fn delay(&self, chance: &mut Chance) -> u64 {
        match chance.happens(1, 2) {
            true => chance.duration(self.longest).as_micros() as u64,
            false => self.about_a_lease(chance) * 1000,
        }
    }

    /// Milliseconds.
    fn about_a_lease(&self, chance: &mut Chance) -> u64 {
        self.lease / 3 + chance.below(self.lease * 2)
    }

    fn stop(&self, chance: &mut Chance, within: u64) -> Stop {
        let after = if chance.happens(1, 2) { 0 } else { chance.below(within) };
        Stop { after, lasts: self.about_a_lease(chance), kill: chance.happens(1, 2) }
    }
}

fn pick<'a, T>(chance: &mut Chance, all: &'a [T]) -> &'a T {
    &all[chance.below(all.len() as u64) as usize]
}

fn calls(chance: &mut Chance, weather: &Weather) -> Vec<Call> {
    let usual = [Kind::Ride, Kind::Note, Kind::Parcel, Kind::Transfer];
    let keys = 1 + chance.below(5) as u8;
    let of_key: Vec<(Kind, i64)> = (0..keys)
        .map(|_| {
            let is_stray = weather.strays && chance.happens(1, 5);
            let kind = if is_stray { Kind::Stray } else { *pick(chance, &usual) };
            (kind, if chance.happens(1, 8) { REJECTED } else { 20 })
        })
        .collect();
    let calls = u64::from(keys) * (1 + chance.below(3));
    let manners = [
        Manner::Plain,
        Manner::Plain,
        Manner::Accept,
        Manner::Accept,
        Manner::Wait,
        Manner::ExpectNew,
    ];
    (0..calls)
        .map(|number| {
            // Each key has a first call, then there are duplicates.
            let key = match number < u64::from(keys) {
                true => number as u8,
                false => chance.below(u64::from(keys)) as u8,
            };
            let bad = weather.bad_manners && chance.happens(1, 4);
            let (kind, amount) = of_key[usize::from(key)];
            Call {
                at: chance.below(20_000),
                node: chance.below(weather.nodes as u64) as usize,
                scope: key % 2,
                key,
                kind,
                amount: if bad { 7 } else { amount },
                patience: match weather.bad_manners {
                    true => 500 + chance.duration(Duration::from_secs(40)).as_millis() as u64,
                    false => 60_000,
                },
                tries: 1 + chance.below(if weather.impatient { 16 } else { 6 }) as u8,
                pause: match weather.impatient {
                    true => chance.below(300),
                    false => chance.duration(Duration::from_secs(10)).as_millis() as u64,
                },
                manner: *pick(chance, &manners),
            }
        })
        .collect()
}

fn event(chance: &mut Chance, weather: &Weather) -> Event {
    let node = chance.below(weather.nodes as u64) as usize;
    // Most requests come early.
    let until = *pick(chance, &[20_000, 60_000]);
    let at = chance.below(until);
    let lasts = chance.duration(Duration::from_secs(40)).as_millis() as u64;
    let what = match chance.below(20) {
        0..=5 => What::Freeze(node),
        6..=10 => What::Kill(node),
        11..=13 => What::Drain(node),
        14..=17 => What::DatabaseAway,
        18 => What::FailOver { losing: 1 + chance.below(8) as usize },
        _ => What::ClockJump(chance.below(60_000)),
    };
    Event { at, lasts, what }
}

fn cut(chance: &mut Chance) -> Where {
    match chance.below(3) {
        0 => Where::Before,
        1 => Where::Inside(1 + chance.below(4) as u32),
        _ => Where::After,
    }
}

const SILENT: [Where; 3] = [Where::SilentBefore, Where::SilentAfter, Where::SilentAfter];

fn statements(chance: &mut Chance, weather: &Weather) -> BTreeMap<u64, Fault> {
    let mut faults = BTreeMap::new();
    if weather.statements == 0 {
        return faults;
    }
    let mut spell = 0;
    for number in 0..1500 {
        if spell == 0 && !chance.happens(weather.statements, 1000) {
            continue;
        }
        spell = match spell {
            0 if weather.spells => chance.below(5),
            spell => spell.saturating_sub(1),
        };
        let mut fault = Fault::default();
        match chance.below(3) {
            0 => fault.there = weather.delay(chance),
            1 => fault.back = weather.delay(chance),
            _ => {}
        }
        if weather.slow_commits && chance.happens(1, 3) {
            fault.commit = weather.delay(chance);
        }
        if weather.cuts && chance.happens(1, 2) {
            fault.cut = Some(cut(chance));
        } else if weather.silence && chance.happens(1, 3) {
            fault.cut = Some(*pick(chance, &SILENT));
        }
        if fault != Fault::default() {
            faults.insert(number, fault);
        }
    }
    faults
}

/// Statements on which a decision depends; those of requests more often than those of jobs.
const AIMS: &[&str] = &[
    "create",
    "commit",
    "commit",
    "commit the reservation",
    "commit the reservation",
    "commit the reservation",
    "advance",
    "write the key",
    "write the key",
    "write the key",
    "take over the key",
    "take over the key",
    "renew the lease",
    "claim a staged job",
    "claim staged jobs",
    "delete a delivered job",
    "delete delivered jobs",
];

/// Faults at moments at which a request is in the middle of something.
fn aimed(chance: &mut Chance, weather: &Weather) -> BTreeMap<String, BTreeMap<u64, Fault>> {
    let mut aimed: BTreeMap<String, BTreeMap<u64, Fault>> = BTreeMap::new();
    for _ in 0..weather.aimed {
        let what = (*pick(chance, AIMS)).to_owned();
        let (long, short) = (1 + chance.below(12), 1 + chance.below(4));
        let number = chance.below(long.min(short * 3));
        let mut fault = Fault::default();
        match chance.below(6) {
            0 => fault.there = weather.delay(chance),
            1 => fault.back = weather.delay(chance),
            2 => fault.commit = weather.delay(chance),
            _ => {}
        }
        match chance.below(4) {
            0 | 1 => {
                fault.cut = Some(cut(chance));
                // The loss is noticed after a while.
                fault.back =
                    if chance.happens(1, 2) { chance.below(6_000_000) } else { fault.back };
            }
            2 => fault.cut = Some(*pick(chance, &SILENT)),
            _ => {}
        }
        match chance.below(8) {
            0..=3 => fault.stop = Some(weather.stop(chance, 100)),
            4 => fault.away = weather.about_a_lease(chance),
            _ => {}
        }
        // The process that accepted a request learns late that the commit's outcome is unknown, when a worker
        // already has the request.
        if what == "commit the reservation" && chance.happens(2, 3) {
            (fault.cut, fault.stop) = (Some(Where::After), None);
            (fault.back, fault.commit) = (500_000 + chance.below(5_000_000), 0);
        }
        aimed.entry(what).or_default().insert(number, fault);
    }
    aimed
}

fn provider(chance: &mut Chance, weather: &Weather) -> BTreeMap<u64, Trouble> {
    let ends = [
        End::Answered,
        End::Answered,
        End::Refused,
        End::Declined,
        End::Reset,
        End::Hangs,
        End::Lost,
    ];
    let mut troubles = BTreeMap::new();
    for number in 0..40 {
        let (is_in_trouble, stops) =
            (chance.happens(weather.provider, 100), chance.happens(weather.stops, 100));
        if !is_in_trouble && !stops && !weather.refuses {
            continue;
        }
        // A call has its effect within the phase's time limit, or never: beyond the limit no promise holds.
        let before = match chance.happens(1, 2) {
            true => chance.below(4_500),
            false => chance.duration(Duration::from_millis(4_500)).as_millis() as u64,
        };
        let after = chance.duration(Duration::from_secs(30)).as_millis() as u64;
        let stop = stops.then(|| weather.stop(chance, before.max(1)));
        let trouble = match (weather.refuses, is_in_trouble) {
            (true, _) => Trouble { before: before / 20, after: 0, end: End::Refused, stop },
            (false, true) => Trouble { before, after, end: *pick(chance, &ends), stop },
            (false, false) => Trouble { before, after: 10, end: End::Answered, stop },
        };
        troubles.insert(number, trouble);
    }
    troubles
}
