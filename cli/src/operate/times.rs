//! Times as a person reads them.

use chrono::{DateTime, Utc};

/// How far away a time is: `41m ago`, `in 12s`.
pub(crate) fn away(time: &str, now: DateTime<Utc>) -> String {
    let Ok(time) = time.parse::<DateTime<Utc>>() else { return String::new() };
    let seconds = (time - now).num_seconds();
    match seconds {
        0.. => format!("in {}", coarse(seconds.unsigned_abs())),
        _ => format!("{} ago", coarse(seconds.unsigned_abs())),
    }
}

/// By how many seconds `now` may be behind a row: it is read beside the rows, and estimated between two reads.
const SLACK: i64 = 60;

/// How long ago a time was: `41m ago`.
pub(crate) fn ago(time: &str, now: DateTime<Utc>) -> String {
    let Ok(at) = time.parse::<DateTime<Utc>>() else { return String::new() };
    let seconds = (now - at).num_seconds();
    // By another clock. To tell it as 0s would hide that.
    if seconds < -SLACK {
        return away(time, now);
    }
    format!("{} ago", coarse(seconds.max(0).unsigned_abs()))
}

fn coarse(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_in_one_unit() {
        let now = "2026-11-22T12:00:00Z".parse().unwrap();
        let told = |time| away(time, now);
        assert_eq!(told("2026-11-22T12:00:12.5Z"), "in 12s");
        assert_eq!(told("2026-11-22T11:18:59.123456Z"), "41m ago");
        assert_eq!(told("2026-11-22T09:00:00Z"), "3h ago");
        assert_eq!(told("2026-11-25T12:00:00Z"), "in 3d");
        assert_eq!(told("soon"), "");
        let was = |time| ago(time, now);
        assert_eq!(was("2026-11-22T11:18:59.123456Z"), "41m ago");
        assert_eq!(was("2026-11-22T12:00:00.005Z"), "0s ago", "the database's clock is ahead");
        assert_eq!(was("2026-11-22T12:00:07Z"), "0s ago");
        assert_eq!(was("2026-11-22T13:00:00Z"), "in 60m");
    }
}
