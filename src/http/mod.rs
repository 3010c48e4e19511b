//! The HTTP boundary (cargo feature `http`; with axum's extractors: `axum`).
//!
//! The inputs are an `Idempotency-Key` header, typed parameters and a scope; the output is the phases' own reply, its
//! replay or an error in the dialect of your choice ([`Profile`]). Nothing here reads a
//! row or runs a phase: the engine does.
//!
//! The path of a request: [`Idempotency::admit`] (method, scope, key) → [`Policy::parameters`] (body)
//! → [`Keyed::answer`] → the engine → [`Policy::answer`] (status, headers, bytes).

#[cfg(feature = "axum")]
mod body;
mod boundary;
mod describe;
#[cfg(feature = "axum")]
mod extract;
mod header;
#[cfg(feature = "axum")]
mod health;
mod objects;
mod page;
mod params;
mod policy;
mod problem;
mod profile;
mod respond;
mod retry_after;
mod status;
mod unique;

#[cfg(any(feature = "console", feature = "ops-api"))]
pub(crate) use body::{NotRead, read_whole};
pub use boundary::{Idempotency, Keyed, single_tenant};
pub use describe::Description;
#[cfg(feature = "axum")]
pub use extract::{Checked, Params};
pub use header::{
    IDEMPOTENCY_EXPIRES, IDEMPOTENCY_KEY, KeyHeaderError, KeySyntax, key_of, parse_key,
};
#[cfg(feature = "axum")]
pub use health::Health;
pub use policy::{Bodies, KeyRule, Policy};
pub use profile::{Profile, UnknownProfile};
pub use respond::Answer;
#[cfg(feature = "ops-api")]
pub(crate) use status::reply_as_json;
