//! [`Filter`]: which requests a list contains; and [`Cursor`]: where its next page begins.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::OpsError;
use crate::key::Scope;
use crate::store::millis;
use crate::store::operators::{ListPlace, ListRequests, ListedRequest, ScopeLimits, Walk};

/// How many rows a page has, unless it is said.
const PAGE: u32 = 50;

/// The largest page of every list but that of the bulk acts.
pub(super) const MAX_PAGE: u32 = 1000;

/// The longest time that is asked for: a database's clock holds what is so long ago, and what is so far ahead.
pub(super) const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);

/// The state of a request as an operator sees it: its status, refined by its times, which the database's
/// clock judges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// Accepted, to be run by a worker.
    Accepted,
    /// A holder has its lease.
    Running,
    /// Its holder crashed or is cut off: the lease has ended, and the next retry or a worker resumes it.
    LeaseEnded,
    /// Released after a transient failure; its back-off has not ended.
    BackingOff,
    /// Released, and its back-off has ended: the next retry or a worker resumes it.
    Due,
    /// It is unknown whether a call was executed; also while its reconcile function is asked.
    Unknown,
    /// Gave up; only an operator can retry or settle it.
    DeadLetter,
    /// Finished; its reply is replayed.
    Finished,
    /// Finished, and its user data was erased.
    Erased,
    /// A status that this build does not know.
    Unreadable,
}

impl State {
    /// All states, in the order in which a request may pass through them.
    pub const ALL: [Self; 10] = [
        Self::Accepted,
        Self::Running,
        Self::LeaseEnded,
        Self::BackingOff,
        Self::Due,
        Self::Unknown,
        Self::DeadLetter,
        Self::Finished,
        Self::Erased,
        Self::Unreadable,
    ];

    /// Its name, for example `dead_letter`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Running => "running",
            Self::LeaseEnded => "lease_ended",
            Self::BackingOff => "backing_off",
            Self::Due => "due",
            Self::Unknown => "unknown",
            Self::DeadLetter => "dead_letter",
            Self::Finished => "finished",
            Self::Erased => "erased",
            Self::Unreadable => "unreadable",
        }
    }

    pub(super) fn parse(name: &str) -> Self {
        Self::ALL.into_iter().find(|state| state.as_str() == name).unwrap_or(Self::Unreadable)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which requests to list. A request must meet all conditions. Without a condition, all requests are listed,
/// those that expire last first. That is the order of creation if all keys have the same retention.
///
/// The conditions decide which index is read, and the order: see [`Ops::list`](super::Ops::list).
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Filter {
    states: Vec<State>,
    stranded: bool,
    scope: Option<Scope>,
    definition: Option<(String, Option<u32>)>,
    phase: Option<String>,
    reason: Option<String>,
    older_than: Option<Duration>,
    waiting_for: Option<Duration>,
    page: Option<u32>,
    after: Option<Cursor>,
}

impl Filter {
    /// Every request.
    pub fn new() -> Self {
        Self::default()
    }

    /// Those that wait for a reconcile function or an operator, the longest waiting first: the inbox.
    pub fn waiting() -> Self {
        Self::new().states([State::Unknown, State::DeadLetter])
    }

    /// In one of these states.
    pub fn states(mut self, states: impl IntoIterator<Item = State>) -> Self {
        self.states = states.into_iter().collect();
        self
    }

    /// Unfinished requests that this build cannot continue, judged without their stored values: their definition, version or
    /// phase list is another one ([`Summary::stranded`](super::Summary::stranded)).
    pub fn stranded(mut self) -> Self {
        self.stranded = true;
        self
    }

    /// Of this scope.
    pub fn scope(mut self, scope: &Scope) -> Self {
        self.scope = Some(scope.clone());
        self
    }

    /// Of this definition; with a version, only of that one. An empty name is refused.
    pub fn definition(mut self, name: impl Into<String>, version: Option<u32>) -> Self {
        self.definition = Some((name.into(), version));
        self
    }

    /// Requests that stand at this phase: it is the next one, or its call is open ([`Summary::phase`](super::Summary::phase)).
    /// An empty name is refused. Like [`stranded`](Self::stranded), it is judged by this build, and not by the database.
    pub fn phase(mut self, name: impl Into<String>) -> Self {
        self.phase = Some(name.into());
        self
    }

    /// Requests whose reason contains this text. An empty text is refused.
    pub fn reason(mut self, part: impl Into<String>) -> Self {
        self.reason = Some(part.into());
        self
    }

    /// Accepted at least this long ago.
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = Some(age);
        self
    }

    /// Waiting for a reconcile function or an operator for at least this long.
    pub fn waiting_for(mut self, time: Duration) -> Self {
        self.waiting_for = Some(time);
        self
    }

    /// The number of requests on a page: 1 to 1000; default 50.
    pub fn page(mut self, rows: u32) -> Self {
        self.page = Some(rows);
        self
    }

    /// Continues after the page whose [`next`](super::Page::next) this is. The filter must be the same.
    pub fn after(mut self, cursor: Cursor) -> Self {
        self.after = Some(cursor);
        self
    }

    /// Whether it asks for anything: a bulk act on all that there is is a slip. [`rows`](Self::rows) refuses empty texts.
    pub(super) fn has_condition(&self) -> bool {
        let Self { states, scope, definition, phase, reason, older_than, waiting_for, .. } = self;
        let has_text = [phase, reason].iter().any(|text| text.is_some()) || scope.is_some();
        // Every request is as old as no time. Only some wait, for however long.
        let has_age = older_than.is_some_and(|age| millis(age) > 0);
        let has_time = has_age || waiting_for.is_some();
        !states.is_empty() || self.stranded || definition.is_some() || has_text || has_time
    }

    /// Whether it has neither a size of its pages nor a place to continue from.
    pub(super) fn is_of_conditions_only(&self) -> bool {
        self.page.is_none() && self.after.is_none()
    }

    /// The same in the largest pages.
    pub(super) fn in_large_pages(&self) -> Self {
        Self { page: Some(MAX_PAGE), ..self.clone() }
    }

    /// Which indexes have all that is asked for, each walked behind the last.
    fn walks(&self) -> &'static [Walk] {
        use State::{Accepted, BackingOff, DeadLetter, Due, LeaseEnded, Unknown};
        let among = |all: &[State]| {
            !self.states.is_empty() && self.states.iter().all(|state| all.contains(state))
        };
        // A request whose holder died in its first seconds is in the index of due rows once a worker has entered it there.
        if among(&[Unknown, DeadLetter]) || self.waiting_for.is_some() {
            &[Walk::Waiting]
        } else if among(&[Accepted, BackingOff, Due]) {
            &[Walk::Due]
        } else if among(&[Accepted, BackingOff, Due, LeaseEnded]) {
            &[Walk::Due, Walk::Newest]
        } else if among(&[Unknown, DeadLetter, Accepted, BackingOff, Due]) {
            &[Walk::Waiting, Walk::Due]
        } else if among(&[Unknown, DeadLetter, Accepted, BackingOff, Due, LeaseEnded]) {
            &[Walk::Waiting, Walk::Due, Walk::Newest]
        } else if self.stranded {
            &[Walk::Waiting, Walk::Due]
        } else {
            &[Walk::Newest]
        }
    }

    /// What is asked for, without where the list goes on.
    fn conditions(&self) -> String {
        format!(
            "{:?}",
            (
                &self.states,
                self.stranded,
                self.scope.as_ref().map(Scope::as_str),
                &self.definition,
                &self.phase,
                &self.reason,
                self.older_than,
                self.waiting_for
            )
        )
    }

    /// The same text of all filters that want the same requests, in whatever order they name the states.
    pub(super) fn wanted(&self) -> String {
        let mut states = self.states.clone();
        states.sort_unstable_by_key(|state| state.as_str());
        states.dedup();
        Self { states, ..self.clone() }.conditions()
    }

    /// A cursor of another filter is of no use.
    fn digest(&self) -> [u8; 4] {
        let hash = Sha256::digest(self.conditions().as_bytes());
        [hash[0], hash[1], hash[2], hash[3]]
    }

    /// Whether the build judges each row that was found: not a database.
    pub(super) fn is_judged(&self) -> bool {
        self.stranded || self.phase.is_some()
    }

    /// Whether only stranded ones are asked for.
    pub(super) fn wants_stranded(&self) -> bool {
        self.stranded
    }

    pub(super) fn wants_phase(&self, phase: Option<&str>) -> bool {
        self.phase.is_none() || self.phase.as_deref() == phase
    }

    pub(super) fn rows(&self) -> Result<u32, OpsError> {
        let definition = self.definition.as_ref().map(|(name, _)| name);
        let texts = [&self.phase, &self.reason].into_iter().flatten().chain(definition);
        // A script's variable that is not set, and no condition: every reason contains it.
        if texts.clone().any(|text| text.trim().is_empty()) {
            return Err(OpsError::BadFilter(
                "a text of a filter is not empty: leave it out, or give one",
            ));
        }
        // PostgreSQL's texts have no such character, and so nothing that is stored has.
        if texts.clone().any(|text| text.contains('\0')) {
            return Err(OpsError::BadFilter("a text of a filter has no NUL character"));
        }
        let mut times = [self.older_than, self.waiting_for].into_iter().flatten();
        if times.any(|time| time > LONGEST) {
            return Err(OpsError::BadFilter("a time of a filter is ten years at most"));
        }
        page_size(self.page.unwrap_or(PAGE), MAX_PAGE)
    }

    /// Where the list goes on.
    pub(super) fn place(&self) -> Result<WalkPlace, OpsError> {
        let walks = self.walks();
        let Some(cursor) = &self.after else {
            return Ok(WalkPlace { index: 0, place: walks[0].start() });
        };
        match cursor.filter == self.digest() && cursor.at.index < walks.len() {
            true => Ok(cursor.at),
            false => Err(OpsError::BadCursor),
        }
    }

    pub(super) fn cursor(&self, at: WalkPlace) -> Cursor {
        Cursor { filter: self.digest(), at }
    }

    /// The place behind the end of the walk, if there is another one to be walked.
    pub(super) fn next_walk(&self, at: WalkPlace) -> Option<WalkPlace> {
        let index = at.index + 1;
        self.walks().get(index).map(|walk| WalkPlace { index, place: walk.start() })
    }

    /// Whether an earlier walk has returned the row, or would by now. A row that a completer enters in the index of due rows
    /// while a list is being read may be missing from this list; the next list has it.
    pub(super) fn was_met(&self, at: WalkPlace, row: &ListedRequest) -> bool {
        self.walks()[..at.index].iter().any(|walk| match walk {
            Walk::Waiting => row.waiting_since.is_some(),
            Walk::Due => row.run_after.is_some(),
            Walk::Newest => true,
        })
    }

    /// The search from this place on.
    pub(super) fn search(&self, at: WalkPlace, limit: u32, limits: &ScopeLimits) -> ListRequests {
        let walk = self.walks()[at.index];
        let mut states = self.states.clone();
        // What waits was met on the walk before; what is in both indexes is told once.
        let waits = [State::Unknown, State::DeadLetter];
        if at.index > 0 {
            states.retain(|state| !waits.contains(state));
        }
        // The index of due rows has all others.
        if at.index > 0 && walk == Walk::Newest {
            states.retain(|state| *state == State::LeaseEnded);
        }
        // A finished request stands at no phase, and is not stranded.
        if self.is_judged() && states.is_empty() {
            let over = [State::Finished, State::Erased];
            let unfinished = State::ALL.into_iter().filter(|state| !over.contains(state));
            states = unfinished.filter(|state| at.index == 0 || !waits.contains(state)).collect();
        }
        let names = states.iter().map(|state| state.as_str().to_owned()).collect();
        let (definition, version) = self.definition.clone().unzip();
        ListRequests {
            walk,
            after: at.place,
            limit,
            limits: limits.clone(),
            states: Some(names).filter(|_| !states.is_empty()),
            scope: self.scope.as_ref().map(|scope| scope.as_str().to_owned()),
            definition,
            version: version.flatten(),
            reason: self.reason.clone(),
            older_ms: self.older_than.map(millis),
            waiting_ms: self.waiting_for.map(millis),
        }
    }
}

/// How many rows a page has, of a list whose pages have `most` at most. A number of rows is refused rather than reduced: a
/// program that asked for more would take a part of the list for all of it.
pub(super) fn page_size(rows: u32, most: u32) -> Result<u32, OpsError> {
    match (1..=most).contains(&rows) {
        true => Ok(rows),
        false => Err(OpsError::BadPage { rows, most }),
    }
}

/// A place on one of a filter's walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WalkPlace {
    pub(super) index: usize,
    pub(super) place: ListPlace,
}

/// The time in a cursor: one that a row of ours may have. What is made by hand asks no database for another.
pub(super) fn time_of(micros: i64) -> Result<DateTime<Utc>, OpsError> {
    let time = DateTime::from_timestamp_micros(micros).ok_or(OpsError::BadCursor)?;
    match (Walk::Due.start().time..=Walk::Newest.start().time).contains(&time) {
        true => Ok(time),
        false => Err(OpsError::BadCursor),
    }
}

/// Where the next page of a list begins: an opaque text that is safe in a URL. It contains a time and a
/// request id, but no key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    filter: [u8; 4],
    at: WalkPlace,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.filter.to_vec();
        bytes.push(self.at.index as u8);
        bytes.extend(self.at.place.time.timestamp_micros().to_be_bytes());
        bytes.extend(self.at.place.request_id.as_bytes());
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for Cursor {
    type Err = OpsError;

    fn from_str(text: &str) -> Result<Self, OpsError> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| OpsError::BadCursor)?;
        let bytes: [u8; 29] = bytes.try_into().map_err(|_| OpsError::BadCursor)?;
        let (filter, rest) = bytes.split_first_chunk::<4>().ok_or(OpsError::BadCursor)?;
        let (index, rest) = rest.split_first_chunk::<1>().ok_or(OpsError::BadCursor)?;
        let (micros, id) = rest.split_first_chunk::<8>().ok_or(OpsError::BadCursor)?;
        let time = time_of(i64::from_be_bytes(*micros))?;
        let request_id = Uuid::from_slice(id).map_err(|_| OpsError::BadCursor)?;
        let place = ListPlace { time, request_id };
        Ok(Self { filter: *filter, at: WalkPlace { index: index[0].into(), place } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_comes_back_from_its_text_and_goes_with_its_filter_only() {
        let filter = Filter::waiting();
        let time = DateTime::from_timestamp_micros(1_764_000_000_123_456).unwrap();
        let place = ListPlace { time, request_id: Uuid::from_u128(7) };
        let cursor = filter.cursor(WalkPlace { index: 0, place });
        let text = cursor.to_string();
        assert_eq!(text.parse::<Cursor>().unwrap(), cursor);
        assert!(filter.clone().after(cursor.clone()).place().is_ok());
        assert!(matches!(Filter::new().after(cursor).place(), Err(OpsError::BadCursor)));
        for bad in ["", "x", &text[1..], &format!("{text}AA"), "~~~~"] {
            assert!(bad.parse::<Cursor>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_cursor_that_was_made_by_hand_asks_for_no_time_that_a_database_lacks() {
        let of = |micros: i64| {
            let bytes = [&[0; 5][..], &micros.to_be_bytes(), &[0; 16]].concat();
            URL_SAFE_NO_PAD.encode(bytes).parse::<Cursor>()
        };
        for micros in [0, 1_764_000_000_123_456, 253_370_764_800_000_000] {
            assert!(of(micros).is_ok(), "{micros}");
        }
        for micros in [-1, 253_370_764_800_000_001, i64::MIN, i64::MAX, -8_000_000_000_000_000_000]
        {
            assert!(matches!(of(micros), Err(OpsError::BadCursor)), "{micros}");
        }
    }

    #[test]
    fn a_filter_that_asks_for_nothing_is_known() {
        let scope = Scope::new("a").unwrap();
        let time = Duration::from_secs(1);
        for filter in [
            Filter::waiting(),
            Filter::new().stranded(),
            Filter::new().scope(&scope),
            Filter::new().definition("book", None),
            Filter::new().phase("charged"),
            Filter::new().reason("x"),
            Filter::new().older_than(time),
            Filter::new().waiting_for(time),
        ] {
            assert!(filter.has_condition(), "{filter:?}");
            assert!(filter.rows().is_ok(), "{filter:?}");
        }
        for filter in [
            Filter::new().page(7),
            Filter::new().states([]),
            Filter::new().older_than(Duration::ZERO),
        ] {
            assert!(!filter.has_condition(), "{filter:?}");
        }
        for empty in ["", " "] {
            for filter in [
                Filter::new().definition(empty, None),
                Filter::new().phase(empty),
                Filter::waiting().reason(empty),
            ] {
                assert!(matches!(filter.rows(), Err(OpsError::BadFilter(_))), "{filter:?}");
            }
        }
    }

    /// Of the ten thousand rows of a page most are finished ones: what the build judges, they are not sent to it.
    #[test]
    fn finished_requests_are_not_read_where_none_can_be_meant() {
        let states = |filter: Filter| {
            let place = filter.place().unwrap();
            filter.search(place, 1, &ScopeLimits::default()).states
        };
        for filter in [Filter::new().phase("charged"), Filter::new().stranded()] {
            let states = states(filter).unwrap();
            assert_eq!(states.len(), State::ALL.len() - 2, "{states:?}");
            assert!(!states.iter().any(|state| state == "finished" || state == "erased"));
        }
        assert_eq!(states(Filter::new().reason("x")), None);
        let finished = Filter::new().states([State::Finished]).phase("charged");
        assert_eq!(states(finished), Some(vec!["finished".to_owned()]), "as it was asked for");
    }

    #[test]
    fn what_is_asked_for_decides_which_index_is_walked() {
        use State::{BackingOff, DeadLetter, Due, Finished, LeaseEnded, Running, Unknown};
        let walks = |filter: Filter| filter.walks().to_vec();
        assert_eq!(walks(Filter::new()), [Walk::Newest]);
        assert_eq!(walks(Filter::waiting()), [Walk::Waiting]);
        assert_eq!(walks(Filter::new().states([BackingOff])), [Walk::Due]);
        assert_eq!(
            walks(Filter::new().states([DeadLetter, BackingOff])),
            [Walk::Waiting, Walk::Due]
        );
        assert_eq!(walks(Filter::new().states([Due, LeaseEnded])), [Walk::Due, Walk::Newest]);
        assert_eq!(
            walks(Filter::new().states([Unknown, LeaseEnded])),
            [Walk::Waiting, Walk::Due, Walk::Newest]
        );
        assert_eq!(walks(Filter::new().states([Unknown, Finished])), [Walk::Newest]);
        assert_eq!(walks(Filter::new().states([Running])), [Walk::Newest]);
        assert_eq!(walks(Filter::new().stranded()), [Walk::Waiting, Walk::Due]);
    }
}
