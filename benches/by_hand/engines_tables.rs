//! A fresh request by hand with G1 to G8 on the engine's own tables, with all their columns and indexes: what is left to
//! the engine beside it is what the engine itself does.

use uuid::Uuid;

use super::{
    ByHand, Cached, Held, PARAMS, SCOPE, begin, commit, first_phase, hash, set_charge, settings,
};
use diesel_async::RunQueryDsl;
use tokio::try_join;

/// As long as what the engine stores for a request of three phases.
const PHASES: &str = "created charged=i receipt_sent";

/// The columns that the engine reads of a row.
fn read(key: &str) -> Cached<15, 2> {
    Cached {
        text: &[
            "SELECT request_id, definition, definition_version, fingerprint, status::text, lease_token, \
             clock_timestamp(), locked_until, run_after, expires_at, trace, response_status, response_headers, \
             response_body FROM atomic_phases_keys WHERE scope = ",
            " AND idempotency_key = ",
        ],
        binds: [SCOPE, key].map(str::to_owned),
    }
}

fn reserve(held: &Held, fingerprint: &str) -> Cached<16, 6> {
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
        binds: [SCOPE, &held.key, &held.id, PHASES, fingerprint, PARAMS].map(str::to_owned),
    }
}

/// An error where the row is another holder's, which turns the `COMMIT` behind it into a rollback.
fn advance(held: &Held, outputs: &str) -> Cached<17, 5> {
    Cached {
        text: &[
            "WITH moved AS (UPDATE atomic_phases_keys SET recovery_point = 'created', advanced_at = \
             clock_timestamp(), locked_until = clock_timestamp() + interval '30 s', outputs = convert_to(",
            ", 'UTF8') WHERE scope = ",
            " AND idempotency_key = ",
            " AND request_id = ",
            "::uuid AND lease_token = ",
            "::bigint AND recovery_point = 'started' RETURNING 1) SELECT 1 / count(*) FROM moved",
        ],
        binds: [outputs, SCOPE, &held.key, &held.id, "1"].map(str::to_owned),
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

fn finish(held: &Held, body: &str) -> Cached<19, 6> {
    let headers = r#"[["content-type","application/json"]]"#;
    Cached {
        text: &[
            "WITH moved AS (UPDATE atomic_phases_keys SET recovery_point = 'finished', status = 'completed', \
             advanced_at = clock_timestamp(), locked_until = NULL, response_status = 201, \
             response_headers = convert_to(",
            ", 'UTF8'), response_body = convert_to(",
            ", 'UTF8') WHERE scope = ",
            " AND idempotency_key = ",
            " AND request_id = ",
            "::uuid AND lease_token = ",
            "::bigint AND recovery_point = 'created' RETURNING 1) SELECT 1 / count(*) FROM moved",
        ],
        binds: [headers, body, SCOPE, &held.key, &held.id, "1"].map(str::to_owned),
    }
}

impl ByHand {
    /// [`fresh_guarded`](Self::fresh_guarded) on the engine's tables.
    pub async fn fresh_on_engines_tables(self) {
        let held = Held { key: Uuid::new_v4().to_string(), id: Uuid::new_v4().to_string() };
        let print = hash(&["POST", "/rides", PARAMS]);
        let ride = Uuid::new_v4().to_string();
        let conn = self.connection().await;
        assert_eq!(read(&held.key).execute(&mut &*conn).await, Ok(0));
        drop(conn);
        let mut conn = self.connection().await;
        let (_, _, reserved) = try_join!(
            begin().execute(&mut &*conn),
            settings().execute(&mut &*conn),
            reserve(&held, &print).execute(&mut &*conn)
        )
        .unwrap();
        assert_eq!(reserved, 1);
        first_phase(&mut conn, &ride).await.unwrap();
        let outputs = format!(r#"[{{"ride":"{ride}"}}]"#);
        try_join!(advance(&held, &outputs).execute(&mut &*conn), commit().execute(&mut &*conn))
            .unwrap();
        drop(conn);

        let foreign_key = hash(&[SCOPE, &held.key, "charged", &print]);
        let charge =
            tokio::spawn(async move { format!("ch_{}", &foreign_key[..32]) }).await.unwrap();

        let mut conn = self.connection().await;
        try_join!(begin().execute(&mut &*conn), settings().execute(&mut &*conn)).unwrap();
        set_charge(&ride, &charge).execute(&mut conn).await.unwrap();
        let body = format!(r#"{{"ride":"{ride}","charge":"{charge}"}}"#);
        try_join!(
            job(&held).execute(&mut &*conn),
            finish(&held, &body).execute(&mut &*conn),
            commit().execute(&mut &*conn)
        )
        .unwrap();
    }
}
