//! The faces of [`ops`](crate::ops) over HTTP: the [JSON API](Api) (cargo feature `ops-api`).
//!
//! Nothing here decides what an operator may see or do, and nothing reads a row: that is the layer's. What is
//! decided here is who is let in ([`access`]), and whether a request that writes comes from a page of ours
//! ([`origin`]).

pub(crate) mod access;
pub(crate) mod api;
pub(crate) mod origin;

pub use self::api::Api;
