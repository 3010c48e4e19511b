//! [`open`]: a database by its URL, for both programs.

use std::path::Path;

use atomic_phases::store::{Mysql, Postgres, Sqlite, StoreError};

/// A database that a command reads.
pub(crate) enum Database {
    Postgres(Postgres),
    Sqlite(Sqlite),
    Mysql(Mysql),
}

/// Why there is none.
#[derive(Debug)]
pub(crate) enum NotOpened {
    /// The URL is of no kind that is known.
    Unknown,
    /// The file of a URL of SQLite; it would be created.
    NoFile(String),
    /// The database does not answer.
    Store(StoreError),
}

/// Opens it. No error holds the URL, which may hold a password.
pub(crate) async fn open(url: &str) -> Result<Database, NotOpened> {
    match url.split_once("://") {
        Some(("postgres" | "postgresql", _)) => {
            Ok(Database::Postgres(Postgres::connect(url).await?))
        }
        Some(("mysql", _)) => Ok(Database::Mysql(Mysql::connect(url).await?)),
        Some(("sqlite", path)) if !Path::new(path).is_file() => {
            Err(NotOpened::NoFile(path.to_owned()))
        }
        Some(("sqlite", path)) => Ok(Database::Sqlite(Sqlite::connect(path).await?)),
        _ => Err(NotOpened::Unknown),
    }
}

/// The same of each kind of database.
macro_rules! on {
    ($database:expr, $store:ident => $what:expr) => {
        match $database {
            $crate::open::Database::Postgres($store) => $what,
            $crate::open::Database::Sqlite($store) => $what,
            $crate::open::Database::Mysql($store) => $what,
        }
    };
}
pub(crate) use on;

impl From<StoreError> for NotOpened {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl std::fmt::Display for NotOpened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown => {
                f.write_str("the URL of a database starts with postgres://, mysql:// or sqlite://")
            }
            Self::NoFile(path) => {
                write!(f, "there is no file {path}: name one that the application has made")
            }
            Self::Store(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for NotOpened {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => error.source(),
            _ => None,
        }
    }
}
