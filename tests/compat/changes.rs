//! Changes that teams make to a type whose values are stored: the findings of the lock files for each, and what
//! then happens to a row that was written before. The table in `docs/changing-a-request.md` is generated from this.
//!
//! A row has a value of the type as its parameters and as the output of its first phase, and stands behind
//! that phase when the new build comes.

use std::fmt::Debug;
use std::path::Path;

use atomic_phases::__private::{self as private, Definition, Isolation, Phase, PhaseKind};
use atomic_phases::compat::{
    Code, Definitions, Finding, Level, Lint, Mode, Stored, ValueType, check_locks, compare,
    compare_with,
};
use atomic_phases::phase::Output;
use atomic_phases::request::RequestDefinition;
use atomic_phases::simulation::{Database, Memory};
use atomic_phases::worker::Completer;
use atomic_phases::{Engine, PhaseError, Reply, Tx};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::support::by_hand::only_local_phases;
use crate::support::work::config;
use crate::support::{key, scope};

trait Held: Output + Clone + Debug + Send + Sync + 'static {}

impl<T: Output + Clone + Debug + Send + Sync + 'static> Held for T {}

/// A request whose parameters, and whose first output, are a `T`.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Holds<T>(T);

const fn local(name: &'static str) -> Phase {
    let kind = PhaseKind::Local(Isolation::ReadCommitted);
    Phase { name, was: &[], kind, commit: false, timeout: None, reconciles: false }
}

const PHASES: &[Phase] = &[local("noted"), local("answered")];

impl<T: Held> private::Phases<Memory, ()> for Holds<T> {
    fn run_local<'a>(
        &'a self,
        index: usize,
        _: &'a mut Tx<'_, Memory>,
        _: &'a (),
        inputs: &'a private::PhaseInputs<'a>,
    ) -> private::PhaseFuture<'a, private::Step, PhaseError> {
        Box::pin(async move {
            if index == 0 {
                return private::output(self.0.clone());
            }
            if inputs.context().attempt() == 1 {
                return Err(PhaseError::retryable("asked for"));
            }
            let noted: T = inputs.output(0)?;
            let shown = format!("{noted:?}");
            let known = serde_json::to_string(&(&self.0, &noted, shown)).unwrap();
            Ok(private::Step::Reply(Reply::text(200, known)))
        })
    }

    only_local_phases!(Memory);

    fn reads(&self, _: usize, output: &RawValue, _: usize) -> Result<(), serde_json::Error> {
        serde_json::from_str::<T>(output.get()).map(drop)
    }
}

impl<T: Held> RequestDefinition<Memory, ()> for Holds<T> {
    const DEFINITION: Definition = Definition { name: "pay", version: 1, phases: PHASES };

    fn outputs() -> Vec<ValueType> {
        vec![ValueType::of::<T>()]
    }
}

/// What happens to a row with an old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    GoesOn,
    /// The row continues, and another alternative of an enum reads what one wrote.
    GoesOnAsAnother,
    /// The row continues, and a part of its stored value is lost.
    GoesOnWithout,
    Fails,
}

/// What is compared besides the shapes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Shape,
    /// A sample of the application.
    Sample,
    /// The alternative of an enum that a value belongs to.
    Alternative,
}

struct Change {
    what: &'static str,
    findings: Vec<Finding>,
    /// The report of `locked!`.
    told: Option<String>,
    row: Row,
    /// Whether the old build reads what the new one writes, as far as samples show.
    is_read_back: bool,
}

/// The worst result among the rows with these values.
async fn change<B, A>(what: &'static str, values: &[&str], by: By) -> Change
where
    B: Held,
    A: Held,
{
    let before = || {
        let definitions = Definitions::<Memory>::new().with::<Holds<B>>();
        if by != By::Sample {
            return definitions;
        }
        let sample: Holds<B> = serde_json::from_str(values[0]).unwrap();
        let definitions = definitions.output_sample::<Holds<B>>("noted", &sample);
        definitions.sample::<Holds<B>>(&sample)
    };
    let after = || Definitions::<Memory>::new().with::<Holds<A>>();
    let dir = tempfile::tempdir().unwrap();
    let check = |definitions: &Definitions<Memory>, mode| {
        check_locks(definitions, dir.path(), Path::new("phases"), &mode)
    };
    check(&before(), Mode::Update).unwrap();
    check(&before(), Mode::Check).unwrap();
    assert_eq!(compare(&before().locks(), &before().locks()), [], "{what}: nothing has changed");
    let told = check(&after(), Mode::Check).err().map(|error| error.to_string());
    let findings = compare_with(&before().locks(), &after().locks(), &after());
    let mut row = Row::GoesOn;
    for value in values {
        row = row.max(across::<B, A>(what, value, by).await);
    }
    let written = after().locks().iter().next().unwrap().request_samples.clone();
    let reads = |json: &str| before().reads("pay", 1, Stored::Parameters, json) == Some(true);
    let is_read_back = written.iter().all(|sample| reads(&sample.json));
    Change { what, findings, told, row, is_read_back }
}

async fn across<B, A>(what: &str, value: &str, by: By) -> Row
where
    B: Held,
    A: Held,
{
    let db = Memory::connect(&Database::default());
    let request: Holds<B> = serde_json::from_str(value).unwrap_or_else(|e| panic!("{what}: {e}"));
    let shown = format!("{:?}", request.0);
    let stored = serde_json::to_string(&request.0).unwrap();
    let stored: Value = serde_json::from_str(&stored).unwrap();
    let old = Engine::builder(db.clone()).register::<Holds<B>>().build().unwrap();
    crate::support::failed(old.call(&scope(), &key("k"), request).await);
    db.database().set_clock_forward(std::time::Duration::from_secs(7200));
    let new = Engine::builder(db).register::<Holds<A>>().build().unwrap();
    Completer::new(&new, config()).run_once().await.unwrap();
    let status = new.status(&scope(), &key("k")).await.unwrap().unwrap();
    let Some(reply) = status.reply else { return Row::Fails };
    let known: Value = serde_json::from_slice(reply.bytes()).unwrap();
    let left: Vec<Value> = [0, 1].into_iter().flat_map(|index| leaves(&known[index])).collect();
    match leaves(&stored).iter().all(|leaf| left.contains(leaf)) {
        true if by == By::Alternative && known[2] != *shown => Row::GoesOnAsAnother,
        true => Row::GoesOn,
        false => Row::GoesOnWithout,
    }
}

/// The numbers, strings and truth values in a value.
fn leaves(value: &Value) -> Vec<Value> {
    match value {
        Value::Array(elements) => elements.iter().flat_map(leaves).collect(),
        Value::Object(members) => members.values().flat_map(leaves).collect(),
        Value::Null => Vec::new(),
        // An integer that is read as a float is the same number if the float holds all its digits; the same holds
        // for a number in a string.
        Value::Number(number) => match (number.as_i128(), number.as_f64()) {
            (Some(whole), Some(float)) if float as i128 != whole => vec![value.clone()],
            (_, float) => vec![float.unwrap_or_default().into()],
        },
        Value::String(text) => vec![text.parse().map_or_else(|_| value.clone(), f64::into)],
        other => vec![other.clone()],
    }
}

impl Change {
    fn level(&self) -> Level {
        let levels = self.findings.iter().map(|finding| finding.lint.level());
        levels.max().unwrap_or(Level::Allow)
    }

    /// The lints, each once; the cost of a new form at a rollback has a column of its own.
    fn lints(&self, of_rollback: bool) -> Vec<Lint> {
        let mut lints: Vec<Lint> = self.findings.iter().map(|finding| finding.lint).collect();
        let is_of_rollback = |lint: &Lint| {
            [Lint::RequestNotRollbackable, Lint::OutputNotRollbackable].contains(lint)
        };
        lints.retain(|lint| is_of_rollback(lint) == of_rollback);
        lints.sort_unstable();
        lints.dedup();
        lints
    }

    /// A text if the verdict differs from what happens.
    fn is_wrong(&self) -> Option<String> {
        let denied = self.level() >= Level::Deny;
        // `promises` tests these findings by a retry with the same bytes.
        let is_of_rows = |finding: &&Finding| {
            ![Lint::RetryDiffers, Lint::DefaultChanged, Lint::RetryRefused].contains(&finding.lint)
        };
        let of_rows = self.findings.iter().filter(is_of_rows);
        let denied_of_rows = of_rows.map(|finding| finding.lint.level()).max() >= Some(Level::Deny);
        let says_fine =
            self.told.as_ref().is_none_or(|told| told.contains("No row is lost by this"));
        let wrong = match self.row {
            _ if says_fine == denied => "`locked!` says something else than `compare`",
            Row::GoesOn if denied_of_rows => "refused, and no row shows why",
            Row::GoesOnAsAnother if !denied => "it is read as another, and no finding says so",
            Row::GoesOnWithout if !denied && !self.lints(false).contains(&Lint::MemberDropped) => {
                "something is lost, and no finding says so"
            }
            Row::Fails if !denied => "a row fails, and no finding says so",
            _ if !self.is_read_back
                && self.lints(true).is_empty()
                && !self.lints(false).contains(&Lint::NotProbed) =>
            {
                "the old build does not read the new rows, and no finding says so"
            }
            _ => return None,
        };
        let Self { what, row, findings, told, .. } = self;
        let told = told.as_deref().unwrap_or("-");
        Some(format!("{wrong}: {what}: {row:?} {findings:#?}\n{told}"))
    }

    /// Its row in the table of the book.
    fn line(&self) -> String {
        let verdict = match self.level() {
            Level::Allow if self.findings.is_empty() => "fine",
            Level::Allow => "fine, noted",
            Level::Warn => "warning",
            Level::Deny | Level::Never => "**refused**",
        };
        let row = match self.row {
            Row::GoesOn => "continues",
            Row::GoesOnAsAnother => "continues, as another alternative",
            Row::GoesOnWithout => "continues, without the lost values",
            Row::Fails => "fails",
        };
        let lints = self.lints(false);
        let lints: Vec<String> = lints.iter().map(|lint| format!("`{lint}`")).collect();
        let lints = if lints.is_empty() { "–".to_owned() } else { lints.join(", ") };
        let back = match self.lints(true).is_empty() {
            _ if lints.contains("not_probed") => "not known",
            true => "reads the new rows",
            false => "does not read all new rows",
        };
        format!("| {} | {verdict} | {lints} | {row} | {back} |", self.what)
    }
}

/// As decimal libraries do it: read from a number or a string, and written as a string.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "NumberOrText", into = "String")]
struct Decimal(String);

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Integer(u64),
    Fraction(f64),
    Text(String),
}

impl From<NumberOrText> for Decimal {
    fn from(read: NumberOrText) -> Self {
        Self(match read {
            NumberOrText::Integer(number) => number.to_string(),
            NumberOrText::Fraction(number) => number.to_string(),
            NumberOrText::Text(text) => text,
        })
    }
}

impl From<Decimal> for String {
    fn from(Decimal(text): Decimal) -> Self {
        text
    }
}

mod promises;
mod types;

#[tokio::test(flavor = "multi_thread")]
async fn g14_what_is_said_of_a_change_of_a_type_is_what_happens_to_a_row() {
    let changes = types::changes().await;
    let wrong: Vec<String> = changes.iter().filter_map(Change::is_wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let book = include_str!("../../docs/changing-a-request.md");
    let lines: Vec<String> = changes.iter().map(Change::line).collect();
    let table = lines.join("\n");
    assert!(book.contains(&table), "the table of docs/changing-a-request.md is\n{table}");
}
