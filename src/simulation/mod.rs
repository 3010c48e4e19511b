//! Simulation: the real engine, with its workers, on simulated time and chance, over a store in memory.
//!
//! [`simulate`] runs a scenario on one thread: a day passes in no time, and the same seed does the same,
//! to the last detail. A scenario has
//!
//! * a [`Database`], with PostgreSQL's manners: row locks and their timeouts, READ COMMITTED and snapshots,
//!   unique keys that wait, statements that are executed although their client is gone, restarts;
//! * [`Node`]s, which stand still and die, each with a [`Memory`] store and an engine of its own;
//! * a [`Network`] for each of them, which delays each statement and each answer, cuts connections before,
//!   within and after a transaction, and loses answers.
//!
//! What a request writes to tables of its own is a [`Write`], because the store executes no SQL:
//!
//! ```
//! use atomic_phases::simulation::{Database, Memory, Write, simulate};
//! use atomic_phases::{Engine, IdempotencyKey, PhaseResult, Reply, RequestContext, Scope, Tx, atomic_phases, phase};
//! use diesel_async::RunQueryDsl;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Deposit { cents: i64 }
//!
//! #[atomic_phases(name = "deposit", version = 1)]
//! impl Deposit {
//!     #[phase]
//!     async fn booked(&self, tx: &mut Tx<'_, Memory>, ctx: &RequestContext) -> PhaseResult<Reply> {
//!         Write::insert("deposits", ctx.uuid(0).to_string(), self.cents).execute(tx).await?;
//!         Ok(Reply::new(201))
//!     }
//! }
//!
//! let booked = simulate(7, || async {
//!     let database = Database::default();
//!     let engine = Engine::builder(Memory::connect(&database)).register::<Deposit>().build().unwrap();
//!     let (scope, key) = (Scope::new("tenant").unwrap(), IdempotencyKey::new("k").unwrap());
//!     for _ in 0..2 {
//!         engine.call(&scope, &key, Deposit { cents: 500 }).await.unwrap();
//!         tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
//!     }
//!     database.rows("deposits").len()
//! });
//! assert_eq!(booked, 1);
//! ```

mod node;
mod world;

pub use self::node::Node;
pub use self::world::{Chance, passed_points, simulate, simulate_with};
pub(crate) use self::world::{elapsed, is_simulated, mutates, pass, pass_variant, random_bits};
pub use crate::store::memory::{
    Cut, Database, KeyChange, KeyState, Memory, MemoryBackend, MemoryConnection, Network, Passage,
    Perfect, Write,
};
