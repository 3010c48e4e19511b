//! [`OpenFile`]: whether the path of the database still leads to the file that the connections have opened.
//!
//! With a write-ahead log, SQLite does not notice that another program has replaced or deleted its file: it goes on in a
//! file that no path leads to any more, and what it commits there is lost. With a rollback journal it compares the number
//! of the file's inode before it writes (`SQLITE_FCNTL_HAS_MOVED`). So does this, which costs a microsecond or two.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use diesel::result::{DatabaseErrorKind, Error};
use diesel::{ConnectionResult, QueryResult, SqliteConnection};

use super::statements::Files;
use crate::error::FILE_REPLACED;
use crate::store::in_millis::tuple_rows::BlockingRows;

/// The file of the database, as it was when it was opened; of a database in memory, nothing.
#[derive(Clone, Default)]
pub(super) struct OpenFile(Option<Arc<(PathBuf, FileId)>>);

/// Its device and its inode.
type FileId = (u64, u64);

/// A connection, and the file that it has opened. A connection does not tell the number of its file, so that is read from the
/// path, before the connection is opened and again behind it.
pub(super) fn open(
    mut establish: impl FnMut() -> ConnectionResult<SqliteConnection>,
) -> Result<(SqliteConnection, OpenFile), Box<dyn std::error::Error>> {
    // Only SQLite knows which path is behind a URL, or behind a link. Which file this connection has opened is not known.
    let path = path_of(&mut establish()?)?;
    let file = OpenFile::at(&path)?;
    let mut conn = establish()?;
    file.check()?;
    match path_of(&mut conn)? == path {
        true => Ok((conn, file)),
        false => Err(replaced().into()),
    }
}

/// The absolute path of the connection's file; of a database in memory, nothing. This reads nothing of the file.
fn path_of(conn: &mut SqliteConnection) -> QueryResult<String> {
    let files: Vec<(i32, String, String)> = Files {}.rows(conn)?;
    Ok(files.into_iter().next().map(|(_, _, path)| path).unwrap_or_default())
}

impl OpenFile {
    /// The file at this path. One that the system has no number for is never said to be another.
    fn at(path: &str) -> QueryResult<Self> {
        if path.is_empty() {
            return Ok(Self::default());
        }
        let path = PathBuf::from(path);
        match id_of(&path) {
            Ok(id) => Ok(Self(Some(Arc::new((path, id))))),
            Err(error) if is_missing(error.kind()) => Err(replaced()),
            Err(_) => Ok(Self::default()),
        }
    }

    /// An error if the path leads to another file by now, or to none.
    pub(super) fn check(&self) -> QueryResult<()> {
        let Some((path, id)) = self.0.as_deref() else { return Ok(()) };
        let is_in_place = match id_of(path) {
            Ok(found) => found == *id,
            Err(error) => !is_missing(error.kind()),
        };
        match is_in_place {
            true => Ok(()),
            false => Err(replaced()),
        }
    }
}

/// Any other kind of error, such as one about a right, says nothing about the file.
fn is_missing(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory)
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
    use std::fs::{remove_file, rename};
    use std::os::unix::fs::symlink;

    use diesel::connection::SimpleConnection;
    use diesel::dsl::sql;
    use diesel::sql_types::Integer;
    use diesel::{Connection, RunQueryDsl};

    use super::*;
    use crate::error::DbError;

    #[test]
    fn a_file_is_in_place_until_another_or_none_is_at_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let [at, aside, link] = ["rides.db", "aside.db", "link.db"].map(|n| folder.path().join(n));
        std::fs::write(&at, "one").unwrap();
        symlink(&at, &link).unwrap();
        let files = [&at, &link].map(|path| OpenFile::at(path.to_str().unwrap()).unwrap());
        let are_in_place = || files.iter().all(|file| file.check().is_ok());
        let are_replaced = || files.iter().all(|file| file.check().is_err());
        assert!(are_in_place());
        std::fs::write(&at, "written to").unwrap();
        assert!(are_in_place());
        rename(&at, &aside).unwrap();
        assert!(are_replaced(), "there is none");
        std::fs::write(&at, "one").unwrap();
        assert!(are_replaced(), "there is another");
        rename(&aside, &at).unwrap();
        assert!(are_in_place(), "it was put back");
        assert!(OpenFile::default().check().is_ok(), "in memory");
        assert_eq!(DbError(replaced()).to_string(), FILE_REPLACED);
    }

    /// At each moment: before each of the two connections is opened, and behind it.
    #[test]
    fn a_connection_whose_file_may_have_been_replaced_while_it_was_opened_is_refused() {
        // Which file is opened, if it is not refused: the first, the second, or a new one.
        for (how, opened) in [
            ("replaced", [Some(2), Some(2), None, None]),
            ("deleted", [Some(0), None, None, None]),
            ("linked", [Some(2), None, None, Some(1)]),
        ] {
            for (moment, expected) in opened.into_iter().enumerate() {
                let folder = tempfile::tempdir().unwrap();
                let [one, two, aside, link] = ["one.db", "two.db", "aside.db", "link.db"]
                    .map(|name| folder.path().join(name).to_str().unwrap().to_owned());
                for (path, version) in [(&one, 1), (&two, 2)] {
                    let mut conn = SqliteConnection::establish(path).unwrap();
                    conn.batch_execute(&format!("PRAGMA user_version = {version}")).unwrap();
                }
                symlink(&one, &link).unwrap();
                let mut passed = 0;
                let mut passes = || {
                    let is_now = passed == moment;
                    passed += 1;
                    match how {
                        _ if !is_now => {}
                        "linked" => {
                            remove_file(&link).unwrap();
                            symlink(&two, &link).unwrap();
                        }
                        how => {
                            rename(&one, &aside).unwrap();
                            if how == "replaced" {
                                rename(&two, &one).unwrap();
                            }
                        }
                    }
                };
                let told = open(|| {
                    passes();
                    let conn = SqliteConnection::establish(&link);
                    passes();
                    conn
                });
                let version = "SELECT user_version FROM pragma_user_version";
                let told = match told {
                    Ok((mut conn, file)) => {
                        file.check().unwrap();
                        Ok(sql::<Integer>(version).get_result::<i32>(&mut conn).unwrap())
                    }
                    Err(error) => Err(error.to_string()),
                };
                let expected = expected.ok_or_else(|| FILE_REPLACED.to_owned());
                assert_eq!(told, expected, "{how}, moment {moment}");
            }
        }
    }
}
