//! Every judgement about an error of PostgreSQL: what it says for certain, and what it leaves open.
//!
//! diesel passes a kind on for the constraint violations, 40001 and 25006; any other SQLSTATE arrives as `Unknown`, with a
//! message in the server's language (H9). A message can contain what a user typed, for example by a trigger's `RAISE`. So
//! nothing is decided by the words of a message, but for a [`Mark`], and for messages in English that only make an error
//! clearer.

use std::sync::LazyLock;

use diesel::result::{DatabaseErrorKind, Error};
use uuid::Uuid;

use crate::error::{has_no_kind, is_lost, is_of_a_stale_session, is_unsent, unknown_message};
use crate::store::StoreError;

/// What a statement of the engine's raises, by the cast of a text that is not a number: an error with
/// this text in it, in a server of any language.
///
/// Each begins with a random number of this process, so that no text of an application's equals it. It
/// stands in the SQL in two halves, because a message may also quote the statement it is about
/// (`current_query()`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// The key has a row.
    Exists,
    /// The row is not in the state, or not under the lease, that the write is guarded by.
    Fenced,
    /// This is not the transaction that the engine began.
    Left,
    /// A staged job was not inserted, without an error: a trigger or a rule of the database.
    Unstaged,
    /// The engine's tables are those of another schema by now, or of none.
    Strayed,
    /// The application left a transaction open on a connection of its pool.
    LeftOpen,
}

struct MarkTexts {
    raised: String,
    sql: String,
}

static TEXTS: LazyLock<[MarkTexts; Mark::ALL.len()]> = LazyLock::new(|| {
    let process = Uuid::new_v4().simple();
    Mark::ALL.map(|mark| MarkTexts {
        raised: format!("atomic_phases:{process}:{}:", mark.word()),
        sql: format!("('atomic_phases:{process}' || ':{}:')", mark.word()),
    })
});

impl Mark {
    const ALL: [Self; 6] =
        [Self::Exists, Self::Fenced, Self::Left, Self::Unstaged, Self::Strayed, Self::LeftOpen];

    /// The mark of an error, if it is one that the engine raised.
    pub(super) fn of(error: &Error) -> Option<Self> {
        let message = unknown_message(error)?;
        Self::ALL.into_iter().find(|mark| message.contains(&mark.texts().raised))
    }

    /// An SQL expression of type `text`.
    pub(super) fn sql(self) -> &'static str {
        &self.texts().sql
    }

    fn texts(self) -> &'static MarkTexts {
        &TEXTS[self as usize]
    }

    fn word(self) -> &'static str {
        match self {
            Self::Exists => "exists",
            Self::Fenced => "fenced",
            Self::Left => "left",
            Self::Unstaged => "unstaged",
            Self::Strayed => "strayed",
            Self::LeftOpen => "left_open",
        }
    }
}

/// Whether the server refused the statement: then it undoes the transaction, with `COMMIT` or without.
pub(super) fn is_of_the_server(error: &Error) -> bool {
    matches!(error, Error::DatabaseError(..)) && !is_lost(error) && !is_unsent(error)
}

/// Whether the client refused the statement in its turn: neither it nor `COMMIT` behind it was sent.
pub(super) fn is_of_the_client(error: &Error) -> bool {
    match error {
        Error::DatabaseError(..) => is_unsent(error),
        // Of an answer, which the client cannot read: `COMMIT` was sent, and may have been executed.
        Error::DeserializationError(_) | Error::NotFound => false,
        _ => true,
    }
}

/// Kinds that only the server can have reported, and only for a transaction that it undid. Said of a
/// `COMMIT`: any other error may hide one that was applied (H4, H9).
pub(super) fn is_refused_by_server(error: &Error) -> bool {
    matches!(
        error,
        Error::DatabaseError(
            DatabaseErrorKind::SerializationFailure
                | DatabaseErrorKind::UniqueViolation
                | DatabaseErrorKind::ForeignKeyViolation
                | DatabaseErrorKind::RestrictViolation
                | DatabaseErrorKind::NotNullViolation
                | DatabaseErrorKind::CheckViolation
                | DatabaseErrorKind::ExclusionViolation
                | DatabaseErrorKind::ReadOnlyTransaction,
            _
        )
    )
}

/// Whether the server may have refused a statement for what it is made of: a part that changes a table
/// with a rule, say, what a server of another make does not do, or a transaction that was left open. What a stale session
/// refuses, it refuses in any form; and a wait that the server ended would be as long again.
pub(super) fn may_be_refused_as_single_statement(error: &Error) -> bool {
    has_no_kind(error)
        && !is_of_a_stale_session(error)
        && !is_of_a_wait(error)
        && matches!(Mark::of(error), None | Some(Mark::LeftOpen))
}

/// Whether the server ended a statement for a time limit, at an operator's request, or for a deadlock. Recognised in a
/// server that speaks English: elsewhere the same writes are sent once more, in another form.
fn is_of_a_wait(error: &Error) -> bool {
    unknown_message(error).is_some_and(|message| {
        message == "deadlock detected" || message.starts_with("canceling statement due to ")
    })
}

/// Whether a statement of the engine's was answered that its transaction had failed before. Recognised
/// in a server that speaks English; elsewhere it is reported as an error of the database, which is not a
/// commit either.
pub(super) fn is_of_a_failed_transaction(error: &Error) -> bool {
    unknown_message(error)
        == Some("current transaction is aborted, commands ignored until end of transaction block")
}

/// Whether a pool says that a connection could not be checked because of a prepared statement. Then a pooler hands one client's
/// statements to another (H11): the check is the first statement of a connection.
pub(super) fn is_of_a_prepared_statement(text: &str) -> bool {
    text.contains("prepared statement \"")
}

/// Whether a statement of the engine's could not reach the engine's tables: they are not in the
/// `search_path`, or the role may not write them. The server names the table in any language.
pub(super) fn is_out_of_reach(error: &Error) -> bool {
    cannot_stage(error)
        || unknown_message(error).is_some_and(|message| message.contains("atomic_phases_keys"))
}

/// The same of the table of staged jobs, which statements of a phase stand in front of in each case.
pub(super) fn cannot_stage(error: &Error) -> bool {
    Mark::of(error) == Some(Mark::Strayed)
        || unknown_message(error)
            .is_some_and(|message| message.contains("atomic_phases_staged_jobs"))
}

/// Whether the connection may remember the number of a type that a migration has replaced, and kept by another name. The
/// server says so in the words of any statement with a wrong type, in a column or beside an operator: at most a hint to try
/// another connection. Recognised in a server that speaks English.
pub(super) fn may_be_of_a_replaced_type(error: &StoreError) -> bool {
    error.of_diesel().and_then(unknown_message).is_some_and(|message| {
        message.starts_with("operator does not exist: ")
            || (message.starts_with("column \"")
                && message.contains("\" is of type ")
                && message.contains(" but expression is of type "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raised(kind: DatabaseErrorKind, message: &str) -> Error {
        Error::DatabaseError(kind, Box::new(message.to_owned()))
    }

    /// A lost connection leaves open what became of a commit (G7); an answer of the server's does not.
    #[test]
    fn g7_a_lost_connection_is_told_from_an_answer() {
        use DatabaseErrorKind::*;
        for kind in [UnableToSendCommand, ClosedConnection] {
            let error = raised(kind, "");
            assert!(is_lost(&error) && !is_of_the_server(&error), "{error:?}");
        }
        for kind in [
            UniqueViolation,
            ForeignKeyViolation,
            SerializationFailure,
            ReadOnlyTransaction,
            NotNullViolation,
            CheckViolation,
            RestrictViolation,
            ExclusionViolation,
            Unknown,
        ] {
            let error = raised(kind, "server closed the connection");
            assert!(!is_lost(&error) && is_of_the_server(&error), "{error:?}");
        }
        for error in [Error::NotFound, Error::RollbackTransaction, Error::BrokenTransactionManager]
        {
            assert!(!is_lost(&error) && !is_of_the_server(&error), "{error:?}");
        }
        for unread in [Error::NotFound, Error::DeserializationError("a time".into())] {
            assert!(!is_of_the_client(&unread), "{unread:?}");
        }
        assert!(is_of_the_client(&Error::SerializationError("a time".into())));
    }

    /// No other connection would send it either, nor the same one later.
    #[test]
    fn g16_what_the_client_refuses_to_send_is_not_of_the_connection() {
        let told = |text| raised(DatabaseErrorKind::UnableToSendCommand, text);
        for (text, kind) in [
            ("error encoding message to server", "more than 65,535 values"),
            ("error serializing parameter 3", "an error of the query or the driver"),
            ("expected 1 parameters but got 0", "an error of the query or the driver"),
        ] {
            assert!(is_of_the_client(&told(text)), "{text}");
            assert!(!is_lost(&told(text)) && !is_of_the_server(&told(text)), "{text}");
            let error = StoreError::database("run the phase", told(text));
            assert!(!error.is_of_the_connection() && !error.is_worth_a_rerun(), "{text}");
            assert!(error.kind().starts_with(kind), "{text}: {}", error.kind());
        }
        for text in ["connection closed", "error communicating with the server"] {
            assert!(!is_of_the_client(&told(text)) && is_lost(&told(text)), "{text}");
            let error = StoreError::database("run the phase", told(text));
            assert!(error.is_of_the_connection() && error.is_worth_a_rerun(), "{text}");
        }
    }

    const STALE_TYPE: &str = "cache lookup failed for type 16385";
    const STALE_PLAN: &str =
        "type of parameter 5 (bigint) does not match that when preparing the plan (integer)";
    const EARLIER: &str =
        "a migration changed a type that the session remembers: behind a pooler, let it RECONNECT";

    /// It is as stale for several statements as for one.
    #[test]
    fn what_a_stale_session_says_is_not_said_of_a_single_statement() {
        let told = |message| raised(DatabaseErrorKind::Unknown, message);
        for stale in [
            STALE_TYPE,
            STALE_PLAN,
            "cached plan must not change result type",
            "prepared statement \"s1\" does not exist",
        ] {
            let error = told(stale);
            assert!(is_of_a_stale_session(&error), "{stale}");
            assert!(!may_be_refused_as_single_statement(&error), "{stale}");
        }
        let other = told("type of parameter 5 is not known");
        assert!(!is_of_a_stale_session(&other) && may_be_refused_as_single_statement(&other));
    }

    /// However long it took: a refusal may arrive late, and what has waited would wait as long again.
    #[test]
    fn a_wait_that_the_server_ended_is_no_refusal_of_a_single_statement() {
        let told = |message| raised(DatabaseErrorKind::Unknown, message);
        for ended in [
            "canceling statement due to statement timeout",
            "canceling statement due to lock timeout",
            "canceling statement due to user request",
            "deadlock detected",
        ] {
            assert!(!may_be_refused_as_single_statement(&told(ended)), "{ended}");
        }
        let rule = "DO ALSO rules are not supported for data-modifying statements in WITH";
        for refused in [rule, "the writer said: deadlock detected"] {
            assert!(may_be_refused_as_single_statement(&told(refused)), "{refused}");
        }
    }

    #[test]
    fn a_type_that_was_replaced_is_suspected_in_the_words_of_a_wrong_one() {
        let told = |message| raised(DatabaseErrorKind::Unknown, message);
        let is_suspected = |message| {
            may_be_of_a_replaced_type(&StoreError::database("run the phase", told(message)))
        };
        for replaced in [
            "column \"mood\" is of type mood but expression is of type mood_before",
            "operator does not exist: mood = mood_before",
        ] {
            assert!(is_suspected(replaced), "{replaced}");
            assert!(!is_of_a_stale_session(&told(replaced)), "{replaced}");
        }
        for other in [STALE_TYPE, "column \"mood\" does not exist", "deadlock detected"] {
            assert!(!is_suspected(other), "{other}");
        }
    }

    /// Of a server that speaks English.
    #[test]
    fn the_kind_of_an_error_names_its_cause() {
        let full = "could not extend file \"base/5/16385\": No space left on device";
        for (told, kind) in [
            (full, "the disk is full"),
            ("permission denied for table rides", "a privilege is missing"),
            ("relation \"rides\" does not exist", "a table is missing"),
            ("column \"amount\" does not exist", "a column is missing"),
            ("canceling statement due to lock timeout", "lock timeout"),
            ("prepared statement \"s1\" does not exist", crate::error::POOLER),
            (STALE_TYPE, EARLIER),
            (STALE_PLAN, EARLIER),
            ("1205 does not exist", "an error that the database reported"),
        ] {
            let error = crate::error::DbError(raised(DatabaseErrorKind::Unknown, told));
            assert_eq!(error.kind(), kind, "{told}");
        }
    }

    #[test]
    fn a_mark_is_found_in_any_language_and_its_sql_is_not_one() {
        for mark in Mark::ALL {
            let message =
                format!("ungültige Eingabesyntax für Typ integer: »{}«", mark.texts().raised);
            assert_eq!(Mark::of(&raised(DatabaseErrorKind::Unknown, &message)), Some(mark));
            let quoted = format!("no: SELECT {}::integer", mark.sql());
            assert_eq!(Mark::of(&raised(DatabaseErrorKind::Unknown, &quoted)), None);
            let guessed = format!("atomic_phases:{}", mark.word());
            assert_eq!(Mark::of(&raised(DatabaseErrorKind::Unknown, &guessed)), None);
        }
    }
}
