//! The subscriber, the recorder and the trace context of this process, and the spans that they have seen.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{Debug, Write};
use std::sync::{Mutex, Once};

use atomic_phases::engine::EngineBuilder;
use atomic_phases::ops::{Actor, Event, EventKind, Permissions, Scopes};
use atomic_phases::traces::{Link, LinkKind, TraceContext, Traceparent};
use sha2::{Digest, Sha256};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Span, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::support::*;

/// A span as it was seen.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) level: Level,
    pub(crate) parent: Option<usize>,
    root: usize,
    pub(crate) fields: BTreeMap<String, String>,
    pub(crate) links: Vec<(LinkKind, Traceparent)>,
}

#[derive(Default)]
struct Spans {
    seen: Vec<Seen>,
    /// The open spans: `tracing` reuses the ids of closed ones.
    open: HashMap<u64, usize>,
}

static SPANS: Mutex<Option<Spans>> = Mutex::new(None);

fn spans<T>(with: impl FnOnce(&mut Spans) -> T) -> T {
    with(SPANS.lock().unwrap().get_or_insert_default())
}

/// A number identifies each span of this process, and the number of its root identifies its trace.
fn place(number: usize, root: usize) -> Traceparent {
    let trace = (root as u128 + 1).to_be_bytes();
    Traceparent::new(trace, (number as u64 + 1).to_be_bytes(), 1).unwrap()
}

struct Recorder;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let above = match attributes.is_root() {
            true => None,
            false => {
                let current = context.current_span();
                attributes.parent().or(current.id()).map(Id::into_u64)
            }
        };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let metadata = attributes.metadata();
        let key = fields.0.get("atomic_phases.key_hash").cloned().unwrap_or_default();
        panic_at(Place::New, &key);
        spans(|spans| {
            let parent = above.and_then(|id| spans.open.get(&id).copied());
            let number = spans.seen.len();
            spans.open.insert(id.into_u64(), number);
            let root = parent.map_or(number, |parent| spans.seen[parent].root);
            let name = fields.0.get("otel.name").cloned();
            let name = name.unwrap_or_else(|| metadata.name().to_owned());
            let (level, links) = (*metadata.level(), Vec::new());
            spans.seen.push(Seen { name, level, parent, root, fields: fields.0, links });
        });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        values.record(&mut fields);
        spans(|spans| {
            let number = spans.open[&id.into_u64()];
            spans.seen[number].fields.append(&mut fields.0);
        });
        panic_at(Place::Record, &key_of(id));
    }

    fn on_enter(&self, id: &Id, _: Context<'_, S>) {
        panic_at(Place::Enter, &key_of(id));
    }

    fn on_exit(&self, id: &Id, _: Context<'_, S>) {
        panic_at(Place::Exit, &key_of(id));
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        panic_at(Place::Close, &key_of(&id));
    }

    fn on_event(&self, _: &tracing::Event<'_>, context: Context<'_, S>) {
        if let Some(span) = context.lookup_current() {
            panic_at(Place::Event, &key_of(&span.id()));
        }
    }
}

/// The places where the subscriber is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    New,
    Record,
    Enter,
    Exit,
    Close,
    Event,
}

/// The key whose spans make the subscriber panic, the place where, and how often it did.
pub(crate) static PANICS: Mutex<Vec<(String, Place, u32)>> = Mutex::new(Vec::new());

/// Panics with this text are not printed.
const OF_A_WATCHER: &str = "as asked for, of a watcher";

fn panic_at(place: Place, key: &str) {
    let mut panics = PANICS.lock().unwrap();
    let meant = panics.iter_mut().find(|(hash, at, _)| hash == key && *at == place);
    if let Some((_, _, times)) = meant {
        *times += 1;
        drop(panics);
        panic!("{OF_A_WATCHER}");
    }
}

/// The key's hash of the span, or of the request that it is in.
fn key_of(id: &Id) -> String {
    spans(|spans| {
        let mut at = spans.open.get(&id.into_u64()).copied();
        while let Some(number) = at {
            let seen = &spans.seen[number];
            if let Some(hash) = seen.fields.get("atomic_phases.key_hash") {
                return hash.clone();
            }
            at = seen.parent;
        }
        String::new()
    })
}

/// Panics at every call for the chosen key. In each test of this program, the result of a request is the same all
/// the same.
#[cfg(feature = "metrics")]
struct PanickingRecorder;

#[cfg(feature = "metrics")]
pub(crate) mod recorder {
    use std::sync::atomic::{AtomicU32, Ordering};

    use metrics::{
        Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    };

    use super::{OF_A_WATCHER, PanickingRecorder};

    pub(crate) static PANICKED: AtomicU32 = AtomicU32::new(0);

    fn panics() -> ! {
        PANICKED.fetch_add(1, Ordering::SeqCst);
        panic!("{OF_A_WATCHER}")
    }

    impl Recorder for PanickingRecorder {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
            panics()
        }

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
            panics()
        }

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
            panics()
        }

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            panics()
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            panics()
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            panics()
        }
    }
}

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        self.0.insert(field.name().to_owned(), text.trim_matches('"').to_owned());
    }
}

pub(crate) struct Numbers;

impl TraceContext for Numbers {
    fn current(&self) -> Option<Traceparent> {
        let id = Span::current().id()?;
        spans(|spans| {
            let number = *spans.open.get(&id.into_u64())?;
            Some(place(number, spans.seen[number].root))
        })
    }

    fn link(&self, span: &Span, to: &[Link]) {
        let Some(id) = span.id() else { return };
        spans(|spans| {
            let number = spans.open[&id.into_u64()];
            spans.seen[number].links.extend(to.iter().map(|link| (link.kind, link.to)));
        });
    }
}

pub(crate) fn recording() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let said = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let payload = panic.payload();
            let literal = payload.downcast_ref::<&str>().copied();
            let text = literal.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
            if text != Some(OF_A_WATCHER) {
                said(panic);
            }
        }));
        let subscriber = tracing_subscriber::registry().with(Recorder);
        tracing::subscriber::set_global_default(subscriber).unwrap();
        #[cfg(feature = "metrics")]
        metrics::set_global_recorder(PanickingRecorder).unwrap();
    });
}

pub(crate) fn traced<S: TestDb>(db: &S, app: &App) -> TestEngine<S> {
    traced_as(db, app, |builder| builder)
}

pub(crate) fn traced_as<S: TestDb>(
    db: &S,
    app: &App,
    set: impl FnOnce(EngineBuilder<S, App>) -> EngineBuilder<S, App>,
) -> TestEngine<S> {
    recording();
    let lease = std::time::Duration::from_secs(60);
    engine_with(db, app, |builder| set(builder.lease(lease).traces(Numbers)))
}

/// A key that no other test of the process has.
pub(crate) fn name() -> String {
    format!("canary-{}", uuid::Uuid::new_v4())
}

/// Of a span that works on the request, with its number.
pub(crate) type Numbered = (usize, Seen);

/// The key's hash, as spans have it.
pub(crate) fn hash(name: &str) -> String {
    Sha256::digest(name.as_bytes())[..4].iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

/// The spans of attempts and calls for the key, in their order.
pub(crate) fn of_key(name: &str) -> Vec<Numbered> {
    let hash = hash(name);
    let is_ours = |seen: &Seen| seen.fields.get("atomic_phases.key_hash") == Some(&hash);
    all().into_iter().filter(|(_, seen)| is_ours(seen)).collect()
}

pub(crate) fn all() -> Vec<Numbered> {
    spans(|spans| spans.seen.clone().into_iter().enumerate().collect())
}

pub(crate) fn below(parent: usize) -> Vec<Numbered> {
    all().into_iter().filter(|(_, seen)| seen.parent == Some(parent)).collect()
}

impl Seen {
    pub(crate) fn says(&self, field: &str) -> &str {
        self.fields.get(field).map_or("", String::as_str)
    }

    pub(crate) fn status(&self) -> (&str, &str) {
        (self.says("otel.status_code"), self.says("error.type"))
    }

    pub(crate) fn outcome(&self) -> &str {
        self.says("atomic_phases.outcome")
    }
}

pub(crate) fn at((number, seen): &Numbered) -> Traceparent {
    place(*number, seen.root)
}

pub(crate) fn linked(creation: &Numbered, last: &Numbered) -> Vec<(LinkKind, Traceparent)> {
    vec![(LinkKind::Creation, at(creation)), (LinkKind::PreviousAttempt, at(last))]
}

/// An entry of the timeline: its event, and the trace in which it happened.
pub(crate) async fn told<S: TestDb>(
    engine: &TestEngine<S>,
    name: &str,
) -> Vec<(Option<EventKind>, Option<Traceparent>)> {
    let actor = Actor::new("ada", Permissions::admin(), Scopes::All).unwrap();
    let timeline = engine.ops(actor).find(&scope(), &key(name)).await.unwrap();
    let shown = engine.ops(Actor::new("ada", Permissions::admin(), Scopes::All).unwrap());
    let shown = shown.show(timeline.request_id).await.unwrap();
    let kind = |what| match what {
        Event::Accepted => Some(None),
        Event::Left { kind, .. } => Some(Some(kind)),
        _ => None,
    };
    let told = shown.timeline.into_iter();
    told.filter_map(|happened| Some((kind(happened.what)?, happened.trace))).collect()
}
