//! [`Levels`]: the levels of lints that a repository changes.

use std::collections::BTreeMap;
use std::fmt;

use crate::lint::{Level, Lint};

/// The levels of a repository: `[package.metadata.atomic-phases.lints]` in its Cargo.toml.
///
/// ```toml
/// [package.metadata.atomic-phases.lints]
/// window_widened = "warn"
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Levels(BTreeMap<Lint, Level>);

/// A setting that is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelError(String);

impl fmt::Display for LevelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LevelError {}

impl Levels {
    /// Reads the table out of a Cargo.toml.
    ///
    /// # Errors
    /// [`LevelError`] for a file that is not TOML, a lint or a level that does not exist, and a lint that
    /// no setting changes.
    pub fn from_manifest(manifest: &str) -> Result<Self, LevelError> {
        let manifest: toml::Table = manifest.parse().map_err(|error: toml::de::Error| {
            LevelError(format!("Cargo.toml: {}", error.message()))
        })?;
        let mut table = Some(&manifest);
        for key in ["package", "metadata", "atomic-phases", "lints"] {
            table = table.and_then(|table| table.get(key)?.as_table());
        }
        let mut levels = BTreeMap::new();
        for (name, level) in table.into_iter().flatten() {
            let lint = Lint::named(name).ok_or_else(|| {
                LevelError(format!(
                    "there is no lint `{name}`; `cargo atomic-phases explain` lists them"
                ))
            })?;
            let level = match level.as_str() {
                Some("deny") => Level::Deny,
                Some("warn") => Level::Warn,
                Some("allow") => Level::Allow,
                _ => {
                    return Err(LevelError(format!(
                        "the level of `{name}` is \"deny\", \"warn\" or \"allow\""
                    )));
                }
            };
            if lint.level() == Level::Never {
                return Err(LevelError(format!("no setting changes `{name}`: {}", lint.instead())));
            }
            levels.insert(lint, level);
        }
        Ok(Self(levels))
    }

    /// The level of a lint here.
    #[must_use]
    pub fn of(&self, lint: Lint) -> Level {
        self.0.get(&lint).copied().unwrap_or_else(|| lint.level())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(table: &str) -> Result<Levels, LevelError> {
        Levels::from_manifest(&format!(
            "[package]\nname = \"a\"\n[package.metadata.atomic-phases.lints]\n{table}"
        ))
    }

    #[test]
    fn a_repository_sets_levels_but_not_of_what_is_never() {
        let set = levels("window_widened = \"warn\"").unwrap();
        assert_eq!(set.of(Lint::WindowWidened), Level::Warn);
        assert_eq!(set.of(Lint::PhaseRemoved), Level::Deny);
        for bad in [
            "phase_renamed = \"allow\"",
            "no_such = \"warn\"",
            "was_dropped = \"never\"",
            "was_dropped = 1",
        ] {
            assert!(levels(bad).is_err(), "{bad}");
        }
        assert_eq!(Levels::from_manifest("[workspace]"), Ok(Levels::default()));
    }
}
