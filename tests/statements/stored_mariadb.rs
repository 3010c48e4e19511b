//! The part of `stored` about MariaDB: what the indexes by which operators search cost a fresh request of three phases.

use std::fmt::Write;

use crate::stored::REQUESTS;
use crate::support::db::prepare_my;
use crate::support::mariadb::Server;
use crate::support::*;

/// The keys of the requests' table on MariaDB that the engine and its workers do not use.
const KEYS_OF_OPERATORS: [&str; 4] = ["request", "waiting", "newest", "due_listed"];

/// Bytes of InnoDB's log for each request, of which the server has one counter for all sessions.
async fn log_on_mariadb(server: &Server, without: &[&str]) -> f64 {
    let db = prepare_my(&tokio::task::block_in_place(|| server.new_database())).await;
    for key in without {
        db.sql(&format!("ALTER TABLE atomic_phases_keys DROP KEY atomic_phases_keys_{key}")).await;
    }
    let engine = engine(&db, &App::default());
    for number in 0..20 {
        finished(engine.call(&scope(), &key(&format!("before-{number}")), book(20)).await);
    }
    let written = || {
        let sql = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS \
                   WHERE VARIABLE_NAME = 'INNODB_LSN_CURRENT'";
        tokio::task::block_in_place(|| server.ask(sql)).parse::<f64>().unwrap()
    };
    let before = written();
    for number in 0..REQUESTS {
        finished(engine.call(&scope(), &key(&format!("request-{number:06}")), book(20)).await);
    }
    (written() - before) / f64::from(REQUESTS)
}

/// What each of those indexes costs.
pub async fn table() -> String {
    // What the server does by itself writes into the same log.
    let server = tokio::task::spawn_blocking(|| {
        Server::start(&["--innodb-flush-log-at-trx-commit=0", "--innodb-stats-auto-recalc=0"])
    });
    let server = server.await.unwrap();
    let mut table = "| table | log, bytes | |\n|---|---|---|\n".to_owned();
    let now = log_on_mariadb(&server, &[]).await;
    let mut line = |name: &str, log: f64| {
        writeln!(table, "| {name} | {log:.0} | {:+.0} |", log - now).unwrap();
    };
    line("as it is", now);
    line("as it is, again", log_on_mariadb(&server, &[]).await);
    for key in KEYS_OF_OPERATORS {
        line(&format!("without the index `{key}`"), log_on_mariadb(&server, &[key]).await);
    }
    let without = log_on_mariadb(&server, &KEYS_OF_OPERATORS).await;
    line("without all four", without);
    assert!(without < now, "{without} {now}");
    table
}
