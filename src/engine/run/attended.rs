//! The body of a local phase, for as long as what it writes can be committed.
//!
//! A body ends by itself, as a rule. It is dropped where it would continue for ever or for nothing: past the
//! phase's time limit; when another holder has the row; and when its transaction has ended without it. A
//! network can lose a connection and tell neither end: the server then ends the transaction by itself, and the
//! body waits for an answer that does not come, while the lease is renewed on other connections. TCP alone
//! does not find that out where a proxy stands in between, so the server is asked, on another connection
//! (G17).

use std::future::{Future, pending};

use diesel::result::{DatabaseErrorKind, Error};
use tokio::time::Instant;

use super::Run;
use super::body::{Body, BodyError};
use crate::definition::Phase;
use crate::error::DbError;
use crate::observe::Span;
use crate::panics;
use crate::phase::PhaseFailure;
use crate::request::Step;
use crate::store::{Store, TransactionId};

impl<S: Store> Run<S> {
    /// `None` where the row is another holder's. `transaction`: that of the body, if it has one that can end
    /// without it.
    pub(super) async fn attended<E: Into<BodyError<PhaseFailure>>>(
        &self,
        phase: &Phase,
        span: Span,
        transaction: Option<TransactionId>,
        body: impl Future<Output = Result<Step, E>> + Unpin,
    ) -> Option<Body<PhaseFailure>> {
        let body = span.around(panics::catch_async(body));
        let began = Instant::now();
        // One that did not wait was not interrupted: by a statement of an embedded database, say.
        let is_late = || phase.time_limit().is_some_and(|limit| began.elapsed() > limit);
        tokio::select! {
            biased;
            ended = body => Some(if is_late() { Body::TimedOut } else { Body::of(ended) }),
            () = limit(phase) => Some(Body::TimedOut),
            () = self.lease.lost() => None,
            () = self.end_of(transaction) => {
                Some(Body::Failed(PhaseFailure::Database(ended_without_it())))
            }
        }
    }

    /// When the server says that the transaction is over; never, if it does not.
    async fn end_of(&self, transaction: Option<TransactionId>) {
        let Some(transaction) = transaction else { return pending().await };
        loop {
            tokio::time::sleep(self.core.settings.lease / 3).await;
            // Without an answer nothing is known.
            if let Ok(false) = self.core.store.is_transaction_open(&transaction).await {
                return;
            }
        }
    }
}

async fn limit(phase: &Phase) {
    match phase.time_limit() {
        Some(limit) => tokio::time::sleep(limit).await,
        None => pending().await,
    }
}

/// The error that the phase's connection would have returned.
fn ended_without_it() -> DbError {
    let message = "the phase's transaction ended at the server".to_owned();
    DbError(Error::DatabaseError(DatabaseErrorKind::ClosedConnection, Box::new(message)))
}
