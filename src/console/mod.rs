//! The faces of [`ops`](crate::ops) over HTTP: the web console (`Console`, cargo feature `console`) and the JSON
//! API (`Api`, cargo feature `ops-api`).
//!
//! Nothing here decides what an operator may see or do, and nothing reads a row: that is the layer's. What is
//! decided here is who is let in (`access`), and whether a request that writes comes from a page of ours
//! (`origin`).

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
