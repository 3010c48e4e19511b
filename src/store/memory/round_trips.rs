//! Transactions that travel to the server as a whole: a session executes all their statements, and their client
//! gets one answer.

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use diesel::result::Error;

use super::next_state::{Birth, Guarded, NextState, TakeOver};
use super::record::{AuditRecord, JobRecord, KeyRecord, Place};
use super::session::Session;
use super::statements::Wait;
use super::write::Write;
use crate::definition::Isolation;

pub(super) async fn read_keys(session: &mut Session) -> QueryResult<Vec<KeyRecord>> {
    session.begin(Isolation::ReadCommitted)?;
    let keys = session.read_keys();
    session.conclude(keys).await
}

pub(super) async fn read_jobs(session: &mut Session) -> QueryResult<Vec<JobRecord>> {
    session.begin(Isolation::ReadCommitted)?;
    let jobs = session.read_jobs();
    session.conclude(jobs).await
}

pub(super) async fn read_key(
    session: &mut Session,
    place: Place,
) -> QueryResult<Option<(KeyRecord, DateTime<Utc>)>> {
    session.begin(Isolation::ReadCommitted)?;
    let key = session.read_key(&place);
    let now = session.now();
    Ok(session.conclude(key).await?.map(|key| (key, now)))
}

/// What a phase handed over: its statements, and the jobs that it staged.
#[derive(Clone)]
pub(super) struct HandedOver {
    pub(super) statements: Vec<Write>,
    pub(super) jobs: Vec<JobRecord>,
}

async fn execute(session: &mut Session, written: HandedOver) -> QueryResult<()> {
    for write in written.statements {
        session.write(write).await?;
    }
    for job in written.jobs {
        session.insert_job(job).await?;
    }
    Ok(())
}

pub(super) async fn create(
    session: &mut Session,
    birth: Birth,
    written: HandedOver,
) -> QueryResult<KeyRecord> {
    let row = match session.create(birth).await {
        Ok(row) => execute(session, written).await.map(|()| row),
        Err(error) => Err(error),
    };
    session.conclude(row).await
}

pub(super) async fn advance(
    session: &mut Session,
    isolation: Isolation,
    guarded: Guarded,
    next: NextState,
    written: HandedOver,
) -> QueryResult<()> {
    session.begin(isolation)?;
    let advanced = match session.advance_or_fail(&guarded, next).await {
        Ok(()) => execute(session, written).await,
        Err(error) => Err(error),
    };
    session.conclude(advanced).await
}

pub(super) async fn take_over(
    session: &mut Session,
    take: TakeOver,
) -> QueryResult<Option<(KeyRecord, DateTime<Utc>)>> {
    session.begin(Isolation::ReadCommitted)?;
    let taken = session.take_over(take).await;
    session.conclude(taken).await
}

pub(super) async fn write(
    session: &mut Session,
    guarded: Guarded,
    next: NextState,
    notice: Option<JobRecord>,
) -> QueryResult<bool> {
    session.begin(Isolation::ReadCommitted)?;
    let written = match (session.advance(&guarded, next, Wait::No).await, notice) {
        (Ok(true), Some(notice)) => session.insert_job(notice).await.map(|()| true),
        (written, _) => written,
    };
    session.conclude(written).await
}

pub(super) async fn settle_key(
    session: &mut Session,
    take: TakeOver,
    guarded: Guarded,
    next: NextState,
    audit: Option<AuditRecord>,
) -> QueryResult<bool> {
    session.begin(Isolation::ReadCommitted)?;
    let settled = match session.take_over(take).await {
        Ok(Some(_)) => match session.advance(&guarded, next, Wait::No).await {
            Ok(true) => write_audit(session, audit).await.map(|()| true),
            Ok(false) => Err(Error::NotFound),
            Err(error) => Err(error),
        },
        Ok(None) => Ok(false),
        Err(error) => Err(error),
    };
    session.conclude(settled).await
}

/// Writes the audit row, if there is one, in the open transaction.
pub(super) async fn write_audit(
    session: &mut Session,
    audit: Option<AuditRecord>,
) -> QueryResult<()> {
    match audit {
        Some(audit) => session.insert_audit(audit).await,
        None => Ok(()),
    }
}

pub(super) async fn commit(
    session: &mut Session,
    guarded: Guarded,
    next: NextState,
    jobs: Vec<JobRecord>,
) -> QueryResult<()> {
    // The jobs ride in the statement of the guarded update.
    let mut answer = session.advance_or_fail(&guarded, next).await;
    for job in jobs {
        if answer.is_ok() {
            answer = session.insert_job(job).await;
        }
    }
    session.conclude(answer).await
}
