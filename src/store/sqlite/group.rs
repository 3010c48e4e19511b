//! What the connection's thread does by itself: statements of the engine's that are alone, and whole
//! transactions; those of them that wait at one moment share a commit.
//!
//! The thread takes the connection's lock for them. Their callers hold nothing meanwhile, so a runtime
//! that comes to a halt keeps nothing from the others.
//!
//! An fsync costs as much for many as for one. So the waiting transactions share one SQLite transaction,
//! each in a savepoint of its own, and no caller is answered before the common COMMIT. Each still
//! succeeds or fails by itself: what one does is undone by its savepoint, and where the sharing itself
//! goes wrong, everything is undone and each runs alone. One that does more than touch rows (a `PRAGMA`, DDL) has a
//! commit of its own: what it changes of the connection, its savepoint neither undoes nor hides from the others.

use std::collections::VecDeque;
use std::iter::once;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use diesel::connection::SimpleConnection;
use diesel::result::{DatabaseErrorKind, Error};
use diesel::{QueryResult, SqliteConnection};
use tokio::sync::{mpsc, oneshot};

use super::error::not_written;
use super::file::replaced;
use super::statement::Sharing;
use super::transaction::{RELEASE, commit};
use super::turns::ConnectionLock;
use super::watched::{WatchedConnection, end};
use crate::panics::catch;
use crate::store::{Commit, StoreError};

/// How many share a commit at most. More would save little, and the first of them waits for the last.
pub(super) const MAX_TOGETHER: usize = 64;

/// A transaction, to be run by the connection's thread. It may run again after all that it did
/// was undone.
pub(super) trait QueuedTransaction: Send {
    /// `false`: the row is another holder's, and nothing is to be written.
    fn write(&mut self, conn: &mut SqliteConnection) -> QueryResult<bool>;

    fn answer(self: Box<Self>, commit: Commit);
}

/// A transaction in its place in the queue.
pub(super) struct Waiting<W, R> {
    pub(super) work: W,
    pub(super) came_to: Option<R>,
    pub(super) answer: oneshot::Sender<(Commit, Option<R>)>,
}

/// Who is first: the thread, that begins, or the caller, that waits no longer.
#[derive(Clone, Default)]
pub(super) struct Start(Arc<AtomicBool>);

impl Start {
    pub(super) fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    fn is_taken(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl<W, R> QueuedTransaction for Waiting<W, R>
where
    W: FnMut(&mut SqliteConnection) -> QueryResult<Option<R>> + Send,
    R: Send,
{
    fn write(&mut self, conn: &mut SqliteConnection) -> QueryResult<bool> {
        // A value that panics as it is bound must not take the others along.
        let came_to = catch(|| (self.work)(conn));
        self.came_to = came_to.unwrap_or_else(|| Err(unknown("a statement panicked")))?;
        Ok(self.came_to.is_some())
    }

    fn answer(self: Box<Self>, commit: Commit) {
        // There is no receiver where the caller's future was dropped.
        let _ = self.answer.send((commit, self.came_to));
    }
}

/// What waits for the connection.
pub(super) enum Work {
    Transaction(Sharing, Box<dyn QueuedTransaction>),
    /// It answers by itself.
    Statement(Box<dyn FnOnce(&mut WatchedConnection) + Send>),
}

pub(super) struct Queued {
    pub(super) lock: ConnectionLock,
    pub(super) start: Start,
    pub(super) work: Work,
}

/// What was taken out of the queue while the connection was not free. Whatever holds that, a caller waits for it for a while
/// only, and what it gave up is not kept: it has the caller's rows.
struct Pending {
    all: VecDeque<Queued>,
    /// How many there are when those that were given up are looked for.
    look_at: usize,
}

impl Pending {
    fn new() -> Self {
        Self { all: VecDeque::new(), look_at: MAX_TOGETHER }
    }

    fn push(&mut self, queued: Queued) {
        if self.all.len() >= self.look_at {
            self.all.retain(|queued| !queued.start.is_taken());
            self.look_at = MAX_TOGETHER.max(2 * self.all.len());
        }
        self.all.push_back(queued);
    }
}

/// Does what waits, whenever the connection is free.
pub(super) async fn work_off(mut queue: mpsc::UnboundedReceiver<Queued>) {
    let mut pending = Pending::new();
    loop {
        if pending.all.is_empty() {
            let Some(queued) = queue.recv().await else { return };
            pending.push(queued);
        }
        let Some(lock) = pending.all.front().map(|first| first.lock.clone()) else { return };
        let mut acquiring = pin!(lock.acquire());
        let mut conn = loop {
            tokio::select! {
                biased;
                conn = &mut acquiring => break conn,
                Some(queued) = queue.recv() => pending.push(queued),
            }
        };
        let (mut group, mut alone, mut statements) = (Vec::new(), Vec::new(), Vec::new());
        while group.len() + alone.len() + statements.len() < MAX_TOGETHER {
            let next = pending.all.pop_front().or_else(|| queue.try_recv().ok());
            let Some(Queued { start, work, .. }) = next else { break };
            if !start.take() {
                continue;
            }
            match work {
                Work::Transaction(Sharing::WithOthers, transaction) => group.push(transaction),
                Work::Transaction(Sharing::Alone, transaction) => alone.push(vec![transaction]),
                Work::Statement(statement) => statements.push(statement),
            }
        }
        // On this very thread, so it cannot be gone; and each is answered by itself.
        for mut group in once(group).chain(alone).filter(|group| !group.is_empty()) {
            let run = |conn: &mut WatchedConnection| {
                let begun = conn.outside(|conn| {
                    run(conn, std::mem::take(&mut group));
                    Ok(())
                });
                // Those that were not begun, because the file was replaced.
                for transaction in group {
                    transaction.answer(refused(Err(replaced())));
                }
                begun
            };
            let _ = conn.spawn_blocking(run).await;
        }
        for statement in statements {
            let run = |conn: &mut WatchedConnection| {
                statement(conn);
                Ok(())
            };
            let _ = conn.spawn_blocking(run).await;
        }
    }
}

fn run(conn: &mut SqliteConnection, mut group: Vec<Box<dyn QueuedTransaction>>) {
    if group.len() > 1
        && let Some(commits) = together(conn, &mut group)
    {
        for (transaction, commit) in group.into_iter().zip(commits) {
            transaction.answer(commit);
        }
        return;
    }
    for mut transaction in group {
        let commit = alone(conn, &mut *transaction);
        transaction.answer(commit);
    }
}

fn alone(conn: &mut SqliteConnection, transaction: &mut dyn QueuedTransaction) -> Commit {
    let written = conn.batch_execute("BEGIN IMMEDIATE").and_then(|()| transaction.write(conn));
    let done = match written {
        Ok(true) => commit(conn),
        written => refused(written),
    };
    if !matches!(done, Commit::Done(())) {
        end(conn);
    }
    done
}

/// All of them in one transaction. `None`: it was undone, and the fault was none of theirs, or it
/// is unknown whose.
fn together(
    conn: &mut SqliteConnection,
    group: &mut [Box<dyn QueuedTransaction>],
) -> Option<Vec<Commit>> {
    if let Err(error) = conn.batch_execute("BEGIN IMMEDIATE") {
        // Another process keeps the file: alone, each would wait for it again.
        return Some(group.iter().map(|_| refused(Err(again(&error)))).collect());
    }
    let each = group.iter_mut().map(|transaction| apart(conn, &mut **transaction));
    let Some(mut commits) = each.collect::<Option<Vec<_>>>() else {
        end(conn);
        return None;
    };
    let told = match conn.batch_execute("COMMIT") {
        Ok(()) => return Some(commits),
        Err(error) => error,
    };
    // Still open, it is not committed: a deferred constraint of one of them, or a lock.
    if end(conn) {
        return None;
    }
    // And a refused transaction may have been refused for what another had written.
    commits.fill_with(|| Commit::Unknown(StoreError::database("commit", again(&told))));
    Some(commits)
}

/// One of them, in its savepoint. `None`: the savepoint is not what it was, and who knows what with
/// it: an error may have ended the whole transaction, or a statement have used a savepoint of that
/// name.
fn apart(conn: &mut SqliteConnection, transaction: &mut dyn QueuedTransaction) -> Option<Commit> {
    conn.batch_execute("SAVEPOINT atomic_phases").ok()?;
    let written = transaction.write(conn);
    if let Ok(true) = written {
        conn.batch_execute(RELEASE).ok()?;
        return Some(Commit::Done(()));
    }
    conn.batch_execute("ROLLBACK TO atomic_phases; RELEASE atomic_phases").ok()?;
    match conn.batch_execute(RELEASE) {
        // It was one within ours that was rolled back.
        Ok(()) => None,
        Err(_) => Some(refused(written)),
    }
}

fn refused(written: QueryResult<bool>) -> Commit {
    match written {
        Ok(_) => Commit::Fenced,
        Err(error) => Commit::Failed(not_written(error)),
    }
}

/// What the database said of all, for each of them.
fn again(error: &Error) -> Error {
    unknown(&error.to_string())
}

fn unknown(message: &str) -> Error {
    Error::DatabaseError(DatabaseErrorKind::Unknown, Box::new(message.to_owned()))
}
