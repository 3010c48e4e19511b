//! A statement that MySQL's client refuses before it is sent fails its phase, as one that the server refuses does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use atomic_phases::engine::FailureCause;
use atomic_phases::store::{Mysql, MysqlConn};
use atomic_phases::{Engine, PhaseResult, Reply, Tx, atomic_phases};
use diesel::mysql::Mysql as Db;
use diesel::result::Error;
use diesel::serialize::{Output, Result as Serialized, ToSql};
use diesel::sql_types::{BigInt, Text};
use diesel::{ExpressionMethods, OptionalEmptyChangesetExtension, QueryResult, sql_query};
use diesel_async::{AsyncConnection, RunQueryDsl, SimpleAsyncConnection};
use serde::{Deserialize, Serialize};

use crate::support::db::{open_my_without_blocks, prepare_my};
use crate::support::mariadb::Server;
use crate::support::*;

diesel::table! { large (id) { id -> BigInt, text -> Nullable<Text>, } }

/// A value that diesel cannot write.
#[derive(Debug)]
struct NoForm;

impl ToSql<Text, Db> for NoForm {
    fn to_sql<'b>(&'b self, _: &mut Output<'b, '_, Db>) -> Serialized {
        Err("it has no form".into())
    }
}

#[derive(diesel::QueryableByName)]
struct Id {
    #[diesel(sql_type = BigInt)]
    #[allow(dead_code)]
    id: i64,
}

/// What the client does not send.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Refused {
    LargeValue,
    LargeText,
    LargeRead,
    TooFewValues,
    TooManyValues,
    NoForm,
}

impl Refused {
    const ALL: [Self; 6] = [
        Self::LargeValue,
        Self::LargeText,
        Self::LargeRead,
        Self::TooFewValues,
        Self::TooManyValues,
        Self::NoForm,
    ];

    async fn execute(self, conn: &mut MysqlConn) -> QueryResult<()> {
        let large = || "x".repeat(2 << 20);
        let insert = "INSERT INTO large (id, text) VALUES (1, ?)";
        match self {
            Self::LargeValue => {
                sql_query(insert).bind::<Text, _>(large()).execute(conn).await.map(drop)
            }
            Self::LargeText => {
                conn.batch_execute(&insert.replace('?', &format!("'{}'", large()))).await
            }
            Self::LargeRead => {
                let read = sql_query("SELECT id FROM large WHERE text = ? FOR UPDATE");
                read.bind::<Text, _>(large()).load::<Id>(conn).await.map(drop)
            }
            Self::TooFewValues => sql_query(insert).execute(conn).await.map(drop),
            Self::TooManyValues => {
                let insert = sql_query(insert).bind::<Text, _>("a");
                insert.bind::<Text, _>("b").execute(conn).await.map(drop)
            }
            Self::NoForm => sql_query(insert).bind::<Text, _>(NoForm).execute(conn).await.map(drop),
        }
    }

    const fn kind(self) -> &'static str {
        match self {
            Self::LargeValue | Self::LargeText | Self::LargeRead => {
                "larger than max_allowed_packet, the server's or the URL's"
            }
            Self::TooFewValues | Self::TooManyValues => "an error of the query or the driver",
            Self::NoForm => "a value that has no SQL form",
        }
    }
}

/// What the phase does with the error.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Then {
    Ignores,
    Returns,
    /// To the savepoint of a nested transaction, in which the statement was.
    RollsBack,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Meets {
    refused: Refused,
    then: Then,
}

/// How often a body ran.
#[derive(Clone, Default)]
struct Runs(Arc<AtomicU32>);

impl Runs {
    fn count(&self) -> u32 {
        // By its type: diesel's `load` is in scope.
        AtomicU32::load(&self.0, Ordering::SeqCst)
    }
}

#[atomic_phases(name = "meets", version = 1, app = Runs)]
impl Meets {
    #[phase]
    async fn met(&self, tx: &mut Tx<'_, Mysql>, app: &Runs) -> PhaseResult<Reply> {
        app.0.fetch_add(1, Ordering::SeqCst);
        Mysql::insert_step(tx, "r", "before").await?;
        let refused = self.refused;
        match self.then {
            Then::Ignores => {
                assert!(refused.execute(tx.conn()).await.is_err());
                let _ = Mysql::insert_step(tx, "r", "behind").await;
            }
            Then::Returns => refused.execute(tx.conn()).await?,
            Then::RollsBack => {
                let nested = tx.conn().transaction::<(), Error, _>(async |conn: &mut MysqlConn| {
                    conn.batch_execute("INSERT INTO steps VALUES ('r', 'nested')").await?;
                    refused.execute(conn).await
                });
                assert!(nested.await.is_err());
                Mysql::insert_step(tx, "r", "behind").await?;
            }
        }
        Ok(Reply::new(204))
    }
}

/// A phase that ignores the error commits nothing, one that returns it gets it as its error and does not run again, and one
/// that rolls back to a savepoint commits what it did before and behind it.
#[tokio::test(flavor = "multi_thread")]
async fn g4_what_the_client_refuses_fails_its_phase_as_what_the_server_refuses() {
    let start = || {
        let server = Server::start(&["--max-allowed-packet=1M"]);
        let url = server.new_database();
        (server, url)
    };
    let (_server, url) = tokio::task::spawn_blocking(start).await.unwrap();
    let db = prepare_my(&url).await;
    db.sql("CREATE TABLE large (id BIGINT PRIMARY KEY, text LONGTEXT)").await;
    let without_blocks = open_my_without_blocks(&url, 4).await;
    for (name, store) in [("blocks", db.clone()), ("texts", without_blocks)] {
        for refused in Refused::ALL {
            for then in [Then::Ignores, Then::Returns, Then::RollsBack] {
                let what = format!("{name}-{refused:?}-{then:?}");
                db.sql("DELETE FROM steps").await;
                let runs = Runs::default();
                let builder = Engine::builder(store.clone()).app(runs.clone()).register::<Meets>();
                let engine = builder.build().unwrap();
                let told = engine.call(&scope(), &key(&what), Meets { refused, then }).await;
                let steps = db.number("SELECT count(*) FROM steps").await;
                assert_eq!(
                    steps,
                    if let Then::RollsBack = then { 2 } else { 0 },
                    "{what}: {told:?}"
                );
                assert_eq!(runs.count(), 1, "{what}: {told:?}");
                match then {
                    Then::Ignores => {
                        let cause = failed(told);
                        assert!(matches!(cause, FailureCause::Misuse { .. }), "{what}: {cause:?}");
                    }
                    Then::Returns => match failed(told) {
                        FailureCause::Database { kind, .. } => {
                            assert_eq!(kind, refused.kind(), "{what}");
                        }
                        cause => panic!("{what}: {cause:?}"),
                    },
                    Then::RollsBack => assert_eq!(finished(told).reply.status(), 204, "{what}"),
                }
            }
        }
    }
    assert_eq!(db.number("SELECT count(*) FROM large").await, 0);
}

/// Updates a row with what has changed, which is nothing.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct ChangesNothing;

#[derive(diesel::AsChangeset)]
#[diesel(table_name = large)]
struct Changes {
    text: Option<String>,
}

#[atomic_phases(name = "changes_nothing", version = 1)]
impl ChangesNothing {
    #[phase]
    async fn unchanged(&self, tx: &mut Tx<'_, Mysql>) -> PhaseResult<Reply> {
        Mysql::insert_step(tx, "r", "before").await?;
        let update =
            diesel::update(large::table).filter(large::id.eq(1)).set(Changes { text: None });
        let updated = update.execute(tx).await.optional_empty_changeset()?;
        assert_eq!(updated, None);
        Ok(Reply::new(204))
    }
}

/// diesel reports an update without changes as an error, and has a method to ignore it.
#[tokio::test(flavor = "multi_thread")]
async fn g4_an_update_without_changes_is_no_failure_on_mysql() {
    let db = Mysql::fresh().await;
    let engine = Engine::builder(db.clone()).register::<ChangesNothing>().build().unwrap();
    finished(engine.call(&scope(), &key("k"), ChangesNothing).await);
    assert_eq!(db.number("SELECT count(*) FROM steps").await, 1);
}
