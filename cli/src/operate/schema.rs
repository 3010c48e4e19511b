//! `migrate`: the tables of atomic-phases in a database.

use atomic_phases::store::Store;

use super::arguments::Migrate;
use super::end::{End, Failure};

/// Says of a command that could not be done whether the tables are those of another version: of a table that is not there
/// a database's own answer says little to an operator.
pub(crate) async fn explained<S: Store>(
    store: &S,
    end: Result<End, Failure>,
) -> Result<End, Failure> {
    if !matches!(end, Ok(End::Error) | Err(Failure { end: End::Error, .. })) {
        return end;
    }
    match store.missing_migrations().await {
        Ok(missing) if !missing.is_empty() => {
            let text = format!(
                "the tables are not there, or older than this program: {} of its migrations are missing, the first is \
                 {}. `migrate status` names them, `migrate up` runs them",
                missing.len(),
                missing[0]
            );
            Err(Failure { end: End::Error, text })
        }
        _ => end,
    }
}

pub(crate) async fn run<S: Store>(store: &S, what: &Migrate) -> Result<End, Failure> {
    let missing = store.missing_migrations().await?;
    if missing.is_empty() {
        println!("no migration is missing");
        return Ok(End::Fine);
    }
    match what {
        Migrate::Status => {
            for name in &missing {
                println!("missing {name}");
            }
            Ok(End::Found)
        }
        Migrate::Up => {
            store.migrate().await?;
            for name in &missing {
                println!("ran {name}");
            }
            Ok(End::Fine)
        }
    }
}
