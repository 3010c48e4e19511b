//! `migrate`: the tables of atomic-phases in a database.

use atomic_phases::store::Store;

use super::arguments::Migrate;
use super::end::{End, Failure};

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
