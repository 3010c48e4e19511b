//! How long an answer of the server is waited for.

use std::future::Future;
use std::time::Duration;

use diesel::result::{DatabaseErrorKind, Error};

/// How long the store waits for the server's answer to a statement of its own. Past it, the
/// connection is destroyed, and a commit's outcome counts as unknown.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// Bounds the wait for an answer to the engine's own statements.
pub(super) async fn answered<T>(sent: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    answered_within(ANSWER_WITHIN, sent).await
}

/// Bounds the wait for an answer. Without one, whatever was sent may have been executed.
pub(super) async fn answered_within<T>(
    bound: Duration,
    sent: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    tokio::time::timeout(bound, sent).await.unwrap_or_else(|_| {
        Err(Error::DatabaseError(
            DatabaseErrorKind::ClosedConnection,
            Box::new("the server did not answer in time".to_owned()),
        ))
    })
}
