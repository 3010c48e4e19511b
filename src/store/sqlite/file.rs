//! [`OpenFile`]: whether the path of the database still leads to the file that the connections have opened.
//!
//! With a write-ahead log, SQLite does not notice that another program has replaced or deleted its file: it goes on in a
//! file that no path leads to any more, and what it commits there is lost. With a rollback journal it compares the number
//! of the file's inode before it writes (`SQLITE_FCNTL_HAS_MOVED`). So does this, which costs a microsecond or two.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use diesel::QueryResult;
use diesel::result::{DatabaseErrorKind, Error};

use crate::error::FILE_REPLACED;

/// The file of the database, as it was when it was opened; of a database in memory, nothing.
#[derive(Clone, Default)]
pub(super) struct OpenFile(Option<Arc<(PathBuf, FileId)>>);

/// Its device and its inode.
type FileId = (u64, u64);

impl OpenFile {
    /// The file at this path. One that the system has no number for is never said to be another.
    pub(super) fn at(path: &str) -> Self {
        let path = PathBuf::from(path);
        Self(id_of(&path).ok().map(|id| Arc::new((path, id))))
    }

    /// An error if the path leads to another file by now, or to none.
    pub(super) fn check(&self) -> QueryResult<()> {
        let Some((path, id)) = self.0.as_deref() else { return Ok(()) };
        let is_in_place = match id_of(path) {
            Ok(found) => found == *id,
            // Any other error, such as one about a right, says nothing about the file.
            Err(error) => !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
        };
        match is_in_place {
            true => Ok(()),
            false => Err(replaced()),
        }
    }
}

/// The connection is lost: another one would open another file.
pub(super) fn replaced() -> Error {
    let kind = DatabaseErrorKind::UnableToSendCommand;
    Error::DatabaseError(kind, Box::new(FILE_REPLACED.to_owned()))
}

#[cfg(unix)]
fn id_of(path: &Path) -> io::Result<FileId> {
    use std::os::unix::fs::MetadataExt;

    let found = std::fs::metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// SQLite opens the file on Windows so that it can be neither replaced nor deleted.
#[cfg(not(unix))]
fn id_of(_: &Path) -> io::Result<FileId> {
    Err(ErrorKind::Unsupported.into())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::error::DbError;

    #[test]
    fn a_file_is_in_place_until_another_or_none_is_at_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let [at, aside, link] = ["rides.db", "aside.db", "link.db"].map(|n| folder.path().join(n));
        std::fs::write(&at, "one").unwrap();
        std::os::unix::fs::symlink(&at, &link).unwrap();
        let files = [&at, &link].map(|path| OpenFile::at(path.to_str().unwrap()));
        let are_in_place = || files.iter().all(|file| file.check().is_ok());
        let are_replaced = || files.iter().all(|file| file.check().is_err());
        assert!(are_in_place());
        std::fs::write(&at, "written to").unwrap();
        assert!(are_in_place());
        std::fs::rename(&at, &aside).unwrap();
        assert!(are_replaced(), "there is none");
        std::fs::write(&at, "one").unwrap();
        assert!(are_replaced(), "there is another");
        std::fs::rename(&aside, &at).unwrap();
        assert!(are_in_place(), "it was put back");
        assert!(OpenFile::default().check().is_ok(), "in memory");
        assert_eq!(DbError(replaced()).to_string(), FILE_REPLACED);
    }
}
