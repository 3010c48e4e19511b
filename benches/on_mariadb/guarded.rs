//! The same with G1 to G8, where `fresh` has the least SQL: the first phase's output is known when it ends, and not
//! when the key is reserved (G4); what ends the transaction behind its back is found out, and what follows it is
//! not durable (G4); a reservation or a fence that finds no row of its holder's ends the request (G3, G10); the parameters
//! are fingerprinted (G9), the foreign key is derived (G1), and the answer's headers are stored (G8).
//!
//! On a narrow table, still: no worker, operator or reaper finds anything in it.

use mysql_async::Value;
use uuid::Uuid;

use super::by_hand::{
    AUDIT, ByHand, JOB, NOW, PARAMS, RIDE, SET_CHARGE, UNDO, called, run, values,
};
use crate::by_hand::hash;

const SCOPE: &str = "tenant-1";
const HEADERS: &str = r#"[["content-type","application/json"]]"#;

const LOOK: &str = "SELECT fingerprint, recovery_point, response_status, response_body, response_headers, request_id, \
    token, locked_until FROM guarded_keys WHERE scope = ? AND idempotency_key = ?";
const ADVANCE: &str = "UPDATE guarded_keys SET recovery_point = 'created', outputs = ? WHERE scope = ? \
    AND idempotency_key = ? AND request_id = ? AND token = 1 AND recovery_point = 'started'";
const FINISH: &str = "UPDATE guarded_keys SET locked_until = NULL, response_status = 201, response_headers = ?, \
    response_body = ?, recovery_point = 'finished' WHERE scope = ? AND idempotency_key = ? AND request_id = ? \
    AND token = 1 AND recovery_point = 'created'";

/// A transaction that outlives its block, with a mark that its end takes along.
const OPEN: &str = "BEGIN NOT ATOMIC ROLLBACK; SET SESSION autocommit = 0, SESSION innodb_lock_wait_timeout = 0; \
    START TRANSACTION; SAVEPOINT guarded";
const WAITS: &str = "SET SESSION innodb_lock_wait_timeout = 50";
const FENCE: &str = "IF ROW_COUNT() <> 1 THEN SIGNAL SQLSTATE '45000'; END IF";

fn reserve(recovery_point: &str, outputs: &str) -> String {
    format!(
        "INSERT INTO guarded_keys (scope, idempotency_key, request_id, fingerprint, params, outputs, recovery_point, \
         token, locked_until, created_at) VALUES (?, ?, ?, ?, ?, {outputs}, '{recovery_point}', 1, {NOW} + 30000, {NOW})"
    )
}

fn close(guarded: &str) -> String {
    format!(
        "BEGIN NOT ATOMIC RELEASE SAVEPOINT guarded; {guarded}; {FENCE}; COMMIT; SET SESSION autocommit = 1, \
         SESSION innodb_lock_wait_timeout = 50; END"
    )
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
    pub async fn fresh_guarded(self) {
        let held = Held::new();
        assert!(self.read(LOOK, values([SCOPE, &held.key])).await.is_empty());
        let mut conn = self.lent().await;
        run(
            &mut conn,
            &format!("{OPEN}; {}; {WAITS}; END", reserve("started", "NULL")),
            held.reserve(),
        )
        .await;
        run(&mut conn, RIDE, values([&held.ride])).await;
        run(&mut conn, AUDIT, values([&held.audit])).await;
        run(&mut conn, &close(ADVANCE), [vec![held.outputs()], held.guard()].concat()).await;
        drop(conn);

        let charge = held.charge().await;

        let mut conn = self.lent().await;
        run(&mut conn, &format!("{OPEN}; {WAITS}; END"), Vec::new()).await;
        run(&mut conn, SET_CHARGE, values([&charge, &held.ride])).await;
        let last = [values([SCOPE, "2000"]), held.finish(&charge)].concat();
        run(&mut conn, &close(&format!("{JOB}; {FINISH}")), last).await;
    }

    /// Each transaction as one block; for a key that may be new, or is.
    pub async fn fresh_guarded_as_one(self, is_new: bool) {
        let held = Held::new();
        if !is_new {
            assert!(self.read(LOOK, values([SCOPE, &held.key])).await.is_empty());
        }
        let first =
            [held.reserve(), vec![held.outputs()], values([&held.ride, &held.audit])].concat();
        self.whole(&format!("{}; {RIDE}; {AUDIT}", reserve("created", "?")), first).await;
        let charge = held.charge().await;
        let last = [values([&charge, &held.ride, SCOPE, "2000"]), held.finish(&charge)].concat();
        self.whole(&format!("{SET_CHARGE}; {JOB}; {FINISH}; {FENCE}"), last).await;
    }

    async fn whole(&self, statements: &str, values: Vec<Value>) {
        let block = format!(
            "BEGIN NOT ATOMIC {UNDO}; ROLLBACK; START TRANSACTION; {statements}; COMMIT; END"
        );
        run(&mut *self.lent().await, &block, values).await;
    }
}
