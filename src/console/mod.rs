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

use crate::engine::Engine;
use crate::store::Store;

#[cfg(feature = "ops-api")]
pub use self::api::Api;
#[cfg(feature = "console")]
pub use self::pages::Console;

/// The largest body that is read, in bytes: a reply or an output of the largest size that the engine stores, and 64 KiB of
/// all else, a thousand ids for example. In JSON, a control character has six bytes (`\u0001`). In a form, a line's end has
/// six (`%0D%0A`), and every other byte three.
fn largest_body<S: Store>(engine: &Engine<S>) -> usize {
    let limits = &engine.core.settings.limits;
    let reply = limits.reply_body.saturating_add(limits.reply_headers);
    reply.max(limits.outputs).saturating_mul(6).saturating_add(64 << 10)
}
