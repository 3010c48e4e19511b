//! A fresh request by hand with G1 to G8, where [`fresh`](ByHand::fresh) has the least SQL. The statements on the rows of
//! keys and jobs are those of the tables that they are for: narrow ones here, and the
//! [engine's own](super::engines_tables).

use diesel::{ExpressionMethods, QueryResult};
use diesel_async::{AsyncPgConnection, RunQueryDsl};
use futures_util::future::BoxFuture;
use tokio::try_join;
use uuid::Uuid;

use super::{ByHand, Cached, PARAMS, SCOPE, begin, commit, first_phase, hash, job, set_charge};
use crate::requests::{bench_audits, bench_rides};

pub const HEADERS: &str = r#"[["content-type","application/json"]]"#;

/// The life of a key that a call has, and what is written for it.
pub(super) struct Held {
    pub(super) key: String,
    pub(super) id: String,
    pub(super) print: String,
    pub(super) ride: String,
}

impl Held {
    pub(super) fn new() -> Self {
        let [key, id, ride] = [(); 3].map(|()| Uuid::new_v4().to_string());
        Self { key, id, print: hash(&["POST", "/rides", PARAMS]), ride }
    }

    pub(super) fn outputs(&self) -> String {
        format!(r#"[{{"ride":"{}"}}]"#, self.ride)
    }

    /// The foreign call, in another task.
    pub(super) async fn charge(&self) -> String {
        let foreign_key = hash(&[SCOPE, &self.key, "charged", &self.print]);
        tokio::spawn(async move { format!("ch_{}", &foreign_key[..32]) }).await.unwrap()
    }

    pub(super) fn body(&self, charge: &str) -> String {
        format!(r#"{{"ride":"{}","charge":"{charge}"}}"#, self.ride)
    }
}

type Sent<'c> = BoxFuture<'c, QueryResult<usize>>;

type Statement = for<'c> fn(&'c AsyncPgConnection, &Held) -> Sent<'c>;

/// The statements on the rows of keys and jobs.
pub struct Tables {
    pub(super) read: Statement,
    pub(super) reserve: Statement,
    pub(super) advance: Statement,
    pub(super) job: Statement,
    /// With the charge.
    pub(super) finish: for<'c> fn(&'c AsyncPgConnection, &Held, &str) -> Sent<'c>,
    /// Creates the row as its first phase leaves it, in front of that phase's statements, which do not wait for its answer:
    /// an error where the key is taken, which turns the `COMMIT` behind them into a rollback.
    pub(super) create: Statement,
}

pub static NARROW: Tables = Tables {
    read: |conn, held| read(held).execute(&mut &*conn),
    reserve: |conn, held| reserve(held).execute(&mut &*conn),
    advance: |conn, held| advance(held).execute(&mut &*conn),
    job: |conn, _| job(SCOPE, "2000").execute(&mut &*conn),
    finish: |conn, held, charge| finish(held, charge).execute(&mut &*conn),
    create: |conn, held| create(held).execute(&mut &*conn),
};

/// Of the row that a call finds: whose it is, how far it came, whether its holder may be alive, and its answer.
fn read(held: &Held) -> Cached<10, 2> {
    Cached {
        text: &[
            "SELECT fingerprint, recovery_point, response_status, response_body, response_headers, request_id, \
             token, locked_until <= clock_timestamp() FROM guarded_keys WHERE scope = ",
            " AND idempotency_key = ",
        ],
        binds: [SCOPE, &held.key].map(str::to_owned),
    }
}

fn reserve(held: &Held) -> Cached<11, 5> {
    Cached {
        text: &[
            "INSERT INTO guarded_keys (scope, idempotency_key, request_id, fingerprint, params, \
             recovery_point, token, locked_until, created_at) SELECT ",
            ", ",
            ", ",
            ", ",
            ", convert_to(",
            ", 'UTF8'), 'started', 1, t + interval '30 s', t FROM clock_timestamp() AS t \
             ON CONFLICT DO NOTHING",
        ],
        binds: [SCOPE, &held.key, &held.id, &held.print, PARAMS].map(str::to_owned),
    }
}

/// An error where the row is another holder's, which turns the `COMMIT` behind it into a rollback.
fn advance(held: &Held) -> Cached<12, 5> {
    let outputs = held.outputs();
    Cached {
        text: &[
            "WITH updated AS (UPDATE guarded_keys SET recovery_point = 'created', outputs = convert_to(",
            ", 'UTF8'), locked_until = clock_timestamp() + interval '30 s' WHERE scope = ",
            " AND idempotency_key = ",
            " AND request_id = ",
            " AND token = ",
            "::bigint AND recovery_point = 'started' RETURNING 1) SELECT 1 / count(*) FROM updated",
        ],
        binds: [outputs.as_str(), SCOPE, &held.key, &held.id, "1"].map(str::to_owned),
    }
}

fn finish(held: &Held, charge: &str) -> Cached<13, 6> {
    let body = held.body(charge);
    Cached {
        text: &[
            "WITH updated AS (UPDATE guarded_keys SET recovery_point = 'finished', locked_until = NULL, \
             response_status = 201, response_headers = convert_to(",
            ", 'UTF8'), response_body = convert_to(",
            ", 'UTF8') WHERE scope = ",
            " AND idempotency_key = ",
            " AND request_id = ",
            " AND token = ",
            "::bigint AND recovery_point = 'created' RETURNING 1) SELECT 1 / count(*) FROM updated",
        ],
        binds: [HEADERS, &body, SCOPE, &held.key, &held.id, "1"].map(str::to_owned),
    }
}

fn create(held: &Held) -> Cached<14, 6> {
    let outputs = held.outputs();
    Cached {
        text: &[
            "INSERT INTO guarded_keys (scope, idempotency_key, request_id, fingerprint, params, outputs, \
             recovery_point, token, locked_until, created_at) SELECT ",
            ", ",
            ", ",
            ", ",
            ", convert_to(",
            ", 'UTF8'), convert_to(",
            ", 'UTF8'), 'created', 1, t + interval '30 s', t FROM clock_timestamp() AS t",
        ],
        binds: [SCOPE, &held.key, &held.id, &held.print, PARAMS, &outputs].map(str::to_owned),
    }
}

impl ByHand {
    /// The first phase's output is known when it ends, and not when the key is reserved (G4); a reservation or a fence that
    /// finds no row of its holder's ends the request (G3, G10); the parameters are fingerprinted, and a row that is there
    /// is read (G9); the foreign key is derived (G1); and the answer's headers are stored (G8).
    pub async fn fresh_guarded(self, on: &'static Tables) {
        let held = self.new_key(on).await;
        let mut conn = self.connection().await;
        let (_, reserved) =
            try_join!(begin().execute(&mut &*conn), (on.reserve)(&conn, &held)).unwrap();
        assert_eq!(reserved, 1);
        first_phase(&mut conn, &held.ride).await.unwrap();
        try_join!((on.advance)(&conn, &held), commit().execute(&mut &*conn)).unwrap();
        drop(conn);

        let charge = held.charge().await;

        let mut conn = self.connection().await;
        begin().execute(&mut &*conn).await.unwrap();
        set_charge(&held.ride, &charge).execute(&mut conn).await.unwrap();
        try_join!(
            (on.job)(&conn, &held),
            (on.finish)(&conn, &held, &charge),
            commit().execute(&mut &*conn)
        )
        .unwrap();
    }

    /// The same on the narrow tables with each transaction in one round trip.
    pub async fn fresh_guarded_pipelined(self) {
        let held = self.first_pipelined(&NARROW).await;
        let charge = held.charge().await;

        let conn = self.connection().await;
        try_join!(
            begin().execute(&mut &*conn),
            finish(&held, &charge).execute(&mut &*conn),
            set_charge(&held.ride, &charge).execute(&mut &*conn),
            job(SCOPE, "2000").execute(&mut &*conn),
            commit().execute(&mut &*conn)
        )
        .unwrap();
    }

    /// The row and the first phase in one round trip. The phase needs no answer, so its output is known when the key is
    /// reserved.
    pub(super) async fn first_pipelined(&self, on: &Tables) -> Held {
        use {bench_audits as a, bench_rides as r};
        let held = self.new_key(on).await;
        let conn = self.connection().await;
        let row = (r::id.eq(&held.ride), r::amount.eq(2000), r::charge.eq(""));
        let audit = Uuid::new_v4().to_string();
        let audit = (a::id.eq(&audit), a::action.eq("created"));
        try_join!(
            begin().execute(&mut &*conn),
            (on.create)(&conn, &held),
            diesel::insert_into(r::table).values(row).execute(&mut &*conn),
            diesel::insert_into(a::table).values(audit).execute(&mut &*conn),
            commit().execute(&mut &*conn),
        )
        .unwrap();
        held
    }

    /// One of which the tables have no row.
    pub(super) async fn new_key(&self, on: &Tables) -> Held {
        let held = Held::new();
        let conn = self.connection().await;
        assert_eq!((on.read)(&conn, &held).await, Ok(0));
        held
    }
}
