// The chapter names other chapters by relative links. The reference has no chapters: here, these links lead to the
// repository. Of two definitions of a link, the first counts.
//! [console]: https://github.com/atomic-phases/atomic-phases/blob/main/docs/console.md
//! [metrics]: https://github.com/atomic-phases/atomic-phases/blob/main/docs/metrics.md
//! [replay-cache]: https://github.com/atomic-phases/atomic-phases/blob/main/docs/replay-cache.md
//! [runbooks]: https://github.com/atomic-phases/atomic-phases/blob/main/docs/runbooks.md
//!
#![doc = include_str!("../../docs/operating.md")]
// The page is also read in the repository and in the book, where a link into the reference leads nowhere. So it has plain
// names, and the links are here.
//!
//! ## The items that this page names
//!
//! * The layer: [`Engine::ops`], [`Ops`].
//! * What is stuck: [`Ops::counts`], [`Counts::none_announced`], [`Count::or_more`], [`Ops::list`], [`Filter`], [`State`],
//!   [`Cursor`], [`Ops::find`], [`Postgres::operators_pool`](crate::store::Postgres::operators_pool),
//!   [`Postgres::with_pool`](crate::store::Postgres::with_pool).
//! * Why: [`Ops::why`], [`Why::window_ends`], [`HeldBy`], [`EndedBy`], [`StrandedBecause`], [`Ops::show`],
//!   [`Details::events_gone`], [`PhaseStands`], [`Event::Left`],
//!   [`RequestContext::attempt`](crate::RequestContext::attempt),
//!   [`EngineBuilder::max_attempts`](crate::engine::EngineBuilder::max_attempts).
//! * Builds and processes: [`Ops::nodes`], [`Ops::definitions`], [`Announcer`](crate::worker::Announcer),
//!   [`WorkerConfig::node`](crate::worker::WorkerConfig::node).
//! * Acts: [`Ops::resolve`], [`Ops::retry`], [`Ops::erase`], [`Ops::retry_job`], [`Ops::discard_job`], [`RowVersion`],
//!   [`OpsError::MovedOn`].
//! * Pauses: [`Ops::pause`], [`Ops::pauses`], [`Ops::replace_pause`], [`Ops::unpause`],
//!   [`EngineBuilder::pauses_every`](crate::engine::EngineBuilder::pauses_every).
//! * Bulk acts: [`Ops::plan_bulk`], [`BulkPlan::with_call`], [`Ops::start_bulk`], [`Ops::stop_bulk`], [`Ops::bulk`],
//!   [`BulkRunner`](crate::worker::BulkRunner).
//! * Staged jobs: [`Ops::dead_jobs`], [`Ops::late_jobs`], [`JobSink`](crate::worker::JobSink),
//!   [`JobSink::handles`](crate::worker::JobSink::handles), [`Job`](crate::worker::Job),
//!   [`Handlers::on`](crate::worker::Handlers::on).
//! * Who did it, and who may: [`Ops::audit`], [`AuditFilter`], [`Actor`], [`Permissions`], [`Scopes`], [`Ops::reveal`].
//! * Notices: [`EngineBuilder::notify_waiting`](crate::engine::EngineBuilder::notify_waiting),
//!   [`WAITING_JOB`](crate::engine::WAITING_JOB), [`Waiting`](crate::engine::Waiting).

mod act;
mod actor;
mod audit;
mod bound;
mod bulk;
mod census;
mod error;
mod filter;
mod in_bulk;
mod jobs;
mod node;
mod pause;
mod request;
mod reveal;
mod until;
mod why;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use uuid::Uuid;

pub use self::actor::{Actor, InvalidActor, Permissions, Scopes};
#[cfg(feature = "console")]
pub(crate) use self::audit::ACTS;
pub use self::audit::{AuditFilter, AuditRecord};
pub use self::bulk::{BulkAct, BulkDetails, BulkPlan, BulkRefusal, BulkView, Planned, Selection};
pub(crate) use self::census::Tally;
pub use self::error::OpsError;
pub use self::filter::{Cursor, Filter, State};
pub(crate) use self::in_bulk::{Panicked, Slice, TurnEnd};
pub use self::jobs::{JobView, Place};
pub(crate) use self::node::versions;
pub use self::node::{DefinitionView, NodeView};
pub use self::pause::{ForeignPhase, PauseView};
pub use self::request::{
    Details, Event, Happened, PhaseStands, PhaseView, PhaseViewKind, RowVersion, Summary,
};
pub use self::reveal::{Revealed, What};
pub use self::why::{EndedBy, HeldBy, Why};
pub use crate::store::events::EventKind;
pub use crate::store::operators::OperatorStore;

use self::bound::Goes;
use self::filter::{MAX_PAGE, WalkPlace, page_size};
use self::request::{happened, listed, phases};
use self::until::{List, Until, at_of, goes_of, page, place_of};
use self::why::{Facts, why};
use crate::definition::{Definition, PhaseList};
use crate::engine::{Core, Engine, PAUSED, StrandedBecause, said};
use crate::key::{IdempotencyKey, Scope};
use crate::number::to_u32;
use crate::store::audit::AuditSearch;
use crate::store::operators::{
    FoundRequest, ListPlace, ListedRequest, MAX_ROWS_PER_SEARCH, RequestAt, SearchPage, Walk,
};
use crate::store::pauses::PausedPhase;
use crate::store::{KeyRow, Status};

/// How many audit rows a request's timeline has at most.
const MAX_ACTS: u32 = 100;

/// How many rows a walk behind the first one reads at least: it passes over those that an earlier walk has returned.
const LATER_WALK_MIN_ROWS: u32 = 100;

/// What an operator may see and do: see the [module](self).
pub struct Ops<S: OperatorStore> {
    core: Arc<Core<S>>,
    /// Where it searches: by the connections of operators, or of workers in their place.
    store: S,
    actor: Actor,
}

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Page<T, N = Cursor> {
    /// What was found.
    pub rows: Vec<T>,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<N>,
    /// How far the search came, if it read ten thousand rows before the page was full. The next page continues from there. For
    /// an actor who does not see every scope, a search ends between two minutes, so that no place reveals the time of a row
    /// that the actor does not see. If one minute has ten thousand rows, the search ends between two seconds; if one second has
    /// them, between two milliseconds; and so on.
    pub searched_to: Option<DateTime<Utc>>,
}

/// A number of rows, counted up to a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Count {
    /// How many were found among the first ten thousand rows.
    pub number: u32,
    /// Whether there may be more.
    pub or_more: bool,
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.or_more {
            true => write!(f, "{} or more", self.number),
            false => write!(f, "{}", self.number),
        }
    }
}

/// How many requests and jobs wait for an operator or a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Requests with an unknown outcome.
    pub unknown: Count,
    /// Requests that gave up.
    pub dead_letters: Count,
    /// When the oldest of these two began to wait.
    pub oldest_waiting: Option<DateTime<Utc>>,
    /// Requests that a worker could resume now.
    pub due: Count,
    /// Whether no process has announced itself in the last minute ([`Ops::nodes`]). If no workers run, requests are resumed
    /// only by their clients' retries, and more may be [due](Self::due) than were counted: [`State::LeaseEnded`] lists
    /// those whose holder died. The announcements are only a sign: a [completer](crate::worker::Completer) may run in a
    /// process that does not announce itself, and a process that does may run none.
    pub none_announced: bool,
    /// Unfinished requests that this build cannot continue: [`Filter::stranded`].
    pub stranded: Count,
    /// Staged jobs that gave up.
    pub dead_jobs: Count,
    /// Staged jobs that have been due for a minute: [`Ops::late_jobs`].
    pub late_jobs: Count,
}

impl<S: OperatorStore, A: Send + Sync + 'static> Engine<S, A> {
    /// What `actor` may see and do. Consoles, APIs and command lines are built on it. See
    /// [`ops`](crate::ops).
    pub fn ops(&self, actor: Actor) -> Ops<S> {
        Ops { core: self.core.clone(), store: self.core.store.clone(), actor }
    }
}

impl<S: OperatorStore> Ops<S> {
    /// Who acts.
    #[must_use]
    pub fn actor(&self) -> &Actor {
        &self.actor
    }

    /// The same, by the connections of this store: a worker's, or a health check's.
    pub(crate) fn searching_by(self, store: S) -> Self {
        Self { store, ..self }
    }

    /// A page of requests. Needs [`Permissions::READ`].
    ///
    /// | asked for | index that is walked | order |
    /// |---|---|---|
    /// | unknown, dead letter, [waiting for](Filter::waiting_for) | `atomic_phases_keys_waiting` | the longest waiting first |
    /// | accepted, backing off, due | `atomic_phases_keys_due` | the longest due first |
    /// | lease ended | `atomic_phases_keys_due`, then `atomic_phases_keys_expiry` | |
    /// | several of these, or [stranded](Filter::stranded) | one behind the other | |
    /// | anything else | `atomic_phases_keys_expiry` | what expires last first |
    ///
    /// Each page reads at most ten thousand rows of each index that it walks. If the page is not full then, it says
    /// [how far](Page::searched_to) it came, and the next page continues from there. For an actor who does not see every
    /// scope, a page first determines where the search may end. That reads as many rows once more, and again for each
    /// smaller unit of time that has so many rows.
    ///
    /// A request whose holder died in its first ten seconds enters the index of due rows when a completer meets it: within
    /// seconds, if one runs. Until then, *lease ended* finds it in the last index, and [`counts`](Self::counts) does not
    /// count it.
    ///
    /// # Errors
    /// [`OpsError`].
    pub async fn list(&self, filter: Filter) -> Result<Page<Summary>, OpsError> {
        self.list_as(filter, Audience::Client).await
    }

    /// A page for this audience.
    async fn list_as(&self, filter: Filter, audience: Audience) -> Result<Page<Summary>, OpsError> {
        self.needs(Permissions::READ)?;
        let limit = filter.rows()?;
        let mut page = Page { rows: Vec::new(), next: None, searched_to: None };
        let (mut at, mut rows_read) = (Some(filter.place()?), 0);
        let mut last = None;
        while let Some(place) = at.take() {
            // One more than the page takes says whether there is a next one.
            let left = limit - to_u32(page.rows.len()) + 1;
            let found = self.search_from(&filter, place, left, audience).await?;
            rows_read += found.rows_read;
            let on = |place_behind| WalkPlace { place: place_behind, ..place };
            for row in &found.rows {
                let Some(summary) = self.summary_if_wanted(&filter, place, row) else { continue };
                if to_u32(page.rows.len()) == limit {
                    page.next = last.map(|place| filter.cursor(place));
                    return Ok(page);
                }
                page.rows.push(summary);
                last = Some(on(row.place(found.walk)));
            }
            let is_walked = !found.is_all_asked || found.searched_to.is_some();
            let behind = found.rows.last().filter(|_| !is_walked).map(|row| row.place(found.walk));
            let is_far = rows_read >= MAX_ROWS_PER_SEARCH || found.searched_to.is_some();
            match behind.or(found.searched_to) {
                Some(behind) if is_far => {
                    let is_full = to_u32(page.rows.len()) == limit;
                    page.searched_to = (!is_full).then_some(behind.time);
                    page.next = Some(filter.cursor(on(behind)));
                }
                Some(behind) => at = Some(on(behind)),
                None => at = filter.next_walk(place),
            }
        }
        Ok(page)
    }

    /// Searches on a walk from a place on, for so many rows at least.
    async fn search_from(
        &self,
        filter: &Filter,
        place: WalkPlace,
        at_least: u32,
        audience: Audience,
    ) -> Result<SearchedPart, OpsError> {
        let asked = match (filter.is_judged(), place.index) {
            // Asked for whole: a search that stops at its limit does not say how many rows it read.
            (true, _) => MAX_ROWS_PER_SEARCH,
            (false, 0) => at_least,
            // Rows that the walk before has told are passed over, and there may be many.
            (false, _) => at_least.max(LATER_WALK_MIN_ROWS),
        };
        let search = filter.search(place, asked, self.actor.limits());
        let (walk, from) = (search.walk, at_of(place.place));
        let until = match audience {
            Audience::BulkPlan => Until::AsSearched,
            Audience::Client => self.until(List::Requests(walk), from).await?,
        };
        let SearchPage { mut rows, searched_to } = self.store.list_requests(&search).await?;
        let rows_read = to_u32(rows.len());
        let is_all_asked = rows_read == asked;
        let searched_to = until.cut(
            goes_of(walk),
            from,
            (&mut rows, is_all_asked),
            searched_to.map(at_of),
            |row: &ListedRequest| at_of(row.place(walk)),
        );
        let searched_to = searched_to.map(place_of);
        Ok(SearchedPart { walk, rows, rows_read, is_all_asked, searched_to })
    }

    /// The row as the list shows it, unless the list passes it over.
    fn summary_if_wanted(
        &self,
        filter: &Filter,
        place: WalkPlace,
        row: &ListedRequest,
    ) -> Option<Summary> {
        // Of those that are not stranded, which are most, no summary is made.
        let is_out = filter.wants_stranded() && self.stranded(row).is_none();
        if is_out || filter.was_met(place, row) {
            return None;
        }
        let summary = self.summary_of(row);
        filter.wants_phase(summary.phase.as_deref()).then_some(summary)
    }

    /// How many requests and jobs wait, and whether a process has [announced](Counts::none_announced) itself. Each count
    /// ends at ten thousand. Needs [`Permissions::READ`].
    ///
    /// # Errors
    /// [`OpsError`].
    pub async fn counts(&self) -> Result<Counts, OpsError> {
        let counts = self.counted().await?;
        let none_announced = !self.store.saw_a_node(node::GONE_AFTER).await?;
        let due = Count { or_more: counts.due.or_more || none_announced, ..counts.due };
        Ok(Counts { due, none_announced, ..counts })
    }

    /// The same as the indexes have it, whether workers run or not.
    pub(crate) async fn counted(&self) -> Result<Counts, OpsError> {
        self.needs(Permissions::READ)?;
        let counted = self.store.count_waiting(self.actor.limits()).await?;
        let groups = self.store.unfinished(self.actor.limits(), PAUSED).await?;
        let stranded = groups.iter().filter(|group| self.core.strands(group).is_some());
        let count = |number, or_more| Count { number, or_more };
        let (waiting, due) = (counted.waiting_is_more, counted.due_is_more);
        Ok(Counts {
            unknown: count(counted.unknown, waiting),
            dead_letters: count(counted.dead_letters, waiting),
            oldest_waiting: counted.oldest_waiting,
            due: count(counted.due, due),
            none_announced: false,
            stranded: match self.core.has_no_code() {
                true => Count::default(),
                false => count(stranded.map(|group| group.rows).sum(), waiting || due),
            },
            dead_jobs: count(counted.dead_jobs, counted.dead_jobs_are_more),
            late_jobs: count(counted.late_jobs, counted.late_jobs_are_more),
        })
    }

    /// The request under this key. Needs [`Permissions::READ`]. Take the key from a request's body: in a
    /// URL it would be in the logs of every proxy.
    ///
    /// # Errors
    /// [`OpsError::NoSuchRequest`].
    pub async fn find(&self, scope: &Scope, key: &IdempotencyKey) -> Result<Summary, OpsError> {
        self.needs(Permissions::READ)?;
        let at = RequestAt::Key(scope, key);
        let found = self.store.find_request(at, self.actor.limits()).await?;
        let found = found.ok_or(OpsError::NoSuchRequest)?;
        Ok(self.summary_of(&listed(&found)))
    }

    /// All that is known of a request. Needs [`Permissions::READ`].
    ///
    /// # Errors
    /// [`OpsError::NoSuchRequest`].
    pub async fn show(&self, request_id: Uuid) -> Result<Details, OpsError> {
        self.needs(Permissions::READ)?;
        let found = self.find_by_id(request_id).await?;
        let jobs = self.store.jobs_of(&found.scope, request_id).await?;
        let jobs: Vec<JobView> = jobs.into_iter().map(JobView::from).collect();
        let events = self.store.events(&found).await?;
        let mut timeline = happened(&found, &jobs, &events);
        let mut earlier_acts = None;
        if self.actor.permissions().contain(Permissions::AUDIT) {
            let acts = AuditSearch::of_request(Some(request_id));
            let acts = self.audit_page(&acts, None, MAX_ACTS).await?;
            earlier_acts = acts.next;
            timeline.extend(
                acts.rows.into_iter().map(|act| Happened::at(act.at, Event::Acted(Box::new(act)))),
            );
        }
        timeline.sort_by_key(|happened| happened.at);
        let row = &found.row;
        let (summary, phases) = self.seen(&listed(&found));
        Ok(Details {
            why: self.reason_of(&found, &summary, &phases).await?,
            summary,
            read_at: found.now,
            phases,
            timeline,
            events_gone: events.gone(),
            earlier_acts,
            reconciles: row.reconciles,
            resolution: said(row.resolution.as_deref()).map(str::to_owned),
            jobs,
        })
    }

    /// Why a request waits, in one sentence, and what ends the wait. Needs [`Permissions::READ`].
    ///
    /// # Errors
    /// [`OpsError::NoSuchRequest`].
    pub async fn why(&self, request_id: Uuid) -> Result<Why, OpsError> {
        self.needs(Permissions::READ)?;
        let found = self.find_by_id(request_id).await?;
        let (summary, phases) = self.seen(&listed(&found));
        self.reason_of(&found, &summary, &phases).await
    }

    /// Staged jobs that are dead letters, the oldest first, at most `rows` of them: 1 to 1000. Needs
    /// [`Permissions::READ`].
    ///
    /// # Errors
    /// [`OpsError::BadPage`] for another number of rows.
    pub async fn dead_jobs(
        &self,
        after: Option<Place>,
        rows: u32,
    ) -> Result<Page<JobView, Place>, OpsError> {
        self.needs(Permissions::READ)?;
        let place = after.map_or((DateTime::UNIX_EPOCH, Uuid::nil()), |at| (at.time, at.id));
        let limit = page_size(rows, MAX_PAGE)?;
        let until = self.until(List::DeadJobs, place).await?;
        let found = self.store.dead_jobs_after(self.actor.limits(), place, limit + 1).await?;
        let page = page(&until, Goes::Up, place, limit, found, |job| (job.staged_at, job.id));
        Ok(page.map(JobView::from))
    }

    /// Staged jobs that have been due for a minute, the longest due first, at most `rows` of them: 1 to 1000. The list has one
    /// page: it reads the ten thousand jobs that have been due for longest, and [`counts`](Self::counts) says how many there
    /// are. Needs [`Permissions::READ`].
    ///
    /// Most often no node's sink [handles](crate::worker::JobSink::handles) their name, no node has a sink, or the workers do
    /// not keep up. A job also counts as late if it waits for an earlier one of its request whose delivery fails.
    ///
    /// # Errors
    /// [`OpsError::BadPage`] for another number of rows.
    pub async fn late_jobs(&self, rows: u32) -> Result<Vec<JobView>, OpsError> {
        self.needs(Permissions::READ)?;
        let limit = page_size(rows, MAX_PAGE)?;
        let jobs = self.store.late_jobs(self.actor.limits(), limit).await?;
        Ok(jobs.into_iter().map(JobView::from).collect())
    }

    /// A staged job that is a dead letter. Needs [`Permissions::READ`].
    ///
    /// # Errors
    /// [`OpsError::NoSuchJob`].
    pub async fn dead_job(&self, id: Uuid) -> Result<JobView, OpsError> {
        self.needs(Permissions::READ)?;
        let job = self.store.dead_job(self.actor.limits(), id).await?;
        job.map(JobView::from).ok_or(OpsError::NoSuchJob)
    }

    /// What operators did, and what they were refused, the newest first. Returns at most `rows` records, 1 to 1000, of an
    /// [`AuditFilter`]; `None` is every record, and `Some` of a request's id its records. A page reads ten thousand rows of
    /// the request, or of the audit, at most, and says [how far](Page::searched_to) it came. Needs [`Permissions::AUDIT`].
    ///
    /// # Errors
    /// [`OpsError::BadFilter`] if there is no act of the filter's name; [`OpsError::BadPage`] for another number of rows.
    pub async fn audit(
        &self,
        filter: impl Into<AuditFilter>,
        before: Option<Place>,
        rows: u32,
    ) -> Result<Page<AuditRecord, Place>, OpsError> {
        let search = filter.into().search();
        self.needs(Permissions::AUDIT)?;
        self.audit_page(&search?, before, page_size(rows, MAX_PAGE)?).await
    }

    async fn audit_page(
        &self,
        search: &AuditSearch,
        before: Option<Place>,
        limit: u32,
    ) -> Result<Page<AuditRecord, Place>, OpsError> {
        let newest = Walk::Newest.start().time;
        let before = before.map_or((newest, Uuid::max()), |at| (at.time, at.id));
        let limits = self.actor.limits();
        let until = self.until(List::Audit(search.request_id), before).await?;
        let found = self.store.audit_before(limits, search, before, limit + 1).await?;
        let page = page(&until, Goes::Down, before, limit, found, |row| (row.at, row.id));
        let permissions = self.actor.permissions();
        Ok(page.map(|row| AuditRecord::seen_with(permissions, row)))
    }

    /// The database's time. A statement at most once an hour, on a connection of the operators': in between, this
    /// machine's monotonic clock carries it on.
    #[cfg(any(feature = "console", feature = "ops-api"))]
    pub(crate) async fn now(&self) -> Result<DateTime<Utc>, OpsError> {
        if let Some(now) = self.core.clock.reads() {
            return Ok(now);
        }
        let now = self.store.operators_time().await?;
        self.core.clock.set(now);
        Ok(now)
    }

    fn needs(&self, needs: Permissions) -> Result<(), OpsError> {
        match self.actor.permissions().contain(needs) {
            true => Ok(()),
            false => Err(OpsError::NotAllowed { needs }),
        }
    }

    async fn find_by_id(&self, request_id: Uuid) -> Result<FoundRequest, OpsError> {
        let at = RequestAt::Id(request_id);
        let found = self.store.find_request(at, self.actor.limits()).await?;
        found.ok_or(OpsError::NoSuchRequest)
    }

    fn summary_of(&self, row: &ListedRequest) -> Summary {
        self.seen(row).0
    }

    /// What a list shows of a request, and what its phases have come to.
    fn seen(&self, row: &ListedRequest) -> (Summary, Vec<PhaseView>) {
        let definition = self.core.known_definition(&row.definition, row.version);
        let phases = phases(&row.into(), definition.as_ref());
        (Summary::of(row, self.stranded(row), &phases), phases)
    }

    /// Of an unfinished row, as far as it is seen without its values.
    fn stranded(&self, row: &ListedRequest) -> Option<StrandedBecause> {
        match State::parse(&row.state) {
            State::Finished | State::Erased => None,
            State::Unreadable if !self.core.has_no_code() => Some(StrandedBecause::NewerForm),
            _ => self.core.stranded_by_place((&row.definition, row.version), &row.into()),
        }
    }

    async fn reason_of(
        &self,
        found: &FoundRequest,
        summary: &Summary,
        phases: &[PhaseView],
    ) -> Result<Why, OpsError> {
        let FoundRequest { scope, key, now, row } = found;
        let definition = self.core.known_definition(&row.definition, row.version);
        let stranded = match row.status {
            Status::Completed => None,
            _ => self.core.stranded_because(scope, key, row),
        };
        let definition = definition.as_ref();
        let pause = self.pause_of(row, definition, phases).await?;
        let (pause, settings) = (pause.as_ref(), &self.core.settings);
        let perhaps_called = summary.phase.as_deref().filter(|_| summary.may_have_been_called);
        let now = *now;
        Ok(why(&Facts { now, row, definition, stranded, pause, perhaps_called, settings }))
    }

    /// The pause that a request met and that lasts.
    async fn pause_of(
        &self,
        row: &KeyRow,
        definition: Option<&Definition>,
        phases: &[PhaseView],
    ) -> Result<Option<PausedPhase>, OpsError> {
        if row.reason.as_deref() != Some(PAUSED) {
            return Ok(None);
        }
        let Some(next) = phases.iter().find(|phase| phase.is_current()) else {
            return Ok(None);
        };
        let known = definition.map_or(&[][..], |definition| definition.phases);
        let known = known.iter().find(|known| known.is_called(&next.name));
        let of_row = PhaseList::parse(&row.phases);
        let of_row = of_row.as_ref().and_then(|list| list.named(&next.name));
        let is_next = |name: &str| {
            name == next.name
                || known.is_some_and(|phase| phase.is_called(name))
                || of_row.is_some_and(|phase| phase.key_name == name)
        };
        let pauses = self.store.list_pauses().await?;
        let mut ours = pauses.into_iter().filter(|pause| pause.definition == row.definition);
        Ok(ours.find(|pause| is_next(&pause.phase)))
    }
}

/// What a search found on a walk.
struct SearchedPart {
    walk: Walk,
    /// Up to a place that the audience may know.
    rows: Vec<ListedRequest>,
    /// With those behind that place.
    rows_read: u32,
    /// Whether it read as many as it was asked for, so that there may be more.
    is_all_asked: bool,
    /// How far it came, if it ended before it found so many.
    searched_to: Option<ListPlace>,
}

/// Who reads a list.
#[derive(Clone, Copy)]
enum Audience {
    /// Which may ask from any place.
    Client,
    /// Which tells no place.
    BulkPlan,
}

impl<S: OperatorStore> Clone for Ops<S> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone(), store: self.store.clone(), actor: self.actor.clone() }
    }
}

impl<S: OperatorStore> std::fmt::Debug for Ops<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ops").field("actor", &self.actor).finish_non_exhaustive()
    }
}
