//! The same with G1 to G8, where `fresh` has the least SQL: the first phase's output is known when it ends, and not
//! when the key is reserved (G4); what ends the transaction behind its back is found out, and what follows it is
//! not durable (G4); what is written to a view is where the view leads now (G4); a reservation or a fence that finds no row
//! of its holder's ends the request (G3, G10); the parameters are fingerprinted (G9), the foreign key is derived (G1), and the
//! answer's headers are stored (G8).
//!
//! On a narrow table, which no worker, operator or reaper finds anything in; and on the engine's own tables, with their
//! indexes and with a session that is set to what the engine's is.

use mysql_async::Value;
use uuid::Uuid;

use super::by_hand::{
    AUDIT, ByHand, JOB, NOW, PARAMS, RIDE, SET_CHARGE, UNDO, called, run, values,
};
use crate::by_hand::hash;

const SCOPE: &str = "tenant-1";
const HEADERS: &str = r#"[["content-type","application/json"]]"#;

/// A transaction that outlives its block, with a mark that its end takes along.
const OPEN: &str = "BEGIN NOT ATOMIC ROLLBACK; SET SESSION autocommit = 0, SESSION innodb_lock_wait_timeout = 0; \
    START TRANSACTION; SAVEPOINT guarded";
const WAITS: &str = "SET SESSION innodb_lock_wait_timeout = 50";
const FENCE: &str = "IF ROW_COUNT() <> 1 THEN SIGNAL SQLSTATE '45000'; END IF";

/// The application's statements in the blocks of a whole transaction.
const CREATED: &str = "EXECUTE ride USING ?; EXECUTE audit USING ?";
const ANSWERED: &str = "EXECUTE set_charge USING ?, ?";

/// The statements on the rows of keys and jobs; the same binds on whatever tables.
pub struct Tables {
    look: &'static str,
    /// In front of the recovery point, between it and the outputs, and behind.
    reserve: [&'static str; 3],
    advance: &'static str,
    job: &'static str,
    finish: &'static str,
    /// What the session is set to at the end of each transaction.
    session_reset: &'static str,
    /// Whether a job is a row of the engine's.
    has_wide_jobs: bool,
}

pub const NARROW: Tables = Tables {
    look: "SELECT fingerprint, recovery_point, response_status, response_body, response_headers, request_id, \
        token, locked_until FROM guarded_keys WHERE scope = ? AND idempotency_key = ?",
    reserve: [
        "INSERT INTO guarded_keys (scope, idempotency_key, request_id, fingerprint, params, token, locked_until, \
         created_at, recovery_point, outputs) VALUES (?, ?, ?, ?, ?, 1, CLOCK + 30000, CLOCK, '",
        "', ",
        ")",
    ],
    advance: "UPDATE guarded_keys SET recovery_point = 'created', outputs = ? WHERE scope = ? \
        AND idempotency_key = ? AND request_id = ? AND token = 1 AND recovery_point = 'started'",
    job: JOB,
    finish: "UPDATE guarded_keys SET locked_until = NULL, response_status = 201, response_headers = ?, \
        response_body = ?, recovery_point = 'finished' WHERE scope = ? AND idempotency_key = ? AND request_id = ? \
        AND token = 1 AND recovery_point = 'created'",
    session_reset: "SET SESSION autocommit = 1, SESSION innodb_lock_wait_timeout = 50",
    has_wide_jobs: false,
};

pub const ENGINES: Tables = Tables {
    look: ANSWER,
    reserve: [
        "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, fingerprint, params, definition, \
         definition_version, phases, status, lease_token, attempts, locked_until, advanced_at, created_at, expires_at, \
         recovery_point, outputs) VALUES (?, ?, ?, ?, ?, 'bench.ride', 1, '[\"created\",\"charged\",\"answered\"]', \
         'in_progress', 1, 1, CLOCK + 30000, CLOCK, CLOCK, CLOCK + 86400000, '",
        "', ",
        ") RETURNING advanced_at",
    ],
    advance: "UPDATE atomic_phases_keys FORCE INDEX (PRIMARY) SET outputs = ?, advanced_at = CLOCK, \
        locked_until = CLOCK + 30000, recovery_point = 'created' WHERE scope = ? AND idempotency_key = ? \
        AND request_id = ? AND lease_token = 1 AND recovery_point = 'started' AND status = 'in_progress'",
    job: "INSERT INTO atomic_phases_staged_jobs (scope, idempotency_key, request_id, job_id, args, position, name, \
        staged_at, run_after) VALUES (?, ?, ?, ?, ?, 0, 'receipt', CLOCK, CLOCK)",
    finish: "UPDATE atomic_phases_keys FORCE INDEX (PRIMARY) SET locked_until = NULL, advanced_at = CLOCK, \
        response_status = 201, response_headers = ?, response_body = ?, status = 'completed', \
        recovery_point = 'finished' WHERE scope = ? AND idempotency_key = ? AND request_id = ? \
        AND lease_token = 1 AND recovery_point = 'created' AND status = 'in_progress'",
    session_reset: "EXECUTE session_reset",
    has_wide_jobs: true,
};

/// As `store::mysql::session` says it at the end of a block, where it is a statement with a name: there, a `SET` is as many
/// statements as it has settings.
pub const SESSION_RESET: &str = "SET SESSION autocommit = 1, SESSION completion_type = 0, SESSION time_zone = '+00:00', \
    SESSION timestamp = DEFAULT, SESSION lc_messages = 'en_US', SESSION sql_safe_updates = 0, \
    SESSION sql_big_selects = 1, SESSION innodb_lock_wait_timeout = 0, \
    SESSION lock_wait_timeout = 0, SESSION tx_isolation = 'READ-COMMITTED', SESSION tx_read_only = 0, \
    SESSION idle_transaction_timeout = 60, SESSION max_statement_time = 0, NAMES utf8mb4";

/// As many columns as the engine reads of a row for a replay.
const ANSWER: &str = "SELECT request_id, definition, definition_version, fingerprint, status, lease_token, \
    UTC_TIMESTAMP(6), locked_until, run_after, expires_at, trace, response_status, response_headers, response_body \
    FROM atomic_phases_keys FORCE INDEX (PRIMARY) WHERE scope = ? AND idempotency_key = ?";

fn timed(sql: &str) -> String {
    sql.replace("CLOCK", NOW)
}

impl Tables {
    fn reserve(&self, recovery_point: &str, outputs: &str) -> String {
        let [front, between, behind] = self.reserve;
        timed(&format!("{front}{recovery_point}{between}{outputs}{behind}"))
    }

    fn close(&self, guarded: &str) -> String {
        format!(
            "BEGIN NOT ATOMIC RELEASE SAVEPOINT guarded; {guarded}; {FENCE}; COMMIT; {}; END",
            self.session_reset
        )
    }

    /// As one block, which leaves the session as it was where nothing of it was set.
    fn whole(&self, statements: &str) -> String {
        let rest =
            if self.has_wide_jobs { format!("; {}", self.session_reset) } else { String::new() };
        format!(
            "BEGIN NOT ATOMIC {UNDO}; ROLLBACK; START TRANSACTION; {statements}{rest}; COMMIT; END"
        )
    }

    fn job(&self, held: &Held) -> Vec<Value> {
        match self.has_wide_jobs {
            false => values([SCOPE, "2000"]),
            true => {
                let job = Uuid::new_v4().as_bytes().to_vec();
                [held.guard(), vec![job.into(), "2000".into()]].concat()
            }
        }
    }
}

/// The life of a key that a call has.
struct Held {
    key: String,
    id: Vec<u8>,
    print: String,
    ride: String,
    audit: String,
}

impl Held {
    fn new() -> Self {
        let (key, ride) = (Uuid::new_v4().to_string(), Uuid::new_v4().to_string());
        let (id, audit) = (Uuid::new_v4().as_bytes().to_vec(), Uuid::new_v4().to_string());
        Self { key, id, print: hash(&["POST", "/rides", PARAMS]), ride, audit }
    }

    fn reserve(&self) -> Vec<Value> {
        let (key, id, print) = (&self.key, &self.id, &self.print);
        vec![SCOPE.into(), key.into(), id.into(), print.into(), PARAMS.into()]
    }

    fn outputs(&self) -> Value {
        format!(r#"[{{"ride":"{}"}}]"#, self.ride).into()
    }

    fn guard(&self) -> Vec<Value> {
        vec![SCOPE.into(), (&self.key).into(), (&self.id).into()]
    }

    async fn charge(&self) -> String {
        let foreign_key = hash(&[SCOPE, &self.key, "charged", &self.print]);
        called().await;
        format!("ch_{}", &foreign_key[..32])
    }

    fn finish(&self, charge: &str) -> Vec<Value> {
        let body = format!(r#"{{"ride":"{}","charge":"{charge}"}}"#, self.ride);
        [values([HEADERS, &body]), self.guard()].concat()
    }
}

impl ByHand {
    /// A block in front of the phase's statements, which are awaited one by one, and one behind.
    pub async fn fresh_guarded(self, on: &'static Tables) {
        let held = Held::new();
        assert!(self.read(&timed(on.look), values([SCOPE, &held.key])).await.is_empty());
        let mut conn = self.connection().await;
        let open = format!("{OPEN}; {}; {WAITS}; END", on.reserve("started", "NULL"));
        run(&mut conn, &open, held.reserve()).await;
        run(&mut conn, RIDE, values([&held.ride])).await;
        run(&mut conn, AUDIT, values([&held.audit])).await;
        let advance = on.close(&timed(on.advance));
        run(&mut conn, &advance, [vec![held.outputs()], held.guard()].concat()).await;
        drop(conn);

        let charge = held.charge().await;

        let mut conn = self.connection().await;
        run(&mut conn, &format!("{OPEN}; {WAITS}; END"), Vec::new()).await;
        run(&mut conn, SET_CHARGE, values([&charge, &held.ride])).await;
        let finish = on.close(&timed(&format!("{}; {}", on.job, on.finish)));
        run(&mut conn, &finish, [on.job(&held), held.finish(&charge)].concat()).await;
    }

    /// Each transaction as a single block; for a key that may be new, or is.
    pub async fn fresh_guarded_single_statement(self, on: &'static Tables, is_new: bool) {
        let held = Held::new();
        if !is_new {
            assert!(self.read(&timed(on.look), values([SCOPE, &held.key])).await.is_empty());
        }
        let first =
            [held.reserve(), vec![held.outputs()], values([&held.ride, &held.audit])].concat();
        let create = on.whole(&format!("{}; {CREATED}", on.reserve("created", "?")));
        run(&mut *self.connection().await, &create, first).await;
        let charge = held.charge().await;
        let last = [values([&charge, &held.ride]), on.job(&held), held.finish(&charge)].concat();
        let finish = timed(&format!("{ANSWERED}; {}; {}; {FENCE}", on.job, on.finish));
        run(&mut *self.connection().await, &on.whole(&finish), last).await;
    }

    /// The engine's row, with all columns that a replay judges; and the parameters are fingerprinted.
    pub async fn replay_guarded(self, key: String) {
        let print = hash(&["POST", "/rides", PARAMS]);
        let rows = self.read(&timed(ANSWER), values(["replay", &key])).await;
        let [row] = &rows[..] else { panic!("{} rows", rows.len()) };
        let stored: String = row.get("fingerprint").unwrap();
        // The engine's own is of another form, and so never the same.
        assert!(row.len() == 14 && stored != print);
    }
}
