//! Pauses of phases in the store in memory.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use diesel::QueryResult;
use futures_util::FutureExt;

use super::Memory;
use super::record::{AuditRecord, PauseRecord, Place, Time};
use super::round_trips::write_audit;
use super::session::Session;
use crate::definition::Isolation;
use crate::store::StoreError;
use crate::store::pauses::{MAX_PAUSES, PauseAct, PauseWhat, PausedPhase, paused_phase};
use crate::store::row::whole_millis;

/// `seen`, `pause`: what the phase is paused by, and is to be paused by.
async fn set_pause(
    session: &mut Session,
    place: Place,
    (seen, pause): (Option<PauseRecord>, Option<PauseRecord>),
    now: DateTime<Utc>,
    audit: AuditRecord,
) -> QueryResult<bool> {
    session.begin(Isolation::ReadCommitted)?;
    let written = write_as_seen(session, place, (seen, pause), now, audit).await;
    session.conclude(written).await
}

async fn write_as_seen(
    session: &mut Session,
    place: Place,
    (seen, pause): (Option<PauseRecord>, Option<PauseRecord>),
    now: DateTime<Utc>,
    audit: AuditRecord,
) -> QueryResult<bool> {
    if seen.is_none() {
        let others = session.read_pauses()?;
        if others.iter().filter(|pause| pause.lasts_at(now)).count() >= MAX_PAUSES {
            return Ok(false);
        }
    }
    let (before, after) = (stands(seen.as_ref()), stands(pause.as_ref()));
    let is_as_seen =
        move |row: Option<&PauseRecord>| row.filter(|pause| pause.lasts_at(now)) == seen.as_ref();
    if !session.write_pause(place, is_as_seen, pause).await? {
        return Ok(false);
    }
    let audit = AuditRecord { status_before: Some(before), status_after: Some(after), ..audit };
    write_audit(session, Some(audit)).await.map(|()| true)
}

/// How a phase stands, as the statements of the other stores tell the audit.
fn stands(pause: Option<&PauseRecord>) -> String {
    match pause.map(|pause| pause.ends_at) {
        None => "runs".to_owned(),
        Some(None) => "paused".to_owned(),
        Some(Some(ends)) => {
            format!("paused until {}", ends.0.to_rfc3339_opts(SecondsFormat::Secs, true))
        }
    }
}

async fn read_pauses(session: &mut Session) -> QueryResult<Vec<PauseRecord>> {
    session.begin(Isolation::ReadCommitted)?;
    let pauses = session.read_pauses();
    session.conclude(pauses).await
}

impl Memory {
    pub(super) async fn paused_phases(&self) -> Result<Vec<PausedPhase>, StoreError> {
        let rows =
            self.ask_again("read the pauses", |session| read_pauses(session).boxed()).await?;
        let now = self.database().now();
        let paused = |row: PauseRecord| {
            let said = (row.definition, row.phase, row.reason, row.paused_by);
            paused_phase((said, (row.paused_at.0, row.ends_at.map(|time| time.0), now)))
        };
        Ok(rows.into_iter().filter(|row| row.lasts_at(now)).map(paused).collect())
    }

    pub(super) async fn write_pause(&self, act: &PauseAct<'_>) -> Result<bool, StoreError> {
        let place = Place::Pause(act.definition.to_owned(), act.phase.to_owned());
        let now = whole_millis(self.database().now());
        let pause = |length: Option<Duration>| PauseRecord {
            definition: act.definition.to_owned(),
            phase: act.phase.to_owned(),
            reason: act.audit.reason.clone(),
            paused_by: act.audit.actor.clone(),
            paused_at: Time(now),
            ends_at: length.map(|length| Time(now + length)),
        };
        let (seen, pause) = match act.what {
            PauseWhat::Begin(length) => (None, Some(pause(length))),
            PauseWhat::Replace(seen, length) => (Some(PauseRecord::of(seen)), Some(pause(length))),
            PauseWhat::End(seen) => (Some(PauseRecord::of(seen)), None),
        };
        let audit = AuditRecord::of(act.audit);
        let written = self.ask("set a pause", move |session| {
            set_pause(session, place, (seen, pause), now, audit).boxed()
        });
        written.await
    }
}
