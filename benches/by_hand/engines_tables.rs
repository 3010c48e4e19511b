//! The statements of a fresh request by hand with G1 to G8 on the engine's own tables, with all their columns and indexes:
//! what is left to the engine beside them is what the engine itself does.

use diesel_async::RunQueryDsl;
use tokio::try_join;
use uuid::Uuid;

use super::guarded::{HEADERS, Held, Tables};
use super::{ByHand, Cached, PARAMS, SCOPE, plain};

/// As long as what the engine stores for a request of three phases.
const PHASES: &str = "created charged=i receipt_sent";

pub static ENGINES: Tables = Tables {
    read: |conn, held| read(held).execute(&mut &*conn),
    reserve: |conn, held| reserve(held).execute(&mut &*conn),
    advance: |conn, held| advance(held).execute(&mut &*conn),
    job: |conn, held| job(held).execute(&mut &*conn),
    finish: |conn, held, charge| finish(held, charge).execute(&mut &*conn),
    create: |conn, held| {
        let create = create(held);
        Box::pin(async move {
            let (_, created) = try_join!(wait().execute(&mut &*conn), create.execute(&mut &*conn))?;
            Ok(created)
        })
    },
};

/// Until the end of the transaction.
fn wait() -> Cached<1, 0> {
    plain(&["SELECT set_config('lock_timeout', '1000', true)"])
}

/// The columns that the engine reads of a row.
fn read(held: &Held) -> Cached<15, 2> {
    Cached {
        text: &[
            "SELECT request_id, definition, definition_version, fingerprint, status::text, lease_token, \
             clock_timestamp(), locked_until, run_after, expires_at, trace, response_status, response_headers, \
             response_body FROM atomic_phases_keys WHERE scope = ",
            " AND idempotency_key = ",
        ],
        binds: [SCOPE, &held.key].map(str::to_owned),
    }
}

fn reserve(held: &Held) -> Cached<16, 6> {
    Cached {
        text: &[
            "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, phases, fingerprint, params, \
             definition, definition_version, recovery_point, lease_token, attempts, status, advanced_at, \
             created_at, expires_at, locked_until) SELECT ",
            ", ",
            ", ",
            "::uuid, ",
            ", ",
            ", convert_to(",
            ", 'UTF8'), 'by_hand', 1, 'started', 1, 1, 'in_progress', t, t, t + interval '1 day', \
             t + interval '30 s' FROM clock_timestamp() AS t ON CONFLICT DO NOTHING",
        ],
        binds: [SCOPE, &held.key, &held.id, PHASES, &held.print, PARAMS].map(str::to_owned),
    }
}

/// An error where the row is another holder's, which turns the `COMMIT` behind it into a rollback.
fn advance(held: &Held) -> Cached<17, 5> {
    let outputs = held.outputs();
    Cached {
        text: &[
            "WITH updated AS (UPDATE atomic_phases_keys SET recovery_point = 'created', advanced_at = \
             clock_timestamp(), locked_until = clock_timestamp() + interval '30 s', outputs = convert_to(",
            ", 'UTF8') WHERE scope = ",
            " AND idempotency_key = ",
            " AND request_id = ",
            "::uuid AND lease_token = ",
            "::bigint AND recovery_point = 'started' RETURNING 1) SELECT 1 / count(*) FROM updated",
        ],
        binds: [outputs.as_str(), SCOPE, &held.key, &held.id, "1"].map(str::to_owned),
    }
}

fn job(held: &Held) -> Cached<18, 4> {
    Cached {
        text: &[
            "INSERT INTO atomic_phases_staged_jobs (scope, request_id, idempotency_key, args, position, job_id, \
             name, staged_at, run_after) SELECT ",
            ", ",
            "::uuid, ",
            ", convert_to(",
            ", 'UTF8'), 1, gen_random_uuid(), 'receipt', t, t FROM clock_timestamp() AS t",
        ],
        binds: [SCOPE, &held.id, &held.key, "2000"].map(str::to_owned),
    }
}

const FINISH: &str = "WITH updated AS (UPDATE atomic_phases_keys SET recovery_point = 'finished', \
    status = 'completed', advanced_at = clock_timestamp(), locked_until = NULL, response_status = 201, \
    response_headers = convert_to(";

fn finish(held: &Held, charge: &str) -> Cached<19, 6> {
    let body = held.body(charge);
    Cached {
        text: &[
            FINISH,
            ", 'UTF8'), response_body = convert_to(",
            ", 'UTF8') WHERE scope = ",
            " AND idempotency_key = ",
            " AND request_id = ",
            "::uuid AND lease_token = ",
            "::bigint AND recovery_point = 'created' RETURNING 1) SELECT 1 / count(*) FROM updated",
        ],
        binds: [HEADERS, &body, SCOPE, &held.key, &held.id, "1"].map(str::to_owned),
    }
}

const CREATE: &str = "WITH made AS (INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, phases, \
    fingerprint, params, outputs, definition, definition_version, recovery_point, lease_token, attempts, status, \
    advanced_at, created_at, expires_at, locked_until) SELECT ";

/// As the engine's, it ends the connection where there is no transaction, before the server reads the statements behind it,
/// which would commit by themselves (G4). What [`wait`] said ends with the transaction; or, where the
/// server refused `BEGIN`, with its own statement.
fn create(held: &Held) -> Cached<20, 7> {
    let outputs = held.outputs();
    Cached {
        text: &[
            CREATE,
            ", ",
            ", ",
            "::uuid, ",
            ", ",
            ", convert_to(",
            ", 'UTF8'), convert_to(",
            ", 'UTF8'), 'by_hand', 1, 'created', 1, 1, 'in_progress', t, t, t + interval '1 day', \
             t + interval '30 s' FROM clock_timestamp() AS t WHERE current_setting('lock_timeout') = '1s' \
             ON CONFLICT DO NOTHING RETURNING 1) SELECT CASE WHEN current_setting('lock_timeout') = '1s' \
             THEN 1 / count(*) ELSE pg_terminate_backend(pg_backend_pid())::int END FROM made",
        ],
        binds: [SCOPE, &held.key, &held.id, PHASES, &held.print, PARAMS, &outputs]
            .map(str::to_owned),
    }
}

fn create_single_statement(held: &Held) -> Cached<21, 9> {
    let (outputs, audit) = (held.outputs(), Uuid::new_v4().to_string());
    Cached {
        text: &[
            CREATE,
            ", ",
            ", ",
            "::uuid, ",
            ", ",
            ", convert_to(",
            ", 'UTF8'), convert_to(",
            ", 'UTF8'), 'by_hand', 1, 'created', 1, 1, 'in_progress', t, t, t + interval '1 day', \
             t + interval '30 s' FROM clock_timestamp() AS t ON CONFLICT DO NOTHING RETURNING 1), \
             ride AS (INSERT INTO bench_rides (id, amount, charge) VALUES (",
            ", 2000, '')), audit AS (INSERT INTO bench_audits (id, action) VALUES (",
            ", 'created')) SELECT 1 / count(*) FROM made",
        ],
        binds: [
            SCOPE,
            &held.key,
            &held.id,
            PHASES,
            &held.print,
            PARAMS,
            &outputs,
            &held.ride,
            &audit,
        ]
        .map(str::to_owned),
    }
}

fn finish_single_statement(held: &Held, charge: &str) -> Cached<22, 12> {
    let body = held.body(charge);
    Cached {
        text: &[
            FINISH,
            ", 'UTF8'), response_body = convert_to(",
            ", 'UTF8') WHERE scope = ",
            " AND idempotency_key = ",
            " AND request_id = ",
            "::uuid AND lease_token = ",
            "::bigint AND recovery_point = 'created' RETURNING 1), ride AS (UPDATE bench_rides SET charge = ",
            " WHERE id = ",
            "), job AS (INSERT INTO atomic_phases_staged_jobs (scope, request_id, idempotency_key, args, position, \
             job_id, name, staged_at, run_after) SELECT ",
            ", ",
            "::uuid, ",
            ", convert_to(",
            ", 'UTF8'), 1, gen_random_uuid(), 'receipt', t, t FROM clock_timestamp() AS t) \
             SELECT 1 / count(*) FROM updated",
        ],
        binds: [
            HEADERS, &body, SCOPE, &held.key, &held.id, "1", charge, &held.ride, SCOPE, &held.id,
            &held.key, "2000",
        ]
        .map(str::to_owned),
    }
}

impl ByHand {
    /// As the engine sends a batch in order. Its last phase has one statement, which travels as a single statement together
    /// with the job and the row.
    pub async fn fresh_guarded_in_order(self) {
        let held = self.first_pipelined(&ENGINES).await;
        self.last_single_statement(&held).await;
    }

    /// As the engine sends an independent batch: each transaction as a single statement. If the key is known to be new, it is
    /// not read first.
    pub async fn fresh_guarded_single_statement(self, is_new: bool) {
        let held = if is_new { Held::new() } else { self.new_key(&ENGINES).await };
        let conn = self.connection().await;
        create_single_statement(&held).execute(&mut &*conn).await.unwrap();
        drop(conn);
        self.last_single_statement(&held).await;
    }

    async fn last_single_statement(&self, held: &Held) {
        let charge = held.charge().await;
        let conn = self.connection().await;
        finish_single_statement(held, &charge).execute(&mut &*conn).await.unwrap();
    }
}
