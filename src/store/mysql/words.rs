//! The words that MySQL has for what [`in_millis`](crate::store::in_millis) asks.

use diesel::mysql::Mysql as Db;

use crate::store::in_millis::InMillis;
use crate::store::operators::Walk;

/// Means the same in any time zone of the session.
impl InMillis for Db {
    const NOW: &'static str = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000 AS SIGNED)";
    const CLOCK: &'static str = "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000 AS SIGNED)";
    /// The client counts the milliseconds: the server needs two microseconds for them.
    const LOOKED_AT: &'static str = "UTC_TIMESTAMP(6)";
    const GREATEST: &'static str = "GREATEST";
    const LEAST: &'static str = "LEAST";
    const LAST_4000: [&'static str; 3] = ["RIGHT(CONCAT(", ", ", "), 4000)"];
    const AMONG: [&'static str; 3] = ["FIND_IN_SET(HEX(", "), ", ") > 0"];
    const PAUSED_UNTIL: [&'static str; 2] = [
        "DATE_FORMAT(TIMESTAMPADD(SECOND, ",
        " DIV 1000, '1970-01-01 00:00:00'), 'paused until %Y-%m-%dT%H:%i:%sZ')",
    ];
    const VALUES: [&'static str; 3] = ["VALUES (", Self::CLOCK, ")"];
    const UPDATES_NODE: &'static str = " ON DUPLICATE KEY UPDATE name = VALUES(name), build = VALUES(build), \
         definitions = VALUES(definitions), seen_at = VALUES(seen_at)";
    const UPDATES_PAUSE: &'static str = " ON DUPLICATE KEY UPDATE reason = VALUES(reason), \
         paused_by = VALUES(paused_by), paused_at = VALUES(paused_at), ends_at = VALUES(ends_at)";
    /// The row counts as one either way, because the session counts the rows that are found (`session::options`).
    const HOLDS_PAUSE: &'static str = " ON DUPLICATE KEY UPDATE reason = reason";
    /// Else the server weighs the other indexes too, at each execution: each ends in the columns of the primary key.
    const BY_KEY: &'static str = " FORCE INDEX (PRIMARY)";
    const BY_EXPIRY: &'static str = " FORCE INDEX (atomic_phases_keys_expiry)";
    const BY_DUE_JOBS: &'static str = " FORCE INDEX (atomic_phases_staged_jobs_due)";

    /// For half of a small table the server would rather read all of it and sort.
    fn by_index(walk: Walk) -> &'static str {
        match walk {
            Walk::Waiting => " FORCE INDEX (atomic_phases_keys_waiting)",
            Walk::Due => " FORCE INDEX (atomic_phases_keys_due_listed)",
            Walk::Newest => " FORCE INDEX (atomic_phases_keys_newest)",
        }
    }

    /// No text has a comma in hex, and none is like another in some collation.
    fn list(texts: &[String]) -> String {
        let hex =
            |text: &String| text.bytes().map(|byte| format!("{byte:02X}")).collect::<String>();
        texts.iter().map(hex).collect::<Vec<_>>().join(",")
    }
}

pub(super) const NOW: &str = Db::NOW;
pub(super) const CLOCK: &str = Db::CLOCK;
