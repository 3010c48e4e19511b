//! [`Swallowed`]: remembers that a statement failed inside the open transaction.
//!
//! PostgreSQL refuses to commit after a failed statement that the phase ignored (H6); SQLite would
//! commit what the others wrote. So that both stores keep one promise (G4), this watches the
//! connection and the commit asks it. A rolled back savepoint forgives what failed inside of it.

use std::sync::{Arc, Mutex, MutexGuard};

use diesel::connection::{Instrumentation, InstrumentationEvent};

#[derive(Clone, Debug, Default)]
pub(super) struct Swallowed(Arc<Mutex<Vec<bool>>>);

impl Swallowed {
    /// A new transaction begins.
    pub(super) fn forget(&self) {
        *self.levels() = vec![false];
    }

    /// Whether a statement of this transaction failed and was not rolled back to a savepoint.
    pub(super) fn any(&self) -> bool {
        self.levels().contains(&true)
    }

    fn levels(&self) -> MutexGuard<'_, Vec<bool>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Instrumentation for Swallowed {
    fn on_connection_event(&mut self, event: InstrumentationEvent<'_>) {
        let mut levels = self.levels();
        match event {
            InstrumentationEvent::BeginTransaction { .. } => levels.push(false),
            InstrumentationEvent::FinishQuery { error: Some(_), .. } => {
                if let Some(innermost) = levels.last_mut() {
                    *innermost = true;
                }
            }
            InstrumentationEvent::RollbackTransaction { .. } => {
                levels.pop();
            }
            InstrumentationEvent::CommitTransaction { .. } => {
                let failed = levels.pop().unwrap_or(false);
                if let Some(outer) = levels.last_mut() {
                    *outer |= failed;
                }
            }
            _ => {}
        }
    }
}
