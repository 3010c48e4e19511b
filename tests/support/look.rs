//! Reads the database of real processes directly, without the engine.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use atomic_phases::store::{Postgres, Sqlite, StoreError};
use diesel::sql_types::{BigInt, Text};

pub enum Look {
    Sqlite(Sqlite),
    Postgres(Postgres),
    #[cfg(feature = "mysql")]
    Mysql(String),
}

#[derive(diesel::QueryableByName)]
struct Count {
    #[diesel(sql_type = BigInt)]
    n: i64,
}

#[derive(diesel::QueryableByName)]
struct Line {
    #[diesel(sql_type = Text)]
    line: String,
}

/// Loads the rows of a query, whichever the store is.
macro_rules! load {
    ($look:expr, $row:ty, $sql:expr) => {{
        // Imported here only, because its `load()` applies to every type, atomics included.
        use diesel_async::RunQueryDsl;
        let query = diesel::sql_query($sql);
        let rows: Result<Vec<$row>, Box<dyn std::error::Error>> = match $look {
            Look::Sqlite(db) => match db.connection().await {
                Ok(mut conn) => query.load(&mut *conn).await.map_err(Into::into),
                Err(error) => Err(error.into()),
            },
            Look::Postgres(db) => match db.connection().await {
                Ok(mut conn) => query.load(&mut *conn).await.map_err(Into::into),
                Err(error) => Err(error.into()),
            },
            #[cfg(feature = "mysql")]
            Look::Mysql(url) => {
                query.load(&mut *super::db::my(url).await).await.map_err(Into::into)
            }
        };
        rows
    }};
}

impl Look {
    pub async fn at(database: &str) -> Self {
        #[cfg(feature = "mysql")]
        if database.starts_with("mysql://") {
            return Self::Mysql(database.to_owned());
        }
        let opened: Result<Self, StoreError> = match database.starts_with("sqlite://") {
            true => Sqlite::connect(database).await.map(Self::Sqlite),
            false => Postgres::connect(database).await.map(Self::Postgres),
        };
        opened.unwrap()
    }

    pub async fn count(&self, what: &str) -> i64 {
        load!(self, Count, format!("SELECT count(*) AS n FROM {what}")).unwrap()[0].n
    }

    /// Requests that are not completed.
    pub async fn unfinished(&self) -> i64 {
        self.count("atomic_phases_keys WHERE status <> 'completed'").await
    }

    /// Waits until every request is completed and every staged job delivered, `bound` at most. Returns how
    /// long it took.
    pub async fn settles_within(&self, bound: Duration) -> Duration {
        let began = Instant::now();
        super::answer_within(bound, async || {
            let open = self.lines(OPEN).await;
            if open.is_empty() { Ok(()) } else { Err(open) }
        })
        .await;
        began.elapsed()
    }

    /// What the requests have written so far, with the tokens of their leases: two of these are equal if no process
    /// did anything in between.
    pub async fn written(&self) -> Vec<String> {
        let mut written = self.lines(KEYS).await;
        written.extend(self.lines(RIDES).await);
        written.extend(self.lines(JOBS).await);
        written
    }

    /// The keys of completed requests.
    pub async fn completed(&self) -> HashSet<String> {
        self.lines(COMPLETED).await.into_iter().collect()
    }

    /// A query with one column, `line`.
    pub async fn lines(&self, sql: &str) -> Vec<String> {
        let lines = load!(self, Line, sql).unwrap();
        lines.into_iter().map(|line| line.line).collect()
    }
}

const OPEN: &str = "SELECT idempotency_key || ' ' || status || ' at ' || recovery_point || ' ' || \
     coalesce(reason, '') AS line FROM atomic_phases_keys WHERE status <> 'completed' UNION ALL \
     SELECT idempotency_key || ' job ' || name FROM atomic_phases_staged_jobs";

const COMPLETED: &str =
    "SELECT idempotency_key AS line FROM atomic_phases_keys WHERE status = 'completed'";

const KEYS: &str = "SELECT idempotency_key || ' ' || status || ' at ' || recovery_point || ' token ' || \
     lease_token AS line FROM atomic_phases_keys ORDER BY 1";

const RIDES: &str = "SELECT request_key || ' ' || id || ' ' || coalesce(charge_id, '') AS line FROM rides \
     ORDER BY 1";

const JOBS: &str = "SELECT idempotency_key || ' job ' || name AS line FROM atomic_phases_staged_jobs \
     ORDER BY 1";
