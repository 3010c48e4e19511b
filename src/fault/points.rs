//! [`Point`]: a point in the life of a request at which it may crash, as data.

use std::fmt;
use std::str::FromStr;

use crate::definition::{Definition, EffectClass, Isolation, PhaseKind, STARTED};
use crate::number::to_u32;

/// Stands for the phase where a read of the store fails. No phase has this name.
pub(super) const STORE: &str = "(store)";

/// A place within a phase.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Place {
    /// Before the phase: no transaction is open. For `started`: before the key is reserved.
    BeforePhase,
    /// The phase's transaction is open, and nothing is written in it except, before a local first phase, the
    /// key. For a phase with a `Batch`: no transaction is open.
    BeforeBody,
    /// The body has returned; the commit is next.
    BeforeCommit,
    /// Committed, but the engine has not acted on it.
    AfterCommit,
    /// Before the intent of an at-most-once call is committed.
    BeforeIntent,
    /// The intent is committed, and the call is not made.
    AfterIntent,
    /// Before the foreign call.
    BeforeCall,
    /// The lease was renewed for a call, because it had not been for a while.
    AfterRenewal,
    /// The call has returned, and its result is not committed.
    AfterCall,
    /// Before a row whose holder failed is released, or left to be reconciled.
    BeforeRelease,
    /// After it was released.
    AfterRelease,
    /// Before the lease of an existing row is acquired.
    BeforeTakeOver,
    /// The lease is acquired, and the request has not continued.
    AfterTakeOver,
    /// The request is finished, and its client has not been answered.
    BeforeReply,
    /// In the body of the phase, where its author wrote [`crash_point!`](crate::crash_point).
    Own(String),
}

const PLACES: [(Place, &str); 14] = [
    (Place::BeforePhase, "before_phase"),
    (Place::BeforeBody, "before_body"),
    (Place::BeforeCommit, "before_commit"),
    (Place::AfterCommit, "after_commit"),
    (Place::BeforeIntent, "before_intent"),
    (Place::AfterIntent, "after_intent"),
    (Place::BeforeCall, "before_call"),
    (Place::AfterRenewal, "after_renewal"),
    (Place::AfterCall, "after_call"),
    (Place::BeforeRelease, "before_release"),
    (Place::AfterRelease, "after_release"),
    (Place::BeforeTakeOver, "before_take_over"),
    (Place::AfterTakeOver, "after_take_over"),
    (Place::BeforeReply, "before_reply"),
];

impl Place {
    /// Its name: `before_call`, or the one that the phase's author gave it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Own(name) => name,
            place => PLACES.iter().find(|(known, _)| known == place).map_or("", |(_, name)| name),
        }
    }

    fn parse(name: &str) -> Option<Self> {
        let engines = PLACES.iter().find(|(_, known)| *known == name);
        engines
            .map(|(place, _)| place.clone())
            .or_else(|| is_name(name.as_bytes()).then(|| Self::Own(name.to_owned())))
    }
}

/// What [`crash_point!`](crate::crash_point) checks at compile time.
#[doc(hidden)]
#[track_caller]
pub const fn __check_name(name: &str) {
    assert!(is_name(name.as_bytes()), "a crash point's name is of a-z, 0-9 and _, and not empty");
    let mut index = 0;
    while index < PLACES.len() {
        assert!(
            !equal(name.as_bytes(), PLACES[index].1.as_bytes()),
            "the engine has a crash point of this name: choose another"
        );
        index += 1;
    }
}

const fn is_name(name: &[u8]) -> bool {
    let mut index = 0;
    while index < name.len() {
        if !matches!(name[index], b'a'..=b'z' | b'0'..=b'9' | b'_') {
            return false;
        }
        index += 1;
    }
    index > 0
}

const fn equal(one: &[u8], other: &[u8]) -> bool {
    let mut index = 0;
    while index < one.len() && index < other.len() && one[index] == other[index] {
        index += 1;
    }
    index == one.len() && index == other.len()
}

/// A place in a phase. Printed, and parsed, as `charge_created/after_call`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Point {
    /// The phase's name; `started` for the reservation of the key.
    pub phase: String,
    /// The place in the phase.
    pub place: Place,
}

impl Point {
    pub(crate) fn new(phase: &str, place: Place) -> Self {
        Self { phase: phase.to_owned(), place }
    }

    pub(crate) fn is_own(&self) -> bool {
        matches!(self.place, Place::Own(_))
    }

    /// Which visit of it comes behind these, counted from zero.
    pub(super) fn visit_behind<'p>(&self, passed: impl IntoIterator<Item = &'p Self>) -> u32 {
        to_u32(passed.into_iter().filter(|earlier| *earlier == self).count())
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.phase, self.place.as_str())
    }
}

/// Points as a reader wants them.
pub(super) fn listed(points: &[Point]) -> String {
    match points {
        [] => "no point".to_owned(),
        points => points.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// A text is not a [`Point`], or not a [`Fault`](crate::fault::Fault).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a crash point, or is not followed by what is to happen there: write phase/place or \
     phase/place#visit=mode, charge_created/after_call#0=drop for example"
)]
pub struct NoSuchPoint(pub(crate) String);

impl FromStr for Point {
    type Err = NoSuchPoint;

    fn from_str(text: &str) -> Result<Self, NoSuchPoint> {
        let parsed = text.split_once('/').and_then(|(phase, place)| {
            let place = Place::parse(place)?;
            (!phase.is_empty()).then(|| Self::new(phase, place))
        });
        parsed.ok_or_else(|| NoSuchPoint(text.to_owned()))
    }
}

impl Definition {
    /// The crash points that an undisturbed run of the request passes, in order, as the phase list
    /// says. The engine is tested to pass these and no others.
    #[must_use]
    pub fn points(&self) -> Vec<Point> {
        let mut points = Vec::new();
        let mut passes = |phase: &str, places: &[Place]| {
            points.extend(places.iter().map(|place| Point::new(phase, place.clone())));
        };
        use Place::{
            AfterCall, AfterCommit, AfterIntent, BeforeBody, BeforeCall, BeforeCommit,
            BeforeIntent, BeforePhase,
        };
        passes(STARTED, &[BeforePhase]);
        for (index, phase) in self.phases.iter().enumerate() {
            let shares = index == 0 && phase.shares_the_reservation();
            if index == 0 && !shares {
                passes(STARTED, &[BeforeCommit, AfterCommit]);
            }
            if !shares {
                passes(phase.name, &[BeforePhase]);
            }
            match phase.kind {
                PhaseKind::Local(_) | PhaseKind::Batch(_) => {
                    passes(phase.name, &[BeforeBody, BeforeCommit, AfterCommit])
                }
                PhaseKind::Foreign(EffectClass::AtMostOnce) => passes(
                    phase.name,
                    &[BeforeIntent, AfterIntent, BeforeCall, AfterCall, BeforeCommit, AfterCommit],
                ),
                PhaseKind::Foreign(EffectClass::Idempotent { .. }) => {
                    passes(phase.name, &[BeforeCall, AfterCall]);
                    let next = self.phases.get(index + 1).map(|next| next.kind);
                    if phase.commit || !next.is_some_and(PhaseKind::is_local) {
                        passes(phase.name, &[BeforeCommit, AfterCommit]);
                    }
                }
            }
        }
        if let Some(last) = self.phases.last() {
            passes(last.name, &[Place::BeforeReply]);
        }
        points
    }

    /// Whether the transaction that is open at the point has locked the key's row: one with a snapshot
    /// does so as it begins. Until it ends, no other can take the key over, nor its lease be made to
    /// run out.
    pub(crate) fn is_row_locked_at(&self, point: &Point) -> bool {
        let has_snapshot = self.phases.iter().any(|phase| {
            let Some(isolation) = phase.kind.isolation() else { return false };
            phase.is_called(&point.phase) && isolation != Isolation::ReadCommitted
        });
        has_snapshot && self.is_in_transaction(point)
    }

    /// Whether a transaction may be open at the point.
    pub(crate) fn is_in_transaction(&self, point: &Point) -> bool {
        let is_open = self.phases.iter().any(|phase| {
            phase.is_called(&point.phase) && matches!(phase.kind, PhaseKind::Local(_))
        });
        match point.place {
            Place::BeforeBody | Place::BeforeCommit | Place::Own(_) => is_open,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_point_is_parsed_as_it_is_printed() {
        for (place, _) in PLACES {
            let point = Point::new("charge_created", place);
            assert_eq!(point.to_string().parse(), Ok(point));
        }
        let own = Point::new("charge_created", Place::Own("after_pdf".into()));
        assert_eq!(own.to_string().parse(), Ok(own));
        for bad in
            ["", "charge_created", "charge_created/", "/after_call", "a/b c", "a/after_call/"]
        {
            assert!(bad.parse::<Point>().is_err(), "{bad}");
        }
    }
}
