//! Lists of phases, drawn from a seed by functions of constants: a definition is a constant.

use std::time::Duration;

use atomic_phases::__private::{EffectClass, Isolation, Phase, PhaseKind};

use super::types::TYPES;

/// Definitions of a family are changes of one.
pub(super) const FAMILY: usize = 6;
pub(super) const MAX_PHASES: usize = 5;

pub(super) const NAMES: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];
pub(super) const WAS: [&[&str]; 8] = [&["a"], &["b"], &["c"], &["d"], &["e"], &["f"], &["g"], &[]];
pub(super) const NONE: usize = 7;

pub(super) const SEED: u64 = match option_env!("DRAWN_SEED") {
    Some(text) => match u64::from_str_radix(text, 10) {
        Ok(seed) => seed,
        Err(_) => panic!("DRAWN_SEED is a number"),
    },
    None => 16,
};

/// A phase, by numbers: what a `const fn` can draw.
#[derive(Clone, Copy)]
pub(super) struct Drawn {
    pub(super) name: usize,
    pub(super) was: usize,
    pub(super) kind: usize,
    pub(super) output: usize,
}

/// A definition, by numbers.
#[derive(Clone, Copy)]
pub(super) struct List {
    pub(super) phases: [Drawn; MAX_PHASES],
    pub(super) len: usize,
    pub(super) request: usize,
}

/// SplitMix64, for constants.
pub(super) struct Chance(u64);

impl Chance {
    const fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

impl List {
    const fn uses(&self, name: usize) -> bool {
        let mut index = 0;
        while index < self.len {
            if self.phases[index].name == name || self.phases[index].was == name {
                return true;
            }
            index += 1;
        }
        false
    }

    /// A name that no phase has, or `NONE`.
    const fn unused(&self, chance: &mut Chance) -> usize {
        let first = chance.below(NAMES.len());
        let mut tried = 0;
        while tried < NAMES.len() {
            let name = (first + tried) % NAMES.len();
            if !self.uses(name) {
                return name;
            }
            tried += 1;
        }
        NONE
    }

    const fn insert(&mut self, at: usize, chance: &mut Chance) {
        let name = self.unused(chance);
        if self.len == MAX_PHASES || name == NONE {
            return;
        }
        let mut index = self.len;
        while index > at {
            self.phases[index] = self.phases[index - 1];
            index -= 1;
        }
        let (kind, output) = (chance.below(4), chance.below(TYPES));
        self.phases[at] = Drawn { name, was: NONE, kind, output };
        self.len += 1;
    }

    const fn remove(&mut self, at: usize) {
        if self.len == 1 {
            return;
        }
        let mut index = at;
        while index + 1 < self.len {
            self.phases[index] = self.phases[index + 1];
            index += 1;
        }
        self.len -= 1;
    }

    const fn change(&mut self, chance: &mut Chance) {
        let at = chance.below(self.len);
        match chance.below(9) {
            0 => self.insert(chance.below(self.len + 1), chance),
            1 => self.remove(at),
            2 => {
                let other = chance.below(self.len);
                let moved = self.phases[at];
                self.phases[at] = self.phases[other];
                self.phases[other] = moved;
            }
            3 => {
                let name = self.unused(chance);
                if name != NONE && self.phases[at].was == NONE {
                    self.phases[at].was = self.phases[at].name;
                    self.phases[at].name = name;
                }
            }
            4 => {
                let name = self.unused(chance);
                if name != NONE {
                    self.phases[at].name = name;
                }
            }
            5 => self.phases[at].was = NONE,
            6 => self.phases[at].kind = chance.below(4),
            7 => self.phases[at].output = chance.below(TYPES),
            _ => self.request = chance.below(TYPES),
        }
    }
}

/// The definition of a number: the first of its family, or that with changes.
pub(super) const fn list(number: usize) -> List {
    let mut chance = Chance(SEED.wrapping_mul(1_000_003).wrapping_add((number / FAMILY) as u64));
    let phase = Drawn { name: NONE, was: NONE, kind: 0, output: 0 };
    let mut list = List { phases: [phase; MAX_PHASES], len: 0, request: chance.below(TYPES) };
    let wanted = 2 + chance.below(3);
    while list.len < wanted {
        let at = list.len;
        list.insert(at, &mut chance);
    }
    let variant = number % FAMILY;
    let mut chance = Chance(SEED.wrapping_mul(7919).wrapping_add(number as u64));
    let mut changes = if variant == 0 { 0 } else { 1 + chance.below(2) };
    while changes > 0 {
        list.change(&mut chance);
        changes -= 1;
    }
    list
}

pub(super) const fn phase(drawn: Drawn) -> Phase {
    const DAY: Duration = Duration::from_secs(86_400);
    let kind = match drawn.kind {
        0 => PhaseKind::Local(Isolation::ReadCommitted),
        1 => PhaseKind::Foreign(EffectClass::Idempotent { window: None }),
        2 => PhaseKind::Foreign(EffectClass::Idempotent { window: Some(DAY) }),
        _ => PhaseKind::Foreign(EffectClass::AtMostOnce),
    };
    let name = if drawn.name == NONE { "" } else { NAMES[drawn.name] };
    // So that each class has a reconcile function for an open intent.
    let reconciles = drawn.kind != 0;
    Phase { name, was: WAS[drawn.was], kind, commit: false, timeout: None, reconciles }
}
