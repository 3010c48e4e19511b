//! What a survey of the unfinished rows and of the staged jobs finds.

use super::Status;

/// Unfinished rows with the same state, whose status this build does not know: a later build wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct UnknownStatus {
    /// Name of their definition.
    pub definition: String,
    /// Version of their definition.
    pub version: u32,
    /// Their recovery point.
    pub recovery_point: String,
    /// Their status, as it is stored.
    pub status: String,
    /// How many of them were found.
    pub rows: u64,
}

impl UnknownStatus {
    /// Counts the rows with those that are the same.
    pub(crate) fn count_among(self, all: &mut Vec<Self>) {
        let is_same = |other: &&mut Self| {
            let Self { definition, version, recovery_point, status, .. } = &**other;
            (definition, version) == (&self.definition, &self.version)
                && (recovery_point, status) == (&self.recovery_point, &self.status)
        };
        match all.iter_mut().find(is_same) {
            Some(same) => same.rows += self.rows,
            None => all.push(self),
        }
    }
}

/// An unfinished row, as [`AdminStore::survey_keys`](super::AdminStore::survey_keys) sees it.
pub struct SurveyedRow {
    pub(crate) found_by: FoundBy,
    pub(crate) scope: String,
    pub(crate) key: String,
    /// Of this row alone.
    pub(crate) standing: Result<Standing, UnknownStatus>,
}

/// A staged job, as [`AdminStore::survey_jobs`](super::AdminStore::survey_jobs) sees it.
pub struct SurveyedJob {
    pub(crate) is_dead: bool,
    pub(crate) name: String,
    /// As they are stored. `None` where they are long.
    pub(crate) args: Option<Vec<u8>>,
}

/// By which index a row was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoundBy {
    /// A worker has to look at it some time.
    Due,
    /// It waits for a reconcile function or an operator.
    Waiting,
    /// It was created lately, and is in progress.
    Youth,
    /// It was created lately, and is the last that the search for such rows looked at.
    OldestOfYouth,
}

/// Unfinished rows with the same state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Standing {
    /// Name of their definition.
    pub definition: String,
    /// Version of their definition.
    pub version: u32,
    /// The phases under which they were written, in stored form.
    pub phases: String,
    /// Their recovery point.
    pub recovery_point: String,
    /// Their status.
    pub status: Status,
    /// The phase whose call may have been made and has no outcome yet.
    pub open_intent: Option<String>,
    /// Why their last attempt ended without finishing the request.
    pub reason: Option<String>,
    /// How many of them were found.
    pub rows: u64,
    /// How many attempts they had, and what is stored of their calls, as far as rows are grouped by it.
    pub(crate) attempts: u32,
    pub(crate) resolution: Option<String>,
}
