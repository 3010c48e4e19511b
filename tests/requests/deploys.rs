//! G14: old and new binaries, and renamed, added and removed phases, while requests are in flight.

use std::time::Duration;

use crate::support::work::dies_in_its_call;
use crate::support::*;
use atomic_phases::engine::{
    BuildError, CallError, CheckReport, FailureCause, Resolution, ResolveError, Resolved,
    StrandedBecause,
};
use atomic_phases::fingerprint::{FingerprintRule, Unfingerprinted};
use atomic_phases::phase::{DerivedKey, Reconciled};
use atomic_phases::request::RequestDefinition;
use atomic_phases::store::Status;
use atomic_phases::worker::{Completer, WorkerConfig};
use atomic_phases::{
    Engine, ForeignCall, Outcome, PhaseError, PhaseResult, Reply, RequestContext, Tx, atomic_phases,
};
use serde::{Deserialize, Serialize};

on_every_store! {
    g14_a_row_in_flight_survives_a_rename_and_an_added_phase,
    g14_a_removed_phase_strands_its_rows_and_is_reported,
    g14_another_version_is_left_to_the_node_that_knows_it,
    g14_what_a_newer_process_wrote_is_left_alone,
    g2_a_call_that_was_made_as_idempotent_is_not_repeated_as_at_most_once,
    g2_the_next_build_knows_under_which_class_a_call_was_made,
    g1_a_call_whose_provider_key_changed_is_left_alone_and_reported,
    g14_an_inserted_phase_strands_the_rows_beyond_it_and_an_operator_hears_the_truth,
    g17_parameters_of_another_type_count_as_attempts_and_an_operator_can_settle_them,
    g17_parameters_whose_type_panics_as_it_reads_them_do_so_too,
    g17_an_output_of_another_type_is_seen_before_a_phase_runs,
    g14_a_retry_of_a_newer_version_drives_the_row_by_its_own,
    check_reads_a_bounded_number_of_rows,
    check_says_where_it_did_not_read_all_young_rows,
}

#[derive(Serialize, Deserialize)]
struct Paid(String);

async fn pay(call: ForeignCall, app: &App, ctx: &RequestContext, fail: bool) -> PhaseResult<Paid> {
    let paid =
        async |key: DerivedKey| Ok::<_, PhaseError>(app.provider.call(key.as_str(), "pay").await);
    let id = call.make(paid).await?;
    match fail && ctx.attempt() == 1 {
        true => Err(PhaseError::retryable("asked for")),
        false => Ok(Paid(id)),
    }
}

/// The three deploys of one definition: `first`, the second phase, `answered`.
macro_rules! deploy {
    ($name:ident, version $version:literal, $($phase:tt)*) => {
        #[derive(Serialize, Deserialize)]
        struct $name { fail: Unfingerprinted<bool> }

        impl $name {
            fn new(fail: bool) -> Self {
                Self { fail: fail.into() }
            }
        }

        #[atomic_phases(name = "deploy", version = $version)]
        impl<Db: TestDb> $name {
            #[phase]
            async fn first(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<()> {
                Db::insert_step(tx, &ctx.uuid(0).to_string(), "first").await?;
                Ok(())
            }

            $($phase)*
        }
    };
}

deploy!(Old, version 1,
    #[phase(foreign(idempotent))]
    async fn paid(&self, call: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<Paid> {
        pay(call, app, ctx, *self.fail).await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, paid: &Paid) -> PhaseResult<Reply> {
        Db::insert_step(tx, &paid.0, "answered").await?;
        Ok(Reply::text(200, "old"))
    }
);

deploy!(Renamed, version 1,
    #[phase(foreign(idempotent), was = "paid")]
    async fn charged(&self, call: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<Paid> {
        pay(call, app, ctx, *self.fail).await
    }

    #[phase]
    async fn thanked(&self, tx: &mut Tx<'_, Db>, paid: &Paid) -> PhaseResult<u8> {
        Db::insert_step(tx, &paid.0, "thanked").await?;
        Ok(1)
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, paid: &Paid, thanked: &u8) -> PhaseResult<Reply> {
        Db::insert_step(tx, &format!("{} {thanked}", paid.0), "answered").await?;
        Ok(Reply::text(200, "renamed"))
    }
);

deploy!(Removed, version 1,
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "-", "answered").await?;
        Ok(Reply::text(200, "removed"))
    }
);

deploy!(NextVersion, version 2,
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>) -> PhaseResult<Reply> {
        Db::insert_step(tx, "-", "answered").await?;
        Ok(Reply::text(200, "next"))
    }
);

/// As `Old`, at a provider that honors no key.
macro_rules! paid_once {
    ($name:ident, $paid:ident $(, was $was:literal)?) => {
        deploy!($name, version 1,
            #[phase(foreign(at_most_once) $(, was = $was)?)]
            async fn $paid(&self, call: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<Paid> {
                pay(call, app, ctx, *self.fail).await
            }

            #[reconcile($paid)]
            async fn find_payment(&self) -> PhaseResult<Reconciled<Paid>> {
                Ok(Reconciled::StillUnknown)
            }

            #[phase]
            async fn answered(&self, tx: &mut Tx<'_, Db>, paid: &Paid) -> PhaseResult<Reply> {
                Db::insert_step(tx, &paid.0, "answered").await?;
                Ok(Reply::text(200, "once"))
            }
        );
    };
}

paid_once!(Once, paid);

deploy!(RenamedWithoutWas, version 1,
    #[phase(foreign(idempotent))]
    async fn charged(&self, call: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<Paid> {
        pay(call, app, ctx, *self.fail).await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, paid: &Paid) -> PhaseResult<Reply> {
        Db::insert_step(tx, &paid.0, "answered").await?;
        Ok(Reply::text(200, "renamed"))
    }
);

deploy!(Inserted, version 1,
    #[phase]
    async fn checked(&self, tx: &mut Tx<'_, Db>, ctx: &RequestContext) -> PhaseResult<u16> {
        Db::insert_step(tx, &ctx.uuid(0).to_string(), "checked").await?;
        Ok(1)
    }

    #[phase(foreign(idempotent))]
    async fn paid(&self, call: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<Paid> {
        pay(call, app, ctx, *self.fail).await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, paid: &Paid, checked: &u16) -> PhaseResult<Reply> {
        Db::insert_step(tx, &format!("{} {checked}", paid.0), "answered").await?;
        Ok(Reply::text(200, "inserted"))
    }
);

#[derive(Serialize, Deserialize)]
struct PaidInParts {
    id: String,
    part: u8,
}

deploy!(OutputChanged, version 1,
    #[phase(foreign(idempotent))]
    async fn paid(&self, call: ForeignCall, app: &App) -> PhaseResult<PaidInParts> {
        let paid =
            async |key: DerivedKey| Ok::<_, PhaseError>(app.provider.call(key.as_str(), "pay").await);
        let id = call.make(paid).await?;
        Ok(PaidInParts { id, part: 1 })
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, paid: &PaidInParts) -> PhaseResult<Reply> {
        Db::insert_step(tx, &format!("{} {}", paid.id, paid.part), "answered").await?;
        Ok(Reply::text(200, "in parts"))
    }
);

deploy!(NextVersionToo, version 2,
    #[phase(foreign(idempotent))]
    async fn paid(&self, call: ForeignCall, app: &App, ctx: &RequestContext) -> PhaseResult<Paid> {
        pay(call, app, ctx, *self.fail).await
    }

    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Db>, paid: &Paid) -> PhaseResult<Reply> {
        Db::insert_step(tx, &paid.0, "answered").await?;
        Ok(Reply::text(200, "second version"))
    }
);

/// One definition over two types of parameters.
macro_rules! typed {
    ($name:ident, $amount:ty) => {
        #[derive(Serialize, Deserialize)]
        struct $name {
            amount: $amount,
        }

        #[atomic_phases(name = "typed", version = 1)]
        impl<Db: TestDb> $name {
            #[phase(foreign(idempotent))]
            async fn paid(
                &self,
                call: ForeignCall,
                app: &App,
                ctx: &RequestContext,
            ) -> PhaseResult<Paid> {
                pay(call, app, ctx, false).await
            }

            #[phase]
            async fn answered(&self, tx: &mut Tx<'_, Db>, paid: &Paid) -> PhaseResult<Reply> {
                Db::insert_step(tx, &paid.0, "answered").await?;
                Ok(Reply::new(204))
            }
        }
    };
}

typed!(InNumbers, i64);
typed!(InText, String);
typed!(Panicking, Refuses);

/// A build's own `Deserialize` may accept an old value instead of failing.
#[derive(Clone, Serialize)]
struct Refuses;

impl<'de> Deserialize<'de> for Refuses {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panics_twice()
    }
}

fn running<S: TestDb, R: RequestDefinition<S, App>>(db: &S, app: &App) -> Engine<S, App> {
    Engine::builder(db.clone())
        .app(app.clone())
        .register::<R>()
        .lease(Duration::from_secs(60))
        .build()
        .unwrap()
}

/// Leaves a row after `first`, and one after `paid`, both written by the old deploy.
async fn old_rows<S: TestDb>(db: &S, app: &App) {
    let old = running::<S, Old>(db, app);
    failed(old.call(&scope(), &key("before"), Old::new(true)).await);
    failed(old.call(&scope(), &key("behind"), Old::new(true)).await);
    db.sql(
        "UPDATE atomic_phases_keys SET recovery_point = 'paid' WHERE idempotency_key = 'behind'",
    )
    .await;
    let outputs = r#"[["first",null],["paid","effect-2"]]"#;
    let hex: String = outputs.bytes().map(|byte| format!("{byte:02x}")).collect();
    let literal =
        match db.text("SELECT created_at FROM atomic_phases_keys LIMIT 1").await.contains('-') {
            true => format!("'\\x{hex}'::bytea"),
            false => format!("x'{hex}'"),
        };
    db.sql(&format!(
        "UPDATE atomic_phases_keys SET outputs = {literal} WHERE idempotency_key = 'behind'"
    ))
    .await;
}

async fn g14_a_row_in_flight_survives_a_rename_and_an_added_phase<S: TestDb>(db: S) {
    let app = App::default();
    old_rows(&db, &app).await;
    let new = running::<S, Renamed>(&db, &app);
    assert!(new.check().await.unwrap().found_nothing_stranded());
    for name in ["before", "behind"] {
        let done = finished(new.call(&scope(), &key(name), Renamed::new(false)).await);
        assert_eq!(done.reply.bytes(), b"renamed");
    }
    let calls = app.provider.calls();
    assert_eq!(calls.len(), 3, "the call behind its recovery point was not repeated");
    assert_eq!(calls[2], calls[0], "G1: a rename does not change the derived key");
    assert_eq!(app.provider.effects(), 2);
    assert_eq!(db.number("SELECT count(*) FROM steps WHERE step = 'first'").await, 2);
    assert_eq!(db.number("SELECT count(*) FROM steps WHERE step = 'thanked'").await, 2);
}

async fn g14_a_removed_phase_strands_its_rows_and_is_reported<S: TestDb>(db: S) {
    let app = App::default();
    old_rows(&db, &app).await;
    let token = "SELECT sum(lease_token) FROM atomic_phases_keys";
    let before = db.number(token).await;
    let new = running::<S, Removed>(&db, &app);
    let report = new.check().await.unwrap();
    let stranded = |report: &CheckReport| -> Vec<_> {
        let stranded = report.stranded.iter();
        let mut stranded: Vec<_> =
            stranded.map(|rows| (rows.because, rows.rows.recovery_point.clone())).collect();
        // They come in the order in which their back-offs end, of which chance takes a part.
        stranded.sort_by(|one, other| one.1.cmp(&other.1));
        stranded
    };
    // For both rows, the removed phase has made its call. If a list without that phase ran such a row, the next
    // build would not learn of its call.
    let both = [
        (StrandedBecause::ProviderKeyChanged, "first".to_owned()),
        (StrandedBecause::UnknownRecoveryPoint, "paid".to_owned()),
    ];
    assert_eq!(stranded(&report), both);
    for name in ["behind", "before"] {
        let outcome = new.call(&scope(), &key(name), Removed::new(false)).await;
        assert_eq!(failed(outcome), FailureCause::NotKnownHere);
    }
    assert_eq!(db.number(token).await, before, "left as it was, for a node that knows it");
    assert_eq!(
        finished(
            running::<S, Old>(&db, &app).call(&scope(), &key("behind"), Old::new(false)).await
        )
        .reply
        .bytes(),
        b"old"
    );
    assert_eq!(
        finished(
            running::<S, Old>(&db, &app).call(&scope(), &key("before"), Old::new(false)).await
        )
        .reply
        .bytes(),
        b"old"
    );
}

async fn g14_another_version_is_left_to_the_node_that_knows_it<S: TestDb>(db: S) {
    let app = App::default();
    old_rows(&db, &app).await;
    let new = running::<S, NextVersion>(&db, &app);
    let report = new.check().await.unwrap();
    assert!(report.stranded.iter().all(|s| s.because == StrandedBecause::UnknownVersion));
    assert_eq!(report.stranded.iter().map(|s| s.rows.rows).sum::<u64>(), 2);
    let outcome = new.call(&scope(), &key("before"), NextVersion::new(false)).await;
    assert_eq!(failed(outcome), FailureCause::NotKnownHere);
    // Both versions run in one process, while requests of the old one are in flight.
    let twice =
        Engine::builder(db.clone()).app(app.clone()).register::<Old>().register::<NextVersion>();
    let both = twice.build().unwrap();
    assert!(both.check().await.unwrap().found_nothing_stranded());
    finished(both.call(&scope(), &key("before"), Old::new(false)).await);
    finished(both.call(&scope(), &key("new"), NextVersion::new(false)).await);
    let none = running::<S, Book>(&db, &app).check().await.unwrap();
    assert_eq!(none.stranded[0].because, StrandedBecause::UnknownDefinition);
    let twice = Engine::builder(db).app(app).register::<Old>().register::<Renamed>().build();
    assert!(matches!(twice, Err(BuildError::Twice { name: "deploy", version: 1 })));
}

async fn g14_what_a_newer_process_wrote_is_left_alone<S: TestDb>(db: S) {
    let app = App::default();
    old_rows(&db, &app).await;
    let old = running::<S, Old>(&db, &app);
    db.sql("UPDATE atomic_phases_keys SET fingerprint = 'v9:abc' WHERE idempotency_key = 'before'")
        .await;
    let outcome = old.call(&scope(), &key("before"), Old::new(false)).await;
    assert_eq!(failed(outcome), FailureCause::NotKnownHere);
    let blob =
        match db.text("SELECT created_at FROM atomic_phases_keys LIMIT 1").await.contains('-') {
            true => "bytea",
            false if is_mysql::<S>() => "binary",
            false => "blob",
        };
    for broken in ["params", "outputs"] {
        db.sql(&format!("UPDATE atomic_phases_keys SET {broken} = CAST('x' AS {blob}) WHERE idempotency_key = 'behind'")).await;
        let outcome = old.call(&scope(), &key("behind"), Old::new(false)).await;
        assert!(!matches!(outcome, Ok(Outcome::Finished(_))), "{outcome:?}");
    }
    assert_eq!(app.provider.calls().len(), 2);
    let not_registered =
        running::<S, Book>(&db, &app).call(&scope(), &key("x"), Old::new(false)).await;
    let Err(error) = not_registered else { panic!("it is not registered") };
    assert!(error.to_string().contains(".register::<"), "{error}");
}

async fn g2_a_call_that_was_made_as_idempotent_is_not_repeated_as_at_most_once<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    failed(running::<S, Old>(&db, &app).call(&scope(), &key("k"), Old::new(true)).await);
    db.let_time_pass().await;
    let new = running::<S, Once>(&db, &app);
    let report = new.check().await.unwrap();
    assert_eq!(report.stranded[0].because, StrandedBecause::CallMayHaveBeenMade);
    for _ in 0..3 {
        let outcome = new.call(&scope(), &key("k"), Once::new(false)).await;
        assert!(matches!(outcome, Ok(Outcome::Unknown { .. })), "{outcome:?}");
    }
    let standing = new.status(&scope(), &key("k")).await.unwrap().unwrap();
    assert_eq!(standing.open_intent.as_deref(), Some("paid"));
    assert_eq!(standing.reason.unwrap(), StrandedBecause::CallMayHaveBeenMade.as_str());
    assert_eq!(app.provider.calls().len(), 1, "the call was repeated");
    // Once it is settled, the request is run under the new class.
    let word = Resolution::not_executed("paid", standing.attempt);
    assert_eq!(new.resolve(&scope(), &key("k"), word).await.unwrap(), Resolved::Applied);
    finished(new.call(&scope(), &key("k"), Once::new(false)).await);
    assert_eq!(app.provider.calls().len(), 2);
}

async fn g2_the_next_build_knows_under_which_class_a_call_was_made<S: TestDb>(db: S) {
    let app = App::new(Provider::that_ignores_keys());
    let once = running::<S, Once>(&db, &app);
    // Released before its call.
    finished(once.call(&scope(), &key("other"), Once::new(false)).await);
    let call = once.call(&scope(), &key("k"), Once::new(false));
    assert!(matches!(call.accept().await, Ok(Outcome::Accepted)));
    // A build that declares it idempotent dies in the middle of the call.
    let mut gate = app.provider.stop_after_the_effect();
    let idempotent = running::<S, Old>(&db.another().await, &app);
    let call = idempotent.call(&scope(), &key("k"), Old::new(false));
    let call = tokio::spawn(call.__call_in_place());
    let held = gate.recv().await.unwrap();
    call.abort();
    let _ = call.await;
    drop(held);
    app.provider.stop_no_more();
    db.let_time_pass().await;
    let calls = app.provider.calls().len();
    let outcome = once.call(&scope(), &key("k"), Once::new(false)).await;
    assert!(matches!(outcome, Ok(Outcome::Unknown { .. })), "{outcome:?}");
    assert_eq!(app.provider.calls().len(), calls, "the call was repeated");
}

async fn g1_a_call_whose_provider_key_changed_is_left_alone_and_reported<S: TestDb>(db: S) {
    let app = App::default();
    failed(running::<S, Old>(&db, &app).call(&scope(), &key("k"), Old::new(true)).await);
    db.let_time_pass().await;
    let new = running::<S, RenamedWithoutWas>(&db, &app);
    let report = new.check().await.unwrap();
    assert_eq!(report.stranded[0].because, StrandedBecause::ProviderKeyChanged);
    assert_eq!((report.stranded[0].samples, report.stranded[0].affected), (1, 1));
    let row = "SELECT status || ' ' || lease_token || attempts || phases FROM atomic_phases_keys";
    let before = db.text(row).await;
    let outcome = new.call(&scope(), &key("k"), RenamedWithoutWas::new(false)).await;
    assert_eq!(failed(outcome), FailureCause::NotKnownHere);
    let config = WorkerConfig::default().grace(Duration::ZERO);
    assert_eq!(Completer::new(&new, config).run_once().await.unwrap().left, 1);
    assert_eq!(db.text(row).await, before);
    assert_eq!(app.provider.effects(), 1);
    // With its old name in `was`, the phase makes the same call.
    let renamed = running::<S, Renamed>(&db, &app);
    assert!(renamed.check().await.unwrap().found_nothing_stranded());
    finished(renamed.call(&scope(), &key("k"), Renamed::new(false)).await);
    assert_eq!(app.provider.effects(), 1);
}

async fn g14_an_inserted_phase_strands_the_rows_beyond_it_and_an_operator_hears_the_truth<
    S: TestDb,
>(
    db: S,
) {
    let app = App::default();
    old_rows(&db, &app).await;
    db.let_time_pass().await;
    let new = running::<S, Inserted>(&db, &app);
    let report = new.check().await.unwrap();
    // It was inserted before a call that may have been made for one row, and has been made for the other.
    for (stranded, point) in report.stranded.iter().zip(["first", "paid"]) {
        assert_eq!(stranded.because, StrandedBecause::PhasesReordered);
        assert_eq!(stranded.rows.recovery_point, point);
    }
    assert_eq!(report.stranded.len(), 2, "{report:?}");
    let outcome = new.call(&scope(), &key("behind"), Inserted::new(false)).await;
    assert_eq!(failed(outcome), FailureCause::NotKnownHere);
    let word = Resolution::executed("paid", &Paid("effect-2".into())).unwrap();
    let words = [word, Resolution::not_executed("paid", 1)];
    for word in words {
        let refused = new.resolve(&scope(), &key("behind"), word).await;
        let because = StrandedBecause::PhasesReordered;
        assert!(
            matches!(refused, Err(ResolveError::NotKnownHere(b)) if b == because),
            "{refused:?}"
        );
    }
    // An operator can finish it all the same, also with a build that does not know it.
    let word = Resolution::finish(Reply::text(200, "by hand"));
    assert_eq!(new.resolve(&scope(), &key("behind"), word).await.unwrap(), Resolved::Applied);
    new.erase(&scope(), &key("behind")).await.unwrap();
    let strange = running::<S, Book>(&db, &app);
    let word = Resolution::finish(Reply::text(200, "by hand"));
    assert_eq!(strange.resolve(&scope(), &key("before"), word).await.unwrap(), Resolved::Applied);
    assert!(new.check().await.unwrap().found_nothing_stranded());
}

async fn g17_parameters_of_another_type_count_as_attempts_and_an_operator_can_settle_them<
    S: TestDb,
>(
    db: S,
) {
    parameters_that_are_not_read(db, InText { amount: "two".into() }).await;
}

async fn g17_parameters_whose_type_panics_as_it_reads_them_do_so_too<S: TestDb>(db: S) {
    parameters_that_are_not_read(db.clone(), Panicking { amount: Refuses }).await;
    // Under a new key as well, nothing runs what could not be read again.
    let engine = running::<S, Panicking>(&db, &App::default());
    let told = engine.call(&scope(), &key("new"), Panicking { amount: Refuses }).await;
    let Err(CallError::Fingerprint(why)) = &told else { panic!("{told:?}") };
    assert_eq!(why.rule(), FingerprintRule::NotRead);
}

async fn parameters_that_are_not_read<S: TestDb, R: RequestDefinition<S, App>>(db: S, request: R) {
    let app = App::default();
    let old = running::<S, InNumbers>(&db, &app);
    for name in ["retried", "finished"] {
        let call = old.call(&scope(), &key(name), InNumbers { amount: 1 });
        assert!(matches!(call.accept().await, Ok(Outcome::Accepted)));
    }
    let new = Engine::builder(db.clone()).app(app.clone()).register::<R>().max_attempts(2);
    let new = new.build().unwrap();
    let because = StrandedBecause::ParametersUndecodable;
    assert_eq!(new.check().await.unwrap().stranded[0].because, because);
    // Whether it asks for the same is not known (G9).
    let told = new.call(&scope(), &key("retried"), request).await;
    assert_eq!(failed(told), FailureCause::NotKnownHere);
    let mut completer = Completer::new(&new, WorkerConfig::default().grace(Duration::ZERO));
    for _ in 0..4 {
        completer.run_once().await.unwrap();
        db.let_time_pass().await;
    }
    for name in ["retried", "finished"] {
        let standing = new.status(&scope(), &key(name)).await.unwrap().unwrap();
        assert_eq!(standing.status, Status::DeadLetter, "{name}");
        let reason = standing.reason.unwrap();
        assert!(reason.contains("attempt cap") && reason.contains(because.as_str()), "{reason}");
    }
    assert_eq!(new.check().await.unwrap().waiting[0].rows, 2);
    let say = async |name: &str, word| new.resolve(&scope(), &key(name), word).await.unwrap();
    assert_eq!(say("finished", Resolution::finish(Reply::new(410))).await, Resolved::Applied);
    new.erase(&scope(), &key("finished")).await.unwrap();
    assert_eq!(say("retried", Resolution::retry()).await, Resolved::Applied);
    assert!(app.provider.calls().is_empty());
    finished(old.call(&scope(), &key("retried"), InNumbers { amount: 1 }).await);
    assert_eq!(app.provider.effects(), 1);
}

async fn g17_an_output_of_another_type_is_seen_before_a_phase_runs<S: TestDb>(db: S) {
    let app = App::default();
    old_rows(&db, &app).await;
    db.let_time_pass().await;
    let new = running::<S, OutputChanged>(&db, &app);
    let report = new.check().await.unwrap();
    assert_eq!(report.stranded.len(), 1, "{report:?}");
    assert_eq!(report.stranded[0].because, StrandedBecause::OutputsUndecodable);
    assert_eq!(report.stranded[0].rows.recovery_point, "paid");
    let outcome = new.call(&scope(), &key("behind"), OutputChanged::new(false)).await;
    assert!(matches!(failed(outcome), FailureCause::Undecodable { .. }));
    let standing = new.status(&scope(), &key("behind")).await.unwrap().unwrap();
    assert_eq!(standing.reason.unwrap(), StrandedBecause::OutputsUndecodable.as_str());
    assert_eq!(standing.recovery_point, "paid", "nothing of it was lost");
    finished(new.call(&scope(), &key("before"), OutputChanged::new(false)).await);
    db.let_time_pass().await;
    let old = running::<S, Old>(&db, &app);
    finished(old.call(&scope(), &key("behind"), Old::new(false)).await);
}

async fn g14_a_retry_of_a_newer_version_drives_the_row_by_its_own<S: TestDb>(db: S) {
    let app = App::default();
    failed(running::<S, Old>(&db, &app).call(&scope(), &key("k"), Old::new(true)).await);
    db.let_time_pass().await;
    let both = Engine::builder(db.clone()).app(app.clone());
    let both = both.register::<Old>().register::<NextVersionToo>().build().unwrap();
    let done = finished(both.call(&scope(), &key("k"), NextVersionToo::new(false)).await);
    assert_eq!(done.reply.bytes(), b"old", "by the version that it was begun with");
    assert_eq!(app.provider.effects(), 1);
    let new = finished(both.call(&scope(), &key("new"), NextVersionToo::new(false)).await);
    assert_eq!(new.reply.bytes(), b"second version");
}

/// The columns are named, because a migration may add one with a default, and not at the end of the table.
fn ten_thousand_copies<S: TestDb>() -> String {
    let columns = "definition, definition_version, phases, fingerprint, status, recovery_point, \
        open_intent, lease_token, locked_until, run_after, attempts, forgiven_attempts, reconciles, resolution, \
        reason, waiting_since, advanced_at, created_at, expires_at, params, context, outputs, \
        response_status, response_headers, response_body";
    format!(
        "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, {columns}) \
         SELECT scope, idempotency_key || n, request_id, {columns} FROM atomic_phases_keys, {}",
        numbers::<S>(10_100)
    )
}

async fn check_reads_a_bounded_number_of_rows<S: TestDb>(db: S) {
    let app = App::default();
    failed(running::<S, Old>(&db, &app).call(&scope(), &key("k"), Old::new(true)).await);
    db.sql(&ten_thousand_copies::<S>()).await;
    let report = running::<S, Removed>(&db, &app).check().await.unwrap();
    assert!(report.truncated);
    assert_eq!(report.rows_read, 10_000);
    let report = running::<S, Book>(&db, &app).check().await.unwrap();
    assert_eq!(report.stranded.len(), 1);
    assert_eq!(report.stranded[0].rows.rows, 10_000);
    assert_eq!(report.stranded[0].rows.reason.as_deref(), Some("asked for"));
}

async fn check_says_where_it_did_not_read_all_young_rows<S: TestDb>(db: S) {
    let app = App::default();
    let engine = running::<S, Book>(&db, &app);
    dies_in_its_call(&engine, "k", book(20)).await;
    let report = engine.check().await.unwrap();
    assert_eq!((report.rows_read, report.truncated), (1, false), "in no index but that of expiry");
    db.sql(&ten_thousand_copies::<S>()).await;
    let report = engine.check().await.unwrap();
    assert_eq!((report.rows_read, report.truncated), (10_000, true));
    // At their current age, a completer would have entered them in the index of due rows.
    let an_hour_ago = match is_postgres::<S>() {
        true => "(SELECT clock_timestamp() - interval '1 hour')",
        false => "created_at - 3600000",
    };
    db.sql(&format!("UPDATE atomic_phases_keys SET created_at = {an_hour_ago}")).await;
    assert!(!engine.check().await.unwrap().truncated);
}
