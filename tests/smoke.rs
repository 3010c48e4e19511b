use atomic_phases::__private::*;
use atomic_phases::*;
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Serialize, Deserialize)]
struct Ride {
    amount: i64,
    mode: String,
}
struct App {
    calls: std::sync::Mutex<Vec<String>>,
}

impl<S: Store> Phases<S, App> for Ride {
    fn run_local<'a>(
        &'a self,
        index: usize,
        tx: &'a mut Tx<'_, S>,
        scene: &'a Scene<'a, App>,
    ) -> PhaseFuture<'a, Step, PhaseError> {
        match index {
            0 => Box::pin(async move {
                if self.mode == "reject" {
                    return Err(PhaseError::reject(Reply::text(402, "no")));
                }
                if self.mode == "panic" {
                    panic!("oh");
                }
                output(&scene.context().uuid(1).to_string())
            }),
            2 => Box::pin(async move {
                let a: String = scene.output(0)?;
                let b: i64 = scene.output(1)?;
                tx.stage_job("mail", &a)?;
                reply(Reply::json(201, &(a, b))?)
            }),
            _ => Box::pin(async { Err(no_such_phase()) }),
        }
    }
    fn run_foreign<'a>(
        &'a self,
        _index: usize,
        call: ForeignCall,
        scene: &'a Scene<'a, App>,
    ) -> PhaseFuture<'a, Step, ForeignError> {
        Box::pin(async move {
            let r = call
                .make(async |key| {
                    scene.app().calls.lock().unwrap().push(key.to_string());
                    if self.mode == "once" && scene.context().attempt() == 1 {
                        return Err(ForeignError::retryable("asked to"));
                    }
                    Ok(self.amount * 2)
                })
                .await?;
            Ok(output(&r)?)
        })
    }
    fn reconcile<'a>(
        &'a self,
        _: usize,
        _: &'a Scene<'a, App>,
    ) -> PhaseFuture<'a, Reconciled<Step>, PhaseError> {
        Box::pin(async { Err(no_such_phase()) })
    }
}
impl<S: Store> RequestDefinition<S, App> for Ride {
    const DEFINITION: Definition = Definition {
        name: "ride",
        version: 1,
        phases: &[
            Phase {
                name: "a",
                was: &[],
                kind: PhaseKind::Local(Isolation::ReadCommitted),
                commit: false,
            },
            Phase {
                name: "b",
                was: &[],
                kind: PhaseKind::Foreign(EffectClass::Idempotent { window: None }),
                commit: false,
            },
            Phase {
                name: "c",
                was: &[],
                kind: PhaseKind::Local(Isolation::ReadCommitted),
                commit: false,
            },
        ],
    };
}
async fn go<S: Store>(store: S) {
    store.migrate().await.unwrap();
    store.migrate().await.unwrap();
    let engine = Engine::builder(store)
        .app(App { calls: Default::default() })
        .register::<Ride>()
        .lease(Duration::from_secs(3))
        .build()
        .unwrap();
    let scope = Scope::new("s").unwrap();
    for mode in ["ok", "reject", "panic", "once"] {
        let key = IdempotencyKey::new(format!("{mode}-{}", uuid::Uuid::new_v4())).unwrap();
        for i in 0..3 {
            let t = std::time::Instant::now();
            let o = engine.execute(&scope, &key, Ride { amount: 4, mode: mode.into() }).await;
            println!("{mode} {i} {:?} {:?}", t.elapsed(), o);
            if let Ok(Outcome::Finished(f)) = o {
                println!("  {}", String::from_utf8_lossy(f.reply.bytes()));
            }
        }
        println!("{:?}", engine.execute(&scope, &key, Ride { amount: 5, mode: mode.into() }).await);
    }
    println!("{:?}", engine.app().calls.lock().unwrap());
    println!("{:?}", engine.check().await);
    engine.shutdown().await;
}
#[tokio::test]
async fn sqlite() {
    go(Sqlite::open(":memory:").await.unwrap()).await;
}
#[tokio::test]
async fn postgres() {
    go(Postgres::connect("postgres://postgres@127.0.0.1:54329/smoke").await.unwrap()).await;
}
