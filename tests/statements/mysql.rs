//! The cost of a request on MariaDB, according to the server's log, which has each command as one line, and to the
//! server's own count of writing transactions.

use std::time::Duration;

use atomic_phases::ops::{Actor, Filter, Permissions, Scopes, State};
use atomic_phases::phase::ForeignError;
use atomic_phases::store::Mysql;
use atomic_phases::worker::{Completer, Enqueuer, Handlers, Reaper};
use atomic_phases::{
    Batch, Engine, ForeignCall, PhaseResult, Reply, RequestContext, Tx, atomic_phases,
};
use diesel::sql_types::Text;
use serde::{Deserialize, Serialize};

use crate::support::db::{numbers, open_my, open_my_without_blocks, prepare_my};
use crate::support::mariadb::{Server, mysqld};
use crate::support::mysql_proxy::MysqlProxy;
use crate::support::work::config;
use crate::support::*;

/// A server that logs the commands of a user `app`.
pub struct Observed(pub Server);

impl Observed {
    pub fn start() -> (Self, String) {
        let server = Server::start(&[
            "--log-output=TABLE",
            // The server's own transactions do not count.
            "--innodb-stats-persistent=0",
            "--innodb-stats-auto-recalc=0",
        ]);
        let url = server.new_database();
        server.ask("CREATE USER app@'%'; GRANT ALL ON *.* TO app@'%'");
        server.ask("SET GLOBAL innodb_monitor_enable = 'trx_rw_commits'");
        server.ask("SET GLOBAL general_log = 1");
        (Self(server), url)
    }

    /// Each command since the last call, as the first words of each of its statements.
    fn sent(&self) -> Vec<Vec<String>> {
        let sent = self.logged("command_type IN ('Query', 'Execute')");
        let words = |sql: &str| sql.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
        sent.iter().map(|sql| without_literals(sql).split("; ").map(words).collect()).collect()
    }

    /// The full texts of the queries of the table of keys since the last call.
    fn lists(&self) -> Vec<String> {
        self.logged(
            "command_type = 'Execute' AND argument LIKE '%FROM atomic_phases_keys FORCE INDEX%'",
        )
    }

    /// Commands of the log, which is empty then.
    pub fn logged(&self, which: &str) -> Vec<String> {
        let hex = self.0.ask(&format!(
            "SELECT HEX(argument) FROM mysql.general_log WHERE user_host LIKE 'app%' AND {which}"
        ));
        self.0.ask("TRUNCATE mysql.general_log");
        let text = |hex: &str| {
            let digits = hex.as_bytes().chunks(2).map(|two| std::str::from_utf8(two).unwrap());
            let bytes = digits.map(|two| u8::from_str_radix(two, 16).unwrap());
            String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
        };
        hex.lines().map(text).collect()
    }

    /// Asserts that a statement reads the engine's tables by an index, not from its begin to its end, and sorts none.
    fn reads_a_part_of_an_index(&self, url: &str, sql: &str) {
        let database = url.rsplit_once('/').unwrap().1;
        let explain = if mysqld().is_some() { "EXPLAIN FORMAT=TRADITIONAL" } else { "EXPLAIN" };
        let plan = self.0.ask(&format!("USE {database}; {explain} {sql}"));
        // What is not in brackets is a table, or its alias.
        let is_stored = |line: &&str| {
            let name = line.split('\t').nth(2).unwrap_or("<");
            !name.starts_with('<') && !["NULL", "looked", "ends"].contains(&name)
        };
        let tables: Vec<&str> = plan.lines().filter(is_stored).collect();
        assert!(!tables.is_empty(), "{plan}");
        for table in tables {
            let reads_all = ["\tALL\t", "filesort"].iter().any(|word| table.contains(word));
            assert!(!reads_all, "{sql}\n{plan}");
        }
    }

    /// How many rows the server reads for a statement, which is undone.
    fn rows_read(&self, url: &str, sql: &str) -> u64 {
        let database = url.rsplit_once('/').unwrap().1;
        let asked = self.0.ask(&format!(
            "USE {database}; FLUSH STATUS; BEGIN; {sql}; SHOW SESSION STATUS LIKE 'Handler_read%'; ROLLBACK"
        ));
        let counts = asked.lines().filter(|line| line.starts_with("Handler_read"));
        counts.map(|line| line.rsplit('\t').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    /// How many transactions have written and committed, without that of the log itself.
    pub fn commits(&self) -> u64 {
        let count =
            "SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rw_commits'";
        self.0.ask(count).parse().unwrap()
    }
}

/// The log shows the values in place: bytes with any content.
fn without_literals(sql: &str) -> String {
    let (mut outside, mut signs) = (String::new(), sql.chars());
    while let Some(sign) = signs.next() {
        if sign != '\'' {
            outside.push(sign);
            continue;
        }
        while let Some(inside) = signs.next() {
            match inside {
                '\\' => drop(signs.next()),
                '\'' => break,
                _ => {}
            }
        }
    }
    outside
}

const LOOK: [&str; 1] = ["SELECT request_id, definition,"];
/// A block that begins a transaction is recognized by the words of its first statement, which rolls back.
const BEGIN: [&str; 4] =
    ["BEGIN NOT ATOMIC", "SET SESSION autocommit", "START TRANSACTION", "SAVEPOINT atomic_phases"];
const RESERVE: [&str; 2] =
    ["INSERT INTO atomic_phases_keys", "SET SESSION innodb_lock_wait_timeout"];
/// A block that ends it: its first statement notes the current part.
const MARK: [&str; 2] = ["BEGIN NOT ATOMIC", "RELEASE SAVEPOINT atomic_phases"];
const JOB: [&str; 1] = ["INSERT INTO atomic_phases_staged_jobs"];
const COMMIT: [&str; 1] = ["COMMIT AND NO"];
/// What a block sets for its session, by the name under which the connection has prepared it: for a phase's statements, for
/// the engine's behind them, and for the next transaction.
const PHASE: [&str; 1] = ["EXECUTE atomic_phases_phase"];
const ENGINE: [&str; 1] = ["EXECUTE atomic_phases_engine"];
const REST: [&str; 1] = ["EXECUTE atomic_phases_rest"];
/// The words of a transaction that is one block.
const WHOLE: [&str; 5] =
    ["BEGIN NOT ATOMIC", "RESIGNAL", "END", "ROLLBACK AND NO", "START TRANSACTION"];
/// The statement that notes the current part of the block, with the settings.
const PLACE: [&str; 1] = ["SET @atomic_phases ="];
const CREATE: [&str; 1] = ["INSERT INTO atomic_phases_keys"];
const GUARDED: [&str; 4] =
    ["UPDATE atomic_phases_keys FORCE", "IF ROW_COUNT() <>", "SIGNAL SQLSTATE SET", "END IF"];
const END: [&str; 1] = ["END"];

fn texts(parts: &[&[&str]]) -> Vec<String> {
    parts.concat().into_iter().map(str::to_owned).collect()
}

/// Writes with a `Batch` in both of its phases.
#[derive(Serialize, Deserialize)]
struct Hop;

#[atomic_phases(name = "hop", version = 1)]
impl Hop {
    #[phase(commit)]
    async fn begun(
        &self,
        batch: &mut Batch<'_, Mysql>,
        ctx: &RequestContext,
    ) -> PhaseResult<String> {
        let id = ctx.uuid(0).to_string();
        Mysql::add_ride(batch, &id, 1);
        Ok(id)
    }

    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Mysql>, begun: &String) -> PhaseResult<Reply> {
        Mysql::add_to_ride(batch, begun, 2, 2);
        batch.stage_job("receipt", begun)?;
        Ok(Reply::new(201))
    }
}

/// A fresh request of three phases is 2 commits, a replay 1 statement and no write.
#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_request_commits_twice_on_mariadb_and_a_replay_is_one_statement() {
    if mysqld().is_some() {
        // It has no blocks.
        return;
    }
    let (server, url) = tokio::task::spawn_blocking(Observed::start).await.unwrap();
    prepare_my(&url).await;
    let store = open_my(&url.replace("root@", "app@"), 1).await;
    let app = App::default();
    let builder = Engine::builder(store).app(app);
    let engine = builder.register::<Book>().register::<Hop>().build().unwrap();
    finished(engine.call(&scope(), &key("warm"), book(20)).await);
    // A block executes a phase's statement by its name from the second time on.
    finished(engine.call(&scope(), &key("warm-hop"), Hop).await);
    finished(engine.call(&scope(), &key("warm-hop-again"), Hop).await);

    let (_, before) = (server.sent(), server.commits());
    finished(engine.call(&scope(), &key("fresh"), book(20)).await);
    let fresh = [
        texts(&[&LOOK]),
        texts(&[&BEGIN, &RESERVE, &END]),
        texts(&[&["INSERT INTO `rides`"]]),
        texts(&[&MARK, &ENGINE, &GUARDED, &PLACE, &COMMIT, &REST, &END]),
        texts(&[&BEGIN, &END]),
        texts(&[&["INSERT INTO `steps`"]]),
        texts(&[&MARK, &ENGINE, &JOB, &JOB, &GUARDED, &PLACE, &COMMIT, &REST, &END]),
    ];
    assert_eq!(server.commits() - before, 2, "transactions that wrote");
    assert_eq!(server.sent(), fresh);

    let before = server.commits();
    assert!(finished(engine.call(&scope(), &key("fresh"), book(20)).await).replayed);
    assert_eq!(server.commits() - before, 0, "a replay writes nothing");
    assert_eq!(server.sent(), [texts(&[&LOOK])]);
    // Else the server sorts the indexes that it could read the row by, at each execution: a fifth of what the read costs.
    assert!(finished(engine.call(&scope(), &key("fresh"), book(20)).await).replayed);
    let look = server.logged("command_type = 'Execute'");
    let goes_by_the_key =
        |sql: &String| sql.contains("FROM atomic_phases_keys FORCE INDEX (PRIMARY) WHERE");
    assert!(look.len() == 1 && look.iter().all(goes_by_the_key), "{look:?}");

    // With a `Batch` and a new key, the row is created as the phase leaves it, and each transaction is one round
    // trip.
    let before = server.commits();
    finished(engine.call(&scope(), &key("hop"), Hop).expect_new().await);
    let handed_over = [
        texts(&[
            &WHOLE,
            &PLACE,
            &CREATE,
            &PHASE,
            &["EXECUTE atomic_phases_0 USING"],
            &PLACE,
            &COMMIT,
            &REST,
            &END,
        ]),
        texts(&[
            &WHOLE,
            &PHASE,
            &["EXECUTE atomic_phases_1 USING"],
            &ENGINE,
            &JOB,
            &GUARDED,
            &PLACE,
            &COMMIT,
            &REST,
            &END,
        ]),
    ];
    assert_eq!(server.commits() - before, 2, "transactions that wrote");
    assert_eq!(server.sent(), handed_over);
}

#[derive(Serialize, Deserialize)]
struct Booked(String);

#[derive(Serialize, Deserialize)]
struct Paid(String);

async fn pay(call: ForeignCall) -> PhaseResult<Paid, ForeignError> {
    let key = call.make(async |key| Ok::<_, ForeignError>(key.as_str().to_owned()));
    Ok(Paid(key.await?))
}

/// The request of the bench: two inserts, a call, and an update with a job.
#[derive(Serialize, Deserialize)]
struct Trip;

#[atomic_phases(name = "trip", version = 1)]
impl Trip {
    #[phase]
    async fn booked(&self, tx: &mut Tx<'_, Mysql>, ctx: &RequestContext) -> PhaseResult<Booked> {
        let id = ctx.uuid(0).to_string();
        Mysql::insert_ride(tx, &id, 20).await?;
        Mysql::insert_step(tx, &id, "booked").await?;
        Ok(Booked(id))
    }

    #[phase(foreign(idempotent))]
    async fn paid(&self, call: ForeignCall) -> PhaseResult<Paid, ForeignError> {
        pay(call).await
    }

    #[phase]
    async fn answered(
        &self,
        tx: &mut Tx<'_, Mysql>,
        booked: &Booked,
        paid: &Paid,
    ) -> PhaseResult<Reply> {
        use diesel_async::RunQueryDsl;
        let update = diesel::sql_query("UPDATE rides SET amount = amount + 1 WHERE id = ?");
        update.bind::<Text, _>(booked.0.clone()).execute(tx).await?;
        tx.stage_job("receipt", &booked.0)?;
        Ok(Reply::json(201, &(booked, paid))?)
    }
}

/// The same, with its statements in a `Batch`.
#[derive(Serialize, Deserialize)]
struct BatchTrip;

#[atomic_phases(name = "batch_trip", version = 1)]
impl BatchTrip {
    #[phase]
    async fn booked(
        &self,
        batch: &mut Batch<'_, Mysql>,
        ctx: &RequestContext,
    ) -> PhaseResult<Booked> {
        let id = ctx.uuid(0).to_string();
        Mysql::add_ride(batch, &id, 20);
        Mysql::add_independent_step(batch, &id, "booked");
        Ok(Booked(id))
    }

    #[phase(foreign(idempotent))]
    async fn paid(&self, call: ForeignCall) -> PhaseResult<Paid, ForeignError> {
        pay(call).await
    }

    #[phase]
    async fn answered(
        &self,
        batch: &mut Batch<'_, Mysql>,
        booked: &Booked,
        paid: &Paid,
    ) -> PhaseResult<Reply> {
        Mysql::add_to_ride(batch, &booked.0, 1, 1);
        batch.stage_job("receipt", &booked.0)?;
        Ok(Reply::json(201, &(booked, paid))?)
    }
}

/// The round trips of docs/bench/mariadb.md, "Counted", and what a MySQL needs for the same requests, to which the store
/// sends the statements of a `Batch` one by one. A connection has prepared its statements before.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_takes_as_many_round_trips_as_the_bench_has_counted() {
    // With a `Tx`; with a `Batch`; the same with a new key; a replay.
    for (has_blocks, expected) in [(true, [8, 3, 2, 1]), (false, [8, 8, 7, 1])] {
        if has_blocks && mysqld().is_some() {
            continue;
        }
        let db = Mysql::fresh().await;
        let proxy = MysqlProxy::start(db.__url()).await;
        let url = proxy.url(db.__url());
        let store = match has_blocks {
            true => open_my(&url, 1).await,
            false => open_my_without_blocks(&url, 1).await,
        };
        // A query of the pauses would count.
        let builder = Engine::builder(store).pauses_every(Duration::from_secs(3600));
        let engine = builder.register::<Trip>().register::<BatchTrip>().build().unwrap();
        let mut trips = Vec::new();
        // The first round prepares; the second, what may differ each time (diesel's `UPDATE`), to keep it.
        for name in ["first", "second", "third"] {
            trips.clear();
            let mut before = proxy.commands();
            let mut count = || {
                let sent = proxy.commands();
                trips.push(sent - before);
                before = sent;
            };
            let named = |request: &str| key(&format!("{name}-{request}"));
            finished(engine.call(&scope(), &named("tx"), Trip).await);
            count();
            finished(engine.call(&scope(), &named("batch"), BatchTrip).await);
            count();
            finished(engine.call(&scope(), &named("new"), BatchTrip).expect_new().await);
            count();
            assert!(finished(engine.call(&scope(), &named("tx"), Trip).await).replayed);
            count();
        }
        assert_eq!(trips, expected, "blocks: {has_blocks}");
    }
}

/// The statements of docs/bench/mariadb.md, "Counted". The server counts a command, and each instruction of a block: of a
/// `SET` each assignment, of an `EXECUTE` not the statement that it executes.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_as_many_statements_as_the_bench_has_counted() {
    const REQUESTS: u64 = 100;
    if mysqld().is_some() {
        // It has no blocks.
        return;
    }
    let server = tokio::task::spawn_blocking(|| Server::start(&[])).await.unwrap();
    let url = server.new_database();
    // The instructions of a trigger count, too.
    prepare_my(&url).await.sql("DROP TRIGGER forward_only").await;
    let builder = Engine::builder(open_my(&url, 1).await).pauses_every(Duration::from_secs(3600));
    let engine = builder.register::<Trip>().register::<BatchTrip>().build().unwrap();
    let queries = || {
        let count = "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'queries'";
        server.ask(count).parse::<u64>().unwrap()
    };
    for (path, expected) in [("tx", 42), ("batch", 27), ("new", 26), ("replay", 1)] {
        let request = async |name: String| {
            let engine = &engine;
            finished(match path {
                "tx" => engine.call(&scope(), &key(&name), Trip).await,
                "batch" => engine.call(&scope(), &key(&name), BatchTrip).await,
                "new" => engine.call(&scope(), &key(&name), BatchTrip).expect_new().await,
                _ => engine.call(&scope(), &key("tx-0"), Trip).await,
            })
        };
        for number in 0..10 {
            request(format!("{path}-warm-{number}")).await;
        }
        let before = queries();
        for number in 0..REQUESTS {
            assert_eq!(request(format!("{path}-{number}")).await.replayed, path == "replay");
        }
        let counted = queries() - before;
        // The question for the count is some statements, too.
        let others = counted % REQUESTS;
        assert_eq!(counted / REQUESTS, expected, "{path}, and {others} others");
        assert!(others < 20, "{path}: {counted} of {REQUESTS} requests");
    }
}

/// Y49: an operator's page reads a bounded part of one index, in its order, and sorts no table.
#[tokio::test(flavor = "multi_thread")]
async fn operators_lists_are_read_in_the_order_of_an_index() {
    let (server, url) = tokio::task::spawn_blocking(Observed::start).await.unwrap();
    let db = prepare_my(&url).await;
    let store = open_my(&url.replace("root@", "app@"), 1).await;
    let engine = engine(&store, &App::default());
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    db.sql(&format!(
        "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, definition_version, \
         phases, fingerprint, status, recovery_point, lease_token, attempts, advanced_at, created_at, \
         expires_at, params, run_after, waiting_since) \
         SELECT scope, 'k' || n, randomblob(16), definition, definition_version, phases, fingerprint, \
         'unknown', recovery_point, 1, 1, created_at, created_at, expires_at + n, 'x', created_at + n, \
         created_at + n FROM atomic_phases_keys, {}; ANALYZE TABLE atomic_phases_keys",
        numbers::<Mysql>(20_000)
    ))
    .await;
    let ops = engine.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap());
    server.lists();
    for filter in
        [Filter::new(), Filter::waiting(), Filter::new().states([State::Due, State::BackingOff])]
    {
        let page = ops.list(filter.clone().page(10)).await.unwrap();
        if let Some(cursor) = page.next {
            ops.list(filter.page(10).after(cursor)).await.unwrap();
        }
    }
    let lists = server.lists();
    assert!(lists.len() >= 5, "{lists:#?}");
    for list in lists {
        server.reads_a_part_of_an_index(&url, &list);
        // Each column of a derived table is copied, a body, too.
        assert!(!list.contains("SELECT *"), "{list}");
    }
    ops.dead_jobs(None, 10).await.unwrap();
    let jobs = server.logged(
        "command_type = 'Execute' AND argument LIKE '%FROM atomic_phases_staged_jobs WHERE run_after IS NULL%'",
    );
    assert!(!jobs.is_empty() && !jobs.iter().any(|sql| sql.contains("SELECT *")), "{jobs:#?}");
    db.sql(&format!(
        "INSERT INTO atomic_phases_staged_jobs (scope, request_id, position, job_id, idempotency_key, name, args, \
         staged_at, run_after) SELECT scope, randomblob(16), 1, randomblob(16), '', 'gone', '', created_at, \
         created_at - 120000 - n FROM atomic_phases_keys, {} WHERE idempotency_key = 'k'; \
         ANALYZE TABLE atomic_phases_staged_jobs",
        numbers::<Mysql>(20_000)
    ))
    .await;
    assert_eq!(ops.late_jobs(10).await.unwrap().len(), 10);
    let late = server.logged(
        "command_type = 'Execute' AND argument LIKE '%FORCE INDEX (atomic_phases_staged_jobs_due)%'",
    );
    assert!(!late.is_empty() && !late.iter().any(|sql| sql.contains("SELECT *")), "{late:#?}");
    for search in late {
        server.reads_a_part_of_an_index(&url, &search);
    }
}

/// Y49, G17: what a worker looks for is a bounded part of one index, in its order, from any place in it. Each of its
/// columns begins several indexes, and only one of them has the order.
#[tokio::test(flavor = "multi_thread")]
async fn workers_searches_read_a_bounded_part_of_an_index() {
    const PAGE: u32 = 100;
    let (server, url) = tokio::task::spawn_blocking(Observed::start).await.unwrap();
    let db = prepare_my(&url).await;
    let store = open_my(&url.replace("root@", "app@"), 1).await;
    let engine = engine(&store, &App::default());
    finished(engine.call(&scope(), &key("k"), book(20)).await);
    // Of another build's request: nothing runs, so that the next page is looked for. A quarter each is due, held by a
    // process that is gone, expired, and a dead letter that has expired before all of those.
    let rows = |name: &str, status: &str, run_after: &str, locked_until: &str, expires_at: &str| {
        format!(
            "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, definition_version, \
             phases, fingerprint, status, recovery_point, lease_token, attempts, advanced_at, created_at, \
             expires_at, params, run_after, locked_until) \
             SELECT scope, '{name}' || n, randomblob(16), 'gone', definition_version, phases, fingerprint, \
             '{status}', recovery_point, 1, 1, created_at, created_at, {expires_at}, 'x', {run_after}, \
             {locked_until} FROM atomic_phases_keys, {} WHERE idempotency_key = 'k'; ",
            numbers::<Mysql>(3_000)
        )
    };
    let held = "created_at + 86400000 - n";
    let fill = [
        rows("due", "pending", "created_at - n", "NULL", "expires_at + n"),
        rows("held", "in_progress", "NULL", "created_at - n", held),
        rows("expired", "completed", "NULL", "NULL", "created_at - 90000000 - n"),
        rows("dead", "dead_letter", "NULL", "NULL", "created_at - 180000000 - n"),
        format!(
            "INSERT INTO atomic_phases_staged_jobs (scope, request_id, position, job_id, idempotency_key, name, args, \
             staged_at, run_after) SELECT scope, randomblob(16), 1, randomblob(16), '', 'gone', '', created_at, \
             created_at - n FROM atomic_phases_keys, {} WHERE idempotency_key = 'k'; ",
            numbers::<Mysql>(5_000)
        ),
        "ANALYZE TABLE atomic_phases_keys, atomic_phases_staged_jobs".to_owned(),
    ];
    db.sql(&fill.concat()).await;
    server.logged("true");
    for _ in 0..2 {
        Completer::new(&engine, config().batch(PAGE)).run_once().await.unwrap();
        Enqueuer::new(&engine, Handlers::new(), config().batch(PAGE)).run_once().await.unwrap();
        Reaper::new(&store, config().batch(PAGE)).run_once().await.unwrap();
    }
    let searches = server.logged("command_type = 'Execute'");
    for (what, page, part) in [
        ("due", PAGE, "FROM atomic_phases_keys WHERE run_after <="),
        ("held", PAGE, "WITH looked AS"),
        ("jobs due", PAGE, "FROM atomic_phases_staged_jobs AS j WHERE run_after <="),
        // The reaper's own: `WorkerConfig::reap_batch`.
        ("expired", 200, "status = 'completed' FROM atomic_phases_keys"),
        ("reaped", 200, "DELETE k FROM"),
    ] {
        let found: Vec<_> = searches.iter().filter(|sql| sql.contains(part)).collect();
        assert!(found.len() >= 2, "{what}: {searches:#?}");
        // The first, and the last, which begins behind a page.
        for search in [found[0], found[found.len() - 1]] {
            server.reads_a_part_of_an_index(&url, search);
            // That for rows that are held has a page of its own, of ten thousand entries.
            if what != "held" {
                let read = server.rows_read(&url, search);
                println!("{what}: {read} rows for a page of {page}");
                assert!(read <= 10 * u64::from(page), "{what}: {read}: {search}");
            }
        }
    }
}
