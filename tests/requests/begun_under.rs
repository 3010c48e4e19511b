//! The conditions under which a call began, if another build takes its row over: its time limit, the secret of its
//! derived key, and whether its phase has a reconcile function (G1, G2).

use std::time::Duration;

use crate::support::work::{completed, dies_in_its_call, reconciled, status};
use crate::support::*;
use atomic_phases::config::DerivedKeys;
use atomic_phases::engine::{FailureCause, StrandedBecause};
use atomic_phases::phase::{DerivedKey, ForeignError, Reconciled};
use atomic_phases::request::RequestDefinition;
use atomic_phases::{Engine, ForeignCall, Outcome, PhaseResult, Reply, Tx, atomic_phases};
use serde::{Deserialize, Serialize};

on_every_store! {
    g2_nothing_is_asked_before_the_time_limit_that_the_call_was_begun_under_has_passed,
    g1_under_another_secret_no_call_is_repeated_and_the_row_is_reported,
    g1_a_secret_is_replaced_while_requests_are_under_way,
    g1_a_request_without_a_call_begins_under_the_new_secret,
    g14_a_build_without_the_reconcile_function_leaves_the_row_to_one_that_has_it,
}

/// An errand at a provider that honors no key, with the time limit that a build sets.
macro_rules! errand {
    ($name:ident, $limit:literal) => {
        #[derive(Clone, Serialize, Deserialize)]
        struct $name;

        #[atomic_phases(name = "errand", version = 1)]
        impl<Db: TestDb> $name {
            #[phase(foreign(at_most_once), timeout = $limit)]
            async fn ran(&self, call: ForeignCall, app: &App) -> PhaseResult<String, ForeignError> {
                let run = async |key: DerivedKey| {
                    Ok::<_, ForeignError>(app.provider.call(key.as_str(), "errand").await)
                };
                call.make(run).await
            }

            #[reconcile(ran)]
            async fn find(&self, key: &DerivedKey, app: &App) -> PhaseResult<Reconciled<String>> {
                Ok(match app.provider.search(key.as_str()) {
                    None => Reconciled::StillUnknown,
                    Some(None) => Reconciled::NotExecuted,
                    Some(Some(id)) => Reconciled::Executed(id),
                })
            }

            #[phase]
            async fn answered(&self, tx: &mut Tx<'_, Db>, ran: &str) -> PhaseResult<Reply> {
                Db::insert_step(tx, ran, "answered").await?;
                Ok(Reply::text(200, ran))
            }
        }
    };
}

errand!(Patient, "300s");
errand!(Hasty, "1s");

fn running<S: TestDb, R: RequestDefinition<S, App>>(db: &S, app: &App) -> TestEngine<S> {
    let builder = Engine::builder(db.clone()).app(app.clone()).register::<R>();
    builder.lease(Duration::from_secs(60)).build().unwrap()
}

/// No worker calls the reconcile function before the end of the lease and that limit, so that *not executed* can be
/// believed.
async fn g2_nothing_is_asked_before_the_time_limit_that_the_call_was_begun_under_has_passed<
    S: TestDb,
>(
    db: S,
) {
    const LIMIT: Duration = Duration::from_secs(300);
    let app = App::new(Provider::that_ignores_keys());
    let (patient, hasty) = (running::<S, Patient>(&db, &app), running::<S, Hasty>(&db, &app));
    dies_in_its_call(&patient, "k", Patient).await;
    db.let_time_pass().await;
    assert_eq!(completed(&hasty).await.unknown, 1);
    let rests = status(&hasty, "k").await.retry_after;
    assert!(rests > LIMIT - Duration::from_secs(30), "{rests:?}");
    assert_eq!(reconciled(&hasty).await.total(), 0);

    // A process took the row over and died before it could record that the outcome is unknown. The next one finds
    // the same row.
    dies_in_its_call(&patient, "l", Patient).await;
    db.let_time_pass().await;
    let row =
        |columns| format!("SELECT {columns} FROM atomic_phases_keys WHERE idempotency_key = 'l'");
    let before = db.text(&row("phases")).await;
    assert_eq!(completed(&hasty).await.unknown, 1);
    let after = db.text(&row("phases")).await;
    assert!(before.contains("@300000") && after.contains("@300000"), "{before:?}, then {after:?}");

    // A call that this build begins ends by this build's own limit.
    let own = Duration::from_secs(30);
    dies_in_its_call(&hasty, "m", Hasty).await;
    db.let_time_pass().await;
    assert_eq!(completed(&hasty).await.unknown, 1);
    let rests = status(&hasty, "m").await.retry_after;
    assert!(rests <= own, "`reconcile_after`, which is longer: {rests:?}");
}

fn secret(name: &str) -> DerivedKeys {
    DerivedKeys::plain().with_secret(format!("sixteen bytes of a secret, {name}")).unwrap()
}

fn under<S: TestDb>(db: &S, app: &App, keys: &DerivedKeys) -> TestEngine<S> {
    let keys = keys.clone();
    engine_with(db, app, |builder| builder.lease(Duration::from_secs(60)).derived_keys(keys))
}

async fn g1_under_another_secret_no_call_is_repeated_and_the_row_is_reported<S: TestDb>(db: S) {
    let plain = DerivedKeys::plain;
    let changes = [
        ("given", plain(), secret("a")),
        ("taken", secret("a"), plain()),
        ("replaced", secret("a"), secret("b")),
        ("salted", secret("a"), secret("a").salted_by_request()),
    ];
    for (name, before, after) in changes {
        let app = App::default();
        let old = under(&db, &app, &before);
        let stops = troubled(Trouble::RetryForeignOnce);
        failed(old.call(&scope(), &key(name), stops).await);
        db.let_time_pass().await;

        let new = under(&db, &app, &after);
        let told = new.call(&scope(), &key(name), book(20)).await;
        let is_left = matches!(told, Ok(Outcome::Failed { cause: FailureCause::NotKnownHere, .. }));
        assert!(is_left, "{name}: {told:?}");
        assert_eq!(completed(&new).await.left, 1, "{name}");
        let report = new.check().await.unwrap();
        let because: Vec<_> = report.stranded.iter().map(|found| found.because).collect();
        assert_eq!(because, [StrandedBecause::DerivedKeysChanged], "{name}");
        assert_eq!(app.provider.calls().len(), 1, "{name}");

        let both = under(&db, &app, &after.also_continue(before));
        assert!(both.check().await.unwrap().found_nothing_stranded(), "{name}");
        finished(both.call(&scope(), &key(name), book(20)).await);
        let calls = app.provider.calls();
        assert_eq!((calls.len(), app.provider.effects()), (2, 1), "{name}: {calls:?}");
    }
}

/// The three deployments of the docs; two of them run side by side at each time.
async fn g1_a_secret_is_replaced_while_requests_are_under_way<S: TestDb>(db: S) {
    let (old, new) = (secret("old"), secret("new"));
    let app = App::default();
    let first = under(&db, &app, &old);
    let learns = under(&db, &app, &old.clone().also_continue(new.clone()));
    let changes = under(&db, &app, &new.clone().also_continue(old));
    let last = under(&db, &app, &new);
    let deployments = [&first, &learns, &changes, &last];
    for (step, pair) in deployments.windows(2).enumerate() {
        for (turn, [begins, goes_on]) in [[pair[0], pair[1]], [pair[1], pair[0]]].iter().enumerate()
        {
            app.forget_bodies();
            let (name, before) = (key(&format!("{step}-{turn}")), app.provider.effects());
            let stops = troubled(Trouble::RetryForeignOnce);
            failed(begins.call(&scope(), &name, stops.clone()).await);
            let told = goes_on.call(&scope(), &name, stops).await;
            // The last one cannot know which rows the previous one still continues: `Engine::check` finds them in
            // between.
            finished(told);
            assert_eq!(app.provider.effects(), before + 1, "{step}-{turn}");
        }
    }
}

async fn g1_a_request_without_a_call_begins_under_the_new_secret<S: TestDb>(db: S) {
    let app = App::default();
    let old = under(&db, &app, &secret("old"));
    old.call(&scope(), &key("accepted"), book(20)).accept().await.unwrap();
    // Its call is committed, and the next phase is local.
    let told = old.call(&scope(), &key("called"), troubled(Trouble::RetryLastOnce)).await;
    failed(told);
    db.let_time_pass().await;
    let new = under(&db, &app, &secret("new"));
    assert!(new.check().await.unwrap().found_nothing_stranded());
    assert_eq!(completed(&new).await.finished, 2);
    assert_eq!(app.provider.effects(), 2);
    let text = db.joined("atomic_phases_keys", "phases").await;
    let marks = [secret("old"), secret("new")].map(|keys| format!("{keys:?}"));
    assert!(!text.is_empty() && marks.iter().all(|mark| !mark.contains("sixteen")));
}

/// A charge that becomes unknown, in a build with a reconcile function and in one without.
macro_rules! charge {
    ($name:ident $($find:tt)*) => {
        #[derive(Clone, Serialize, Deserialize)]
        struct $name;

        #[atomic_phases(name = "charge", version = 1)]
        impl<Db: TestDb> $name {
            #[phase(foreign(idempotent))]
            async fn paid(&self, call: ForeignCall, app: &App) -> PhaseResult<String, ForeignError> {
                let pay = async |key: DerivedKey| {
                    Ok::<_, ForeignError>(app.provider.call(key.as_str(), "charge").await)
                };
                call.make(pay).await?;
                Err(ForeignError::unknown("no answer"))
            }

            $($find)*

            #[phase]
            async fn answered(&self, tx: &mut Tx<'_, Db>, paid: &str) -> PhaseResult<Reply> {
                Db::insert_step(tx, paid, "answered").await?;
                Ok(Reply::text(200, paid))
            }
        }
    };
}

charge!(Unasked);
charge!(Asked
    #[reconcile(paid)]
    async fn find(&self, key: &DerivedKey, app: &App) -> PhaseResult<Reconciled<String>> {
        Ok(match app.provider.search(key.as_str()) {
            Some(Some(id)) => Reconciled::Executed(id),
            _ => Reconciled::StillUnknown,
        })
    }
);

/// During a rollout, the build without the function must neither give up the row nor change it.
async fn g14_a_build_without_the_reconcile_function_leaves_the_row_to_one_that_has_it<S: TestDb>(
    db: S,
) {
    let app = App::default();
    app.provider.answer_searches();
    let (asked, unasked) = (running::<S, Asked>(&db, &app), running::<S, Unasked>(&db, &app));
    let told = asked.call(&scope(), &key("k"), Asked).await;
    assert!(matches!(told, Ok(Outcome::Unknown { is_asked: true, .. })), "{told:?}");
    const ROW: &str = "SELECT status || ' ' || lease_token || ' ' || reconciles || ' ' || reason \
        FROM atomic_phases_keys";
    db.let_time_pass().await;
    let before = db.text(ROW).await;
    for _ in 0..3 {
        let swept = reconciled(&unasked).await;
        assert_eq!((swept.left, swept.total()), (1, 1), "{swept:?}");
    }
    assert_eq!(db.text(ROW).await, before);
    assert_eq!(reconciled(&asked).await.finished, 1);
    assert_eq!(app.provider.effects(), 1);
}

/// A node of the previous build makes its call and loses its database for good; a node of the current build finds
/// the intent. The provider executes the call long after the current build's limit.
#[cfg(feature = "simulation")]
mod simulated {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use atomic_phases::simulation::{Cut, Database, Memory, Network, Passage, simulate};
    use atomic_phases::store::Status;
    use atomic_phases::worker::WorkerConfig;

    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A provider that the first request reaches after 200 s.
    #[derive(Clone, Default)]
    struct Far {
        effects: Arc<AtomicU32>,
        calls: Arc<AtomicU32>,
    }

    /// A task of its own, which ends when the future that waits for it is dropped, like an HTTP client's
    /// connection.
    struct Connection(tokio::task::JoinHandle<()>);

    impl Drop for Connection {
        fn drop(&mut self) {
            self.0.abort();
        }
    }

    impl Far {
        async fn call(&self) {
            let takes = if self.calls.fetch_add(1, Ordering::SeqCst) == 0 { 200 } else { 0 };
            let effects = self.effects.clone();
            let mut connection = Connection(tokio::spawn(async move {
                tokio::time::sleep(seconds(takes)).await;
                effects.fetch_add(1, Ordering::SeqCst);
            }));
            let _ = (&mut connection.0).await;
        }
    }

    macro_rules! walk {
        ($name:ident, $limit:literal) => {
            #[derive(Clone, Serialize, Deserialize)]
            struct $name;

            #[atomic_phases(name = "walk", version = 1, app = Far)]
            impl $name {
                #[phase(foreign(at_most_once), timeout = $limit)]
                async fn ran(
                    &self,
                    call: ForeignCall,
                    far: &Far,
                ) -> PhaseResult<u16, ForeignError> {
                    call.make(async |_| Ok::<_, ForeignError>(far.call().await)).await?;
                    Ok(1)
                }

                #[reconcile(ran)]
                async fn find(&self, far: &Far) -> PhaseResult<Reconciled<u16>> {
                    Ok(match far.effects.load(Ordering::SeqCst) {
                        0 => Reconciled::NotExecuted,
                        _ => Reconciled::Executed(1),
                    })
                }

                #[phase]
                async fn answered(&self, tx: &mut Tx<'_, Memory>, _n: &u16) -> PhaseResult<Reply> {
                    let _ = tx;
                    Ok(Reply::text(200, "done"))
                }
            }
        };
    }

    walk!(Long, "300s");
    walk!(Short, "30s");

    /// From the test's command on, cuts each statement of this kind, or each one.
    #[derive(Clone, Default)]
    struct Cuts(Arc<AtomicBool>, Option<&'static str>);

    impl Network for Cuts {
        fn passage(&self, what: &'static str) -> Passage {
            let is_meant = self.1.is_none_or(|kind| kind == what);
            let cut = (is_meant && self.0.load(Ordering::SeqCst)).then_some(Cut::Before);
            Passage { cut, ..Passage::default() }
        }
    }

    fn effects_after_a_partition<R: RequestDefinition<Memory, Far>>(heir_fails: bool) -> u32 {
        simulate(1, || async move {
            let (database, far) = (Database::default(), Far::default());
            let (all, writes) = (Cuts::default(), Cuts(Arc::default(), Some("write the key")));
            let node = |cuts: &Cuts| Memory::connect_through(&database, cuts.clone(), 4);
            let before = Engine::builder(node(&all)).app(far.clone()).register::<Long>();
            let before = before.lease(seconds(30)).build().unwrap();
            let now = || {
                let now = Engine::builder(node(&writes)).app(far.clone()).register::<R>();
                now.lease(seconds(30)).build().unwrap()
            };
            let (one, other) = (now(), now());
            writes.0.store(heir_fails, Ordering::SeqCst);
            let workers = one.spawn_workers(WorkerConfig::default()).unwrap();
            let holder = tokio::spawn(async move { before.call(&scope(), &key("k"), Long).await });
            tokio::time::sleep(seconds(1)).await;
            all.0.store(true, Ordering::SeqCst);
            // A successor that took the row over and could not write what it found.
            tokio::time::sleep(seconds(50)).await;
            writes.0.store(false, Ordering::SeqCst);
            let others = other.spawn_workers(WorkerConfig::default()).unwrap();
            tokio::time::sleep(seconds(900)).await;
            let status = other.status(&scope(), &key("k")).await.unwrap().unwrap().status;
            assert_eq!(status, Status::Completed, "it is settled");
            drop((workers, others, holder));
            far.effects.load(Ordering::SeqCst)
        })
    }

    #[test]
    fn g2_with_one_time_limit_in_both_builds_there_is_one_effect() {
        assert_eq!(effects_after_a_partition::<Long>(false), 1);
    }

    #[test]
    fn g2_a_deploy_that_shortens_a_time_limit_makes_no_second_effect() {
        assert_eq!(effects_after_a_partition::<Short>(false), 1);
    }

    #[test]
    fn g2_nor_does_an_heir_that_dies_before_it_has_written_what_it_found() {
        assert_eq!(effects_after_a_partition::<Short>(true), 1);
    }
}
