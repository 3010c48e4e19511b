//! [`Reader`]: a second connection to the file, for looks at a key, and for what operators have paused.
//!
//! The write-ahead log lets it read beside the writer, so that a look waits for no fsync. It reads on
//! the caller's own thread: a few pages, most often in memory, are less than the way to another thread
//! and back. It never waits for a lock: where it cannot read immediately, the writer's thread does.

use std::sync::{Arc, Mutex, MutexGuard};

use diesel::connection::SimpleConnection;
use diesel::{Connection, RunQueryDsl, SqliteConnection};

use super::file::OpenFile;
use super::ops_statements::{Pauses, StoredPause};
use super::statements::{LoggedFile, Look, StoredKeySummary};
use crate::store::in_millis::tuple_rows::BlockingRows;

#[derive(Clone)]
pub(super) struct Reader {
    conn: Option<Arc<Mutex<SqliteConnection>>>,
    file: OpenFile,
}

impl Reader {
    /// To the file at `url`, where there is one.
    pub(super) fn open(url: Option<&str>, file: OpenFile) -> Self {
        let open = |url| {
            let mut reader = SqliteConnection::establish(url).ok()?;
            // By its path, it may have opened another file.
            file.check().ok()?;
            reader.batch_execute("PRAGMA query_only = ON; PRAGMA busy_timeout = 0").ok()?;
            Some(Arc::new(Mutex::new(reader)))
        };
        Self { conn: url.and_then(open), file }
    }

    /// Whether there is a file beside which others can read.
    pub(super) fn is_open(&self) -> bool {
        self.conn.is_some()
    }

    /// What is seen of the key's row, if it can be seen from here and now.
    pub(super) fn look(&self, look: &Look) -> Option<Vec<StoredKeySummary>> {
        let mut conn = self.conn()?;
        look.rows(&mut conn).ok()
    }

    /// What operators have paused, if it can be seen from here and now.
    pub(super) fn pauses(&self) -> Option<Vec<StoredPause>> {
        let mut conn = self.conn()?;
        Pauses {}.rows(&mut conn).ok()
    }

    /// Not where the file was replaced: the writer's thread says so.
    fn conn(&self) -> Option<MutexGuard<'_, SqliteConnection>> {
        self.file.check().ok()?;
        self.conn.as_ref()?.lock().ok()
    }
}

/// The absolute path of the file that `writer` has opened. `None` where there is no file, or no log that lets a reader and the
/// writer work at a time.
pub(super) fn logged_file(writer: &mut SqliteConnection) -> Option<String> {
    LoggedFile {}.get_result::<String>(writer).ok()
}

/// The URL by which other connections reach the file at this path, which the writer has opened by `url`: absolute, because some
/// are opened later, when the process may have changed its directory.
pub(super) fn absolute(path: String, url: &str) -> String {
    if !url.starts_with("file:") && !url.starts_with("sqlite://") {
        return path;
    }
    let path = path.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let parameters = url.find(['?', '#']).map_or("", |at| &url[at..]);
    format!("file:{path}{parameters}")
}
