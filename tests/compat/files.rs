//! The lock files of a folder, and the test that compares them with the code.

use std::collections::HashMap;
use std::path::Path;

use crate::create_ride::definitions;
use atomic_phases::compat::{Definitions, Mode, NotLocked, check_locks};
use atomic_phases::engine::FailureCause;
use atomic_phases::request::RequestDefinition;
use atomic_phases::store::Sqlite;
use atomic_phases::{
    Engine, ForeignCall, PhaseError, PhaseResult, Reply, Tx, atomic_phases, locked,
};
use serde::{Deserialize, Serialize};

use crate::support::{TestDb, failed, finished, key, scope};

#[derive(Serialize, Deserialize)]
struct Paid {
    id: String,
}

/// One definition in several forms: its parameters, the output of its first phase, and more phases.
macro_rules! order {
    ($name:ident { $($fields:tt)* } $output:ty, $(#[$more:meta])* $paid:ident, $($phase:tt)*) => {
        #[derive(Serialize, Deserialize)]
        struct $name { $($fields)* }

        #[atomic_phases(name = "orders.create", version = 1)]
        impl $name {
            #[phase]
            async fn created(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<$output> {
                let _ = (self, tx);
                Err(PhaseError::retryable("not run"))
            }

            $($phase)*

            #[phase(foreign(idempotent, window = "24h") $(, $more)*)]
            async fn $paid(&self, call: ForeignCall, created: &$output) -> PhaseResult<Paid> {
                let _ = (self, call, created);
                Err(PhaseError::retryable("not run"))
            }

            #[phase]
            async fn answered(&self, tx: &mut Tx<'_, Sqlite>, paid: &Paid) -> PhaseResult<Reply> {
                let _ = (self, tx, paid);
                Ok(Reply::new(201))
            }
        }
    };
}

order!(Order { cents: u32 } u64, paid,);
order!(WithNote { cents: u32, note: Option<String> } u64, paid,);
order!(WithCurrency { cents: u32, currency: String } u64, paid,);
order!(WithDefault { cents: u32, #[serde(default = "usd")] currency: String } u64, paid,);
order!(ByChance { cents: u32, #[serde(default = "chance")] nonce: u64 } u64, paid,);
order!(InText { cents: u32 } String, paid,);
order!(Tagged { tags: HashMap<String, u32> } u64, paid,);
order!(Renamed { cents: u32 } u64, charged,);
order!(RenamedWithWas { cents: u32 } u64, #[was = "paid"] charged,);
order!(Inserted { cents: u32 } u64, paid,
    #[phase]
    async fn noted(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<()> {
        let _ = (self, tx);
        Ok(())
    }
);

fn usd() -> String {
    "usd".to_owned()
}

fn chance() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

fn only<R: RequestDefinition<Sqlite, ()>>() -> Definitions<Sqlite> {
    Definitions::new().with::<R>()
}

fn check<R: RequestDefinition<Sqlite, ()>>(folder: &Path, mode: Mode) -> Result<(), NotLocked> {
    check_locks(&only::<R>(), folder, Path::new("phases"), &mode)
}

/// A folder with the lock file of `Order`.
fn locked() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    check::<Order>(dir.path(), Mode::Update).unwrap();
    dir
}

fn told<R: RequestDefinition<Sqlite, ()>>(mode: Mode) -> String {
    check::<R>(locked().path(), mode).unwrap_err().to_string()
}

fn file(dir: &tempfile::TempDir) -> String {
    std::fs::read_to_string(dir.path().join("phases/orders.create@1.toml")).unwrap_or_default()
}

#[test]
fn what_is_locked_passes_in_every_mode() {
    let dir = locked();
    let before = file(&dir);
    for mode in [Mode::Check, Mode::CheckOrCreate, Mode::Update, Mode::Off] {
        check::<Order>(dir.path(), mode).unwrap();
    }
    assert_eq!(file(&dir), before, "the same code has the same bytes");
    for part in [
        r#"shape = "{cents: u32}""#,
        r#"json = '{"cents":4294967295}'"#,
        "window = \"24h\"",
        "derived = ",
    ] {
        assert!(before.contains(part), "{part} is not in {before}");
    }
}

/// A map returns its members in a different order each time.
#[test]
fn a_sample_that_holds_a_map_has_the_same_bytes_each_time() {
    let bytes = || {
        let tags = ('a'..='h').map(|tag| (tag.to_string(), 1)).collect();
        let definitions = only::<Tagged>().sample(&Tagged { tags });
        definitions.locks().get("orders.create", 1).unwrap().to_toml()
    };
    let first = bytes();
    assert!(first.contains(r#"{"tags":{"a":1,"b":1,"#), "{first}");
    assert!((0..8).all(|_| bytes() == first));
}

#[test]
fn a_definition_without_a_file_gets_one_but_not_in_ci() {
    let dir = tempfile::tempdir().unwrap();
    let refused = check::<Order>(dir.path(), Mode::Check).unwrap_err().to_string();
    assert!(refused.contains("ATOMIC_PHASES_LOCK=update cargo test"), "{refused}");
    assert_eq!(file(&dir), "");
    check::<Order>(dir.path(), Mode::CheckOrCreate).unwrap();
    check::<Order>(dir.path(), Mode::Check).unwrap();

    // A further version changes the file of the one before, too.
    let both = only::<Order>().with::<NextOrder>();
    let check_both = |mode| check_locks(&both, dir.path(), Path::new("phases"), &mode);
    let refused = check_both(Mode::CheckOrCreate).unwrap_err().to_string();
    assert!(refused.contains("+ state = \"draining\""), "{refused}");
    assert!(!dir.path().join("phases/orders.create@2.toml").exists());
    check_both(Mode::Update).unwrap();
    check_both(Mode::Check).unwrap();
}

#[derive(Serialize, Deserialize)]
struct NextOrder {
    cents: u32,
}

#[atomic_phases(name = "orders.create", version = 2)]
impl NextOrder {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        let _ = (self, tx);
        Ok(Reply::new(201))
    }
}

#[test]
fn a_change_is_written_only_when_it_is_asked_for() {
    let dir = locked();
    let before = file(&dir);
    check::<WithNote>(dir.path(), Mode::CheckOrCreate).unwrap_err();
    assert_eq!(file(&dir), before);
    check::<WithNote>(dir.path(), Mode::Update).unwrap();
    check::<WithNote>(dir.path(), Mode::Check).unwrap();
}

#[test]
fn an_optional_field_is_compatible_and_a_required_one_is_reported() {
    for told in [told::<WithNote>(Mode::Check), told::<WithDefault>(Mode::Check)] {
        assert!(!told.contains("error"), "{told}");
        assert!(told.contains("No row is lost by this"), "{told}");
        assert!(told.contains("{cents: u32, ") && told.contains("+ shape = "), "{told}");
    }
    let told = told::<WithCurrency>(Mode::Check);
    assert!(told.contains("error[request_unreadable] orders.create@1"), "{told}");
    assert!(told.contains(".currency is absent"), "{told}");
}

#[test]
fn a_default_that_differs_each_time_is_told() {
    assert!(told::<ByChance>(Mode::Check).contains("error[fingerprint_unstable]"));
}

#[test]
fn an_output_of_another_type_is_told_with_its_phase() {
    let told = told::<InText>(Mode::Check);
    assert!(told.contains("error[output_unreadable] orders.create@1, phase created"), "{told}");
    assert!(told.contains("rows that stand at created fail"), "only `paid` asks for it: {told}");
}

#[test]
fn a_dropped_name_and_an_inserted_phase_are_told_with_what_to_write_instead() {
    let told_of_name = told::<Renamed>(Mode::Check);
    assert!(told_of_name.contains("error (never)[phase_renamed]"), "{told_of_name}");
    assert!(told_of_name.contains("#[phase(was = \"paid\")]"), "{told_of_name}");
    assert!(!told::<RenamedWithWas>(Mode::Check).contains("error"));
    assert!(told::<Inserted>(Mode::Check).contains("error[phase_inserted]"));
}

/// The next version of `Order`: its handler sets the channel.
#[derive(Serialize, Deserialize)]
struct ByChannel {
    cents: u32,
    channel: String,
}

#[atomic_phases(name = "orders.create", version = 2)]
impl ByChannel {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        let _ = (self, tx);
        Ok(Reply::new(201))
    }
}

#[derive(Serialize, Deserialize)]
struct OneStep {
    cents: u32,
}

#[atomic_phases(name = "orders.create", version = 1)]
impl OneStep {
    #[phase]
    async fn answered(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        let _ = (self, tx);
        Ok(Reply::new(201))
    }
}

#[tokio::test]
async fn a_version_that_does_not_read_the_one_before_is_told_and_serves_no_replay_of_it() {
    let dir = tempfile::tempdir().unwrap();
    check::<OneStep>(dir.path(), Mode::Update).unwrap();
    let both = || only::<OneStep>().with::<ByChannel>();
    let told = check_locks(&both(), dir.path(), Path::new("phases"), &Mode::Check).unwrap_err();
    let told = told.to_string();
    assert!(told.contains("error[version_unreadable] orders.create@2"), "{told}");
    assert!(told.contains(".channel is absent"), "{told}");

    let db = <Sqlite as TestDb>::fresh().await;
    let engine = Engine::builder(db).definitions(both()).build().unwrap();
    finished(engine.call(&scope(), &key("k"), OneStep { cents: 5 }).await);
    let next = ByChannel { cents: 5, channel: "web".into() };
    let replay = engine.call(&scope(), &key("k"), next).await;
    assert_eq!(failed(replay), FailureCause::NotKnownHere);
}

#[test]
fn an_added_member_says_that_rows_and_retries_keep_their_keys() {
    let told = told::<WithNote>(Mode::Check);
    assert!(told.contains("note[member_added] orders.create@1: .note of its parameters is new"));
    assert!(
        told.contains("existing rows and their retries keep their fingerprint and derived keys"),
        "{told}"
    );
    let derived: Vec<&str> = told.lines().filter(|line| line.contains("derived")).collect();
    assert!(derived.iter().all(|line| !line.starts_with(['+', '-'])), "{told}");
}

#[derive(Serialize, Deserialize)]
struct Letter {
    to: String,
}

#[derive(Serialize, Deserialize)]
struct LetterWithCopy {
    to: String,
    copy: String,
}

#[derive(Serialize, Deserialize)]
struct Mails {}

#[atomic_phases(name = "mails.send", version = 1)]
impl Mails {
    #[phase]
    async fn staged(&self, tx: &mut Tx<'_, Sqlite>) -> PhaseResult<Reply> {
        tx.stage_job("mail", &Letter { to: String::new() })?;
        tx.stage_job("log", &1)?;
        Ok(Reply::new(204))
    }
}

#[test]
fn a_job_is_locked_with_its_form_and_a_change_of_it_is_told() {
    let mails = || only::<Mails>().job::<Mails, Letter>("mail");
    let dir = tempfile::tempdir().unwrap();
    let check = |definitions: &Definitions<Sqlite>, mode| {
        check_locks(definitions, dir.path(), Path::new("phases"), &mode)
    };
    check(&mails(), Mode::Update).unwrap();
    check(&mails(), Mode::Check).unwrap();
    let path = dir.path().join("phases/mails.send@1.toml");
    let locked = std::fs::read_to_string(&path).unwrap();
    assert!(locked.contains("name = \"mail\"\nargs = \"{to: str}\""), "{locked}");
    assert!(locked.contains("name = \"log\"\nargs = \"opaque\""), "by the block alone: {locked}");

    let required = only::<Mails>().job::<Mails, LetterWithCopy>("mail");
    let told = check(&required, Mode::Check).unwrap_err().to_string();
    assert!(told.contains("error[job_unreadable] mails.send@1: staged jobs `mail`"), "{told}");
    assert!(told.contains("each such job that is staged is a dead letter"), "{told}");

    std::fs::write(&path, locked.replace("name = \"log\"", "name = \"logs\"")).unwrap();
    let told = check(&mails(), Mode::Check).unwrap_err().to_string();
    assert!(told.contains("error[job_removed] mails.send@1: it stages no job `logs` any more"));
    assert!(told.contains("note[job_added] mails.send@1: it stages jobs `log`"), "{told}");
}

#[test]
fn a_level_of_the_manifest_is_heeded_and_one_that_is_never_refused() {
    let dir = locked();
    let manifest = |lint: &str| {
        let table = "[package.metadata.atomic-phases.lints]";
        let text = format!("[package]\nname = \"a\"\n{table}\n{lint} = \"allow\"\n");
        std::fs::write(dir.path().join("Cargo.toml"), text).unwrap();
    };
    manifest("phase_inserted");
    let told = check::<Inserted>(dir.path(), Mode::Check).unwrap_err().to_string();
    assert!(told.contains("note[phase_inserted]"), "{told}");
    // The table that the book shows is read: it has no unknown name, and none of a level that is never changed.
    let book = include_str!("../../docs/changing-a-request.md");
    let table = book.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let text = format!("[package]\nname = \"a\"\n{table}");
    std::fs::write(dir.path().join("Cargo.toml"), text).unwrap();
    let told = check::<Inserted>(dir.path(), Mode::Check).unwrap_err().to_string();
    assert!(told.contains("error[phase_inserted]"), "{told}");
    manifest("phase_renamed");
    let told = check::<Order>(dir.path(), Mode::Check).unwrap_err().to_string();
    assert!(told.contains("no setting changes `phase_renamed`"), "{told}");
}

#[test]
fn a_definition_that_is_forgotten_is_told_until_it_is_retired() {
    let dir = locked();
    let none = Definitions::<Sqlite>::new();
    let check = |mode| check_locks(&none, dir.path(), Path::new("phases"), &mode);
    let told = check(Mode::Check).unwrap_err().to_string();
    assert!(told.contains("error[definition_removed]"), "{told}");
    let path = dir.path().join("phases/orders.create@1.toml");
    let retired = "state = \"retired\"\nretired = \"2026-11-20\"";
    std::fs::write(&path, file(&dir).replace("state = \"current\"", retired)).unwrap();
    check(Mode::Check).unwrap();
}

/// The flagship keeps lock files, as an application does.
#[test]
fn requests_are_locked() {
    locked!(definitions::<Sqlite>(), "examples/rocket_rides/phases");
}

/// The names of functions of the workspace's tests.
fn functions(below: &Path, names: &mut Vec<String>) {
    for entry in std::fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            functions(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let after = text.split("fn ").skip(1);
            names.extend(after.filter_map(|rest| rest.split(['(', '<']).next()).map(str::to_owned));
        }
    }
}

#[test]
fn each_test_of_the_table_of_changes_is_there() {
    let book = include_str!("../../docs/changing-a-request.md");
    let table =
        book.split("## Tests of these claims").nth(1).unwrap().split("## Recipes").next().unwrap();
    let named = table.split('`').skip(1).step_by(2);
    let named = named.filter(|name| name.matches('_').count() > 3 && !name.contains(['/', ' ']));
    let mut names = Vec::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["compat/src", "src", "cli/tests", "macros/src", "tests"] {
        functions(&root.join(folder), &mut names);
    }
    let missing: Vec<&str> =
        named.clone().filter(|name| !names.iter().any(|n| n == name)).collect();
    assert!(missing.is_empty() && named.count() > 30, "{missing:?}");
}
