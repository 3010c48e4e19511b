//! Links between the attempts of a request: across processes, stores and crashes.
//!
//! A request that is retried, resumed by a worker or replayed has several traces, one for each attempt. With
//! [`EngineBuilder::traces`](crate::engine::EngineBuilder::traces), the row stores the trace context of the
//! call that created it and of the last attempt, its events store those of ended attempts, and a staged job
//! stores that of its phase. Each later attempt links its span to them. These are links and not parents,
//! because an attempt ends with its process, and a span that waited for the next attempt would never be
//! exported.
//!
//! This crate knows spans through `tracing`, and trace contexts through this module only. An implementation
//! of [`TraceContext`] exports them: `atomic-phases-otel` has one for OpenTelemetry.

use std::fmt;
use std::str::FromStr;

/// Reads the [`Traceparent`] of spans, and links them. The engine calls it on the request path, so it must
/// not block. A panic is logged, and the request continues without a context or link.
pub trait TraceContext: Send + Sync + 'static {
    /// The context of the current span; `None` if there is none, or no valid one.
    fn current(&self) -> Option<Traceparent>;

    /// Links the span to others, each with the kind of its link as an attribute
    /// ([`LinkKind::as_str`], under [`LinkKind::ATTRIBUTE`]).
    fn link(&self, span: &tracing::Span, to: &[Link]);
}

/// A link to a span of another trace or attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// The span that the link leads to.
    pub to: Traceparent,
    /// The kind of the link.
    pub kind: LinkKind,
}

/// The relation of the linked span to the one that links to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkKind {
    /// It created the request.
    Creation,
    /// It held the request last.
    PreviousAttempt,
    /// It staged the job.
    Staging,
}

impl LinkKind {
    /// The name of the attribute that holds a link's kind.
    pub const ATTRIBUTE: &'static str = "link.kind";

    /// Its name: `previous_attempt`, say.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creation => "creation",
            Self::PreviousAttempt => "previous_attempt",
            Self::Staging => "staging",
        }
    }
}

/// The context of a span, as W3C's *Trace Context* specifies: `00-{trace id}-{span id}-{flags}`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Traceparent {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
}

/// A text or an id is not a valid [`Traceparent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no traceparent: 00-{{32 hex digits}}-{{16 hex digits}}-{{2 hex digits}}, lower case, no id all zeros"
)]
#[non_exhaustive]
pub struct NotATraceparent;

impl Traceparent {
    /// Its stored form: version, trace id, span id, flags.
    pub(crate) const BYTES: usize = 26;

    /// The flag of a trace that is recorded.
    const SAMPLED: u8 = 1;

    /// A context with these ids.
    ///
    /// # Errors
    /// [`NotATraceparent`] if an id is all zeros, which is invalid.
    pub fn new(trace_id: [u8; 16], span_id: [u8; 8], flags: u8) -> Result<Self, NotATraceparent> {
        match trace_id == [0; 16] || span_id == [0; 8] {
            true => Err(NotATraceparent),
            false => Ok(Self { trace_id, span_id, flags }),
        }
    }

    /// The trace.
    #[must_use]
    pub fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }

    /// The span in it.
    #[must_use]
    pub fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    /// The flags, as they were given.
    #[must_use]
    pub fn flags(&self) -> u8 {
        self.flags
    }

    /// Whether the trace is recorded.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & Self::SAMPLED != 0
    }

    /// Whatever their flags.
    pub(crate) fn is_of_the_span_of(&self, other: &Self) -> bool {
        (self.trace_id, self.span_id) == (other.trace_id, other.span_id)
    }

    /// The trace, as a view of traces is asked for it.
    #[cfg(feature = "console")]
    pub(crate) fn trace_hex(&self) -> String {
        crate::key::hex(&self.trace_id)
    }

    /// As a column has it.
    pub(crate) fn stored(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[1..17].copy_from_slice(&self.trace_id);
        bytes[17..25].copy_from_slice(&self.span_id);
        bytes[25] = self.flags;
        bytes
    }

    /// What cannot be read is none.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().ok()?;
        let trace_id = bytes[1..17].try_into().ok()?;
        let span_id = bytes[17..25].try_into().ok()?;
        (bytes[0] == 0).then(|| Self::new(trace_id, span_id, bytes[25]).ok())?
    }
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (trace_id, span_id) =
            (u128::from_be_bytes(self.trace_id), u64::from_be_bytes(self.span_id));
        write!(f, "00-{trace_id:032x}-{span_id:016x}-{:02x}", self.flags)
    }
}

impl fmt::Debug for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reads the W3C form. Of a version that is to come it reads what every version has.
impl FromStr for Traceparent {
    type Err = NotATraceparent;

    fn from_str(text: &str) -> Result<Self, NotATraceparent> {
        let mut fields = text.split('-');
        let version = hex::<1>(fields.next())?;
        let (trace_id, span_id) = (hex(fields.next())?, hex(fields.next())?);
        let [flags] = hex(fields.next())?;
        match (version, fields.next()) {
            ([255], _) | ([0], Some(_)) => Err(NotATraceparent),
            _ => Self::new(trace_id, span_id, flags),
        }
    }
}

/// So many bytes in lower-case hex.
fn hex<const N: usize>(text: Option<&str>) -> Result<[u8; N], NotATraceparent> {
    let text = text.filter(|text| text.len() == 2 * N).ok_or(NotATraceparent)?;
    let mut bytes = [0; N];
    for (byte, two) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let is_lower = two.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        let two = std::str::from_utf8(two).ok().filter(|_| is_lower).ok_or(NotATraceparent)?;
        *byte = u8::from_str_radix(two, 16).map_err(|_| NotATraceparent)?;
    }
    Ok(bytes)
}

/// What a row has: who created it, and who held it last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredTrace {
    pub(crate) creation: Option<Traceparent>,
    pub(crate) last: Option<Traceparent>,
}

impl StoredTrace {
    const BYTES: usize = 2 * Traceparent::BYTES;

    /// From one context: of a creator that held it, or left it to a worker. From two: what is all zeros is none.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (creation, last) = bytes.split_at_checked(Traceparent::BYTES)?;
        let creation = Traceparent::read(creation);
        let last = if last.is_empty() { creation } else { Traceparent::read(last) };
        (creation.is_some() || last.is_some()).then_some(Self { creation, last })
    }

    /// As a column has it, once `last` holds the row.
    pub(crate) fn held_by(of: Option<Self>, last: &Traceparent) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (first, second) = bytes.split_at_mut(Traceparent::BYTES);
        if let Some(creation) = of.and_then(|of| of.creation) {
            first.copy_from_slice(&creation.stored());
        }
        second.copy_from_slice(&last.stored());
        bytes
    }

    /// What an attempt is linked to. `attempts`: how many there were before.
    pub(crate) fn links(self, attempts: u32) -> Vec<Link> {
        let creation = self.creation.map(|to| Link { to, kind: LinkKind::Creation });
        let last = self.last.filter(|_| attempts > 0);
        let last = last.map(|to| Link { to, kind: LinkKind::PreviousAttempt });
        creation.into_iter().chain(last).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any() -> impl Strategy<Value = Traceparent> {
        (any_bytes::<16>(), any_bytes::<8>(), proptest::num::u8::ANY)
            .prop_filter_map("zeros", |(trace, span, flags)| {
                Traceparent::new(trace, span, flags).ok()
            })
    }

    fn any_bytes<const N: usize>() -> impl Strategy<Value = [u8; N]> {
        proptest::collection::vec(proptest::num::u8::ANY, N).prop_map(|v| v.try_into().unwrap())
    }

    proptest! {
        #[test]
        fn a_traceparent_is_read_as_it_was_written(one in any(), other in any()) {
            let text = one.to_string();
            prop_assert_eq!(text.len(), 55);
            prop_assert_eq!(text.parse(), Ok(one));
            prop_assert_eq!(Traceparent::read(&one.stored()), Some(one));
            // Of a version to come, with what that has besides.
            let later = format!("cc{}-what-else", &text[2..]);
            prop_assert_eq!(later.parse(), Ok(one));
            prop_assert_eq!(format!("{text}-more").parse::<Traceparent>(), Err(NotATraceparent));
            prop_assert_eq!(text.to_uppercase().parse::<Traceparent>().ok(),
                (text.to_uppercase() == text).then_some(one));
            let created = StoredTrace::read(&one.stored());
            prop_assert_eq!(created, Some(StoredTrace { creation: Some(one), last: Some(one) }));
            let held = StoredTrace::held_by(created, &other);
            let both = StoredTrace { creation: Some(one), last: Some(other) };
            prop_assert_eq!(StoredTrace::read(&held), Some(both));
            let unknown = StoredTrace { creation: None, last: Some(other) };
            prop_assert_eq!(StoredTrace::read(&StoredTrace::held_by(None, &other)), Some(unknown));
        }

        #[test]
        fn no_text_and_no_bytes_make_it_panic(
            text in "\\PC{0,60}",
            hex in "[0-9a-f-]{50,60}",
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..60),
        ) {
            for text in [text, hex] {
                if let Ok(read) = text.parse::<Traceparent>() {
                    prop_assert!(text[2..].starts_with(&read.to_string()[2..]));
                }
            }
            let _ = (Traceparent::read(&bytes), StoredTrace::read(&bytes));
        }
    }

    #[test]
    fn what_w3c_refuses_is_refused() {
        let whole = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let read: Traceparent = whole.parse().unwrap();
        assert_eq!((read.to_string().as_str(), read.is_sampled()), (whole, true));
        for wrong in [
            "",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e473+-00f067aa0ba902b7-01",
        ] {
            assert_eq!(wrong.parse::<Traceparent>(), Err(NotATraceparent), "{wrong}");
        }
        let kinds = [LinkKind::Creation, LinkKind::PreviousAttempt, LinkKind::Staging];
        assert_eq!(kinds.map(LinkKind::as_str), ["creation", "previous_attempt", "staging"]);
    }
}
