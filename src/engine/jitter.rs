//! How long to wait before something is tried again.

use std::time::Duration;

/// 5 ms, doubling, up to about 1.3 s; half of it by chance, so that two that collided do not do so
/// again.
pub(super) fn jitter(tries: u32) -> Duration {
    if mutated!(NoPause) {
        return Duration::ZERO;
    }
    let longest = 5_u64 << tries.min(8);
    Duration::from_millis(longest / 2 + crate::chance::up_to(longest / 2))
}
