//! Whatever a row contains, the engine answers with a typed error or an outcome. It never panics, and it
//! makes no effect unless it understands the whole row (G14). Separate, because it counts all panics of the
//! process.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};

use atomic_phases::engine::Resolution;
use atomic_phases::fingerprint::{RequestOrigin, fingerprint};
use atomic_phases::http::Policy;
#[cfg(feature = "mysql")]
use atomic_phases::store::Mysql;
use atomic_phases::store::{Postgres, Sqlite};
use atomic_phases::worker::{Completer, Reaper, Reconciler, WorkerConfig};
use atomic_phases::{Outcome, Reply};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use support::*;

/// One column of a row: its SQL literal, and whether a request may have written it.
#[derive(Clone, Debug)]
struct Cell {
    sql: String,
    sane: bool,
}

fn cell(sql: impl Into<String>, sane: bool) -> Cell {
    Cell { sql: sql.into(), sane }
}

fn text(value: &str, sane: bool) -> Cell {
    cell(format!("'{}'", value.replace('\'', "''")), sane)
}

/// Mostly one of the sane values, sometimes one of the strange ones or any.
fn mostly(
    sane: &'static [&'static str],
    strange: impl Strategy<Value = Cell> + 'static,
) -> BoxedStrategy<Cell> {
    let sane = prop::sample::select(sane).prop_map(|value| text(value, true));
    prop_oneof![6 => sane, 1 => strange].boxed()
}

/// Texts that no request would write there.
fn any_text(longest: usize) -> impl Strategy<Value = Cell> {
    let hostile = prop::sample::select(vec![
        "",
        "BOOKED",
        "booked ",
        "'; DROP TABLE rides; --",
        "%",
        "\u{202e}",
        "\u{1f4a5}",
        "finished",
        "v1:",
        "v9:abc",
        "erased",
    ]);
    let any =
        prop::collection::vec(any::<char>().prop_filter("no NUL", |c| *c != '\0'), 0..longest)
            .prop_map(|chars| chars.into_iter().collect::<String>());
    prop_oneof![hostile.prop_map(str::to_owned), any].prop_map(|value| text(&value, false))
}

/// Counts and versions: values that fit the column, with its extremes; SQLite holds larger ones.
fn number(sane: &'static [i64], larger: bool) -> BoxedStrategy<Cell> {
    let extremes = vec![-1, 0, i64::from(i32::MIN), i64::from(i32::MAX)];
    let huge = vec![1 << 32, (1 << 32) + 1, i64::MAX, i64::MIN, -(1 << 32)];
    let strange = match larger {
        true => [extremes, huge].concat(),
        false => extremes,
    };
    let as_cell =
        |sane: &'static [i64]| move |value: i64| cell(value.to_string(), sane.contains(&value));
    prop_oneof![
        6 => prop::sample::select(sane).prop_map(as_cell(sane)),
        1 => prop::sample::select(strange).prop_map(as_cell(sane)),
    ]
    .boxed()
}

/// Bytes: JSON, damaged JSON, or nothing meaningful.
fn bytes(sane: &'static [&'static str], nullable: bool) -> BoxedStrategy<Cell> {
    let strange = vec![
        "",
        "{",
        "null",
        "[]",
        "[[",
        "[[\"booked\"]]",
        "[[\"booked\",1],[\"charged\",2],[\"x\",3]]",
        "{\"amount\":1e999}",
        "{\"amount\":\"20\"}",
        "{\"amount\":20,\"amount\":21}",
        "\u{1}\u{2}",
        "{\"amount\":9223372036854775808}",
    ];
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    let hex = |text: &str, sane| {
        let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        cell(format!("BYTES({hex})"), sane)
    };
    prop_oneof![
        12 => prop::sample::select(sane).prop_map(move |text| hex(text, true)),
        2 => prop::sample::select(strange).prop_map(move |text| hex(text, false)),
        1 => Just(hex(&deep, false)),
        1 => prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            cell(format!("BYTES({hex})"), false)
        }),
        if nullable { 2 } else { 0 } => Just(cell("NULL", false)),
    ]
    .boxed()
}

/// Times relative to now, in milliseconds. After the database's clock was moved, a row may have any time.
fn time(larger: bool) -> BoxedStrategy<Cell> {
    const YEAR: i64 = 365 * 24 * 3600 * 1000;
    let mut strange = vec![YEAR * 1000, YEAR * -1000, YEAR * 200_000];
    if larger {
        strange.extend([i64::MAX, i64::MIN, YEAR * 1_000_000]);
    }
    let at = |millis: i64| cell(format!("TIME({millis})"), true);
    prop_oneof![
        6 => prop::sample::select(vec![0_i64, -1000, 3_600_000]).prop_map(at),
        1 => prop::sample::select(strange).prop_map(at),
        1 => Just(cell("INFINITY", true)),
    ]
    .boxed()
}

const PHASES: &str = "booked charged=i answered";
const OUTPUTS: &[&str] = &[r#"[["booked",{"id":"ride-1","seen":"then"}]]"#];
const COLUMNS: [&str; 25] = [
    "definition",
    "definition_version",
    "phases",
    "fingerprint",
    "status",
    "recovery_point",
    "open_intent",
    "lease_token",
    "attempts",
    "forgiven_attempts",
    "reconciles",
    "resolution",
    "reason",
    "waiting_since",
    "locked_until",
    "run_after",
    "advanced_at",
    "created_at",
    "expires_at",
    "params",
    "context",
    "outputs",
    "response_status",
    "response_headers",
    "response_body",
];

/// A row, column by column; most rows have committed their first phase.
fn row(fingerprint: &'static str, larger: bool) -> impl Strategy<Value = Vec<Cell>> {
    let statuses = vec![
        ("in_progress", true),
        ("failed_retryable", true),
        ("pending", true),
        ("completed", false),
        ("unknown", false),
        ("dead_letter", false),
        ("wrecked", false),
    ];
    let maybe = |strange: BoxedStrategy<Cell>| {
        prop_oneof![6 => Just(cell("NULL", true)), 1 => strange].boxed()
    };
    let fingerprints: &'static [&'static str] = Box::leak(Box::new([fingerprint]));
    let token = prop_oneof![
        6 => Just(cell("1", true)),
        1 => prop::sample::select(vec![0, -1, i64::MAX, i64::MIN])
            .prop_map(|n| cell(n.to_string(), n == 0)),
    ];
    let response = prop::sample::select(vec![0_i64, 99, 1000, -1, 200, 599, 600, 32767])
        .prop_map(|status| cell(status.to_string(), false));
    vec![
        mostly(&["book"], any_text(10)),
        number(&[1], larger),
        prop_oneof![
            6 => Just(text(PHASES, true)),
            1 => prop::sample::select(vec!["", "booked", "booked charged=?", "=i =i", " "])
                .prop_map(|phases| text(phases, false)),
        ]
        .boxed(),
        mostly(fingerprints, any_text(40)),
        prop::sample::select(statuses).prop_map(|(status, sane)| text(status, sane)).boxed(),
        mostly(&["booked"], any_text(50)),
        maybe(any_text(50).boxed()),
        token.boxed(),
        number(&[0, 1, 2], larger),
        number(&[0, 1], larger),
        number(&[0, i32::MAX as i64], larger),
        maybe(any_text(10).prop_map(of_no_matter).boxed()),
        maybe(any_text(10).prop_map(of_no_matter).boxed()),
        maybe(time(larger)),
        maybe(time(larger)),
        maybe(time(larger)),
        time(larger),
        time(larger),
        time(larger),
        bytes(&[r#"{"amount":20}"#], false),
        prop_oneof![4 => Just(cell("NULL", true)), 1 => bytes(&["\"who\"", "null", "[]", "7"], true)]
            .prop_map(json_or_not)
            .boxed(),
        bytes(OUTPUTS, true),
        maybe(response.prop_map(of_no_matter).boxed()),
        maybe(bytes(&["[]"], false).prop_map(of_no_matter).boxed()),
        maybe(bytes(&["reply"], false).prop_map(of_no_matter).boxed()),
    ]
}

/// Columns that are read only where no effect can follow, or not at all.
fn of_no_matter(cell: Cell) -> Cell {
    Cell { sane: true, ..cell }
}

/// A context is the application's: any JSON will do.
fn json_or_not(cell: Cell) -> Cell {
    let hex = cell.sql.strip_prefix("BYTES(").and_then(|sql| sql.strip_suffix(')'));
    let sane = hex.is_none_or(|hex| {
        let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16));
        let bytes: Vec<u8> = bytes.map(Result::unwrap).collect();
        serde_json::from_slice::<Box<serde_json::value::RawValue>>(&bytes).is_ok()
    });
    Cell { sane, ..cell }
}

fn insert<S: TestDb>(row: &[Cell], kind: Kind) -> String {
    let values: Vec<String> = row.iter().map(|cell| kind.literal(&cell.sql)).collect();
    let id = match kind {
        Kind::Sqlite | Kind::Mysql => "x'00112233445566778899aabbccddeeff'",
        Kind::Postgres => "'00112233-4455-6677-8899-aabbccddeeff'",
    };
    format!(
        "INSERT INTO atomic_phases_keys (scope, idempotency_key, request_id, {}) \
         VALUES ('tenant-1', 'k', {id}, {})",
        COLUMNS.join(", "),
        values.join(", ")
    )
}

#[derive(Clone, Copy)]
enum Kind {
    Sqlite,
    Postgres,
    #[cfg_attr(not(feature = "mysql"), allow(dead_code))]
    Mysql,
}

impl Kind {
    fn literal(self, sql: &str) -> String {
        let inside = |name: &str| sql.strip_prefix(name)?.strip_prefix('(')?.strip_suffix(')');
        if let Some(hex) = inside("BYTES") {
            return match self {
                Self::Sqlite | Self::Mysql => format!("x'{hex}'"),
                Self::Postgres => format!("'\\x{hex}'::bytea"),
            };
        }
        let millis = match (inside("TIME"), sql) {
            (Some(millis), _) => millis.parse::<i64>().unwrap(),
            (None, "INFINITY") => i64::MAX,
            (None, _) => return sql.to_owned(),
        };
        match (self, sql) {
            (Self::Postgres, "INFINITY") => "'infinity'".to_owned(),
            (Self::Postgres, _) => {
                format!("clock_timestamp() + {millis} * interval '1 millisecond'")
            }
            (_, _) if (i64::MIN / 2..i64::MAX / 2).contains(&millis) => {
                format!("CAST(unixepoch('subsec') * 1000 AS INTEGER) + {millis}")
            }
            (_, _) if millis < 0 => "-9223372036854775807".to_owned(),
            (_, _) => millis.to_string(),
        }
    }
}

static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Runs everything that reads a row, in the order in which a row would meet it.
async fn meets_everybody<S: TestDb>(db: &S, row: &[Cell], kind: Kind) -> Result<(), TestCaseError> {
    db.sql("DELETE FROM atomic_phases_keys; DELETE FROM atomic_phases_staged_jobs").await;
    db.sql(&insert::<S>(row, kind)).await;
    let panics = PANICS.load(Ordering::SeqCst);
    let app = App::default();
    let engine = engine(db, &app);
    // A finished row that has expired counts as absent, whatever it contains (G15).
    let may_be_gone = row.iter().any(|cell| cell.sql == "'completed'");
    let understood = may_be_gone || row.iter().all(|cell| cell.sane);

    let outcome = engine.call(&scope(), &key("k"), book(20)).await;
    if let Ok(Outcome::Finished(finished)) = &outcome {
        let status = finished.reply.status();
        prop_assert!((200..=599).contains(&status), "told status {status}");
    }
    let answer = Policy::default().answer(Some(&key("k")), outcome);
    prop_assert!(answer.status().as_u16() >= 200);
    let _ = engine.status(&scope(), &key("k")).await;
    let config = || WorkerConfig::default().grace(std::time::Duration::ZERO);
    let _ = Completer::new(&engine, config()).run_once().await;
    let _ = Reconciler::new(&engine, config()).run_once().await;
    let _ = engine.check().await;
    let words = [
        Resolution::retry(),
        Resolution::not_executed("charged", 1),
        Resolution::executed("charged", &"x").unwrap(),
        Resolution::finish(Reply::new(204)),
    ];
    let calls = app.provider.calls().len();
    for word in words {
        let _ = engine.resolve(&scope(), &key("k"), word).await;
    }
    let _ = engine.erase(&scope(), &key("k")).await;
    let _ = Reaper::new(db, config()).run_once().await;
    prop_assert_eq!(PANICS.load(Ordering::SeqCst), panics, "something panicked");
    prop_assert!(calls == 0 || understood, "an effect of a row that cannot be understood");
    prop_assert!(app.provider.effects() <= 1);
    Ok(())
}

/// Any row, and rows that are sane except for one column, so that nothing else hides that column's effect.
fn hold<S: TestDb>(kind: Kind, cases: u32) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        hook(info);
    }));
    let db = runtime.block_on(S::fresh());
    runtime.block_on(without_checks(&db, kind));
    let request = fingerprint(&RequestOrigin::default(), &book(20)).unwrap();
    let request: &'static str = Box::leak(request.as_str().to_owned().into_boxed_str());
    let larger = matches!(kind, Kind::Sqlite);
    let rows =
        (row(request, larger), prop::option::weighted(0.7, 0..COLUMNS.len()), Just(sane(request)));
    let one_strange = rows.prop_map(|(row, one, sane)| match one {
        None => row,
        Some(one) => sane
            .into_iter()
            .enumerate()
            .map(|(n, cell)| if n == one { row[n].clone() } else { cell })
            .collect(),
    });
    let mut runner =
        TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let run = runner.run(&one_strange, |row| runtime.block_on(meets_everybody(&db, &row, kind)));
    let _ = std::panic::take_hook();
    run.unwrap();
    // The counterpart: a sane row is resumed.
    let app = App::default();
    runtime.block_on(async {
        db.sql("DELETE FROM atomic_phases_keys; DELETE FROM atomic_phases_staged_jobs").await;
        db.sql(&insert::<S>(&sane(request), kind)).await;
        finished(engine(&db, &app).call(&scope(), &key("k"), book(20)).await);
    });
    assert_eq!(app.provider.effects(), 1);
}

/// A request whose process died after its first phase.
fn sane(fingerprint: &str) -> Vec<Cell> {
    let hex = |text: &str| {
        let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        cell(format!("BYTES({hex})"), true)
    };
    let null = || cell("NULL", true);
    let time = || cell("TIME(-1000)", true);
    vec![
        text("book", true),
        cell("1", true),
        text(PHASES, true),
        text(fingerprint, true),
        text("failed_retryable", true),
        text("booked", true),
        null(),
        cell("1", true),
        cell("1", true),
        cell("0", true),
        cell("0", true),
        null(),
        null(),
        null(),
        null(),
        time(),
        time(),
        time(),
        cell("TIME(3600000)", true),
        hex(r#"{"amount":20}"#),
        null(),
        hex(OUTPUTS[0]),
        null(),
        null(),
        null(),
    ]
}

/// The table's own types and constraints would refuse many of these rows, but an operator may have weakened them.
async fn without_checks<S: TestDb>(db: &S, kind: Kind) {
    match kind {
        Kind::Sqlite => db.sql("PRAGMA ignore_check_constraints = ON").await,
        Kind::Mysql => {
            db.sql(
                "ALTER TABLE atomic_phases_keys MODIFY status VARBINARY(255) NOT NULL, \
                 MODIFY recovery_point VARBINARY(1000) NOT NULL, MODIFY open_intent VARBINARY(1000)",
            )
            .await;
        }
        Kind::Postgres => {
            db.sql(
                "ALTER TYPE atomic_phases_status RENAME TO checked_status;
                 CREATE DOMAIN atomic_phases_status AS text;
                 ALTER TABLE atomic_phases_keys ALTER COLUMN status TYPE text;
                 ALTER TABLE atomic_phases_keys ALTER COLUMN recovery_point TYPE text;
                 ALTER TABLE atomic_phases_keys ALTER COLUMN open_intent TYPE text",
            )
            .await;
        }
    }
}

/// All in one test, because the panic hook belongs to the process.
#[test]
fn g14_f4_no_row_panics_and_none_that_is_not_understood_has_an_effect() {
    hold::<Sqlite>(Kind::Sqlite, cases(1500));
    hold::<Postgres>(Kind::Postgres, cases(250));
    #[cfg(feature = "mysql")]
    hold::<Mysql>(Kind::Mysql, cases(250));
}

/// `PROPTEST_CASES` for a long run of its own.
fn cases(default: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(default)
}
