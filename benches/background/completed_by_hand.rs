//! The floors of *tx completed* and *batch completed*: accepted requests by hand, of which each claim takes as many as a
//! batch of the worker's has.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::try_join_all;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Statement};

use super::{CONCURRENT, TOGETHER};
use crate::server::Server;

pub async fn accept_by_hand(server: &Server, requests: u64) {
    server
        .sql(&format!(
            "INSERT INTO hand_accepted (scope, idempotency_key, fingerprint, params, recovery_point, token, created_at, \
             run_after) SELECT 'tenant-' || n % 100, 'key-' || gen_random_uuid(), \
             'v1-0000000000000000000000000000000000000000000000000000000000000000', \
             '{{\"user\":1,\"amount\":2000}}', 'started', 0, now(), now() FROM generate_series(1, {requests}) AS n"
        ))
        .await;
    server.sql("VACUUM ANALYZE hand_accepted").await;
}

/// Each of them claimed, and brought to its end by two transactions.
pub async fn completed_by_hand(server: &Server, requests: u64, as_one: bool) {
    let (queue, left) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU64::new(requests)));
    let mut running = JoinSet::new();
    for _ in 0..CONCURRENT {
        let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        let (queue, left) = (queue.clone(), left.clone());
        let ends = match as_one {
            true => Ends::AsOne(AsOne::prepare(&client).await),
            false => Ends::InTurn(InTurn::prepare(&client).await),
        };
        running.spawn(async move { complete(&client, &ends, &queue, &left).await });
    }
    running.join_all().await;
}

/// How a claimed request is brought to its end.
enum Ends {
    AsOne(AsOne),
    InTurn(InTurn),
}

/// A claimed request, and the names of what it writes.
struct Claimed {
    scope: String,
    key: String,
    ride: String,
    audit: String,
}

const CHARGE: &str = "ch_0123456789";

async fn complete(
    client: &Client,
    ends: &Ends,
    queue: &Mutex<Vec<(String, String)>>,
    left: &AtomicU64,
) {
    let claim = "UPDATE hand_accepted SET token = token + 1, locked_until = clock_timestamp() + interval '30 s', \
        run_after = clock_timestamp() + interval '30 s' WHERE (scope, idempotency_key) IN (SELECT scope, idempotency_key \
        FROM hand_accepted WHERE run_after <= clock_timestamp() ORDER BY run_after LIMIT $1 FOR UPDATE SKIP LOCKED) \
        RETURNING scope, idempotency_key, params";
    let claim = client.prepare(claim).await.unwrap();
    while left.load(Ordering::Relaxed) > 0 {
        let claimed = {
            let mut queue = queue.lock().await;
            if queue.is_empty() {
                let rows = client.query(&claim, &[&(TOGETHER as i64)]).await.unwrap();
                queue.extend(rows.iter().map(|row| (row.get(0), row.get(1))));
            }
            queue.pop()
        };
        let Some((scope, key)): Option<(String, String)> = claimed else { return };
        let new = || uuid::Uuid::new_v4().to_string();
        let claimed = Claimed { scope, key, ride: new(), audit: new() };
        match ends {
            Ends::AsOne(ends) => ends.end(client, &claimed).await,
            Ends::InTurn(ends) => ends.end(client, &claimed).await,
        }
        left.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Each transaction as a single statement.
struct AsOne {
    first: Statement,
    last: Statement,
}

impl AsOne {
    async fn prepare(client: &Client) -> Self {
        let first = "WITH key AS (UPDATE hand_accepted SET recovery_point = 'created', outputs = convert_to($3, 'UTF8') \
            WHERE scope = $1 AND idempotency_key = $2 AND token = 1 AND recovery_point = 'started' RETURNING 1), \
            ride AS (INSERT INTO bench_rides (id, amount, charge) VALUES ($3, 2000, '')), \
            audit AS (INSERT INTO bench_audits (id, action) VALUES ($4, 'created')) SELECT count(*) FROM key";
        let last = "WITH key AS (UPDATE hand_accepted SET recovery_point = 'finished', locked_until = NULL, run_after = NULL, \
            response_status = 201, response_body = convert_to($4, 'UTF8') WHERE scope = $1 AND idempotency_key = $2 \
            AND token = 1 AND recovery_point = 'created' RETURNING 1), \
            ride AS (UPDATE bench_rides SET charge = $4 WHERE id = $3), \
            job AS (INSERT INTO limit_jobs (scope, name, args) SELECT $1, 'receipt', convert_to('2000', 'UTF8')) \
            SELECT count(*) FROM key";
        let (first, last) = (client.prepare(first).await, client.prepare(last).await);
        Self { first: first.unwrap(), last: last.unwrap() }
    }

    async fn end(&self, client: &Client, Claimed { scope, key, ride, audit }: &Claimed) {
        client.execute(&self.first, &[scope, key, ride, audit]).await.unwrap();
        client.execute(&self.last, &[scope, key, ride, &CHARGE]).await.unwrap();
    }
}

/// As phases with a `Tx`: each statement of a phase is awaited, and what the program adds travels with `COMMIT`.
struct InTurn {
    begin: Statement,
    ride: Statement,
    audit: Statement,
    advance: Statement,
    charge: Statement,
    job: Statement,
    finish: Statement,
    commit: Statement,
}

impl InTurn {
    async fn prepare(client: &Client) -> Self {
        let prepare = async |sql: &str| client.prepare(sql).await.unwrap();
        Self {
            begin: prepare("BEGIN ISOLATION LEVEL READ COMMITTED").await,
            ride: prepare("INSERT INTO bench_rides (id, amount, charge) VALUES ($1, 2000, '')")
                .await,
            audit: prepare("INSERT INTO bench_audits (id, action) VALUES ($1, 'created')").await,
            advance: prepare(
                "UPDATE hand_accepted SET recovery_point = 'created', outputs = convert_to($3, 'UTF8') \
                 WHERE scope = $1 AND idempotency_key = $2 AND token = 1 AND recovery_point = 'started'",
            )
            .await,
            charge: prepare("UPDATE bench_rides SET charge = $2 WHERE id = $1").await,
            job: prepare(
                "INSERT INTO limit_jobs (scope, name, args) VALUES ($1, 'receipt', convert_to('2000', 'UTF8'))",
            )
            .await,
            finish: prepare(
                "UPDATE hand_accepted SET recovery_point = 'finished', locked_until = NULL, run_after = NULL, \
                 response_status = 201, response_body = convert_to($3, 'UTF8') WHERE scope = $1 \
                 AND idempotency_key = $2 AND token = 1 AND recovery_point = 'created'",
            )
            .await,
            commit: prepare("COMMIT").await,
        }
    }

    async fn end(&self, client: &Client, Claimed { scope, key, ride, audit }: &Claimed) {
        // Sent in this order, and awaited together.
        let together = async |statements: &[(&Statement, &[&(dyn ToSql + Sync)])]| {
            let sent = statements.iter().map(|(sql, values)| client.execute(*sql, values));
            try_join_all(sent).await.unwrap();
        };
        client.execute(&self.begin, &[]).await.unwrap();
        client.execute(&self.ride, &[ride]).await.unwrap();
        client.execute(&self.audit, &[audit]).await.unwrap();
        together(&[(&self.advance, &[scope, key, ride]), (&self.commit, &[])]).await;
        client.execute(&self.begin, &[]).await.unwrap();
        client.execute(&self.charge, &[ride, &CHARGE]).await.unwrap();
        let finish: &[&(dyn ToSql + Sync)] = &[scope, key, &CHARGE];
        together(&[(&self.job, &[scope]), (&self.finish, finish), (&self.commit, &[])]).await;
    }
}
