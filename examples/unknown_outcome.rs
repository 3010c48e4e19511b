//! A bank that knows no keys does the transfer, and its answer is lost: the call is not repeated. A
//! reconcile function settles what the bank can be asked about; an operator, the rest.
//! `cargo run --example unknown_outcome` needs no server.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use atomic_phases::diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use atomic_phases::engine::Resolution;
use atomic_phases::phase::{ForeignError, Reconciled};
use atomic_phases::store::Sqlite;
use atomic_phases::worker::WorkerConfig;
use atomic_phases::{
    Batch, Engine, ForeignCall, IdempotencyKey, Outcome, PhaseResult, Reply, RequestContext, Scope,
    Store, Tx, atomic_phases,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct PayOut {
    cents: i64,
}
#[derive(Serialize, Deserialize)]
struct Transfer {
    number: u64,
}

#[atomic_phases(name = "payouts.create", version = 1, app = Bank)]
impl PayOut {
    #[phase] // local: the money is set aside before it is sent
    async fn set_aside(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<()> {
        diesel::sql_query("UPDATE account SET cents = cents - ?")
            .bind::<diesel::sql_types::BigInt, _>(self.cents)
            .execute(tx)
            .await?;
        Ok(())
    }

    // The bank takes no key and would pay again, so its word is a reference that we choose: the same in
    // each attempt, and what the reconcile function asks for.
    #[phase(foreign(at_most_once), timeout = "2s")]
    async fn sent(
        &self,
        call: ForeignCall,
        ctx: &RequestContext,
        bank: &Bank,
    ) -> PhaseResult<Transfer, ForeignError> {
        let reference = ctx.key_uuid(0).to_string();
        call.make(async |_| bank.pay(&reference, self.cents).await).await
    }

    // Called by a worker for as long as the outcome is unknown; it makes no call that has an effect.
    #[reconcile(sent)]
    async fn find(&self, ctx: &RequestContext, bank: &Bank) -> PhaseResult<Reconciled<Transfer>> {
        Ok(match bank.find(&ctx.key_uuid(0).to_string()) {
            Some(transfer) => Reconciled::Executed(transfer),
            // Not found is not the same as not executed: this bank may still be at work on it. One that
            // refuses a reference for good would be told `Reconciled::NotExecuted`.
            None => Reconciled::StillUnknown,
        })
    }

    #[phase]
    async fn answered(&self, batch: &mut Batch<'_, Sqlite>, sent: &Transfer) -> PhaseResult<Reply> {
        batch.stage_job("send_receipt", sent)?;
        Ok(Reply::json(201, sent)?)
    }
}

/// A bank with a list of transfers by reference. Its answers get lost.
#[derive(Default)]
struct Bank {
    transfers: Mutex<HashMap<String, u64>>,
    is_searchable: bool,
}

impl Bank {
    async fn pay(&self, reference: &str, cents: i64) -> Result<Transfer, ForeignError> {
        {
            let mut transfers = self.transfers.lock().unwrap_or_else(|p| p.into_inner());
            let number = transfers.len() as u64 + 1;
            transfers.insert(reference.to_owned(), number);
            println!("  the bank: transfer {number} of {cents} cents is done");
        }
        Err(ForeignError::unknown("the bank's answer was lost"))
    }

    fn find(&self, reference: &str) -> Option<Transfer> {
        let transfers = self.transfers.lock().unwrap_or_else(|p| p.into_inner());
        self.is_searchable
            .then(|| transfers.get(reference).map(|number| Transfer { number: *number }))?
    }
}

async fn pay_out(is_searchable: bool) -> Result<(), Box<dyn std::error::Error>> {
    let store = Sqlite::connect(":memory:").await?;
    store.migrate().await?;
    let tables = "CREATE TABLE account (cents BIGINT); INSERT INTO account VALUES (10000)";
    store.connection().await?.batch_execute(tables).await?;
    let engine = Engine::builder(store)
        .app(Bank { is_searchable, ..Bank::default() })
        .register::<PayOut>()
        // How long an unknown outcome rests before the bank is asked: as long as a call may take, at least.
        .reconcile_after(Duration::from_secs(2))
        .build()?;
    let workers = engine.spawn_workers(WorkerConfig::default().poll(Duration::from_millis(100)))?;
    let (scope, key) = (Scope::single_tenant(), IdempotencyKey::new("payout-17")?);

    let outcome = engine.call(&scope, &key, PayOut { cents: 2500 }).await?;
    println!("  the client gets: {outcome:?}");
    // The operator's page, or a webhook's handler.
    if !is_searchable {
        let Some(status) = engine.status(&scope, &key).await? else { return Ok(()) };
        let (Some(phase), Some(reason)) = (status.unknown_phase, status.reason) else {
            return Ok(());
        };
        println!(
            "  the operator sees: {phase} is unknown, {reason}; the bank says on the phone: done"
        );
        let resolution = Resolution::executed(phase, &Transfer { number: 1 })?;
        println!(
            "  the operator's resolution: {:?}",
            engine.resolve(&scope, &key, resolution).await?
        );
    }
    // The client tries again, with the same key. Meanwhile, a worker may be running the request.
    let told = loop {
        match engine.call(&scope, &key, PayOut { cents: 2500 }).await? {
            Outcome::Unknown { .. } | Outcome::InProgress { .. } => {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            told => break told,
        }
    };
    println!("  a retry gets: {told:?}");
    println!("  transfers at the bank: {}", engine.app().transfers.lock().map_or(0, |t| t.len()));

    // Where there is an HTTP server: this, then its connections, then the workers.
    engine.shutdown(Duration::from_secs(35)).await?;
    workers.shutdown(Duration::from_secs(35)).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("A bank that can be asked:");
    pay_out(true).await?;
    println!("A bank that cannot be asked:");
    pay_out(false).await
}
