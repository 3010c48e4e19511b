//! [`PhaseList`]: the phases that a row was written under, as the text that is stored with it.
//!
//! A row outlives the build that wrote it. What a later build has to know before it goes on with the
//! row is what a stored row or a provider can see: the names in order, where each phase works, and the
//! name under which a provider knows its call. Windows, isolation levels and bodies are not recorded.
//!
//! ```text
//! booked charged=i(charge_created) called=a answered
//! ```
//!
//! Phases are separated by one space. `=i` marks a foreign phase whose provider honours the derived
//! key, `=a` one that is called at most once; neither, a local phase. The name in parentheses is the
//! one that the derived key is made of, where it is not the phase's own. In a name, `%`, `=`, `(`,
//! `)`, white space and control characters are written as `%` and two hexadecimal digits for each
//! byte.
//!
//! This module compares nothing and touches no database.

use std::fmt::{self, Write};

use super::{Definition, EffectClass, Phase, PhaseKind};

/// The phases of a definition, as far as a stored row or a provider can see them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PhaseList(pub(crate) Vec<ListedPhase>);

/// One phase of a [`PhaseList`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedPhase {
    pub(crate) name: String,
    pub(crate) kind: ListedKind,
    /// The name that the derived key is made of (G1). Of a local phase, its own.
    pub(crate) key_name: String,
}

/// Where a listed phase works, and what its provider promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListedKind {
    /// In the database.
    Local,
    /// At a provider that honours the derived key.
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
        Self(definition.phases.iter().map(ListedPhase::of).collect())
    }

    /// `None` where the text is of no form that this build knows.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let phases = text.split(' ').map(ListedPhase::parse).collect::<Option<Vec<_>>>()?;
        Some(Self(phases))
    }
}

impl ListedPhase {
    pub(crate) fn of(phase: &Phase) -> Self {
        let kind = ListedKind::of(phase.kind);
        let key_name = match kind {
            ListedKind::Local => phase.name,
            ListedKind::Idempotent | ListedKind::AtMostOnce => phase.key_name(),
        };
        Self { name: phase.name.to_owned(), kind, key_name: key_name.to_owned() }
    }

    fn parse(text: &str) -> Option<Self> {
        let (name, mark) = text.split_once('=').unwrap_or((text, ""));
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
        Some(Self { name, kind, key_name })
    }
}

impl fmt::Display for PhaseList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, phase) in self.0.iter().enumerate() {
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
        }
        Ok(())
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
    fn a_name_may_hold_any_character() {
        const PHASES: &[Phase] =
            &[phase("größe", &[], LOCAL), phase("paid", &["a =i(b)%\n"], IDEMPOTENT)];
        let text = text(PHASES);
        assert_eq!(text, "größe paid=i(a%20%3di%28b%29%25%0a)");
        let parsed = PhaseList::parse(&text).unwrap();
        assert_eq!(parsed.0[1].key_name, "a =i(b)%\n");
    }

    #[test]
    fn a_text_of_another_form_is_not_guessed_at() {
        for text in [
            "", " ", "a ", " a", "a  b", "=i", "a=", "a=x", "a=i(", "a=i()", "a=i(b", "a=i(b)c",
            "a(b)", "a%2", "a%zz", "a=i=a", "a=(b)", "a%ff", "a%+f",
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
        ("\\PC{1,9}|[ =()%\n\u{2003}a]{1,9}", kind, "[a-z]{1,5}").prop_map(|(name, kind, key)| {
            let key_name = if kind == ListedKind::Local { name.clone() } else { key };
            ListedPhase { name, kind, key_name }
        })
    }

    proptest! {
        #[test]
        fn each_list_comes_back_from_its_text(phases in prop::collection::vec(listed(), 1..6)) {
            let list = PhaseList(phases);
            prop_assert_eq!(PhaseList::parse(&list.to_string()), Some(list));
        }

        #[test]
        fn any_text_is_parsed_without_a_panic(text in ".{0,40}") {
            let _ = PhaseList::parse(&text);
        }
    }
}
