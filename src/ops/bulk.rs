//! Bulk acts: one act on many requests. A bulk act is planned, then started; the workers then apply it to one
//! request at a time.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow::Break;

use chrono::{DateTime, Utc};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::act::Done;
use super::bound::{At, CellSearch, Goes};
use super::filter::page_size;
use super::until::{Until, page};
use super::{
    Audience, Filter, Ops, OpsError, Page, Permissions, Place, RowVersion, State, Summary,
};
use crate::chance;
use crate::engine::Resolved;
use crate::key::hex;
use crate::number::to_u32;
use crate::store::audit::AuditEntry;
use crate::store::bulk::{BulkItem, BulkPart, BulkRow, NewBulk};
use crate::store::operators::{IDS_PER_SEARCH, OperatorStore, SearchPage, Walk};

/// How many requests a bulk act has at most: some seconds of one worker. A larger number is more often a
/// mistake than intended.
pub(super) const MAX_ITEMS: usize = 1000;

const TOO_MANY: OpsError =
    OpsError::BadFilter("a bulk act is about a thousand requests at most: narrow it");

/// How many bulk acts one search reads, of an actor who does not see them all.
const MAX_BULKS: u32 = 1000;

/// How many bulk acts a page has at most: of each, its requests are counted.
const MAX_BULKS_PER_PAGE: u32 = 100;

/// How many pages a plan reads: each searches ten thousand rows at most.
const MAX_PAGES: usize = 10;

/// How many requests a plan shows.
const SAMPLE: usize = 10;

/// What can be done with many requests together. A resolution of an unknown outcome cannot, because it is
/// about one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BulkAct {
    /// [`Ops::retry`]. Also needs [`Permissions::ACT`].
    Retry,
    /// [`Ops::erase`]. Also needs [`Permissions::ERASE`].
    Erase,
}

impl BulkAct {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Retry, Self::Erase];

    /// Its name, for example `retry`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Erase => "erase",
        }
    }

    /// The act of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|act| act.as_str() == name)
    }

    /// The permissions that starting it needs.
    #[must_use]
    pub const fn needs(self) -> Permissions {
        match self {
            Self::Retry => Permissions::ACT,
            Self::Erase => Permissions::ERASE,
        }
        .and(Permissions::BULK)
        .and(Permissions::READ)
    }

    /// Whether the act would be accepted, as far as a list shows.
    fn fits(self, row: &Summary) -> bool {
        match self {
            Self::Retry => row.state == State::DeadLetter && row.open_intent.is_none(),
            Self::Erase => matches!(row.state, State::Finished | State::DeadLetter),
        }
    }
}

/// The requests of a bulk act; a thousand at most.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Selection {
    /// All requests that this filter lists. A filter without a condition is refused, and so is one with a
    /// [page](Filter::page) or a [place](Filter::after).
    Filter(Filter),
    /// The requests with these ids.
    Requests(Vec<Uuid>),
}

/// What a bulk act would do. Planning changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkPlan {
    /// How many requests.
    pub count: u32,
    /// Identifies this plan: these requests, and the state of those to which the act applies. Pass it to
    /// [`Ops::start_bulk`], which then starts nothing else, and starts it once.
    pub version: RowVersion,
    /// The number of those to which the act applies. The others would be refused, each with its reason.
    pub fitting: u32,
    /// How many of these have a call that [may have had its effect](Summary::perhaps_called), and whose outcome is not stored.
    pub with_call: u32,
    /// The first of them.
    pub sample: Vec<Summary>,
}

/// What was planned, as it is passed to the start.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Planned {
    /// This many requests. It does not distinguish them from as many others: for a list of ids, or in a test. Passed
    /// twice, the act is started twice.
    Count(u32),
    /// This selection, these requests, and the state of those to which the act applies: [`BulkPlan::version`]. Passed
    /// twice, the act is started once.
    Version(RowVersion),
}

/// Stands between the parts of a plan's version.
const BETWEEN: char = '-';

/// The parts of a plan's version.
struct PlanParts<'a> {
    /// The bulk act gets it: so the plan is started once.
    id: Uuid,
    /// What was selected: known of a plan that was started, too, when its requests stand otherwise.
    selection: &'a str,
    /// The requests as they stood.
    seen: &'a str,
}

impl Planned {
    /// `None` of a count, and of a version that no plan of this build has told.
    fn parts(&self) -> Option<PlanParts<'_>> {
        let Self::Version(RowVersion(version)) = self else { return None };
        let mut parts = version.splitn(3, BETWEEN);
        let id = Uuid::parse_str(parts.next()?).ok()?;
        Some(PlanParts { id, selection: parts.next()?, seen: parts.next()? })
    }
}

impl Selection {
    /// # Errors
    /// [`OpsError::BadFilter`]: what is never planned.
    fn check(&self) -> Result<(), OpsError> {
        match self {
            Self::Requests(ids) if ids.len() > MAX_ITEMS => Err(TOO_MANY),
            Self::Filter(filter) if !filter.has_condition() => {
                Err(OpsError::BadFilter("a bulk act needs a condition"))
            }
            Self::Filter(filter) if !filter.is_of_conditions_only() => Err(OpsError::BadFilter(
                "a bulk act is about all requests that its filter lists: leave out the page and the place",
            )),
            _ => Ok(()),
        }
    }

    /// Two selections of one digest ask for the same, in whatever order they say it.
    fn digest(&self) -> String {
        let said = match self {
            Self::Filter(filter) => filter.wanted(),
            Self::Requests(ids) => format!("{:?}", ids.iter().collect::<BTreeSet<_>>()),
        };
        short_digest(&said)
    }
}

fn short_digest(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes())[..16])
}

impl From<u32> for Planned {
    fn from(count: u32) -> Self {
        Self::Count(count)
    }
}

impl From<RowVersion> for Planned {
    fn from(version: RowVersion) -> Self {
        Self::Version(version)
    }
}

impl From<&BulkPlan> for Planned {
    fn from(plan: &BulkPlan) -> Self {
        Self::Version(plan.version.clone())
    }
}

/// The requests of a bulk act, each once, with the rows that are there.
struct Selected(Vec<(Uuid, Option<Summary>)>);

impl Selected {
    /// Of those that stand where the act is taken, the version, too: one that gave up once more since it was read,
    /// or that has only now come to where it would be erased, is another than was planned. What the others do is the
    /// usual way of requests, and they are left alone.
    fn versions(&self, act: BulkAct) -> String {
        let seen = |(id, row): &(Uuid, Option<Summary>)| match row.as_ref() {
            Some(row) if act.fits(row) => format!("{id} {}", row.version.as_str()),
            _ => id.to_string(),
        };
        let mut seen: Vec<String> = self.0.iter().map(seen).collect();
        // In whatever order a list tells them.
        seen.sort_unstable();
        seen.push(act.as_str().to_owned());
        short_digest(&seen.join("\n"))
    }

    fn is(&self, planned: &Planned, act: BulkAct) -> bool {
        match planned {
            Planned::Count(count) => self.0.len() == *count as usize,
            Planned::Version(_) => {
                planned.parts().is_some_and(|plan| plan.seen == self.versions(act))
            }
        }
    }
}

/// A bulk act and its progress.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkView {
    /// Its id.
    pub id: Uuid,
    /// `retry` or `erase`.
    pub act: String,
    /// Who started it.
    pub actor: String,
    /// The operator's own reason.
    pub reason: String,
    /// How many requests it has.
    pub count: u32,
    /// How many of them have been processed.
    pub settled: u32,
    /// To how many of those it was applied.
    pub applied: u32,
    /// When it was started, by the database's clock.
    pub started_at: DateTime<Utc>,
    /// When it ended. `None`: it is still running, or it was stopped and a worker has yet to end
    /// its slice.
    pub ended_at: Option<DateTime<Utc>>,
    /// Who stopped it early. It is over at [`ended_at`](Self::ended_at).
    pub stopped_by: Option<String>,
}

impl From<BulkRow> for BulkView {
    fn from(row: BulkRow) -> Self {
        Self {
            id: row.id,
            act: row.act,
            actor: row.actor,
            reason: row.reason,
            count: row.items,
            settled: row.settled,
            applied: row.applied,
            started_at: row.started_at,
            ended_at: row.ended_at,
            stopped_by: row.stopped_by,
        }
    }
}

/// A request that a bulk act did not change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkRefusal {
    /// Which request.
    pub request_id: Uuid,
    /// `refused`, or `already` if the act had been done before.
    pub outcome: String,
    /// Why.
    pub because: Option<String>,
}

/// A bulk act, with each request that it did not change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkDetails {
    /// The act and its progress.
    pub bulk: BulkView,
    /// The requests, in the order in which they were processed.
    pub refusals: Vec<BulkRefusal>,
}

/// What became of a start.
enum Started {
    Now,
    /// It was started before, by the same plan.
    Before,
}

impl Done for Started {
    fn is_already(&self) -> bool {
        matches!(self, Self::Before)
    }
}

fn place(bulk: &BulkRow) -> At {
    (bulk.started_at, bulk.id)
}

impl<S: OperatorStore> Ops<S> {
    /// Plans a bulk act: returns what it would do, and changes nothing. Needs [`Permissions::READ`].
    ///
    /// # Errors
    /// [`OpsError::BadFilter`]: a filter without a condition, or with a page or a place; or more than a thousand requests.
    pub async fn plan_bulk(
        &self,
        act: BulkAct,
        selection: &Selection,
    ) -> Result<BulkPlan, OpsError> {
        self.needs(Permissions::READ)?;
        let selected = self.selected(selection).await?;
        let rows = || selected.0.iter().filter_map(|(_, row)| row.as_ref());
        let id = chance::uuid().simple();
        let parts = [id.to_string(), selection.digest(), selected.versions(act)];
        Ok(BulkPlan {
            count: to_u32(selected.0.len()),
            version: RowVersion(parts.join(&BETWEEN.to_string())),
            fitting: to_u32(rows().filter(|row| act.fits(row)).count()),
            with_call: to_u32(
                rows().filter(|row| act.fits(row) && row.perhaps_called.is_some()).count(),
            ),
            sample: rows().take(SAMPLE).cloned().collect(),
        })
    }

    /// Starts a bulk act on what was [planned](Self::plan_bulk). The workers of all nodes process it, one
    /// request at a time, each in a transaction of its own with its audit row. If a process dies, another
    /// continues. Requests that have changed since the plan, or are outside of the actor's scopes, are not
    /// changed. Needs [`Permissions::BULK`], [`Permissions::READ`] and the permission for the act.
    ///
    /// A plan is started once: if a start is sent twice, at the same time or later, both return the id of the
    /// one bulk act. The audit has a row for each time that it was sent: one `applied`, written with the bulk act, also
    /// if the answer to its commit was lost; `already` for each other.
    ///
    /// # Errors
    /// [`OpsError::MovedOn`] if other requests match than were `planned`, or one of them has changed; or if the version belongs
    /// to the plan of another act or of another selection, whether that plan was started or not. Then plan again. Otherwise as
    /// [`plan_bulk`](Self::plan_bulk).
    pub async fn start_bulk(
        &self,
        act: BulkAct,
        selection: &Selection,
        planned: impl Into<Planned>,
        reason: &str,
    ) -> Result<Uuid, OpsError> {
        let planned = planned.into();
        let mut entry = self.begin(act.needs(), "bulk.start", None, reason).await?;
        let id = planned.parts().map_or_else(chance::uuid, |plan| plan.id);
        entry.bulk_id = Some(id);
        let started = self.try_start(act, selection, &planned, &entry, id).await;
        self.settle(entry, started).await.map(|_| id)
    }

    async fn try_start(
        &self,
        act: BulkAct,
        selection: &Selection,
        planned: &Planned,
        entry: &AuditEntry,
        id: Uuid,
    ) -> Result<Started, OpsError> {
        selection.check()?;
        if let Some(plan) = planned.parts() {
            if plan.selection != selection.digest() {
                return Err(OpsError::MovedOn);
            }
            // Its requests have moved since then, if it was started: that is asked first.
            if self.started(id, act).await?.is_some() {
                return Ok(Started::Before);
            }
        }
        let selected = match self.selected(selection).await {
            Ok(selected) if selected.is(planned, act) => selected.0,
            // Others match by now, none, or too many: perhaps because the same start, sent twice at a time, began first.
            Ok(_) | Err(OpsError::BadFilter(_)) if planned.parts().is_some() => {
                let is_started = self.started(id, act).await?.is_some();
                return is_started.then_some(Started::Before).ok_or(OpsError::MovedOn);
            }
            Ok(_) => return Err(OpsError::MovedOn),
            Err(error) => return Err(error),
        };
        // What is not there, or not the actor's to see, is refused when its turn comes.
        let version = |row: Option<Summary>| row.map_or_else(String::new, |row| row.version.0);
        let items: Vec<_> = selected.into_iter().map(|(id, row)| (id, version(row))).collect();
        let limits = self.actor.limits();
        let bulk = NewBulk { id, act: act.as_str(), limits, items: &items, audit: entry };
        let Err(error) = self.store.start_bulk(&bulk).await else { return Ok(Started::Now) };
        let Some(bulk) = self.started(id, act).await? else { return Err(error.into()) };
        // The same was sent twice at a time, or the answer to this one was lost: then its audit row is there.
        match self.is_audited(entry, bulk.started_at).await? {
            true => Ok(Started::Now),
            false => Ok(Started::Before),
        }
    }

    /// The bulk act of this id, if the plan was started.
    ///
    /// # Errors
    /// [`OpsError::MovedOn`]: as another bulk act than this one.
    async fn started(&self, id: Uuid, act: BulkAct) -> Result<Option<BulkRow>, OpsError> {
        match self.store.bulk(id).await? {
            Some(bulk) if bulk.act != act.as_str() || !self.may_see(&bulk) => {
                Err(OpsError::MovedOn)
            }
            started => Ok(started),
        }
    }

    /// Bulk acts, the newest first, at most `rows` of them: 1 to 100. An actor sees the bulk
    /// acts, of any operator, whose scopes are within the actor's own, and no others. Reads a thousand at most. Needs
    /// [`Permissions::READ`].
    ///
    /// # Errors
    /// [`OpsError::BadPage`] for another number of rows.
    pub async fn bulks(
        &self,
        before: Option<Place>,
        rows: u32,
    ) -> Result<Page<BulkView, Place>, OpsError> {
        self.needs(Permissions::READ)?;
        let limit = page_size(rows, MAX_BULKS_PER_PAGE)?;
        let newest = Walk::Newest.start().time;
        let before = before.map_or((newest, Uuid::max()), |at| (at.time, at.id));
        let (until, mut rows) = match self.actor.sees_every_scope() {
            true => (Until::AsSearched, self.store.bulks(before, limit + 1).await?),
            false => self.bulks_within_limits(before).await?,
        };
        rows.truncate(limit as usize + 1);
        let told = rows.len().min(limit as usize);
        self.count_settled(&mut rows[..told]).await?;
        let found = SearchPage { rows, searched_to: None };
        Ok(page(&until, Goes::Down, before, limit, found, place).map(BulkView::from))
    }

    /// The newest bulk acts that the actor may see, and the place up to which the list may return them.
    async fn bulks_within_limits(&self, before: At) -> Result<(Until, Vec<BulkRow>), OpsError> {
        let mut bound = CellSearch::new(Goes::Down, before);
        loop {
            let mut rows = self.store.bulks(bound.start(), MAX_BULKS).await?;
            let is_all = to_u32(rows.len()) < MAX_BULKS;
            let searched_to = rows.last().map(place).filter(|_| !is_all);
            let Break(end) = bound.narrow(searched_to) else { continue };
            let is_behind = |one, other| Goes::Down.is_before(one, other);
            rows.retain(|bulk| {
                let is_told = end.is_none_or(|end| !is_behind(end, place(bulk)));
                is_told && is_behind(before, place(bulk)) && self.may_see(bulk)
            });
            return Ok((Until::End(end), rows));
        }
    }

    /// Reads how far bulk acts came. One that was deleted meanwhile stays as it was found.
    async fn count_settled(&self, bulks: &mut [BulkRow]) -> Result<(), OpsError> {
        if bulks.is_empty() {
            return Ok(());
        }
        let counted = self.store.counted_bulks(bulks).await?;
        for counted in counted {
            if let Some(bulk) = bulks.iter_mut().find(|bulk| bulk.id == counted.id) {
                *bulk = counted;
            }
        }
        Ok(())
    }

    /// The progress of a bulk act, and each request that it did not change. Needs [`Permissions::READ`].
    ///
    /// # Errors
    /// [`OpsError::NoSuchBulk`].
    pub async fn bulk(&self, id: Uuid) -> Result<BulkDetails, OpsError> {
        self.needs(Permissions::READ)?;
        let bulk = self.store.bulk(id).await?.filter(|bulk| self.may_see(bulk));
        let bulk = bulk.ok_or(OpsError::NoSuchBulk)?;
        let items = self.store.bulk_items(id, BulkPart::All, MAX_ITEMS as u32).await?;
        let refusal = |item: BulkItem| {
            let outcome = item.outcome.filter(|outcome| outcome != "applied")?;
            Some(BulkRefusal { request_id: item.request_id, outcome, because: item.because })
        };
        Ok(BulkDetails {
            bulk: bulk.into(),
            refusals: items.into_iter().filter_map(refusal).collect(),
        })
    }

    /// Stops a bulk act. What was done stays done. A worker that is processing a slice processes at most
    /// ten more requests, and then ends the bulk act. If that worker died, another one ends it within two minutes, and counts
    /// what was done. Needs
    /// [`Permissions::BULK`].
    ///
    /// # Errors
    /// [`OpsError::NoSuchBulk`].
    pub async fn stop_bulk(&self, id: Uuid, reason: &str) -> Result<Resolved, OpsError> {
        let mut entry = self.begin(Permissions::BULK, "bulk.stop", None, reason).await?;
        entry.bulk_id = Some(id);
        let stopped = match self.store.bulk(id).await {
            // Whose it is does not change.
            Ok(Some(bulk)) if self.may_see(&bulk) => self.store.stop_bulk(id, &entry).await,
            Ok(_) => return Err(self.refused(entry, OpsError::NoSuchBulk).await),
            Err(error) => Err(error),
        };
        let resolved = stopped.map_err(OpsError::from).map(|stopped| match stopped {
            true => Resolved::Applied,
            false => Resolved::Already,
        });
        self.settle(entry, resolved).await
    }

    /// Whether the act was started under limits within the actor's. Of limits of a later build nothing is known.
    fn may_see(&self, bulk: &BulkRow) -> bool {
        let own = self.actor.limits();
        own.allow_all() || bulk.limits.as_ref().is_some_and(|limits| own.contain(limits))
    }

    async fn selected(&self, selection: &Selection) -> Result<Selected, OpsError> {
        selection.check()?;
        let mut selected: Vec<(Uuid, Option<Summary>)> = Vec::new();
        // A request that moves while its list is read may be on two pages.
        let mut known = HashSet::new();
        match selection {
            Selection::Requests(ids) => {
                let ids: Vec<Uuid> = ids.iter().copied().filter(|id| known.insert(*id)).collect();
                for some in ids.chunks(IDS_PER_SEARCH) {
                    let found = self.store.requests_by_ids(some, self.actor.limits()).await?;
                    let rows = found.iter().map(|row| self.summary_of(row));
                    let mut rows: HashMap<Uuid, Summary> =
                        rows.map(|row| (row.request_id, row)).collect();
                    selected.extend(some.iter().map(|id| (*id, rows.remove(id))));
                }
            }
            Selection::Filter(filter) => {
                let (mut filter, mut pages) = (filter.in_large_pages(), 0);
                loop {
                    // Not the caller's place but the one where the search ended, so that nothing is read twice.
                    let page = self.list_as(filter.clone(), Audience::BulkPlan).await?;
                    let news = page.rows.into_iter().filter(|row| known.insert(row.request_id));
                    selected.extend(news.map(|row| (row.request_id, Some(row))));
                    pages += 1;
                    match page.next {
                        _ if selected.len() > MAX_ITEMS => return Err(TOO_MANY),
                        Some(_) if pages == MAX_PAGES => {
                            let text = "the filter has to search too many rows: narrow it";
                            return Err(OpsError::BadFilter(text));
                        }
                        Some(next) => filter = filter.after(next),
                        None => break,
                    }
                }
            }
        }
        match selected.is_empty() {
            true => Err(OpsError::BadFilter("no request matches it: there is nothing to do")),
            false => Ok(Selected(selected)),
        }
    }
}
