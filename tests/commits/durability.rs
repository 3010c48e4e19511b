//! A server that may lose commits which it has acknowledged is named in the log when a store is opened there.

#[cfg(feature = "mysql")]
use super::mysql_faults::on_own_server;
use super::poolers::logged;
use crate::support::cluster::Cluster;
#[cfg(feature = "mysql")]
use crate::support::db::open_my;
use crate::support::db::open_pg;
use crate::support::until;

/// The settings that the log warns of.
fn warned_of(log: &str) -> Vec<&str> {
    let warnings = log.lines().filter(|line| line.contains("WARN") && line.contains("may lose"));
    warnings.filter_map(|line| line.split_once(" setting=")).map(|(_, setting)| setting).collect()
}

const NONE: [&str; 0] = [];

#[tokio::test]
async fn g8_a_server_that_may_lose_commits_is_named_in_the_log_on_postgres() {
    let cluster = tokio::task::spawn_blocking(Cluster::start).await.unwrap();
    let url = cluster.new_database();
    // It opens two connections.
    let opened = async || logged(open_pg(&url, 4)).await.1;
    assert_eq!(warned_of(&opened().await), NONE, "it is durable");
    cluster.change("fsync = off\nsynchronous_commit = off\n");
    let settings = "SELECT current_setting('fsync') || current_setting('synchronous_commit')";
    until(async || cluster.ask(settings) == "offoff").await;
    let both =
        [r#""fsync" value="off" needed="on""#, r#""synchronous_commit" value="off" needed="on""#];
    assert_eq!(warned_of(&opened().await), both);
    assert_eq!(warned_of(&opened().await), NONE, "said once a day");
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn g8_a_server_that_may_lose_commits_is_named_in_the_log_on_mariadb() {
    let opened = async {
        let options = &["--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0"];
        let (_server, db) = on_own_server(options).await;
        let _two = (db.connection().await.unwrap(), db.connection().await.unwrap());
    };
    let ((), log) = logged(opened).await;
    // Once for all connections; and without a binary log, it does not matter how that is synced.
    let flush = r#""innodb_flush_log_at_trx_commit" value="2" needed="1""#;
    assert_eq!(warned_of(&log), [flush]);

    let options = &[
        "--log-bin=binlog",
        "--server-id=1",
        "--log-bin-trust-function-creators=1",
        "--sync-binlog=1",
    ];
    let ((server, db), log) = logged(on_own_server(options)).await;
    assert_eq!(warned_of(&log), NONE, "it is durable");
    server.ask("SET GLOBAL sync_binlog = 0");
    let opened = async || logged(open_my(db.__url(), 4)).await.1;
    assert_eq!(warned_of(&opened().await), [r#""sync_binlog" value="0" needed="1""#]);
    assert_eq!(warned_of(&opened().await), NONE, "said once a day");
}
