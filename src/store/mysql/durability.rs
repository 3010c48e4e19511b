//! Warns of a server that may lose a commit which it has acknowledged, and an answer with it (G8). The store opens all the
//! same: an operator may want that, on a machine for tests for example.

use mysql_async::Opts;

use crate::observe;

const FLUSH: &str = "with 2, a loss of power loses those of about a second; with 0, so does a \
    crash of the server";

const SYNC: &str = "a loss of power loses those that are not on the disk of the binary log";

/// By what the server has: `sync_binlog` is `None` without a binary log. On MariaDB, a log that is flushed with 3 is flushed
/// more often than with 1.
pub(super) fn warn_of_losses(opts: &Opts, flush_log: u32, sync_binlog: Option<u32>) {
    let address = (opts.ip_or_hostname(), opts.tcp_port());
    let settings = [
        ("innodb_flush_log_at_trx_commit", Some(flush_log).filter(|value| *value != 3), FLUSH),
        ("sync_binlog", sync_binlog, SYNC),
    ];
    for (setting, value, loss) in settings {
        if let Some(value) = value.filter(|value| *value != 1) {
            observe::commits_may_be_lost(address, setting, &value.to_string(), "1", loss);
        }
    }
}
