//! [`Reader`]: a second connection to the file, for looks at a key, and for what operators have paused.
//!
//! The write-ahead log lets it read beside the writer, so that a look waits for no fsync. It reads on
//! the caller's own thread: a few pages, most often in memory, are less than the way to another thread
//! and back. It never waits for a lock: where it cannot read immediately, the writer's thread does.

use std::sync::{Arc, Mutex};

use diesel::connection::SimpleConnection;
use diesel::{Connection, RunQueryDsl, SqliteConnection};

use super::ops_statements::{Pauses, StoredPause};
use super::statements::{LoggedFile, Look, StoredKeySummary};
use crate::store::in_millis::tuple_rows::BlockingRows;

#[derive(Clone)]
pub(super) struct Reader(Option<Arc<Mutex<SqliteConnection>>>);

impl Reader {
    /// To the file at `url`, where there is one.
    pub(super) fn open(url: Option<&str>) -> Self {
        let open = |url| {
            let mut reader = SqliteConnection::establish(url).ok()?;
            reader.batch_execute("PRAGMA query_only = ON; PRAGMA busy_timeout = 0").ok()?;
            Some(Arc::new(Mutex::new(reader)))
        };
        Self(url.and_then(open))
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

    /// What operators have paused, if it can be seen from here and now.
    pub(super) fn pauses(&self) -> Option<Vec<StoredPause>> {
        let mut conn = self.0.as_ref()?.lock().ok()?;
        Pauses {}.rows(&mut conn).ok()
    }
}

/// The URL by which other connections reach the file that `writer` has opened by `url`: absolute, because some are opened
/// later, when the process may have changed its directory. `None` where there is no file, or no log that lets a reader and the
/// writer work at a time.
pub(super) fn absolute(writer: &mut SqliteConnection, url: &str) -> Option<String> {
    let file = LoggedFile {}.get_result::<String>(writer).ok()?;
    if !url.starts_with("file:") && !url.starts_with("sqlite://") {
        return Some(file);
    }
    let file = file.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let parameters = url.find(['?', '#']).map_or("", |at| &url[at..]);
    Some(format!("file:{file}{parameters}"))
}
