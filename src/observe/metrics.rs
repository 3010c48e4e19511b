//! Every metric of the crate in one table: its name, its labels, its unit and what it says.
//!
//! A label's value is a name in the application's code (a definition, a phase, a job) or a fixed name of this crate, never
//! a key, a scope or a value (G19): so the code bounds the number of series.

use std::borrow::Cow;

#[cfg(feature = "metrics")]
use metrics::{Level, Metadata, with_recorder};

/// One of the table, with the names of its labels.
#[cfg_attr(not(feature = "metrics"), allow(dead_code))]
pub(crate) struct Metric<const LABELS: usize> {
    name: &'static str,
    labels: [&'static str; LABELS],
}

/// A label's value.
type LabelValue = Cow<'static, str>;

macro_rules! table {
    ($($kind:ident $metric:ident $name:literal in $unit:ident by [$($label:literal),*] $says:literal;)*) => {
        $(
            #[doc = $says]
            pub(crate) const $metric: Metric<{ <[&str]>::len(&[$($label),*]) }> =
                Metric { name: concat!("atomic_phases.", $name), labels: [$($label),*] };
        )*

        /// Each row: name, kind, labels, unit and text.
        #[cfg(test)]
        const TABLE: &[(&str, &str, &[&str], &str, &str)] = &[
            $((concat!("atomic_phases.", $name), stringify!($kind), &[$($label),*], stringify!($unit), $says),)*
        ];

        /// Tells the recorder what each metric says, and in which unit.
        pub(crate) fn describe() {
            #[cfg(feature = "metrics")]
            {
                $(super::recorded(|| describe!($kind, concat!("atomic_phases.", $name), $unit, $says));)*
            }
        }
    };
}

#[cfg(feature = "metrics")]
macro_rules! describe {
    (counter, $name:expr, $unit:ident, $says:literal) => {
        metrics::describe_counter!($name, metrics::Unit::$unit, $says)
    };
    (gauge, $name:expr, $unit:ident, $says:literal) => {
        metrics::describe_gauge!($name, metrics::Unit::$unit, $says)
    };
    (histogram, $name:expr, $unit:ident, $says:literal) => {
        metrics::describe_histogram!($name, metrics::Unit::$unit, $says)
    };
}

table! {
    counter REQUESTS "requests" in Count by ["definition", "outcome"]
        "Calls, by their outcome.";
    histogram REQUEST_DURATION "request.duration" in Seconds by ["definition"]
        "How long a call took that ended with its own answer, from its beginning to the answer.";
    counter CREATED "requests.created" in Count by ["definition"]
        "Keys that were new.";
    counter COMPLETED "requests.completed" in Count by ["definition"]
        "Requests whose answer was stored.";
    histogram REQUEST_AGE "request.age" in Seconds by ["definition"]
        "How old a request was when its answer was stored: from its creation, over all attempts.";
    histogram REQUEST_ATTEMPTS "request.attempts" in Count by ["definition"]
        "The number of the attempt in which a request was finished.";
    histogram PHASE_DURATION "phase.duration" in Seconds by ["definition", "phase"]
        "How long the body of a phase took.";
    counter PHASE_RERUNS "phase.reruns" in Count by ["definition", "phase", "kind"]
        "Local phases that were run again after a transient database error.";
    counter FOREIGN_CALLS "foreign.calls" in Count by ["definition", "phase", "effect", "outcome"]
        "Foreign phases, by the outcome of their call; skipped if they made none.";
    counter RESUMES "resumes" in Count by ["definition"]
        "Leases acquired after the first: by a retry or by a worker.";
    counter GIVEN_BACK "requests.given_back" in Count by ["definition"]
        "Accepted requests that a worker acquired ahead of their turn and made pending again.";
    counter ZOMBIES "zombies" in Count by ["definition"]
        "Holders that found their lease taken over.";
    counter UNANSWERED "commits.unanswered" in Count by ["definition"]
        "Commits whose answer was lost.";
    counter UNKNOWN "outcomes.unknown" in Count by ["definition"]
        "Requests that became unknown.";
    counter RECONCILES "reconciles" in Count by ["definition", "outcome"]
        "Calls of a reconcile function, by what it returned.";
    counter RESOLUTIONS "resolutions" in Count by ["definition", "resolution"]
        "Resolutions of requests by a webhook or an operator.";
    counter OPERATOR_ACTS "operator.acts" in Count by ["act", "outcome"]
        "Acts of operators, applied or refused.";
    counter DEAD_LETTERS "dead_letters" in Count by ["definition"]
        "Requests that gave up.";
    counter LEFT_ALONE "left_alone" in Count by ["because"]
        "How often a call or a worker found a row that this process cannot continue.";
    counter KEYS_REAPED "keys.reaped" in Count by []
        "Keys that the reaper deleted.";
    counter KEYS_ERASED "keys.erased" in Count by []
        "Keys that were erased.";
    counter JOBS_DELIVERED "jobs.delivered" in Count by ["job_name"]
        "Staged jobs that were delivered.";
    counter JOBS_FAILED "jobs.failed" in Count by ["job_name"]
        "Deliveries that failed and are tried again.";
    counter JOBS_DEAD "jobs.dead_lettered" in Count by ["job_name"]
        "Staged jobs that gave up.";
    histogram JOB_LAG "job.lag" in Seconds by ["job_name"]
        "From the commit that staged a job to its delivery.";
    counter REPLAY_CACHE "replay_cache.asks" in Count by ["definition", "outcome"]
        "Reads and writes of the cache in front of replays, by their outcome.";
    counter SCOPE_CALLS "scope.calls" in Count by ["scope", "outcome"]
        "Calls of the scopes with the most duplicates, by their outcome; off by default.";
    histogram POOL_WAIT "pool.wait" in Seconds by []
        "How long it took to get a connection: until one was free, or was opened.";
    counter STORE_ERRORS "store.errors" in Count by ["kind"]
        "Calls and searches of workers that the store could not serve, reads of pauses and renewals of leases that failed, batches with rows that the server refused to delete, and requests that it refused to erase.";
    counter WORKER_PANICS "worker.panics" in Count by ["worker"]
        "Workers that panicked and were started again.";
    gauge WORKER_POLL "worker.last_poll.timestamp" in Seconds by ["worker"]
        "When a worker of this process last searched for work, as a Unix time.";
    gauge WAITING "waiting" in Count by ["definition", "held_by"]
        "Unfinished requests that no holder runs, by what they wait for.";
    gauge WAITING_OLDEST "waiting.oldest.timestamp" in Seconds by ["held_by"]
        "Since when the oldest request that waits for a reconcile function or an operator has waited, as a Unix time.";
    gauge DUE "due" in Count by []
        "Requests that a worker could continue now.";
    gauge DUE_OLDEST "due.oldest.timestamp" in Seconds by []
        "When the request that has been due for longest became due, as a Unix time.";
    gauge STRANDED "stranded" in Count by ["because"]
        "Unfinished requests that the counting process cannot continue.";
    gauge WINDOW_END "window.next_end.timestamp" in Seconds by []
        "When the first window of a provider ends, of the calls that wait to be repeated and have passed half of their window, as a Unix time.";
    gauge JOBS_STAGED "jobs.staged" in Count by []
        "Staged jobs that are to be delivered.";
    gauge JOBS_OLDEST "jobs.oldest.timestamp" in Seconds by []
        "When the staged job that has been due for longest became due, as a Unix time.";
    gauge JOBS_DEAD_NOW "jobs.dead" in Count by []
        "Staged jobs that gave up and wait for an operator.";
    gauge NODES "nodes" in Count by ["definition", "version"]
        "Live processes that run this version of the definition.";
    gauge CENSUS "census.timestamp" in Seconds by []
        "When this process last counted what waits, as a Unix time.";
    gauge BUILD_INFO "build_info" in Count by ["version"]
        "1, by the version of the library.";
}

#[cfg(feature = "metrics")]
impl<const LABELS: usize> Metric<LABELS> {
    pub(crate) fn add<W: Into<LabelValue>>(&self, by: u64, words: [W; LABELS]) {
        keys::with(self, words, |key| {
            with_recorder(|to| to.register_counter(key, &METADATA).increment(by));
        });
    }

    pub(crate) fn record<W: Into<LabelValue>>(&self, value: f64, words: [W; LABELS]) {
        keys::with(self, words, |key| {
            with_recorder(|to| to.register_histogram(key, &METADATA).record(value));
        });
    }

    pub(crate) fn set<W: Into<LabelValue>>(&self, value: f64, words: [W; LABELS]) {
        keys::with(self, words, |key| {
            with_recorder(|to| to.register_gauge(key, &METADATA).set(value));
        });
    }
}

#[cfg(feature = "metrics")]
static METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// What a recorder knows a series by, made once on each thread: a replay, which records two or three, allocates
/// nothing for them.
#[cfg(feature = "metrics")]
mod keys {
    use std::cell::RefCell;
    use std::collections::HashMap;

    use metrics::{Key, Label};

    use super::{LabelValue, Metric};

    /// No metric has more labels.
    const MAX_LABELS: usize = 4;

    /// Name and words, by where they stand in the program: of one text there may be two, and then two keys that are
    /// equal.
    type Place = ([(usize, usize); MAX_LABELS], usize);

    /// A key, and that of the other name where there is one.
    type Keys = (Key, Option<Key>);

    thread_local! {
        static KNOWN: RefCell<HashMap<Place, Keys>> = RefCell::default();
    }

    /// Where words stand that live as long as the program; of others there may be any number.
    fn place<const LABELS: usize>(
        metric: &Metric<LABELS>,
        words: &[LabelValue; LABELS],
    ) -> Option<Place> {
        let mut place = [(0, 0); MAX_LABELS];
        for (at, word) in place.iter_mut().zip(words) {
            let LabelValue::Borrowed(word) = word else { return None };
            *at = (word.as_ptr() as usize, word.len());
        }
        Some((place, metric.name.as_ptr() as usize))
    }

    fn keys<const LABELS: usize>(metric: &Metric<LABELS>, words: [LabelValue; LABELS]) -> Keys {
        const { assert!(LABELS <= MAX_LABELS) };
        let labels = metric.labels.into_iter().zip(words);
        let labels: Vec<Label> = labels.map(|(name, word)| Label::new(name, word)).collect();
        #[cfg(feature = "metrics-seed-names")]
        let other = super::seed_names::key(metric.name, &labels);
        #[cfg(not(feature = "metrics-seed-names"))]
        let other = None;
        (Key::from_parts(metric.name, labels), other)
    }

    pub(super) fn with<W: Into<LabelValue>, const LABELS: usize>(
        metric: &Metric<LABELS>,
        words: [W; LABELS],
        record: impl Fn(&Key),
    ) {
        let words = words.map(Into::into);
        let record = |(key, other): &Keys| {
            super::super::recorded(|| {
                record(key);
                other.iter().for_each(&record);
            });
        };
        let Some(place) = place(metric, &words) else { return record(&keys(metric, words)) };
        // A recorder that comes back here, and a thread that ends, make theirs anew.
        let known = KNOWN.try_with(|known| match known.try_borrow_mut() {
            Ok(mut known) => {
                record(known.entry(place).or_insert_with(|| keys(metric, words.clone())));
                true
            }
            Err(_) => false,
        });
        if known != Ok(true) {
            record(&keys(metric, words));
        }
    }
}

/// Nothing is recorded, and nothing is made for it.
#[cfg(not(feature = "metrics"))]
impl<const LABELS: usize> Metric<LABELS> {
    pub(crate) fn add<W: Into<LabelValue>>(&self, _: u64, _: [W; LABELS]) {}

    pub(crate) fn record<W: Into<LabelValue>>(&self, _: f64, _: [W; LABELS]) {}

    pub(crate) fn set<W: Into<LabelValue>>(&self, _: f64, _: [W; LABELS]) {}
}

/// The names that the literature on idempotency keys has, for dashboards that have them already.
#[cfg(feature = "metrics-seed-names")]
mod seed_names {
    use metrics::{Key, Label};

    /// A metric of ours, its `outcome` where only that is meant, and the other name.
    pub(super) const NAMES: [(&str, Option<&str>, &str); 20] = [
        ("requests.created", None, "reserve.created.count"),
        ("requests", Some("replayed"), "reserve.replay.count"),
        ("requests", Some("in_progress"), "reserve.in_progress.count"),
        ("requests", Some("mismatch"), "reserve.key_misuse.count"),
        ("requests", Some("failed"), "reserve.failed_retry.count"),
        ("requests", Some("unknown"), "reserve.unknown.count"),
        ("requests", Some("unavailable"), "store.error.count"),
        ("requests", Some("not_registered"), "not_registered.count"),
        ("resumes", None, "lease.takeover.count"),
        ("zombies", None, "zombie_key.count"),
        ("outcomes.unknown", None, "reconcile.scheduled.count"),
        ("reconciles", Some("executed"), "reconcile.resolved.count"),
        ("reconciles", Some("not_executed"), "reconcile.resolved.count"),
        ("reconciles", Some("failed"), "reconcile.failed.count"),
        ("resolutions", None, "reconcile.resolved.count"),
        ("dead_letters", None, "dead_letter.count"),
        ("keys.reaped", None, "ttl_pruned.count"),
        ("jobs.dead_lettered", None, "staged_job.dead_letter.count"),
        ("phase.duration", None, "phase.duration.seconds"),
        ("job.lag", None, "staged_job.lag.seconds"),
    ];

    pub(super) fn key(name: &str, labels: &[Label]) -> Option<Key> {
        let ours = name.strip_prefix("atomic_phases.")?;
        // A definition may be called `mismatch`.
        let outcome = labels.iter().find(|label| label.key() == "outcome").map(Label::value);
        let means = |word: &str| outcome == Some(word);
        let (_, _, theirs) =
            NAMES.iter().find(|(name, word, _)| *name == ours && word.is_none_or(means))?;
        let kept = labels.iter().filter(|label| ["definition", "phase"].contains(&label.key()));
        Some(Key::from_parts(
            format!("api.idempotency.{theirs}"),
            kept.cloned().collect::<Vec<_>>(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::TABLE;

    /// Two things are recorded of a replay, and where no recorder is installed they leave the heap alone: so the feature
    /// costs it not one allocation.
    #[cfg(feature = "metrics")]
    #[test]
    fn what_is_recorded_of_a_replay_allocates_nothing() {
        use std::time::{Duration, Instant};

        use crate::observe::{REPLAYED, answered, connected};

        let replay = || {
            connected(Instant::now());
            answered("book", REPLAYED, Duration::from_millis(1));
        };
        let first = allocation_counter::measure(replay);
        assert!(first.count_total > 0, "the keys are made once");
        let second = allocation_counter::measure(replay);
        assert_eq!(second.count_total, 0, "{second:?}");
    }

    #[test]
    fn the_chapter_on_metrics_has_each_of_them() {
        let in_code = |word: &&str| format!("`{word}`");
        let row = |(name, kind, labels, unit, says): &(&str, &str, &[&str], &str, &str)| {
            let labels = labels.iter().map(in_code).collect::<Vec<_>>().join(", ");
            let unit = if *unit == "Seconds" { ", seconds" } else { "" };
            format!("| `{name}` | {kind}{unit} | {labels} | {says} |\n")
        };
        let table: String = TABLE.iter().map(row).collect();
        let chapter = include_str!("../../docs/metrics.md");
        assert!(chapter.contains(&table), "the table of docs/metrics.md should be:\n{table}");
    }

    #[cfg(feature = "metrics-seed-names")]
    #[test]
    fn a_definitions_name_is_not_taken_for_an_outcome() {
        use metrics::Label;

        let counted = |definition: &'static str, outcome: &'static str| {
            let labels = [Label::new("definition", definition), Label::new("outcome", outcome)];
            super::seed_names::key("atomic_phases.requests", &labels)
        };
        assert_eq!(counted("mismatch", "finished"), None);
        let replayed = counted("mismatch", "replayed").unwrap();
        assert_eq!(replayed.name(), "api.idempotency.reserve.replay.count");
        let misused = counted("replayed", "mismatch").unwrap();
        assert_eq!(misused.name(), "api.idempotency.reserve.key_misuse.count");
    }

    #[cfg(feature = "metrics-seed-names")]
    #[test]
    fn the_chapter_on_metrics_has_each_other_name() {
        let chapter = include_str!("../../docs/metrics.md");
        for (ours, word, theirs) in super::seed_names::NAMES {
            let word = word.map_or(String::new(), |word| format!(", {word}"));
            let row = format!("| `{theirs}` | `{ours}`{word} |\n");
            assert!(chapter.contains(&row), "docs/metrics.md lacks:\n{row}");
        }
    }
}
