//! One connection, on the server's side: executes what arrives, in order, and holds the open
//! transaction.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use diesel::result::DatabaseErrorKind;
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::task;
use tokio::time::Instant;

use super::database::Database;
use super::error::{connection_lost, error};
use super::network::{Cut, Network, Passage};
use super::record::{Place, Record};
use super::state::By;
use super::transaction::{OpenTx, Patience};
use super::write::{Act, Write};
use crate::definition::Isolation;

/// How long the server waits for the next statement inside a transaction before it gives up on the
/// client: as the other store sets it (H13).
const IDLE_IN_TRANSACTION: Duration = Duration::from_secs(60);

pub(super) type Work = Box<dyn for<'a> FnOnce(&'a mut Session) -> BoxFuture<'a, ()> + Send>;

/// What travels to the server.
pub(super) struct Message {
    pub(super) arrives: Instant,
    /// The task that sent it.
    pub(super) sender: Option<task::Id>,
    pub(super) passage: Passage,
    pub(super) work: Work,
}

pub(super) struct Session {
    pub(super) db: Database,
    life: u64,
    network: Arc<dyn Network>,
    /// Of what is executed.
    sender: Option<task::Id>,
    tx: Option<OpenTx>,
    /// Whether the open transaction is the one that the engine began (H7).
    pub(super) ours: bool,
    pub(super) patience: Patience,
    passage: Passage,
    executed: u32,
    /// The connection has ended.
    dead: bool,
    /// Work whose end must not reach the client.
    withheld: Vec<Box<dyn std::any::Any + Send>>,
}

impl Session {
    /// Starts one; it ends with the connection's other end.
    pub(super) fn start(
        db: &Database,
        network: &Arc<dyn Network>,
        messages: mpsc::UnboundedReceiver<Message>,
        client: watch::Receiver<()>,
    ) {
        let session = Self {
            db: db.clone(),
            life: db.state().life,
            network: network.clone(),
            sender: None,
            tx: None,
            ours: false,
            patience: Patience { lock_timeout: None, client },
            passage: Passage::default(),
            executed: 0,
            dead: false,
            withheld: Vec::new(),
        };
        // On no node: the server lives on when a client stops.
        tokio::spawn(session.serve(messages));
    }

    async fn serve(mut self, mut messages: mpsc::UnboundedReceiver<Message>) {
        loop {
            let next = match self.tx.is_some() {
                true => tokio::time::timeout(IDLE_IN_TRANSACTION, messages.recv()).await,
                false => Ok(messages.recv().await),
            };
            let Ok(Some(message)) = next else { return };
            tokio::time::sleep_until(message.arrives).await;
            (self.passage, self.sender) = (message.passage, message.sender);
            self.executed = 0;
            match message.passage.cut {
                Some(Cut::Before) => return,
                Some(Cut::SilentBefore) => {
                    self.withheld.push(Box::new(message.work));
                    return self.hear_nothing(messages).await;
                }
                _ => {}
            }
            (message.work)(&mut self).await;
            match message.passage.cut {
                Some(Cut::SilentAfter) => return self.hear_nothing(messages).await,
                Some(Cut::After | Cut::Inside { .. }) => return,
                _ if self.dead => return,
                _ => {}
            }
        }
    }

    /// Neither side hears the other any more.
    async fn hear_nothing(self, messages: mpsc::UnboundedReceiver<Message>) {
        // As long as the receiver lives, the client's messages vanish without an error.
        tokio::time::sleep(IDLE_IN_TRANSACTION).await;
        drop(messages);
    }

    /// Whether the answer of this message reaches its client.
    pub(super) fn is_answer_lost(&self) -> bool {
        self.dead || matches!(self.passage.cut, Some(Cut::After | Cut::SilentAfter))
    }

    pub(super) fn withhold(&mut self, answer: impl Send + 'static) {
        if self.passage.cut == Some(Cut::SilentAfter) {
            self.withheld.push(Box::new(answer));
        }
    }

    pub(super) fn now(&self) -> DateTime<Utc> {
        self.db.now()
    }

    /// The connection ends here.
    pub(super) fn end(&mut self) {
        self.dead = true;
        self.tx = None;
    }

    /// A statement arrives.
    fn step(&mut self) -> QueryResult<()> {
        let is_cut = matches!(self.passage.cut, Some(Cut::Inside { statements }) if self.executed >= statements);
        if is_cut || self.dead || self.db.state().life != self.life {
            self.end();
            return Err(connection_lost());
        }
        self.executed += 1;
        Ok(())
    }

    pub(super) fn begin(&mut self, isolation: Isolation) -> QueryResult<()> {
        self.step()?;
        self.tx = Some(OpenTx::begin(&self.db, isolation));
        self.ours = true;
        Ok(())
    }

    /// `COMMIT`. Of a failed transaction it is a `ROLLBACK`, and no error, as the server has it (H6).
    pub(super) async fn commit(&mut self) -> QueryResult<()> {
        self.step()?;
        if !self.passage.commit.is_zero() {
            tokio::time::sleep(self.passage.commit).await;
        }
        self.ours = false;
        self.patience.lock_timeout = None;
        match self.tx.take() {
            Some(tx) if !tx.failed => {
                tx.commit(By { client: self.network.client(), task: self.sender })
            }
            _ => Ok(()),
        }
    }

    pub(super) fn rollback(&mut self) {
        self.tx = None;
        self.ours = false;
        self.patience.lock_timeout = None;
    }

    /// The end of a transaction whose statements answered this.
    pub(super) async fn conclude<T>(&mut self, answer: QueryResult<T>) -> QueryResult<T> {
        match answer {
            Ok(value) => {
                self.commit().await?;
                Ok(value)
            }
            Err(error) => {
                self.rollback();
                Err(error)
            }
        }
    }

    /// A statement begins in the open transaction.
    pub(super) fn statement(&mut self) -> QueryResult<&mut OpenTx> {
        self.step()?;
        // Without one each statement is a transaction by itself.
        let Some(tx) = self.tx.as_mut() else { return Err(not_open()) };
        if tx.failed {
            let message =
                "current transaction is aborted, commands ignored until end of transaction block";
            return Err(error(DatabaseErrorKind::Unknown, message));
        }
        tx.begin_statement()?;
        Ok(tx)
    }

    /// Notes that a statement failed: its transaction has.
    pub(super) fn noted<T>(&mut self, answer: QueryResult<T>) -> QueryResult<T> {
        if let (Err(_), Some(tx)) = (&answer, self.tx.as_mut()) {
            tx.failed = true;
        }
        answer
    }

    /// The lock of a row, and the open transaction. For a statement that has begun.
    pub(super) async fn locked(&mut self, place: &Place) -> QueryResult<&mut OpenTx> {
        let Some(tx) = self.tx.as_mut() else { return Err(not_open()) };
        let answer = tx.lock(place, &mut self.patience).await;
        if self.db.state().life != self.life {
            self.end();
            return Err(connection_lost());
        }
        answer?;
        self.open()
    }

    pub(super) fn open(&mut self) -> QueryResult<&mut OpenTx> {
        self.tx.as_mut().ok_or_else(not_open)
    }

    pub(super) fn is_of_another(&self, place: &Place) -> bool {
        self.tx.as_ref().is_some_and(|tx| tx.is_of_another(place))
    }

    /// A phase's own statement, in the open transaction, or in one of its own where the phase has
    /// ended that.
    pub(super) async fn write(&mut self, write: Write) -> QueryResult<usize> {
        if self.tx.is_some() {
            let answer = self.write_in_transaction(write).await;
            return self.noted(answer);
        }
        self.begin(Isolation::ReadCommitted)?;
        self.ours = false;
        let answer = self.write_in_transaction(write).await;
        self.conclude(answer).await
    }

    async fn write_in_transaction(&mut self, Write { table, act }: Write) -> QueryResult<usize> {
        let tx = self.statement()?;
        let (id, value) = match act {
            Act::Append { value } => (tx.new_row_id(), value),
            Act::Insert { id, value } => (id, value),
            Act::Put { id, value } => {
                let place = Place::Row(table, id);
                self.locked(&place).await?.write(place, Some(Record::Row(value)));
                return Ok(1);
            }
            Act::Calculate { id, times, plus } => {
                let place = Place::Row(table, id);
                if tx.see(&place).is_none() {
                    return Ok(0);
                }
                let tx = self.locked(&place).await?;
                let number = match tx.newest(&place).as_deref() {
                    Some(Record::Row(value)) => value.as_i64(),
                    _ => None,
                };
                let Some(number) = number else { return Ok(0) };
                let number = number.saturating_mul(times).saturating_add(plus);
                tx.write(place, Some(Record::Row(number.into())));
                return Ok(1);
            }
            Act::Delete { id } => {
                let place = Place::Row(table, id);
                if tx.see(&place).is_none() {
                    return Ok(0);
                }
                let tx = self.locked(&place).await?;
                let was = tx.newest(&place).is_some();
                tx.write(place, None);
                return Ok(was.into());
            }
        };
        let place = Place::Row(table, id);
        let tx = self.locked(&place).await?;
        if tx.newest(&place).is_some() {
            let message = "duplicate key value violates unique constraint";
            return Err(error(DatabaseErrorKind::UniqueViolation, message));
        }
        tx.write(place, Some(Record::Row(value)));
        Ok(1)
    }

    /// A row of the application's; with its lock, if it is to be `locked`.
    pub(super) async fn select(
        &mut self,
        table: String,
        id: String,
        lock: RowLock,
    ) -> QueryResult<Option<Value>> {
        let place = Place::Row(table, id);
        let seen = self.statement()?.see(&place);
        let record = match (lock, seen) {
            (RowLock::ForUpdate, Some(_)) => {
                let answer = self.locked(&place).await.map(|tx| tx.newest(&place));
                self.noted(answer)?
            }
            (_, seen) => seen,
        };
        Ok(record.as_deref().and_then(row_value))
    }

    pub(super) fn select_all(&mut self, table: &str) -> QueryResult<Vec<(String, Value)>> {
        let tx = self.statement()?;
        let from = Place::Row(table.to_owned(), String::new());
        let to = Place::Row(format!("{table}\0"), String::new());
        Ok(tx.see_all_rows(from..to))
    }

    /// What a statement in SQL can say here: the statements that begin and end transactions.
    pub(super) async fn sql(&mut self, sql: &str) -> QueryResult<()> {
        let words: Vec<String> =
            sql.trim().trim_end_matches(';').split_whitespace().map(str::to_uppercase).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.step()?;
        match (words.as_slice(), &mut self.tx) {
            (["COMMIT"], _) => {
                self.executed -= 1;
                self.commit().await
            }
            (["ROLLBACK"], _) => {
                self.rollback();
                Ok(())
            }
            (["BEGIN"], None) => {
                self.executed -= 1;
                self.begin(Isolation::ReadCommitted)?;
                self.ours = false;
                Ok(())
            }
            (["SAVEPOINT", _], Some(tx)) if !tx.failed => {
                tx.savepoint();
                Ok(())
            }
            (["RELEASE", ..], Some(tx)) if !tx.failed => tx.release_savepoint(),
            (["ROLLBACK", "TO", ..], Some(tx)) => tx.back_to_savepoint(),
            _ => self.noted(Err(super::write::no_sql())),
        }
    }
}

/// Whether a row that is read is locked by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowLock {
    None,
    ForUpdate,
}

pub(super) fn row_value(record: &Record) -> Option<Value> {
    match record {
        Record::Row(value) => Some(value.clone()),
        _ => None,
    }
}

impl OpenTx {
    fn see_all_rows(&mut self, range: std::ops::Range<Place>) -> Vec<(String, Value)> {
        let seen = self.see_all(range);
        let row = |(place, record): (Place, Arc<Record>)| match place {
            Place::Row(_, id) => Some((id, row_value(&record)?)),
            _ => None,
        };
        seen.into_iter().filter_map(row).collect()
    }
}

fn not_open() -> diesel::result::Error {
    diesel::result::Error::NotInTransaction
}
