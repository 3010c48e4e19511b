//! The floors of *tx completed* and *batch completed*: accepted requests by hand, of which each claim takes as many as a
//! batch of the worker's has. On a narrow table, where nothing is decoded, checked or fenced; and on the engine's own, with
//! their indexes and with G1 to G8.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::try_join_all;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, NoTls, Row, Statement};
use uuid::Uuid;

use super::{CONCURRENT, TOGETHER};
use crate::by_hand::{HEADERS, hash};
use crate::server::Server;

/// A claimed request, and what is written for it.
#[derive(Default)]
struct Claimed {
    scope: String,
    key: String,
    request: String,
    token: i64,
    ride: String,
    audit: String,
    charge: String,
    outputs: String,
    body: String,
}

type Bind = fn(&Claimed) -> Vec<&(dyn ToSql + Sync)>;

/// A statement, in parts, and what of a claimed request is bound to it.
struct Sql {
    text: &'static [&'static str],
    values: Bind,
}

/// The statements on the rows of keys and jobs.
pub struct Tables {
    claim: &'static str,
    claimed: fn(&Row) -> Claimed,
    advance: Sql,
    job: Sql,
    finish: Sql,
    /// The first transaction as a single statement, and the last.
    first: Sql,
    last: Sql,
}

pub static NARROW: Tables = Tables {
    claim: "UPDATE hand_accepted SET token = token + 1, locked_until = clock_timestamp() + interval '30 s', \
        run_after = clock_timestamp() + interval '30 s' WHERE (scope, idempotency_key) IN (SELECT scope, idempotency_key \
        FROM hand_accepted WHERE run_after <= clock_timestamp() ORDER BY run_after LIMIT $1 FOR UPDATE SKIP LOCKED) \
        RETURNING scope, idempotency_key, params",
    claimed: |row| Claimed {
        scope: row.get(0),
        key: row.get(1),
        ride: new_id(),
        audit: new_id(),
        charge: "ch_0123456789".to_owned(),
        ..Claimed::default()
    },
    advance: Sql {
        text: &[
            "UPDATE hand_accepted SET recovery_point = 'created', outputs = convert_to($3, 'UTF8') \
            WHERE scope = $1 AND idempotency_key = $2 AND token = 1 AND recovery_point = 'started'",
        ],
        values: |it| vec![&it.scope, &it.key, &it.ride],
    },
    job: Sql {
        text: &["INSERT INTO limit_jobs (scope, name, args) \
            VALUES ($1, 'receipt', convert_to('2000', 'UTF8'))"],
        values: |it| vec![&it.scope],
    },
    finish: Sql {
        text: &[
            "UPDATE hand_accepted SET recovery_point = 'finished', locked_until = NULL, run_after = NULL, \
            response_status = 201, response_body = convert_to($3, 'UTF8') WHERE scope = $1 \
            AND idempotency_key = $2 AND token = 1 AND recovery_point = 'created'",
        ],
        values: |it| vec![&it.scope, &it.key, &it.charge],
    },
    first: Sql {
        text: &[
            "WITH key AS (UPDATE hand_accepted SET recovery_point = 'created', outputs = convert_to($3, 'UTF8') \
            WHERE scope = $1 AND idempotency_key = $2 AND token = 1 AND recovery_point = 'started' RETURNING 1), \
            ride AS (INSERT INTO bench_rides (id, amount, charge) VALUES ($3, 2000, '')), \
            audit AS (INSERT INTO bench_audits (id, action) VALUES ($4, 'created')) SELECT count(*) FROM key",
        ],
        values: |it| vec![&it.scope, &it.key, &it.ride, &it.audit],
    },
    last: Sql {
        text: &[
            "WITH key AS (UPDATE hand_accepted SET recovery_point = 'finished', locked_until = NULL, \
            run_after = NULL, response_status = 201, response_body = convert_to($4, 'UTF8') \
            WHERE scope = $1 AND idempotency_key = $2 AND token = 1 AND recovery_point = 'created' RETURNING 1), \
            ride AS (UPDATE bench_rides SET charge = $4 WHERE id = $3), \
            job AS (INSERT INTO limit_jobs (scope, name, args) SELECT $1, 'receipt', convert_to('2000', 'UTF8')) \
            SELECT count(*) FROM key",
        ],
        values: |it| vec![&it.scope, &it.key, &it.ride, &it.charge],
    },
};

/// Each claim is guarded as the engine's own of many rows is (G10); each write of a phase, by request, lease token and
/// recovery point, and an error where it finds no row, which undoes the transaction (G3).
pub static ENGINES: Tables = Tables {
    claim: "UPDATE atomic_phases_keys SET status = 'in_progress', lease_token = lease_token + 1, \
        locked_until = clock.now + interval '30 s', run_after = clock.now + interval '30 s', \
        expires_at = greatest(expires_at, clock.now + interval '1 day'), attempts = attempts + 1 \
        FROM (SELECT scope AS of_scope, idempotency_key AS of_key, request_id AS of_request, lease_token AS token, \
        status AS of_status, recovery_point AS stands_at FROM atomic_phases_keys \
        WHERE run_after <= statement_timestamp() AND status = 'pending' \
        ORDER BY run_after, scope, idempotency_key LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED) AS given, \
        (SELECT clock_timestamp() AS now OFFSET 0) AS clock \
        WHERE scope = given.of_scope AND idempotency_key = given.of_key AND request_id = given.of_request \
        AND lease_token = given.token AND status = given.of_status AND recovery_point = given.stands_at \
        AND (status <> 'in_progress' OR locked_until IS NULL OR locked_until <= clock.now) \
        RETURNING scope, idempotency_key, request_id::text, lease_token, params",
    claimed: |row| {
        let (scope, key): (String, String) = (row.get(0), row.get(1));
        let ride = new_id();
        let charge = format!("ch_{}", &hash(&[scope.as_str(), key.as_str(), "charged"])[..32]);
        let outputs = format!(r#"[{{"ride":"{ride}"}}]"#);
        let body = format!(r#"{{"ride":"{ride}","charge":"{charge}"}}"#);
        let (request, token, audit) = (row.get(2), row.get(3), new_id());
        Claimed { scope, key, request, token, ride, audit, charge, outputs, body }
    },
    advance: Sql {
        text: &[ADVANCE, IS_WRITTEN],
        values: |it| vec![&it.scope, &it.key, &it.request, &it.token, &it.outputs],
    },
    job: Sql { text: &[STAGE], values: |it| vec![&it.scope, &it.key, &it.request] },
    finish: Sql {
        text: &[FINISH, IS_WRITTEN],
        values: |it| vec![&it.scope, &it.key, &it.request, &it.token, &HEADERS, &it.body],
    },
    first: Sql {
        text: &[
            ADVANCE,
            ", ride AS (INSERT INTO bench_rides (id, amount, charge) VALUES ($6, 2000, '')), \
             audit AS (INSERT INTO bench_audits (id, action) VALUES ($7, 'created'))",
            IS_WRITTEN,
        ],
        values: |it| {
            vec![&it.scope, &it.key, &it.request, &it.token, &it.outputs, &it.ride, &it.audit]
        },
    },
    last: Sql {
        text: &[
            FINISH,
            ", ride AS (UPDATE bench_rides SET charge = $7 WHERE id = $8), job AS (",
            STAGE,
            ")",
            IS_WRITTEN,
        ],
        values: |it| {
            let (request, token) = (&it.request, &it.token);
            vec![&it.scope, &it.key, request, token, &HEADERS, &it.body, &it.charge, &it.ride]
        },
    },
};

const ADVANCE: &str = "WITH written AS (UPDATE atomic_phases_keys SET recovery_point = 'created', \
    advanced_at = clock_timestamp(), locked_until = clock_timestamp() + interval '30 s', \
    outputs = convert_to($5, 'UTF8') WHERE scope = $1 AND idempotency_key = $2 AND request_id = $3::text::uuid \
    AND lease_token = $4 AND recovery_point = 'started' AND status = 'in_progress' RETURNING 1)";

const FINISH: &str = "WITH written AS (UPDATE atomic_phases_keys SET recovery_point = 'finished', \
    status = 'completed', advanced_at = clock_timestamp(), locked_until = NULL, run_after = NULL, \
    response_status = 201, response_headers = convert_to($5, 'UTF8'), response_body = convert_to($6, 'UTF8') \
    WHERE scope = $1 AND idempotency_key = $2 AND request_id = $3::text::uuid AND lease_token = $4 \
    AND recovery_point = 'created' AND status = 'in_progress' RETURNING 1)";

const IS_WRITTEN: &str = " SELECT 1 / count(*) FROM written";

const STAGE: &str = "INSERT INTO atomic_phases_staged_jobs (scope, request_id, idempotency_key, args, position, \
    job_id, name, staged_at, run_after) SELECT $1::text, $3::text::uuid, $2::text, convert_to('2000', 'UTF8'), 1, \
    gen_random_uuid(), 'receipt', t, t FROM clock_timestamp() AS t";

fn new_id() -> String {
    Uuid::new_v4().to_string()
}

static BEGIN: Sql = Sql { text: &["BEGIN ISOLATION LEVEL READ COMMITTED"], values: |_| Vec::new() };

static RIDE: Sql = Sql {
    text: &["INSERT INTO bench_rides (id, amount, charge) VALUES ($1, 2000, '')"],
    values: |it| vec![&it.ride],
};

static AUDIT: Sql = Sql {
    text: &["INSERT INTO bench_audits (id, action) VALUES ($1, 'created')"],
    values: |it| vec![&it.audit],
};

static CHARGE: Sql = Sql {
    text: &["UPDATE bench_rides SET charge = $2 WHERE id = $1"],
    values: |it| vec![&it.ride, &it.charge],
};

static COMMIT: Sql = Sql { text: &["COMMIT"], values: |_| Vec::new() };

/// Rows of the narrow table, each as an accepted request.
pub async fn accept_on_narrow_table(server: &Server, requests: u64) {
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
pub async fn complete_by_hand(
    server: &Server,
    on: &'static Tables,
    requests: u64,
    single_statement: bool,
) {
    let (queue, left) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU64::new(requests)));
    let mut running = JoinSet::new();
    for _ in 0..CONCURRENT {
        let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        let (queue, left) = (queue.clone(), left.clone());
        let ends = match single_statement {
            true => Ends::SingleStatement(SingleStatement::prepare(&client, on).await),
            false => Ends::OneByOne(OneByOne::prepare(&client, on).await),
        };
        running.spawn(async move { work_off(&client, on, &ends, &queue, &left).await });
    }
    running.join_all().await;
    assert_eq!(left.load(Ordering::Relaxed), 0, "not claimed");
}

async fn work_off(
    client: &Client,
    on: &Tables,
    ends: &Ends,
    queue: &Mutex<Vec<Row>>,
    left: &AtomicU64,
) {
    let claim = client.prepare(on.claim).await.unwrap();
    while left.load(Ordering::Relaxed) > 0 {
        let row = {
            let mut queue = queue.lock().await;
            if queue.is_empty() {
                queue.extend(client.query(&claim, &[&(TOGETHER as i64)]).await.unwrap());
            }
            queue.pop()
        };
        let Some(row) = row else { return };
        let claimed = (on.claimed)(&row);
        match ends {
            Ends::SingleStatement(ends) => ends.end(client, &claimed).await,
            Ends::OneByOne(ends) => ends.end(client, &claimed).await,
        }
        left.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Prepared {
    statement: Statement,
    values: Bind,
}

impl Prepared {
    async fn of(client: &Client, Sql { text, values }: &Sql) -> Self {
        Self { statement: client.prepare(&text.concat()).await.unwrap(), values: *values }
    }

    async fn send(&self, client: &Client, claimed: &Claimed) -> Result<u64, Error> {
        client.execute(&self.statement, &(self.values)(claimed)).await
    }
}

/// How a claimed request is brought to its end.
enum Ends {
    SingleStatement(SingleStatement),
    OneByOne(OneByOne),
}

/// Each transaction as a single statement.
struct SingleStatement {
    first: Prepared,
    last: Prepared,
}

impl SingleStatement {
    async fn prepare(client: &Client, on: &Tables) -> Self {
        Self {
            first: Prepared::of(client, &on.first).await,
            last: Prepared::of(client, &on.last).await,
        }
    }

    async fn end(&self, client: &Client, claimed: &Claimed) {
        self.first.send(client, claimed).await.unwrap();
        self.last.send(client, claimed).await.unwrap();
    }
}

/// As phases with a `Tx`: each statement of a phase is awaited, and what the program adds travels with `COMMIT`.
struct OneByOne {
    begin: Prepared,
    ride: Prepared,
    audit: Prepared,
    advance: Prepared,
    charge: Prepared,
    job: Prepared,
    finish: Prepared,
    commit: Prepared,
}

impl OneByOne {
    async fn prepare(client: &Client, on: &Tables) -> Self {
        Self {
            begin: Prepared::of(client, &BEGIN).await,
            ride: Prepared::of(client, &RIDE).await,
            audit: Prepared::of(client, &AUDIT).await,
            advance: Prepared::of(client, &on.advance).await,
            charge: Prepared::of(client, &CHARGE).await,
            job: Prepared::of(client, &on.job).await,
            finish: Prepared::of(client, &on.finish).await,
            commit: Prepared::of(client, &COMMIT).await,
        }
    }

    async fn end(&self, client: &Client, claimed: &Claimed) {
        for awaited in [&self.begin, &self.ride, &self.audit] {
            awaited.send(client, claimed).await.unwrap();
        }
        together(client, claimed, [&self.advance, &self.commit]).await;
        for awaited in [&self.begin, &self.charge] {
            awaited.send(client, claimed).await.unwrap();
        }
        together(client, claimed, [&self.job, &self.finish, &self.commit]).await;
    }
}

/// Sent in this order, and awaited together.
async fn together<const N: usize>(client: &Client, claimed: &Claimed, statements: [&Prepared; N]) {
    let sent = statements.map(|statement| statement.send(client, claimed));
    try_join_all(sent).await.unwrap();
}
