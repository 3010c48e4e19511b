//! `migrate`: the tables of atomic-phases in a database.

use atomic_phases::store::Store;

use crate::arguments::{Migrate, Way, Whom};
use crate::database::{Database, open, runtime};
use crate::end::{End, Failure};

pub(crate) fn run(way: &Way, what: &Migrate) -> Result<End, Failure> {
    let Whom::Database(url) = way.whom()? else {
        return Err(Failure::usage("migrate needs --database-url"));
    };
    runtime()?.block_on(async {
        match open(&url).await? {
            Database::Postgres(store) => on(&store, what).await,
            Database::Sqlite(store) => on(&store, what).await,
        }
    })
}

async fn on<S: Store>(store: &S, what: &Migrate) -> Result<End, Failure> {
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
