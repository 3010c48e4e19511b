//! `migrate`: the tables of atomic-phases in a database.

use atomic_phases::store::Store;

use crate::arguments::{Migrate, Way, Whom};
use crate::database::{opened, runtime};
use crate::end::{End, Failure};
use crate::open::on;

pub(crate) fn run(way: &Way, what: &Migrate) -> Result<End, Failure> {
    let Whom::Database(url) = way.whom()? else {
        return Err(Failure::usage("migrate needs --database-url"));
    };
    runtime()?.block_on(async { on!(opened(&url).await?, store => run_on(&store, what).await) })
}

async fn run_on<S: Store>(store: &S, what: &Migrate) -> Result<End, Failure> {
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
