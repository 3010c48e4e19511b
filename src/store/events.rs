//! The interruptions of a request: lines in a column of its own row. The statement that changes the row writes them, so they
//! are there exactly if the change is. They are deleted with the row, and when it is erased. A request that runs without
//! interruption has none.
//!
//! A row keeps [`KEPT`] characters of them, some thirty of the latest lines, and the number of all that were ever written: no
//! request fills a table with its failures. Each later heartbeat or phase writes the row anew, with these lines, so there are
//! few of them. PostgreSQL keeps what is longer than two thousand bytes outside of the row.

use std::fmt::Write;

use chrono::{DateTime, Utc};

use crate::number::to_u32;
use crate::traces::Traceparent;

/// How many characters a row keeps (bytes in MySQL); the statements of the stores say it too.
#[cfg(feature = "simulation")]
const KEPT: usize = 4000;

/// Longest reason of one, in characters.
const LONGEST: usize = 300;

/// An exceptional event in the life of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// An attempt failed, and the request was released for a retry.
    Released,
    /// An attempt began after the lease of the previous one had ended.
    TakenOver,
    /// The outcome of a call became unknown.
    Unknown,
    /// A call could not be repeated any more, because its provider may have forgotten the first one.
    WindowPassed,
    /// Its reconcile function returned *still unknown*.
    StillUnknown,
    /// It gave up.
    DeadLetter,
    /// Its reconcile function determined the outcome of a call.
    Reconciled,
    /// A webhook or an operator resolved it, or retried it.
    Resolved,
}

impl EventKind {
    const ALL: [Self; 8] = [
        Self::Released,
        Self::TakenOver,
        Self::Unknown,
        Self::WindowPassed,
        Self::StillUnknown,
        Self::DeadLetter,
        Self::Reconciled,
        Self::Resolved,
    ];

    /// Its name, for example `taken_over`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::TakenOver => "taken_over",
            Self::Unknown => "unknown",
            Self::WindowPassed => "window_passed",
            Self::StillUnknown => "still_unknown",
            Self::DeadLetter => "dead_letter",
            Self::Reconciled => "reconciled",
            Self::Resolved => "resolved",
        }
    }
}

/// A line, but for its time, which the database writes behind it. It begins with the line break, so that of a text
/// that was cut it is the first piece, and no other, that is not whole. `place`: the phase that it is about. `trace`:
/// that of the attempt that it is about; a line without one has a field less.
pub(crate) fn line(
    kind: EventKind,
    attempt: u32,
    place: Option<&str>,
    reason: Option<&str>,
    trace: Option<Traceparent>,
) -> String {
    let one_line = |text: Option<&str>| {
        let text = text.unwrap_or_default().chars().take(LONGEST);
        text.map(|letter| if letter.is_control() { ' ' } else { letter }).collect::<String>()
    };
    let mut line = String::new();
    let (place, reason) = (one_line(place), one_line(reason));
    // Into a text nothing fails.
    let _ = write!(line, "\n{}\t{attempt}\t{place}\t{reason}\t", kind.as_str());
    if let Some(trace) = trace {
        let _ = write!(line, "{trace}\t");
    }
    line
}

/// What a row has of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredEvents {
    text: String,
    written: u32,
}

/// A line that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PastEvent {
    pub(crate) at: DateTime<Utc>,
    pub(crate) kind: EventKind,
    pub(crate) attempt: u32,
    pub(crate) place: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) trace: Option<Traceparent>,
}

impl StoredEvents {
    /// As the columns have it.
    pub(crate) fn of(text: Option<String>, written: Option<i32>) -> Self {
        let written = written.unwrap_or_default().max(0).cast_unsigned();
        Self { text: text.unwrap_or_default(), written }
    }

    /// The lines that are whole, the oldest first. What a later build wrote is left out.
    pub(crate) fn kept(&self) -> Vec<PastEvent> {
        self.text.split('\n').skip(1).filter_map(parse).collect()
    }

    /// How many there were that are no longer kept.
    pub(crate) fn gone(&self) -> u32 {
        self.written.saturating_sub(to_u32(self.kept().len()))
    }
}

fn parse(line: &str) -> Option<PastEvent> {
    let mut fields = line.split('\t');
    let mut text = || fields.next().map(str::to_owned);
    let (name, attempt, place, reason) = (text()?, text()?, text()?, text()?);
    let last = text()?;
    let (trace, at) = match text() {
        Some(at) => (last.parse().ok(), at),
        None => (None, last),
    };
    let said = |text: String| Some(text).filter(|text| !text.is_empty());
    Some(PastEvent {
        at: DateTime::from_timestamp_millis(at.parse().ok()?)?,
        kind: EventKind::ALL.into_iter().find(|kind| kind.as_str() == name)?,
        attempt: attempt.parse().ok()?,
        place: said(place),
        reason: said(reason),
        trace,
    })
}

/// The text of a row with a line behind it, as the statements make it.
#[cfg(feature = "simulation")]
pub(super) fn with(events: Option<String>, line: &str, now: DateTime<Utc>) -> String {
    let millis = (now.timestamp_micros() + 999) / 1000;
    let whole = format!("{}{line}{millis}", events.unwrap_or_default());
    let over = whole.chars().count().saturating_sub(KEPT);
    whole.chars().skip(over).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, written: i32) -> StoredEvents {
        StoredEvents::of(Some(text.to_owned()), Some(written))
    }

    #[test]
    fn a_line_is_read_as_it_was_written_whatever_its_reason_is() {
        let trace: Traceparent =
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().unwrap();
        let why = Some("a\tb\nc\u{7}d");
        let one = line(EventKind::Released, 2, Some("charged"), why, Some(trace));
        let other = line(EventKind::TakenOver, 3, None, None, None);
        let stored = read(&format!("{one}1000{other}2000\nof_a_later_build\t1\t\t\t3000"), 3);
        let kept = stored.kept();
        assert_eq!((kept.len(), stored.gone()), (2, 1), "{kept:?}");
        assert_eq!((kept[0].kind, kept[0].attempt), (EventKind::Released, 2));
        assert_eq!(kept[0].at, DateTime::from_timestamp_millis(1000).unwrap());
        assert_eq!(kept[0].place.as_deref(), Some("charged"));
        assert_eq!(kept[0].reason.as_deref(), Some("a b c d"));
        assert_eq!((&kept[1].place, &kept[1].reason), (&None, &None));
        assert_eq!((kept[0].trace, kept[1].trace), (Some(trace), None));
        assert!(
            line(EventKind::Unknown, 1, None, Some(&"ä".repeat(1000)), None).chars().count() < 320
        );
    }

    #[test]
    fn a_text_that_is_cut_anywhere_tells_no_line_that_was_not_written() {
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().ok();
        let lines = [EventKind::Released, EventKind::TakenOver, EventKind::Unknown].map(|kind| {
            format!(
                "{}{}",
                line(kind, 1, Some("charged"), Some("why"), trace),
                1_764_000_000_123_i64
            )
        });
        let whole = lines.concat();
        let all = read(&whole, 3).kept();
        assert_eq!(all.len(), 3);
        for cut in 0..=whole.len() {
            let stored = read(&whole[cut..], 3);
            let kept = stored.kept();
            assert!(all.ends_with(&kept), "cut at {cut}: {kept:?}");
            assert_eq!(stored.gone() as usize, 3 - kept.len());
        }
    }
}
