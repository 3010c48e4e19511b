//! [`ValueType`]: a type whose values are stored, behind functions that do not name it.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::probe::{Catalogue, Probed, probe};

/// A type whose values are stored, without its name.
#[derive(Clone, Copy)]
pub struct ValueType {
    pub(super) probe: fn(&mut Catalogue, &[String]) -> Probed,
    /// Whether stored JSON decodes.
    pub(super) reads: fn(&str) -> bool,
}

impl ValueType {
    /// Of `T`.
    #[must_use]
    pub const fn of<T: Serialize + DeserializeOwned>() -> Self {
        Self { probe: probe::<T>, reads: |json| serde_json::from_str::<T>(json).is_ok() }
    }
}

impl std::fmt::Debug for ValueType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ValueType")
    }
}
