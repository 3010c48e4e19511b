//! [`Engine::check`]: which stored rows can no registered definition continue?

use super::Engine;
use super::registry::Registry;
use crate::definition::{FINISHED, STARTED};
use crate::key::{IdempotencyKey, Scope};
use crate::store::{Standing, Status, Store, StoreError};

/// What [`Engine::check`] found. Run it at start-up, before traffic, and in the deploy pipeline.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// Rows that no definition registered here can continue. They are safe: this process leaves
    /// them as they are (G14).
    pub stranded: Vec<Stranded>,
    /// Rows whose outcome is unknown or that are dead letters: they wait for somebody.
    pub waiting: Vec<Standing>,
    /// Staged jobs that are dead letters; see [`Engine::dead_jobs`].
    pub dead_jobs: u64,
}

/// Rows at one place that this process cannot continue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stranded {
    /// Where they stand, and how many they are.
    pub rows: Standing,
    /// Why.
    pub because: StrandedBecause,
}

/// Why rows cannot be continued here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StrandedBecause {
    /// No definition of that name is registered.
    UnknownDefinition,
    /// The definition is registered, but not in that version.
    UnknownVersion,
    /// The definition has no phase of that name: keep the phase, or name it in a `was = ".."`.
    UnknownRecoveryPoint,
}

impl CheckReport {
    /// Whether every unfinished row can be continued here.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.stranded.is_empty()
    }
}

impl<S: Store, A: Send + Sync + 'static> Engine<S, A> {
    /// Compares the unfinished rows with the registered definitions. Scans the key table.
    ///
    /// A row that is listed is not lost: it waits, untouched, for a process that knows it.
    ///
    /// # Errors
    /// [`StoreError::Migration`] names the migrations that are not applied where the tables are not
    /// there, or are not as this process needs them; any other [`StoreError`] where the store cannot
    /// be read.
    pub async fn check(&self) -> Result<CheckReport, StoreError> {
        match self.compare().await {
            Err(error) if error.is_from_server() => Err(self.missing_migrations(error).await),
            compared => compared,
        }
    }

    /// Why the tables are not as they have to be, if that is known.
    async fn missing_migrations(&self, error: StoreError) -> StoreError {
        match self.core.store.missing_migrations().await {
            Ok(missing) if !missing.is_empty() => StoreError::Migration(format!(
                "{} not applied; call Store::migrate before the first request",
                missing.join(", ")
            )),
            _ => error,
        }
    }

    async fn compare(&self) -> Result<CheckReport, StoreError> {
        // Nobody has this key: what is asked for are the columns.
        let (scope, key) = (Scope::new("-"), IdempotencyKey::new("-"));
        if let (Ok(scope), Ok(key)) = (scope, key) {
            self.core.store.read(&scope, &key).await.map(drop)?;
        }
        let dead_jobs = self.core.store.dead_jobs().await?;
        let mut report = CheckReport { dead_jobs, ..CheckReport::default() };
        for rows in self.core.store.survey().await? {
            if let Some(because) = stranded(&self.core.registry, &rows) {
                report.stranded.push(Stranded { rows: rows.clone(), because });
            }
            if matches!(rows.status, Status::Unknown | Status::DeadLetter) {
                report.waiting.push(rows);
            }
        }
        Ok(report)
    }
}

fn stranded<S: Store, A>(registry: &Registry<S, A>, rows: &Standing) -> Option<StrandedBecause> {
    let Some(entry) = registry.get(&rows.definition, rows.version) else {
        let known = registry.entries().any(|entry| entry.definition.name == rows.definition);
        return Some(match known {
            true => StrandedBecause::UnknownVersion,
            false => StrandedBecause::UnknownDefinition,
        });
    };
    let point = rows.recovery_point.as_str();
    let known = *rows.phases == *entry.phases
        || point == STARTED
        || point == FINISHED
        || entry.definition.phases.iter().any(|phase| phase.is_called(point));
    (!known).then_some(StrandedBecause::UnknownRecoveryPoint)
}
