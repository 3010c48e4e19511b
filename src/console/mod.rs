//! [`ops`](crate::ops) over HTTP: the web console (`Console`, cargo feature `console`) and the JSON API
//! (`Api`, cargo feature `ops-api`).
//!
//! Nothing here reads a row or decides what an operator may see or do: `ops` does. This module decides who is
//! let in (`access`), and whether a request that writes comes from one of its own pages (`origin`).

pub(crate) mod access;
#[cfg(feature = "ops-api")]
pub(crate) mod api;
pub(crate) mod origin;
#[cfg(feature = "console")]
mod pages;

#[cfg(feature = "ops-api")]
pub use self::api::Api;
#[cfg(feature = "console")]
pub use self::pages::Console;
