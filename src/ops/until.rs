//! [`Until`]: up to which place a list is shown to an actor. An actor of some scopes sees only whole cells of it: see
//! [`bound`](super::bound).

use std::ops::ControlFlow::Break;

use uuid::Uuid;

use super::bound::{At, CellSearch, Goes};
use super::{Ops, OpsError, Page, Place};
use crate::store::audit::AuditSearch;
use crate::store::operators::{
    ListPlace, ListRequests, OperatorStore, ScopeLimits, SearchPage, Walk,
};

/// Up to which place a list is shown.
pub(super) enum Until {
    /// As far as the search came: to an actor who sees every scope.
    AsSearched,
    /// To the end of a cell; of `None`, to the end of the list.
    End(Option<At>),
}

impl Until {
    /// Leaves out the rows that are not shown. Returns the place behind which the list continues, if that is not its last row.
    /// `from`: behind which it was searched. `searched_to`: of the search, where it ended before the page was full.
    pub(super) fn cut<T>(
        &self,
        goes: Goes,
        from: At,
        (rows, is_full): (&mut Vec<T>, bool),
        searched_to: Option<At>,
        at: impl Fn(&T) -> At,
    ) -> Option<At> {
        let Self::End(end) = *self else { return searched_to };
        let found = rows.len();
        if let Some(end) = end {
            rows.retain(|row| !goes.is_before(end, at(row)));
        }
        let is_whole = is_full && rows.len() == found;
        match (end, searched_to) {
            _ if is_whole => None,
            (Some(end), searched_to) if searched_to.is_none_or(|to| !goes.is_before(to, end)) => {
                Some(end)
            }
            (None, None) => None,
            // Rows came or went between the two statements, and it was not searched as far as that: it goes on from here.
            _ => Some(rows.last().map_or(from, at)),
        }
    }
}

/// A page of a list that has one index. `found`: one row more than `limit`, if there is one.
pub(super) fn page<T>(
    until: &Until,
    goes: Goes,
    from: At,
    limit: u32,
    found: SearchPage<T, At>,
    at: impl Fn(&T) -> At,
) -> Page<T, Place> {
    let SearchPage { mut rows, searched_to } = found;
    let limit = limit as usize;
    let is_all_asked = rows.len() > limit;
    let searched_to = until.cut(goes, from, (&mut rows, is_all_asked), searched_to, &at);
    let is_more = rows.len() > limit;
    rows.truncate(limit);
    let searched_to = searched_to.filter(|_| !is_more);
    let next = searched_to.or_else(|| rows.last().map(at).filter(|_| is_more));
    Page {
        next: next.map(|(time, id)| Place { time, id }),
        searched_to: searched_to.map(|(time, _)| time).filter(|_| rows.len() < limit),
        rows,
    }
}

impl<T, N> Page<T, N> {
    pub(super) fn map<U>(self, view: impl FnMut(T) -> U) -> Page<U, N> {
        let Self { rows, next, searched_to } = self;
        Page { rows: rows.into_iter().map(view).collect(), next, searched_to }
    }
}

pub(super) fn goes_of(walk: Walk) -> Goes {
    match walk {
        Walk::Waiting | Walk::Due => Goes::Up,
        Walk::Newest => Goes::Down,
    }
}

pub(super) fn at_of(place: ListPlace) -> At {
    (place.time, place.request_id)
}

pub(super) fn place_of((time, request_id): At) -> ListPlace {
    ListPlace { time, request_id }
}

/// Of an actor who sees no scope: such a search finds nothing, and so tells where it ended.
fn limits_of_no_scope() -> ScopeLimits {
    ScopeLimits { only: Some(Vec::new()), ..ScopeLimits::default() }
}

/// Which list is searched.
#[derive(Clone, Copy)]
pub(super) enum List {
    Requests(Walk),
    DeadJobs,
    /// Of one request, or of all.
    Audit(Option<Uuid>),
}

impl List {
    fn goes(self) -> Goes {
        match self {
            Self::Requests(walk) => goes_of(walk),
            Self::DeadJobs => Goes::Up,
            Self::Audit(_) => Goes::Down,
        }
    }
}

impl<S: OperatorStore> Ops<S> {
    /// Up to which place the list behind this one is shown.
    pub(super) async fn until(&self, list: List, from: At) -> Result<Until, OpsError> {
        if self.actor.sees_every_scope() {
            return Ok(Until::AsSearched);
        }
        let mut bound = CellSearch::new(list.goes(), from);
        loop {
            if let Break(end) = bound.narrow(self.searched_to(list, bound.start()).await?) {
                return Ok(Until::End(end));
            }
        }
    }

    /// The last row that a search reads behind a place, if there are more.
    async fn searched_to(&self, list: List, from: At) -> Result<Option<At>, OpsError> {
        let (store, limits) = (&self.store, limits_of_no_scope());
        Ok(match list {
            List::Requests(walk) => {
                let search = ListRequests::of(walk, place_of(from), limits);
                store.list_requests(&search).await?.searched_to.map(at_of)
            }
            List::DeadJobs => store.dead_jobs_after(&limits, from, 1).await?.searched_to,
            List::Audit(of) => {
                let search = AuditSearch::of_request(of);
                store.audit_before(&limits, &search, from, 1).await?.searched_to
            }
        })
    }
}
