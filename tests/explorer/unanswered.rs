//! A row whose creation got no answer is acquired by the call that created it. Nothing has been called by then, however late
//! it is.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::support::work::age;
use crate::support::*;
use atomic_phases::codec::{Codec, CodecError, Place};
use atomic_phases::fault::{Mode, explore};
use atomic_phases::phase::ForeignError;
use atomic_phases::{Engine, ForeignCall, PhaseResult, Reply, Tx, atomic_phases};
use serde::{Deserialize, Serialize};

on_every_store! {
    g17_a_request_whose_creation_got_no_answer_makes_its_first_call_after_whatever_time,
}

#[derive(Clone, Serialize, Deserialize)]
struct Asks;

#[derive(Serialize, Deserialize)]
struct Done;

#[atomic_phases(name = "asks", version = 1)]
impl<Db: TestDb> Asks {
    #[phase(foreign(idempotent, window = "30m"))]
    async fn asked(&self, call: ForeignCall, app: &App) -> PhaseResult<Done, ForeignError> {
        call.make(async |key| {
            app.provider.call(key.as_str(), "asked").await;
            Ok::<_, ForeignError>(Done)
        })
        .await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, _done: &Done) -> PhaseResult<Reply> {
        Db::insert_step(tx, "asks", "answered").await?;
        Ok(Reply::new(204))
    }
}

/// Stores everything as it is. When it reads the parameters of a row back for the first time, the provider's window has
/// passed since the row was created.
struct Late<S> {
    /// As another process has it: the thread that reads is the engine's.
    db: S,
    has_read: AtomicBool,
    times: Arc<AtomicU32>,
}

impl<S: TestDb> Codec for Late<S> {
    fn encode<'v>(&self, _: Place<'_>, plain: Cow<'v, [u8]>) -> Result<Cow<'v, [u8]>, CodecError> {
        Ok(plain)
    }

    fn decode<'v>(
        &self,
        at: Place<'_>,
        stored: Cow<'v, [u8]>,
    ) -> Result<Cow<'v, [u8]>, CodecError> {
        if at.column == "params" && !self.has_read.swap(true, Ordering::Relaxed) {
            self.times.fetch_add(1, Ordering::Relaxed);
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    let runtime =
                        tokio::runtime::Builder::new_current_thread().enable_all().build();
                    let hour = Duration::from_secs(3600);
                    runtime.unwrap().block_on(async { age(&self.db.another().await, hour).await });
                });
            });
        }
        Ok(stored)
    }
}

/// The answers to the commits are lost, one in each case.
async fn g17_a_request_whose_creation_got_no_answer_makes_its_first_call_after_whatever_time<
    S: TestDb,
>(
    db: S,
) {
    let (elsewhere, late) = (db.another().await, Arc::new(AtomicU32::new(0)));
    let times = late.clone();
    let world = async move || {
        db.sql("DELETE FROM atomic_phases_keys; DELETE FROM steps").await;
        let (app, has_read) = (App::default(), AtomicBool::new(false));
        let codec = Late { db: elsewhere.clone(), has_read, times: times.clone() };
        let builder = Engine::builder(db.clone()).app(app.clone()).register::<Asks>();
        let builder = builder.codec(codec).lease(Duration::from_secs(60));
        let engine: TestEngine<S> = builder.build().unwrap();
        (engine, app)
    };
    let report = explore(world, Asks)
        .modes([Mode::AckLost])
        .check("one effect", async |app: &App| assert_eq!(app.provider.effects(), 1))
        .always_settles()
        .run()
        .await;
    println!("{report}");
    report.assert_ok();
    assert!(late.load(Ordering::Relaxed) > 0, "no call has read the row that it created");
}
