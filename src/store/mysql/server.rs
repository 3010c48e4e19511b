//! [`Server`]: which server a connection leads to, and which of its starts; [`Product`]: whose it is.
//!
//! A session's number is one of its server's, and of that server's present start: another server gives the same number to
//! a session of another client. A URL leads to another server behind a failover, and to a later start behind a restart.

use std::fmt;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Row, from_row_opt};

/// The first column is the session's number. A proxy may answer that question itself where it is the only one.
///
/// Both terms of the start are of this statement, so that it is the same to the second whatever is done to the clock.
/// Servers of one name and port, as two clusters of containers may have them, differ in their starts; those that were
/// started in one second, as behind a loss of power, differ in their numbers, if one of them replicates the other.
///
/// One server may be started twice within a second, and then its sessions have the same numbers again. The end of a UUID
/// tells these starts apart: its last 17 characters are fourteen bits that each start draws, and the machine. MySQL draws
/// them again when its clock is set back. From then on a session of before is ended by the kept connection only: a new one
/// does not recognize its server.
const NAMED: &str = "SELECT CONNECTION_ID(), CONCAT_WS(' ', @@hostname, @@port, @@server_id, \
     (SELECT CAST(UNIX_TIMESTAMP() - variable_value AS SIGNED) \
      FROM /*!80000 performance_schema.session_status */ /*M!100000 information_schema.session_status */ \
      WHERE variable_name = 'Uptime'), RIGHT(UUID(), 17))";

/// Whose server it is. The two have other settings, and other ways to be sent statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Product {
    Mariadb,
    Mysql,
}

impl Product {
    /// By what the server says to `VERSION()`.
    pub(super) fn of(version: &str) -> Self {
        if version.contains("MariaDB") { Self::Mariadb } else { Self::Mysql }
    }
}

/// A server, from its start to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server(Vec<u8>);

impl Server {
    /// Sends a statement that has no rows, and behind it, in the same round trip, asks which server this is. The statement
    /// is to lift the limits of the session: under a low `max_join_size` the server would refuse the question.
    ///
    /// `None`: the greeting has named another number than the server. The connection leads to a proxy that has sessions of
    /// its own, and takes the number in a `KILL` for one of these.
    pub(super) async fn behind(conn: &mut Conn, statement: &str) -> Result<Option<Self>, Error> {
        let mut result = conn.query_iter(format!("{statement}; {NAMED}")).await?;
        let _: Vec<Row> = result.collect().await?;
        let named: Vec<Row> = result.collect().await?;
        result.drop_result().await?;
        let named =
            named.into_iter().next().and_then(|row| from_row_opt::<(u64, Vec<u8>)>(row).ok());
        let (number, name) = named.unwrap_or_default();
        Ok((number == u64::from(conn.id())).then_some(Self(name)))
    }

    /// The server of this name.
    pub(super) fn named(name: &str) -> Self {
        Self(name.into())
    }

    /// Whether this is another start of that server: the sessions of before have ended. The first three words of a name are
    /// its machine, its port and its number; the fourth is its start.
    pub(super) fn is_restarted(&self, before: &Self) -> bool {
        let is_same = self.words().take(3).eq(before.words().take(3));
        is_same && self.words().nth(3) != before.words().nth(3)
    }

    fn words(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b' ')
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g17_only_a_later_start_of_the_same_server_has_ended_its_sessions() {
        let server = Server::named("db1 3306 1 1700000000 4f1d-0242ac110002");
        assert_eq!(Server::named(&server.to_string()), server);
        for (other, is_restarted) in [
            ("db1 3306 1 1700000000 4f1d-0242ac110002", false),
            ("db1 3306 1 1700000009 51c2-0242ac110002", true),
            ("db2 3306 1 1700000009 51c2-0242ac110003", false),
            ("db1 3307 1 1700000009 51c2-0242ac110002", false),
            ("db1 3306 2 1700000009 51c2-0242ac110002", false),
            // Its clock was set back.
            ("db1 3306 1 1700000000 51c2-0242ac110002", false),
        ] {
            assert_eq!(Server::named(other).is_restarted(&server), is_restarted, "{other}");
        }
    }
}
