//! The row in a statement that creates it, and in one that changes it. Its text depends on what it holds.

use std::time::Duration;

use chrono::{DateTime, Utc};
use diesel::QueryResult;
use diesel::pg::Pg;
use diesel::pg::data_types::PgInterval;
use diesel::query_builder::{AstPass, QueryFragment};
use diesel::serialize::ToSql;
use diesel::sql_types::{self, HasSqlType};
use uuid::Uuid;

use super::super::numbered::{Shape, Shaped};
use crate::definition::STARTED;
use crate::store::row::millis;
use crate::store::statement::{Bind, push_bind, statement};
use crate::store::{Birth, Change, NewRow, Status, StoredResponse};

/// The row as its first phase leaves it, or finds it, from the time `t`. It names what there is, and nothing else:
/// each bind and each column costs, here and on the server. So its text depends on what it holds.
pub(in crate::store) struct BornRow<'a> {
    known: BornKnown<'a>,
    birth: Birth,
    status: Status,
    lease: Option<PgInterval>,
    due: Option<PgInterval>,
    /// The present, where nothing has run yet.
    created_at: Option<DateTime<Utc>>,
    retention: PgInterval,
    params: &'a [u8],
    context: Option<&'a [u8]>,
    trace: Option<&'a [u8]>,
    outputs: Option<&'a [u8]>,
    response: Option<Response<'a>>,
}

statement! {
    /// What each row begins with.
    BornKnown<'a> for Pg, rows sql_types::Untyped,
    {
        scope: &'a str, key: &'a str, request_id: Uuid, definition: &'a str, version: i32,
        phases: &'a str, fingerprint: &'a str, to: &'a str,
    },
    scope, ", ", key, ", ", request_id, ", ", definition, ", ", version, ", ", phases, ", ",
    fingerprint, ", ", to, ", "
}

impl<'a> BornRow<'a> {
    pub(in crate::store::postgres) fn new(
        row: &NewRow<'a>,
        created_at: DateTime<Utc>,
        change: &Change<'a>,
    ) -> Self {
        Self {
            known: BornKnown::new(row, change.recovery_point),
            status: change.status,
            lease: change.lease().map(interval),
            created_at: Some(created_at),
            outputs: change.outputs,
            response: change.response.map(Response::new),
            ..Self::at_start(row)
        }
    }

    /// As it is before its first phase.
    pub(in crate::store::postgres) fn at_start(row: &NewRow<'a>) -> Self {
        Self {
            known: BornKnown::new(row, STARTED),
            birth: row.birth,
            status: row.birth.status(),
            lease: row.birth.lease().map(interval),
            due: row.birth.due().map(interval),
            created_at: None,
            retention: interval(row.retention),
            params: row.params,
            context: row.context,
            trace: row.trace,
            outputs: None,
            response: None,
        }
    }
}

impl<'a> BornKnown<'a> {
    fn new(row: &NewRow<'a>, recovery_point: &'a str) -> Self {
        Self {
            scope: row.scope.as_str(),
            key: row.key.as_str(),
            request_id: row.request_id,
            definition: row.definition,
            version: row.version.cast_signed(),
            phases: row.phases,
            fingerprint: row.fingerprint,
            to: recovery_point,
        }
    }
}

impl Shaped for BornRow<'_> {
    fn note(&self, shape: &mut Shape) {
        shape.note(self.birth == Birth::Pending, 2);
        self.status.note(shape);
        for is_there in [
            self.lease.is_some(),
            self.due.is_some(),
            self.created_at.is_some(),
            self.context.is_some(),
            self.trace.is_some(),
            self.outputs.is_some(),
            self.response.is_some(),
        ] {
            shape.note(is_there, 2);
        }
    }
}

impl Shaped for Status {
    fn note(&self, shape: &mut Shape) {
        shape.note(*self as u8, 16);
    }
}

impl QueryFragment<Pg> for BornRow<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql(
            "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, definition, \
             definition_version, phases, fingerprint, recovery_point, lease_token, attempts, \
             status, advanced_at, created_at, expires_at, params",
        );
        let named = [
            (self.lease.is_some(), ", locked_until"),
            (self.due.is_some(), ", run_after"),
            (self.context.is_some(), ", context"),
            (self.trace.is_some(), ", trace"),
            (self.outputs.is_some(), ", outputs"),
            (self.response.is_some(), ", response_status, response_headers, response_body"),
        ];
        named
            .iter()
            .filter(|(is_there, _)| *is_there)
            .for_each(|(_, columns)| out.push_sql(columns));
        out.push_sql(") SELECT ");
        self.known.walk_ast(out.reborrow())?;
        // The first fencing token and the count of attempts.
        out.push_sql(match self.birth {
            Birth::Held(_) => "1, 1, ",
            Birth::Pending => "0, 0, ",
        });
        push_status(&mut out, self.status);
        match &self.created_at {
            None => out.push_sql(", t, t"),
            created_at => push_next(&mut out, ", t, ", created_at.as_ref())?,
        }
        out.push_sql(", t + ");
        push_bind(&mut out, &self.retention)?;
        push_next(&mut out, ", ", Some(&self.params))?;
        push_next(&mut out, ", t + ", self.lease.as_ref())?;
        push_next(&mut out, ", t + ", self.due.as_ref())?;
        push_next(&mut out, ", ", self.context.as_ref())?;
        push_next(&mut out, ", ", self.trace.as_ref())?;
        push_next(&mut out, ", ", self.outputs.as_ref())?;
        if let Some(response) = &self.response {
            push_next(&mut out, ", ", Some(&response.status))?;
            push_next(&mut out, ", ", Some(&response.headers))?;
            push_next(&mut out, ", ", Some(&response.body))?;
        }
        Ok(())
    }
}

/// A stored reply; its body is `None` where it was over the cap.
struct Response<'a> {
    status: i16,
    headers: &'a [u8],
    body: Option<&'a [u8]>,
}

impl<'a> Response<'a> {
    fn new(response: &'a StoredResponse) -> Self {
        Self {
            status: response.status.cast_signed(),
            headers: &response.headers,
            body: response.body.as_deref(),
        }
    }
}

fn interval(length: Duration) -> PgInterval {
    PgInterval::from_microseconds(millis(length).saturating_mul(1000))
}

/// As a literal: the server then reads it once, when it prepares the statement.
fn push_status(out: &mut AstPass<'_, '_, Pg>, status: Status) {
    out.push_sql("'");
    out.push_sql(status.as_str());
    out.push_sql("'");
}

/// A value, if there is one, behind `text`.
fn push_next<'b, T>(
    out: &mut AstPass<'_, 'b, Pg>,
    text: &'static str,
    value: Option<&'b T>,
) -> QueryResult<()>
where
    Pg: HasSqlType<T::Sql>,
    T: Bind<Pg> + ToSql<T::Sql, Pg>,
{
    let Some(value) = value else { return Ok(()) };
    out.push_sql(text);
    push_bind(out, value)
}

/// The next state of a row: what changes, and nothing else. So its text depends on what it holds.
///
/// Its clock is that of the statement's begin, which is asked nothing in a query of its own: Citus would send the answer
/// to the row's node in front of the update, and then, where the phase has written to another node before, take the
/// update for one that needs no commit in two phases (G4). A time that is too early makes a lease shorter, and no longer.
pub(in crate::store) struct NextState<'a> {
    status: Status,
    to: &'a str,
    outputs: Option<&'a [u8]>,
    open_intent: Option<&'a str>,
    lease: Option<PgInterval>,
    due: Option<PgInterval>,
    response: Option<Response<'a>>,
    keep_for: Option<PgInterval>,
}

impl<'a> NextState<'a> {
    pub(in crate::store::postgres) fn new(change: &Change<'a>) -> Self {
        Self {
            status: change.status,
            to: change.recovery_point,
            outputs: change.outputs,
            open_intent: change.open_intent,
            lease: change.lease().map(interval),
            due: change.due().map(interval),
            response: change.response.map(Response::new),
            keep_for: change.keep_for.map(interval),
        }
    }
}

impl Shaped for NextState<'_> {
    fn note(&self, shape: &mut Shape) {
        self.status.note(shape);
        for is_there in [
            self.outputs.is_some(),
            self.open_intent.is_some(),
            self.lease.is_some(),
            self.due.is_some(),
            self.response.is_some(),
            self.keep_for.is_some(),
        ] {
            shape.note(is_there, 2);
        }
    }
}

impl QueryFragment<Pg> for NextState<'_> {
    fn walk_ast<'b>(&'b self, mut out: AstPass<'_, 'b, Pg>) -> QueryResult<()> {
        out.push_sql("UPDATE atomic_phases_keys SET status = ");
        push_status(&mut out, self.status);
        push_next(&mut out, ", recovery_point = ", Some(&self.to))?;
        push_next(&mut out, ", outputs = ", self.outputs.as_ref())?;
        match &self.open_intent {
            None => out.push_sql(", open_intent = NULL"),
            intent => push_next(&mut out, ", open_intent = ", intent.as_ref())?,
        }
        match &self.lease {
            None => out.push_sql(", locked_until = NULL"),
            lease => {
                push_next(&mut out, ", locked_until = statement_timestamp() + ", lease.as_ref())?;
            }
        }
        match &self.due {
            None => out.push_sql(", run_after = NULL"),
            // While it runs, the workers hear of it only once it is slow. A time that is not half used up stays, so
            // that the update is HOT; the heartbeat moves it on long before. One behind the lease's end does not: it is
            // of a clock that was set back. No CASE, in which Citus takes no clock.
            due if self.lease.is_some() => {
                push_next(
                    &mut out,
                    ", run_after = (ARRAY[NULL, run_after, statement_timestamp() + ",
                    due.as_ref(),
                )?;
                push_next(
                    &mut out,
                    "])[1 + (run_after IS NOT NULL OR created_at < statement_timestamp() - interval '5 seconds')::int \
                     * (1 + ((run_after + (run_after - statement_timestamp()) < statement_timestamp() + ",
                    due.as_ref(),
                )?;
                push_next(&mut out, " OR run_after > statement_timestamp() + ", due.as_ref())?;
                out.push_sql(") IS NOT FALSE)::int)]");
            }
            due => push_next(&mut out, ", run_after = statement_timestamp() + ", due.as_ref())?,
        }
        if let Some(response) = &self.response {
            push_next(&mut out, ", response_status = ", Some(&response.status))?;
            push_next(&mut out, ", response_headers = ", Some(&response.headers))?;
            push_next(&mut out, ", response_body = ", Some(&response.body))?;
        }
        if let Some(keep_for) = &self.keep_for {
            // An index has it, so such an update is not HOT.
            let expires_at = ", expires_at = greatest(expires_at, statement_timestamp() + ";
            push_next(&mut out, expires_at, Some(keep_for))?;
            out.push_sql(")");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use diesel::pg::PgQueryBuilder;
    use diesel::query_builder::QueryBuilder;

    use super::super::super::statements::Guarded;
    use super::super::{Create, UpdateRow};
    use super::*;
    use crate::store::EVERY_STATUS;

    fn text(statement: &impl QueryFragment<Pg>) -> String {
        let mut text = PgQueryBuilder::default();
        statement.to_sql(&mut text, &Pg).unwrap();
        text.finish()
    }

    fn response() -> Response<'static> {
        Response { status: 200, headers: b"{}", body: None }
    }

    /// Of the fields that a row may have, those whose bit is set.
    fn born(birth: Birth, status: Status, has: u32) -> BornRow<'static> {
        let is = |bit: u32| has & (1 << bit) != 0;
        let bytes = |bit| is(bit).then_some(&b"{}"[..]);
        let length = |bit| is(bit).then(|| interval(Duration::from_secs(1)));
        BornRow {
            known: BornKnown {
                scope: "s",
                key: "k",
                request_id: Uuid::nil(),
                definition: "d",
                version: 1,
                phases: "p",
                fingerprint: "f",
                to: "t",
            },
            birth,
            status,
            lease: length(0),
            due: length(1),
            created_at: is(2).then_some(DateTime::UNIX_EPOCH),
            retention: interval(Duration::from_secs(1)),
            params: b"{}",
            context: bytes(3),
            trace: bytes(4),
            outputs: bytes(5),
            response: is(6).then(response),
        }
    }

    fn next(status: Status, has: u32) -> NextState<'static> {
        let is = |bit: u32| has & (1 << bit) != 0;
        let length = |bit| is(bit).then(|| interval(Duration::from_secs(1)));
        NextState {
            status,
            to: "t",
            outputs: is(0).then_some(b"{}"),
            open_intent: is(1).then_some("i"),
            lease: length(2),
            due: length(3),
            response: is(4).then(response),
            keep_for: length(5),
        }
    }

    /// One shape for each text, and one text for each shape: a connection that has prepared one executes it where the
    /// other is meant.
    #[test]
    fn rows_of_one_shape_have_one_text() {
        let mut texts = HashMap::new();
        let mut shapes = HashMap::new();
        let mut note = |shape: Shape, text: String| {
            assert_eq!(texts.entry(shape.clone()).or_insert(text.clone()), &text);
            assert!(*shapes.entry(text.clone()).or_insert(shape.clone()) == shape, "{text}");
        };
        for status in EVERY_STATUS {
            for has in 0..1 << 7 {
                for birth in [Birth::Held(Duration::from_secs(1)), Birth::Pending] {
                    let create = Create { row: born(birth, status, has) };
                    note(Shape::of(&create).unwrap(), text(&create));
                }
            }
            for has in 0..1 << 6 {
                let guarded =
                    Guarded { scope: "s", key: "k", request_id: Uuid::nil(), token: 1, from: "f" };
                let update = UpdateRow { next: next(status, has), guarded };
                note(Shape::of(&update).unwrap(), text(&update));
            }
        }
        assert_eq!(texts.len(), 6 * (2 * (1 << 7) + (1 << 6)));
    }
}
