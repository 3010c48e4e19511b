//! What MariaDB says of a statement may repeat the statement's values: `1062: Duplicate entry '…' for key 'PRIMARY'`. None
//! of that is shown, whatever the code of the error is.

use std::error::Error as _;
use std::future::IntoFuture;
use std::sync::atomic::{AtomicUsize, Ordering};

use atomic_phases::engine::CallError;
use atomic_phases::store::Mysql;
use atomic_phases::{
    Batch, Engine, IdempotencyKey, Outcome, PhaseResult, Reply, Scope, Tx, atomic_phases,
};
use diesel::QueryResult;
use diesel::sql_types::Text;
use diesel_async::SimpleAsyncConnection;
use serde::{Deserialize, Serialize};

use super::{everything, in_the_background};
use crate::support::db::{my, open_my, open_my_without_blocks, sessions};
use crate::support::{TestDb, until};

/// Codes of each kind that the store knows, and of some that it does not know.
const CODES: [u16; 17] = [
    1020, 1048, 1062, 1146, 1205, 1213, 1242, 1290, 1305, 1317, 1366, 1406, 1452, 1644, 1927, 1969,
    4025,
];

/// Raises the code that a ride has as its amount, with the ride's id in the text.
const RAISES: &str = "CREATE TRIGGER raises BEFORE INSERT ON rides FOR EACH ROW BEGIN \
    DECLARE wanted INT DEFAULT NEW.amount; \
    DECLARE told VARCHAR(120) DEFAULT CONCAT('a value is ', NEW.id); \
    IF wanted > 1000 THEN \
    SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = wanted, MESSAGE_TEXT = told; END IF; END";

/// How often the text of an error had the value in it: otherwise, the silence would prove nothing.
static REPEATED: AtomicUsize = AtomicUsize::new(0);

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Mishap {
    Duplicate,
    TooLong,
    NotANumber,
    Locked,
    Killed,
    Raised,
}

/// Meets an error in its transaction.
#[derive(Clone, Serialize, Deserialize)]
struct Clumsy {
    text: String,
    mishap: Mishap,
    code: u16,
}

async fn meet(request: &Clumsy, tx: &mut Tx<'_, Mysql>) -> QueryResult<usize> {
    use diesel_async::RunQueryDsl;
    let text = &request.text;
    match request.mishap {
        Mishap::Duplicate => {
            Mysql::insert_unique(tx, text).await?;
            Mysql::insert_unique(tx, text).await
        }
        Mishap::TooLong => Mysql::insert_unique(tx, &text.repeat(30)).await,
        Mishap::NotANumber => {
            let insert = diesel::sql_query("INSERT INTO rides (id, amount) VALUES ('r', ?)");
            insert.bind::<Text, _>(text.clone()).execute(tx).await
        }
        Mishap::Locked => {
            tx.batch_execute("SET SESSION innodb_lock_wait_timeout = 1").await?;
            Mysql::insert_unique(tx, text).await
        }
        Mishap::Killed => {
            let sleeps = "INSERT INTO unique_things (name) VALUES (CONCAT(?, SLEEP(20)))";
            diesel::sql_query(sleeps).bind::<Text, _>(text.clone()).execute(tx).await
        }
        Mishap::Raised => Mysql::insert_ride(tx, text, i64::from(request.code)).await,
    }
}

#[atomic_phases(name = "clumsy", version = 1)]
impl Clumsy {
    #[phase]
    async fn done(&self, tx: &mut Tx<'_, Mysql>) -> PhaseResult<Reply> {
        let met = meet(self, tx).await;
        if met.as_ref().is_err_and(|error| error.to_string().contains(&self.text)) {
            REPEATED.fetch_add(1, Ordering::SeqCst);
        }
        met?;
        Ok(Reply::new(204))
    }
}

/// Meets an error by a statement of its `Batch`: one that is raised, or a duplicate.
#[derive(Clone, Serialize, Deserialize)]
struct ClumsyBatch {
    text: String,
    code: Option<u16>,
}

#[atomic_phases(name = "clumsy.batch", version = 1)]
impl ClumsyBatch {
    #[phase]
    async fn done(&self, batch: &mut Batch<'_, Mysql>) -> PhaseResult<Reply> {
        Mysql::add_unique(batch, &self.text);
        match self.code {
            Some(code) => Mysql::add_ride(batch, &self.text, i64::from(code)),
            None => Mysql::add_unique(batch, &self.text),
        }
        Ok(Reply::new(204))
    }
}

/// All that a caller is shown.
fn told(outcome: Result<Outcome, CallError>) -> String {
    match outcome {
        Ok(Outcome::Finished(finished)) => panic!("it met no error: {finished:?}"),
        Ok(outcome) => format!("{outcome:?}"),
        Err(error) => {
            let source = error.source().map(|source| format!("{source} {source:?}"));
            format!("{error} {error:?} {source:?}")
        }
    }
}

async fn errors_with_values(db: &Mysql, shown: &mut Vec<String>) {
    db.sql(RAISES).await;
    let builder = Engine::builder(db.clone()).register::<Clumsy>().register::<ClumsyBatch>();
    let engine = builder.build().unwrap();
    let scope = Scope::new("canary-scope").unwrap();
    let key = |name: String| IdempotencyKey::new(format!("canary-key-{name}")).unwrap();
    let text = || "canary-text".to_owned();
    for code in CODES {
        let request = Clumsy { text: text(), mishap: Mishap::Raised, code };
        let call = engine.call(&scope, &key(format!("raised-{code}")), request);
        shown.push(told(call.context(&"canary-context").await));
        let request = ClumsyBatch { text: text(), code: Some(code) };
        let call = engine.call(&scope, &key(format!("batch-{code}")), request);
        shown.push(told(call.context(&"canary-context").await));
    }
    let request = ClumsyBatch { text: text(), code: None };
    shown.push(told(engine.call(&scope, &key("batch".to_owned()), request).await));

    let mut other = my(db.__url()).await;
    let locks = "BEGIN; INSERT INTO unique_things VALUES ('canary-locked')";
    other.batch_execute(locks).await.unwrap();
    for (mishap, text) in [
        (Mishap::Duplicate, "canary-text"),
        (Mishap::TooLong, "canary-text"),
        (Mishap::NotANumber, "canary-text"),
        (Mishap::Locked, "canary-locked"),
    ] {
        let request = Clumsy { text: text.to_owned(), mishap, code: 0 };
        shown.push(told(engine.call(&scope, &key(format!("{mishap:?}")), request).await));
    }
    other.batch_execute("ROLLBACK").await.unwrap();
    // 17 raised, a duplicate, and a text for a number: each at least once.
    let repeated = REPEATED.load(Ordering::SeqCst);
    assert!(repeated >= CODES.len() + 2, "{repeated} texts with a value");

    // In the middle of the statement, and of each of its repetitions.
    let request = Clumsy { text: text(), mishap: Mishap::Killed, code: 0 };
    let call = tokio::spawn(engine.call(&scope, &key("killed".to_owned()), request).into_future());
    let asleep = format!(
        "SELECT coalesce(max(id), 0) FROM {} WHERE db = DATABASE() AND state = 'User sleep'",
        sessions()
    );
    let mut kills = 0;
    until(async || {
        let session = db.number(&asleep).await;
        // It may have ended by now.
        if session > 0 && other.batch_execute(&format!("KILL {session}")).await.is_ok() {
            kills += 1;
        }
        call.is_finished()
    })
    .await;
    assert!(kills > 0);
    shown.push(told(call.await.unwrap()));

    // The application's own connection, and what the store prints of itself.
    let mut conn = db.connection().await.unwrap();
    let twice = "INSERT INTO unique_things VALUES ('canary-text'), ('canary-text')";
    assert!(conn.batch_execute(twice).await.is_err());
    shown.push(format!("{conn:?} {db:?}"));
}

/// Everything that runs on the other stores, and errors with values in their texts.
pub async fn on_mariadb(shown: &mut Vec<String>) {
    everything(Mysql::fresh().await, shown).await;
    // As on a MySQL, where the values of several statements are literals in one text.
    let db = Mysql::fresh().await;
    everything(open_my_without_blocks(db.__url(), 8).await, shown).await;
    errors_with_values(&Mysql::fresh().await, shown).await;

    let db = Mysql::fresh().await;
    let user = "CREATE USER IF NOT EXISTS shop@'%' IDENTIFIED BY 'canary-password'; \
        GRANT ALL ON *.* TO shop@'%'";
    db.sql(user).await;
    let url = db.__url().replace("root@", "shop:canary-password@");
    assert!(url.contains("canary"));
    in_the_background(open_my(&url, 8).await, shown).await;
    // A password that is wrong, no server, and URLs with an error in them.
    for wrong in [
        url.replace("canary-password", "canary-mistake"),
        "mysql://shop:canary-password@127.0.0.1:1/rides".to_owned(),
        "mysql://shop:canary-password@127.0.0.1/rides?no_such_setting=1".to_owned(),
        "mysql://shop:canary-password@127.0.0.1:port/rides".to_owned(),
    ] {
        let error = Mysql::connect(&wrong).await.err().unwrap();
        shown.push(format!("{error} {error:?}"));
    }
}
