//! [`Reader`]: a second connection to the file, for looks at a key.
//!
//! The write-ahead log lets it read beside the writer, so that a look waits for no fsync. It reads on
//! the caller's own thread: a few pages, most often in memory, are less than the way to another thread
//! and back. It never waits for a lock: where it cannot read immediately, the writer's thread does.

use std::sync::{Arc, Mutex};

use diesel::connection::SimpleConnection;
use diesel::{Connection, RunQueryDsl, SqliteConnection};

use super::statements::{LoggedFile, Look, StoredKeySummary};
use crate::store::in_millis::tuple_rows::BlockingRows;

#[derive(Clone)]
pub(super) struct Reader(Option<Arc<Mutex<SqliteConnection>>>);

impl Reader {
    /// Beside `writer`, where there is a file, and a log that lets both work at a time.
    pub(super) fn beside(writer: &mut SqliteConnection, path: &str) -> Self {
        Self(Self::open(writer, path).map(|conn| Arc::new(Mutex::new(conn))))
    }

    fn open(writer: &mut SqliteConnection, path: &str) -> Option<SqliteConnection> {
        LoggedFile {}.get_result::<String>(writer).ok()?;
        let mut reader = SqliteConnection::establish(path).ok()?;
        reader.batch_execute("PRAGMA query_only = ON; PRAGMA busy_timeout = 0").ok()?;
        Some(reader)
    }

    /// Whether there is a file beside which others can read.
    pub(super) fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// What is seen of the key's row, if it can be seen from here and now.
    pub(super) fn look(&self, look: &Look) -> Option<Vec<StoredKeySummary>> {
        let mut conn = self.0.as_ref()?.lock().ok()?;
        look.rows(&mut conn).ok()
    }
}
