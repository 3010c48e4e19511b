//! [`PhaseList`]: the phases that a row was written under, as the text that is stored with it.
//!
//! A row outlives the build that wrote it. What a later build has to know before it continues the
//! row is what a stored row or a provider can see: the names in order, where each phase works, the
//! name under which a provider knows its call, how long that call may be under way, and with which
//! secret derived keys are made. Windows, isolation levels and bodies are not recorded. A phase that is
//! committed has the name that its output is stored under, also where a build that runs the row has renamed it.
//!
//! ```text
//! booked charged=i(charge_created) called=a@300000 answered =pZ3kWq1x
//! ```
//!
//! Phases are separated by one space. `=i` marks a foreign phase whose provider honors the derived
//! key, `=a` one that is called at most once; neither, a local phase. The name in parentheses is the
//! one that the derived key is made of, where it is not the phase's own. `@` and a number of
//! milliseconds are the phase's time limit, where that is not 30 s. A last part without a name is the
//! mark of the derived keys (`derived_key`), where they have a secret or a salt. In a name, `%`, `=`,
//! `(`, `)`, white space and control characters are written as `%` and two hexadecimal digits for
//! each byte.
//!
//! This module compares nothing and touches no database.

use std::fmt::{self, Write};
use std::time::Duration;

use super::{Definition, EffectClass, FOREIGN_TIME_LIMIT, Phase, PhaseKind};

/// The time limit of a foreign phase whose text has none: part of the stored form.
const UNSTATED: Duration = FOREIGN_TIME_LIMIT;

/// The phases of a definition, as far as a stored row or a provider can see them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PhaseList {
    pub(crate) phases: Vec<ListedPhase>,
    /// Tells with which secret and salt derived keys are made; `None`: with neither.
    pub(crate) keys: Option<String>,
}

impl PhaseList {
    /// The phase of this name.
    pub(crate) fn named(&self, name: &str) -> Option<&ListedPhase> {
        self.phases.iter().find(|phase| phase.name == name)
    }
}

/// One phase of a [`PhaseList`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedPhase {
    pub(crate) name: String,
    pub(crate) kind: ListedKind,
    /// The name that the derived key is made of (G1). Of a local phase, its own.
    pub(crate) key_name: String,
    /// How long its call may be under way (G2), in whole milliseconds. Of a local phase, zero.
    pub(crate) time_limit: Duration,
}

/// Where a listed phase works, and what its provider promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListedKind {
    /// In the database.
    Local,
    /// At a provider that honors the derived key.
    Idempotent,
    /// At a provider that is called at most once.
    AtMostOnce,
}

impl ListedKind {
    pub(crate) fn of(kind: PhaseKind) -> Self {
        match kind {
            PhaseKind::Local(_) | PhaseKind::Batch(_) => Self::Local,
            PhaseKind::Foreign(EffectClass::Idempotent { .. }) => Self::Idempotent,
            PhaseKind::Foreign(EffectClass::AtMostOnce) => Self::AtMostOnce,
        }
    }

    fn mark(self) -> &'static str {
        match self {
            Self::Local => "",
            Self::Idempotent => "=i",
            Self::AtMostOnce => "=a",
        }
    }
}

impl PhaseList {
    pub(crate) fn of(definition: &Definition) -> Self {
        let phases = definition.phases.iter().map(ListedPhase::of).collect();
        Self { phases, keys: None }
    }

    /// `None` where the text is of no form that this build knows.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        // A phase has a name, and no name has a space.
        let (phases, keys) = match text.rsplit_once(" =") {
            Some((phases, keys)) => (phases, Some(keys)),
            None => (text, None),
        };
        if keys.is_some_and(|keys| keys.is_empty() || keys.contains([' ', '='])) {
            return None;
        }
        let phases = phases.split(' ').map(ListedPhase::parse).collect::<Option<Vec<_>>>()?;
        Some(Self { phases, keys: keys.map(str::to_owned) })
    }

    /// For how long a call of `phase` may be under way that was begun under this list: for the longest
    /// of them all where none of its phases is `phase`.
    pub(crate) fn time_limit_of(&self, phase: Option<&Phase>) -> Duration {
        let is_it = |listed: &&ListedPhase| {
            let same_key = |phase: &Phase| {
                listed.kind != ListedKind::Local && listed.key_name == phase.key_name()
            };
            phase.is_some_and(|phase| phase.is_called(&listed.name) || same_key(phase))
        };
        let longest = || self.phases.iter().map(|listed| listed.time_limit).max();
        let limit = self.phases.iter().find(is_it).map(|listed| listed.time_limit);
        limit.or_else(longest).unwrap_or_default()
    }
}

impl ListedPhase {
    pub(crate) fn of(phase: &Phase) -> Self {
        let kind = ListedKind::of(phase.kind);
        let key_name = match kind {
            ListedKind::Local => phase.name,
            ListedKind::Idempotent | ListedKind::AtMostOnce => phase.key_name(),
        };
        let time_limit = match kind {
            ListedKind::Local => Duration::ZERO,
            ListedKind::Idempotent | ListedKind::AtMostOnce => {
                whole_millis_above(phase.time_limit().unwrap_or(Duration::MAX))
            }
        };
        Self { name: phase.name.to_owned(), kind, key_name: key_name.to_owned(), time_limit }
    }

    fn parse(text: &str) -> Option<Self> {
        let (name, mark) = text.split_once('=').unwrap_or((text, ""));
        let (mark, time_limit) = match mark.rsplit_once('@') {
            // Not that of a name in parentheses.
            Some((mark, millis)) if !millis.contains(')') => (mark, stated(millis)?),
            _ => (mark, UNSTATED),
        };
        let (class, key_name) = match mark.split_once('(') {
            Some((class, rest)) => (class, Some(rest.strip_suffix(')')?)),
            None => (mark, None),
        };
        let kind = match class {
            "" if text == name => ListedKind::Local,
            "i" => ListedKind::Idempotent,
            "a" => ListedKind::AtMostOnce,
            _ => return None,
        };
        let name = unescape(name)?;
        let key_name = key_name.map_or_else(|| Some(name.clone()), unescape)?;
        let time_limit = if kind == ListedKind::Local { Duration::ZERO } else { time_limit };
        Some(Self { name, kind, key_name, time_limit })
    }
}

/// As it is stored. Rounded up: what is believed after it must not be believed before.
fn whole_millis_above(limit: Duration) -> Duration {
    let millis = limit.as_nanos().div_ceil(1_000_000);
    Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

/// A time limit as it is stored: digits, and nothing in front of the first that counts.
fn stated(millis: &str) -> Option<Duration> {
    let limit: u64 = millis.parse().ok()?;
    (limit.to_string() == millis).then_some(Duration::from_millis(limit))
}

impl fmt::Display for PhaseList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, phase) in self.phases.iter().enumerate() {
            if index > 0 {
                f.write_char(' ')?;
            }
            escape(f, &phase.name)?;
            f.write_str(phase.kind.mark())?;
            if phase.kind != ListedKind::Local && phase.key_name != phase.name {
                f.write_char('(')?;
                escape(f, &phase.key_name)?;
                f.write_char(')')?;
            }
            if phase.kind != ListedKind::Local && phase.time_limit != UNSTATED {
                write!(f, "@{}", phase.time_limit.as_millis())?;
            }
        }
        match &self.keys {
            Some(keys) => write!(f, " ={keys}"),
            None => Ok(()),
        }
    }
}

fn escape(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    for char in name.chars() {
        if matches!(char, '%' | '=' | '(' | ')') || char.is_whitespace() || char.is_control() {
            for byte in char.encode_utf8(&mut [0; 4]).bytes() {
                write!(f, "%{byte:02x}")?;
            }
        } else {
            f.write_char(char)?;
        }
    }
    Ok(())
}

/// A name is never empty, and escapes only what it has to: each list has one text.
fn unescape(text: &str) -> Option<String> {
    if text.is_empty() || text.contains(['=', '(', ')']) {
        return None;
    }
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Isolation;
    use proptest::prelude::*;

    const LOCAL: PhaseKind = PhaseKind::Local(Isolation::Serializable);
    const IDEMPOTENT: PhaseKind = PhaseKind::Foreign(EffectClass::Idempotent { window: None });
    const AT_MOST_ONCE: PhaseKind = PhaseKind::Foreign(EffectClass::AtMostOnce);

    const fn phase(name: &'static str, was: &'static [&'static str], kind: PhaseKind) -> Phase {
        Phase { name, was, kind, commit: false, timeout: None, reconciles: false }
    }

    fn text(phases: &'static [Phase]) -> String {
        PhaseList::of(&Definition { name: "rides.create", version: 1, phases }).to_string()
    }

    #[test]
    fn g14_a_phase_list_is_stored_as_names_classes_and_provider_keys() {
        const PHASES: &[Phase] = &[
            phase("booked", &["reserved"], LOCAL),
            phase("charged", &["charge_made", "charge_created"], IDEMPOTENT),
            phase("called", &[], AT_MOST_ONCE),
            phase("answered", &[], LOCAL),
        ];
        assert_eq!(text(PHASES), "booked charged=i(charge_created) called=a answered");
    }

    #[test]
    fn g2_a_time_limit_of_its_own_is_stored_and_rounded_up() {
        const fn within(phase: Phase, timeout: Duration) -> Phase {
            Phase { timeout: Some(timeout), ..phase }
        }
        const PHASES: &[Phase] = &[
            within(phase("called", &["c@ll"], AT_MOST_ONCE), Duration::from_secs(300)),
            within(phase("charged", &[], IDEMPOTENT), Duration::from_micros(1)),
            within(phase("mailed", &[], IDEMPOTENT), FOREIGN_TIME_LIMIT),
            phase("answered", &[], LOCAL),
        ];
        let text = text(PHASES);
        assert_eq!(text, "called=a(c@ll)@300000 charged=i@1 mailed=i answered");
        let list = PhaseList::parse(&text).unwrap();
        assert_eq!(list.time_limit_of(PHASES.first()), Duration::from_secs(300));
        assert_eq!(list.time_limit_of(PHASES.get(1)), Duration::from_millis(1));
        let renamed = phase("phoned", &["called", "c@ll"], AT_MOST_ONCE);
        assert_eq!(list.time_limit_of(Some(&renamed)), Duration::from_secs(300));
        let unheard_of = phase("texted", &[], AT_MOST_ONCE);
        assert_eq!(list.time_limit_of(Some(&unheard_of)), Duration::from_secs(300), "the longest");
    }

    #[test]
    fn a_name_may_hold_any_character() {
        const PHASES: &[Phase] =
            &[phase("größe", &[], LOCAL), phase("paid", &["a =i(b)%\n"], IDEMPOTENT)];
        let text = text(PHASES);
        assert_eq!(text, "größe paid=i(a%20%3di%28b%29%25%0a)");
        let parsed = PhaseList::parse(&text).unwrap();
        assert_eq!(parsed.phases[1].key_name, "a =i(b)%\n");
    }

    #[test]
    fn a_text_of_another_form_is_not_guessed_at() {
        for text in [
            "",
            " ",
            "a ",
            " a",
            "a  b",
            "=i",
            "a=",
            "a=x",
            "a=i(",
            "a=i()",
            "a=i(b",
            "a=i(b)c",
            "a(b)",
            "a%2",
            "a%zz",
            "a=i=a",
            "a=(b)",
            "a%ff",
            "a%+f",
            "a=i@",
            "a=i@x",
            "a=i@05",
            "a=i@+5",
            "a=i@-5",
            "a=@5",
            "a=i@5(b)",
            "a=i@99999999999999999999",
            "a =",
            "a =b=c",
            "a =b c",
            " =b",
        ] {
            assert_eq!(PhaseList::parse(text), None, "{text:?}");
        }
    }

    fn listed() -> impl Strategy<Value = ListedPhase> {
        let kind = prop_oneof![
            Just(ListedKind::Local),
            Just(ListedKind::Idempotent),
            Just(ListedKind::AtMostOnce)
        ];
        let name = "\\PC{1,9}|[ =()%\n\u{2003}a]{1,9}";
        let limit = prop_oneof![Just(30_000), any::<u64>()];
        (name, kind, "[a-z@]{1,5}", limit).prop_map(|(name, kind, key, limit)| {
            let (key_name, limit) = match kind {
                ListedKind::Local => (name.clone(), 0),
                ListedKind::Idempotent | ListedKind::AtMostOnce => (key, limit),
            };
            ListedPhase { name, kind, key_name, time_limit: Duration::from_millis(limit) }
        })
    }

    proptest! {
        #[test]
        fn each_list_comes_back_from_its_text(
            phases in prop::collection::vec(listed(), 1..6),
            keys in prop::option::of("[A-Za-z0-9_-]{1,8}"),
        ) {
            let list = PhaseList { phases, keys };
            prop_assert_eq!(PhaseList::parse(&list.to_string()), Some(list));
        }

        #[test]
        fn any_text_is_parsed_without_a_panic(text in ".{0,40}") {
            let _ = PhaseList::parse(&text);
        }
    }
}
