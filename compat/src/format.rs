//! The lock file's text: TOML, written by hand so that the same lock has the same bytes, whatever
//! versions of libraries are used, and read by the `toml` crate, so that it may be edited.

mod read;
mod write;

#[cfg(test)]
pub(crate) use self::read::defined_by_itself;
pub(crate) use self::read::parse;
pub(crate) use self::write::{duration_text, write};

const FORMAT: u32 = 1;

#[cfg(test)]
mod tests;
