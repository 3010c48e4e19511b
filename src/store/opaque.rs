//! `Debug` of what passes between the engine and a store: the name of the type, and nothing of what is in it, which
//! users gave (G19).

/// `opaque! { [S: Store] Writes<'_, S>; }`
macro_rules! opaque {
    ($([$($parameters:tt)*] $name:ident $(<$($argument:tt),*>)?;)*) => {
        $(impl<$($parameters)*> std::fmt::Debug for $name $(<$($argument),*>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        })*
    };
}

use super::audit::{AuditEntry, AuditSearch, Audited};
use super::bulk::{NewBulk, SettledItem};
use super::due::{ExpiredKey, ExpiryPlace, JobPlace, KeyPlace};
use super::operators::{
    FoundRequest, JobAct, ListRequests, ListedRequest, OperatedJob, SearchPage,
};
use super::pauses::PauseAct;
use super::{
    Change, Claim, DueJob, DueKey, Erase, Guard, HeldKey, JobRow, NewRow, Page, Reserved,
    SettledKey, Store, SurveyedJob, SurveyedRow, Writes,
};

opaque! {
    [] NewRow<'_>;
    [T] Reserved<T>;
    [S: Store] Writes<'_, S>;
    [] Guard<'_>;
    [] Change<'_>;
    [] Claim<'_>;
    [] Erase<'_>;
    [T, P] Page<T, P>;
    [] DueKey;
    [] HeldKey;
    [] DueJob;
    [] JobRow;
    [T, P] SearchPage<T, P>;
    [] FoundRequest;
    [] ListRequests;
    [] ListedRequest;
    [] OperatedJob;
    [] AuditEntry;
    [] AuditSearch;
    [] Audited;
    [] KeyPlace;
    [] ExpiredKey;
    [] SettledKey;
    [] ExpiryPlace;
    [] JobPlace;
    [] JobAct<'_>;
    [] PauseAct<'_>;
    [] SurveyedRow;
    [] SurveyedJob;
    [] NewBulk<'_>;
    [] SettledItem<'_>;
}
