//! Book a ride, crash right after the card was charged, resume: one ride, one charge, one answer.
//! `cargo run --example quickstart` needs no server.

use std::{env, fs, process, time::Duration};

use atomic_phases::config::OnDuplicate;
use atomic_phases::diesel_async::{RunQueryDsl, SimpleAsyncConnection};
use atomic_phases::store::Sqlite;
use atomic_phases::{
    Engine, ForeignCall, IdempotencyKey, PhaseError, PhaseResult, Reply, RequestContext, Scope,
    Store, Tx, atomic_phases,
};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct BookRide {
    cents: u32,
}
#[derive(Serialize, Deserialize)]
struct Ride(String);
#[derive(Serialize, Deserialize)]
struct Charge(String);

#[atomic_phases(name = "rides.book", version = 1)]
impl BookRide {
    #[phase] // local: the ride and the recovery point are one commit
    async fn ride_created(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Ride> {
        diesel::sql_query("INSERT INTO rides (user) VALUES ('Ada')").execute(tx).await?;
        println!("  ride_created: the ride is booked");
        Ok(Ride("ride of Ada".into()))
    }

    #[phase(foreign(idempotent))] // foreign: no transaction is open; the bank knows repeated keys
    async fn charged(&self, call: ForeignCall, ctx: &RequestContext) -> PhaseResult<Charge> {
        let charge = call.make(async |key| bank(key.as_str(), self.cents)).await?;
        if ctx.attempt() == 1 {
            println!("  charged: and now the process dies");
            process::abort();
        }
        Ok(charge)
    }

    #[phase] // the last phase answers
    async fn receipt_staged(&self, tx: &mut Tx<'_, Sqlite>, c: &Charge) -> PhaseResult<Reply> {
        tx.stage_job("send_receipt", c)?;
        Ok(Reply::json(201, c)?)
    }
}

/// A bank with a line in a file for each charge. It answers a key that it knows, and charges no more.
fn bank(key: &str, cents: u32) -> Result<Charge, PhaseError> {
    let book = fs::read_to_string("quickstart.bank").unwrap_or_default();
    let known = book.contains(key);
    println!("  the bank: {key} is {}", if known { "known, nothing to do" } else { "charged" });
    if !known {
        fs::write("quickstart.bank", format!("{book}{key} {cents}\n")).expect("a writable folder");
    }
    Ok(Charge(format!("charge {}", &key[..8])))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    env::set_current_dir(env::temp_dir())?;
    if env::args().nth(1).is_none() {
        for file in ["quickstart.db", "quickstart.db-wal", "quickstart.db-shm", "quickstart.bank"] {
            let _ = fs::remove_file(file);
        }
        println!("A first process:");
        process::Command::new(env::current_exe()?).arg("first").status()?;
        println!("A second process, with the same request and the same key:");
    }
    let store = Sqlite::connect("quickstart.db").await?;
    store.migrate().await?;
    store.connection().await?.batch_execute("CREATE TABLE IF NOT EXISTS rides (user)").await?;
    let engine =
        Engine::builder(store).register::<BookRide>().lease(Duration::from_secs(1)).build()?;
    let (scope, key) = (Scope::new("Ada")?, IdempotencyKey::new("8e03978e-40d5-43dd-bc93")?);
    let patient = OnDuplicate::Wait(Duration::from_secs(5)); // for the dead process's lease to end
    let call = engine.call(&scope, &key, BookRide { cents: 2000 }).on_duplicate(patient);
    println!("{:?}", call.await?);
    println!("The bank's book:\n  {}", fs::read_to_string("quickstart.bank")?);
    Ok(())
}
