//! [`Locks`]: the lock files of a repository, one for each definition and version.
//!
//! One file each, and not one for all: two branches that change two definitions do not meet in it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::lock::{Lock, LockError};

/// Locks by name and version.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Locks(BTreeMap<(String, u32), Lock>);

/// What is wrong with a folder of lock files.
#[derive(Debug)]
#[non_exhaustive]
pub enum FolderError {
    /// A file cannot be read or written.
    Io(PathBuf, std::io::Error),
    /// A file is not a lock file.
    Lock(String, LockError),
    /// A file has the name of another lock.
    Misnamed {
        /// Its name.
        file: String,
        /// The name that it should have.
        wanted: String,
    },
}

impl fmt::Display for FolderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, _) => write!(f, "{} cannot be read or written", path.display()),
            Self::Lock(file, _) => write!(f, "{file} cannot be read"),
            Self::Misnamed { file, wanted } => {
                write!(f, "{file}: the lock in it belongs into {wanted}: rename the file")
            }
        }
    }
}

impl std::error::Error for FolderError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(_, error) => Some(error),
            Self::Lock(_, error) => Some(error),
            Self::Misnamed { .. } => None,
        }
    }
}

/// The name of a lock's file: `rides.create@1.toml`. What not every file system takes in a name is
/// written as `%` and two hexadecimal digits for each byte.
#[must_use]
pub fn file_name(definition: &str, version: u32) -> String {
    let mut name = String::new();
    for byte in definition.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => name.push(byte.into()),
            _ => name.push_str(&format!("%{byte:02x}")),
        }
    }
    format!("{name}@{version}.toml")
}

impl Locks {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one, in place of one of the same name and version.
    pub fn insert(&mut self, lock: Lock) {
        self.0.insert((lock.definition.clone(), lock.version), lock);
    }

    /// Takes one out.
    pub fn remove(&mut self, definition: &str, version: u32) -> Option<Lock> {
        self.0.remove(&(definition.to_owned(), version))
    }

    /// By name and version.
    #[must_use]
    pub fn get(&self, definition: &str, version: u32) -> Option<&Lock> {
        self.0.get(&(definition.to_owned(), version))
    }

    /// By name and version, to be changed.
    pub fn get_mut(&mut self, definition: &str, version: u32) -> Option<&mut Lock> {
        self.0.get_mut(&(definition.to_owned(), version))
    }

    /// In the order of names and versions.
    pub fn iter(&self) -> impl Iterator<Item = &Lock> {
        self.0.values()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The highest version of a definition.
    pub(crate) fn latest(&self, definition: &str) -> Option<u32> {
        self.iter().filter(|lock| lock.definition == definition).map(|lock| lock.version).max()
    }

    /// From files by name, from a git tree for example.
    ///
    /// # Errors
    /// [`FolderError`] names the file.
    pub fn from_files(
        files: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, FolderError> {
        let mut locks = Self::new();
        for (file, text) in files {
            let lock =
                Lock::parse(&text).map_err(|error| FolderError::Lock(file.clone(), error))?;
            let wanted = file_name(&lock.definition, lock.version);
            if wanted != file {
                return Err(FolderError::Misnamed { file, wanted });
            }
            locks.insert(lock);
        }
        Ok(locks)
    }

    /// Reads a folder. One that does not exist has no lock.
    ///
    /// # Errors
    /// [`FolderError`] names the file.
    pub fn read(folder: &Path) -> Result<Self, FolderError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |error| FolderError::Io(path, error)
        };
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::new()),
            Err(error) => return Err(FolderError::Io(folder.to_owned(), error)),
        };
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.map_err(io(folder))?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if name.contains('@') && name.ends_with(".toml") {
                let text = std::fs::read_to_string(&path).map_err(io(&path))?;
                files.push((name.to_owned(), text));
            }
        }
        Self::from_files(files)
    }

    /// Writes what differs from the files of a folder, and returns the names of the files written.
    ///
    /// # Errors
    /// [`FolderError`] names the file.
    pub fn write(&self, folder: &Path) -> Result<Vec<String>, FolderError> {
        let mut written = Vec::new();
        for lock in self.iter() {
            let name = file_name(&lock.definition, lock.version);
            let path = folder.join(&name);
            let text = lock.to_toml();
            if std::fs::read_to_string(&path).is_ok_and(|there| there == text) {
                continue;
            }
            let io = |error| FolderError::Io(path.clone(), error);
            std::fs::create_dir_all(folder).map_err(io)?;
            std::fs::write(&path, text).map_err(io)?;
            written.push(name);
        }
        Ok(written)
    }
}

impl FromIterator<Lock> for Locks {
    fn from_iter<I: IntoIterator<Item = Lock>>(locks: I) -> Self {
        let mut all = Self::new();
        locks.into_iter().for_each(|lock| all.insert(lock));
        all
    }
}
