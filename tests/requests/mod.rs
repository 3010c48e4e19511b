//! What a request promises from its first attempt to its last: resume, replay, mismatch, resolve, erase, deploys.

mod alternating_builds;
mod api;
mod begun_under;
mod deploys;
mod encryption;
mod erase;
mod errors;
mod expect_new;
mod fingerprint;
mod in_progress_hints;
mod outputs;
mod phase_sql;
mod quota;
#[cfg(feature = "redis")]
mod redis_replays;
mod replay_cache;
mod resolve;
mod resolve_after_faults;
mod resume;
mod settings;
mod stopped;
