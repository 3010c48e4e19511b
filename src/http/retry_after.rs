//! The number in a `Retry-After` header line.

use std::time::Duration;

/// For `Retry-After`: 1 to 60. Below, a client would come back while nothing can have changed;
/// above, it would not notice that the holder finished early.
pub(crate) fn whole_seconds(after: Duration) -> u64 {
    let up = u64::from(after.subsec_nanos() > 0);
    after.as_secs().saturating_add(up).clamp(1, 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_whole_seconds_from_1_to_60() {
        for (millis, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (59_999, 60), (90_000, 60)]
        {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds, "{millis} ms");
        }
        assert_eq!(whole_seconds(Duration::MAX), 60);
    }
}
