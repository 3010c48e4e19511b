//! [`Plan`]: everything that is to happen in one run, drawn from a seed before it begins. What a
//! regression test keeps is the plan and not the seed, so that it survives changes of the drawing.

use std::collections::BTreeMap;
use std::time::Duration;

use atomic_phases::simulation::{Chance, Cut, Passage};
use serde::{Deserialize, Serialize};

/// From here on everything is well: no fault begins.
pub const HEALED: Duration = Duration::from_secs(90);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub seed: u64,
    pub nodes: usize,
    /// Milliseconds.
    pub lease: u64,
    /// How often the workers look, in milliseconds.
    pub poll: u64,
    /// Whether the at-most-once provider tells what became of a call.
    pub searchable: bool,
    /// Whether the providers take seconds for a call, and not a fraction of one.
    pub slow_provider: bool,
    pub calls: Vec<Call>,
    pub events: Vec<Event>,
    /// By the number of the statement.
    pub statements: BTreeMap<u64, Fault>,
    /// By the number of the call at the provider.
    pub provider: BTreeMap<u64, Trouble>,
}

/// A client's request, with its retries.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// Milliseconds from the beginning.
    pub at: u64,
    pub node: usize,
    pub scope: u8,
    pub key: u8,
    pub kind: Kind,
    /// Another amount is another request.
    pub amount: i64,
    /// How long the client waits before it hangs up, in milliseconds.
    pub patience: u64,
    pub tries: u8,
    pub pause: u64,
    pub manner: Manner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Transaction, idempotent call, transaction with a job.
    Ride,
    /// Transaction, at-most-once call, transaction.
    Note,
    /// The same as a ride, with statements that are handed over.
    Parcel,
    /// Two serializable transactions.
    Transfer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Manner {
    Plain,
    /// Leaves it to the workers.
    Accept,
    /// Waits for whoever runs it.
    Wait,
    /// Wrongly or rightly says that the key is new.
    ExpectNew,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Milliseconds from the beginning.
    pub at: u64,
    /// How long it lasts.
    pub lasts: u64,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    Freeze(usize),
    Kill(usize),
    Drain(usize),
    DatabaseAway,
}

/// What becomes of a statement; delays in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub there: u64,
    pub commit: u64,
    pub back: u64,
    pub cut: Option<Where>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Where {
    Before,
    Inside(u32),
    After,
    SilentBefore,
    SilentAfter,
}

impl Fault {
    pub fn passage(&self) -> Passage {
        Passage {
            there: Duration::from_micros(self.there),
            commit: Duration::from_micros(self.commit),
            back: Duration::from_micros(self.back),
            cut: self.cut.map(|at| match at {
                Where::Before => Cut::Before,
                Where::Inside(statements) => Cut::Inside { statements },
                Where::After => Cut::After,
                Where::SilentBefore => Cut::SilentBefore,
                Where::SilentAfter => Cut::SilentAfter,
            }),
        }
    }
}

/// What becomes of a call at the provider; delays in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    pub before: u64,
    pub after: u64,
    pub end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    Answered,
    /// The provider says that it did nothing.
    Refused,
    /// The business answer no: stored and replayed.
    Declined,
    /// It is done, and the connection is reset.
    Reset,
    /// It is done, and no answer comes.
    Hangs,
    /// The request is lost on its way, and no answer comes.
    Lost,
}

/// How a run is, as a whole: a seed has some kinds of trouble and not others, or each would hide in the
/// noise of all.
struct Weather {
    statements: u64,
    longest: Duration,
    cuts: bool,
    silence: bool,
    slow_commits: bool,
    /// Whether trouble comes in spells.
    spells: bool,
    events: u64,
    provider: u64,
    bad_manners: bool,
}

impl Plan {
    pub fn of_seed(seed: u64) -> Self {
        let mut chance = Chance::from_seed(seed);
        // One of ten is calm: what is strange there is strange by itself.
        let calm = seed.is_multiple_of(10);
        let weather = Weather {
            statements: if calm { 0 } else { *pick(&mut chance, &[0, 5, 20, 60, 150]) },
            longest: Duration::from_secs(*pick(&mut chance, &[1, 10, 20, 60])),
            cuts: chance.happens(1, 2),
            silence: chance.happens(1, 4),
            slow_commits: chance.happens(1, 2),
            spells: chance.happens(1, 2),
            events: if calm { 0 } else { chance.below(5) },
            provider: if calm { 0 } else { *pick(&mut chance, &[0, 20, 60]) },
            bad_manners: chance.happens(1, 2),
        };
        let nodes = 1 + chance.below(3) as usize;
        Self {
            seed,
            nodes,
            lease: *pick(&mut chance, &[3_000, 5_000, 10_000]),
            poll: *pick(&mut chance, &[1_000, 1_000, 5_000]),
            searchable: chance.happens(3, 4),
            slow_provider: chance.happens(1, 2),
            calls: calls(&mut chance, &weather, nodes),
            events: (0..weather.events).map(|_| event(&mut chance, nodes)).collect(),
            statements: statements(&mut chance, &weather),
            provider: provider(&mut chance, &weather),
        }
    }

    pub fn is_calm(&self) -> bool {
        self.events.is_empty() && self.statements.is_empty() && self.provider.is_empty()
    }

    /// How much goes on in it: a shrunk plan has less.
    pub fn size(&self) -> usize {
        self.statements.len() + self.provider.len() + self.events.len() + self.calls.len()
    }

    /// Without some of what goes on in it: statements' faults first, then the providers', then events,
    /// then calls.
    pub fn without(&self, from: usize, count: usize) -> Self {
        let mut number = 0;
        let mut stays = || {
            number += 1;
            !(from..from + count).contains(&(number - 1))
        };
        let mut less = self.clone();
        less.statements.retain(|_, _| stays());
        less.provider.retain(|_, _| stays());
        less.events.retain(|_| stays());
        less.calls.retain(|_| stays());
        less
    }

    /// The same on fewer nodes.
    pub fn on_nodes(&self, nodes: usize) -> Self {
        let mut fewer = Self { nodes, ..self.clone() };
        fewer.calls.iter_mut().for_each(|call| call.node %= nodes);
        for event in &mut fewer.events {
            if let What::Freeze(node) | What::Kill(node) | What::Drain(node) = &mut event.what {
                *node %= nodes;
            }
        }
        fewer
    }
}

fn pick<'a, T>(chance: &mut Chance, all: &'a [T]) -> &'a T {
    &all[chance.below(all.len() as u64) as usize]
}

fn calls(chance: &mut Chance, weather: &Weather, nodes: usize) -> Vec<Call> {
    let kinds = [Kind::Ride, Kind::Note, Kind::Parcel, Kind::Transfer];
    let keys = 1 + chance.below(5) as u8;
    let of_key: Vec<(Kind, i64)> = (0..keys)
        .map(|_| (*pick(chance, &kinds), if chance.happens(1, 8) { 13 } else { 20 }))
        .collect();
    let calls = u64::from(keys) * (1 + chance.below(3));
    (0..calls)
        .map(|number| {
            // Each key has a first call, then there are duplicates.
            let key = match number < u64::from(keys) {
                true => number as u8,
                false => chance.below(u64::from(keys)) as u8,
            };
            let bad = weather.bad_manners && chance.happens(1, 4);
            Call {
                at: chance.below(20_000),
                node: chance.below(nodes as u64) as usize,
                scope: key % 2,
                key,
                kind: of_key[usize::from(key)].0,
                amount: if bad { 7 } else { of_key[usize::from(key)].1 },
                patience: match weather.bad_manners {
                    true => 500 + chance.duration(Duration::from_secs(40)).as_millis() as u64,
                    false => 60_000,
                },
                tries: 1 + chance.below(6) as u8,
                pause: chance.duration(Duration::from_secs(10)).as_millis() as u64,
                manner: *pick(
                    chance,
                    &[
                        Manner::Plain,
                        Manner::Plain,
                        Manner::Accept,
                        Manner::Wait,
                        Manner::ExpectNew,
                    ],
                ),
            }
        })
        .collect()
}

fn event(chance: &mut Chance, nodes: usize) -> Event {
    let node = chance.below(nodes as u64) as usize;
    let what = match chance.below(8) {
        0..=2 => What::Freeze(node),
        3..=5 => What::Kill(node),
        6 => What::Drain(node),
        _ => What::DatabaseAway,
    };
    Event {
        at: chance.below(60_000),
        lasts: chance.duration(Duration::from_secs(40)).as_millis() as u64,
        what,
    }
}

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
        // Of any length, or of about a lease.
        let delay = |chance: &mut Chance| match chance.happens(1, 2) {
            true => chance.duration(weather.longest).as_micros() as u64,
            false => 1_000_000 + chance.below(13_000_000),
        };
        let mut fault = Fault::default();
        match chance.below(3) {
            0 => fault.there = delay(chance),
            1 => fault.back = delay(chance),
            _ => {}
        }
        if weather.slow_commits && chance.happens(1, 3) {
            fault.commit = delay(chance);
        }
        if weather.cuts && chance.happens(1, 2) {
            fault.cut = Some(match chance.below(3) {
                0 => Where::Before,
                1 => Where::Inside(1 + chance.below(4) as u32),
                _ => Where::After,
            });
        } else if weather.silence && chance.happens(1, 3) {
            fault.cut =
                Some(*pick(chance, &[Where::SilentBefore, Where::SilentAfter, Where::SilentAfter]));
        }
        if fault != Fault::default() {
            faults.insert(number, fault);
        }
    }
    faults
}

fn provider(chance: &mut Chance, weather: &Weather) -> BTreeMap<u64, Trouble> {
    let mut troubles = BTreeMap::new();
    for number in 0..40 {
        if !chance.happens(weather.provider, 100) {
            continue;
        }
        let end = *pick(
            chance,
            &[
                End::Answered,
                End::Answered,
                End::Refused,
                End::Declined,
                End::Reset,
                End::Hangs,
                End::Lost,
            ],
        );
        // What a call does, it does within the phase's time limit, or never: beyond it no promise holds.
        let before = chance.duration(Duration::from_millis(4_500)).as_millis() as u64;
        let before = if chance.happens(1, 2) { chance.below(4_500) } else { before };
        let after = chance.duration(Duration::from_secs(30)).as_millis() as u64;
        troubles.insert(number, Trouble { before, after, end });
    }
    troubles
}
