//! What an engine with `traces` records in the spans of a request, and what it stores for later attempts. Separate,
//! because a process has one subscriber.

mod support;

use std::collections::{BTreeMap, HashMap};
use std::fmt::{Debug, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once};

use atomic_phases::Outcome;
use atomic_phases::engine::EngineBuilder;
use atomic_phases::ops::{Actor, Event, EventKind, Permissions, Scopes};
use atomic_phases::traces::{Link, LinkKind, TraceContext, Traceparent};
use atomic_phases::worker::{DeliveryError, Enqueuer};
use sha2::{Digest, Sha256};
use support::work::*;
use support::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Instrument, Level, Span, Subscriber, info_span};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

on_every_store! {
    a_request_that_is_killed_twice_is_one_story_told_by_links,
    what_is_released_is_no_error_and_its_retry_is_linked_to_it,
    a_request_that_gives_up_is_an_error_of_the_attempt_that_did,
    a_request_that_was_accepted_is_linked_to_its_acceptance_alone,
    an_outcome_that_is_looked_into_is_linked_and_no_error,
    requests_that_a_worker_takes_over_together_have_each_its_own_trace,
    g18_a_delivery_is_linked_to_the_phase_that_staged_its_job,
    a_delivery_is_an_error_once_it_gives_up,
    an_engine_without_traces_writes_none_and_leaves_those_of_others,
    a_row_from_before_and_a_trace_that_nobody_can_read_are_gone_on_with,
    g19_no_span_has_a_key_a_scope_or_a_value,
    an_erased_request_has_no_trace,
    a_call_that_runs_nothing_names_no_attempt_and_the_request_that_there_is,
    a_trace_context_that_panics_harms_no_request,
    a_subscriber_that_panics_harms_no_request_and_no_job,
    a_recorder_that_panics_ends_no_worker,
    a_delivery_that_cannot_be_written_down_says_so,
}

/// A span as it was seen.
#[derive(Clone, Debug)]
struct Seen {
    name: String,
    level: Level,
    parent: Option<usize>,
    root: usize,
    fields: BTreeMap<String, String>,
    links: Vec<(LinkKind, Traceparent)>,
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
enum Place {
    New,
    Record,
    Enter,
    Exit,
    Close,
    Event,
}

/// The key whose spans make the subscriber panic, the place where, and how often it did.
static PANICS: Mutex<Vec<(String, Place, u32)>> = Mutex::new(Vec::new());

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
mod recorder {
    use std::sync::atomic::{AtomicU32, Ordering};

    use metrics::{
        Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    };

    use super::{OF_A_WATCHER, PanickingRecorder};

    pub static PANICKED: AtomicU32 = AtomicU32::new(0);

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

struct Numbers;

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

fn recording() {
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

fn traced<S: TestDb>(db: &S, app: &App) -> TestEngine<S> {
    traced_as(db, app, |builder| builder)
}

fn traced_as<S: TestDb>(
    db: &S,
    app: &App,
    set: impl FnOnce(EngineBuilder<S, App>) -> EngineBuilder<S, App>,
) -> TestEngine<S> {
    recording();
    let lease = std::time::Duration::from_secs(60);
    engine_with(db, app, |builder| set(builder.lease(lease).traces(Numbers)))
}

/// A key that no other test of the process has.
fn name() -> String {
    format!("canary-{}", uuid::Uuid::new_v4())
}

/// Of a span that works on the request, with its number.
type Numbered = (usize, Seen);

/// The key's hash, as spans have it.
fn hash(name: &str) -> String {
    Sha256::digest(name.as_bytes())[..4].iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").unwrap();
        hex
    })
}

/// The spans of attempts and calls for the key, in their order.
fn of_key(name: &str) -> Vec<Numbered> {
    let hash = hash(name);
    let is_ours = |seen: &Seen| seen.fields.get("atomic_phases.key_hash") == Some(&hash);
    all().into_iter().filter(|(_, seen)| is_ours(seen)).collect()
}

fn all() -> Vec<Numbered> {
    spans(|spans| spans.seen.clone().into_iter().enumerate().collect())
}

fn below(parent: usize) -> Vec<Numbered> {
    all().into_iter().filter(|(_, seen)| seen.parent == Some(parent)).collect()
}

impl Seen {
    fn says(&self, field: &str) -> &str {
        self.fields.get(field).map_or("", String::as_str)
    }

    fn status(&self) -> (&str, &str) {
        (self.says("otel.status_code"), self.says("error.type"))
    }

    fn outcome(&self) -> &str {
        self.says("atomic_phases.outcome")
    }
}

fn at((number, seen): &Numbered) -> Traceparent {
    place(*number, seen.root)
}

fn linked(creation: &Numbered, last: &Numbered) -> Vec<(LinkKind, Traceparent)> {
    vec![(LinkKind::Creation, at(creation)), (LinkKind::PreviousAttempt, at(last))]
}

/// An entry of the timeline: its event, and the trace in which it happened.
async fn told<S: TestDb>(
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

async fn a_request_that_is_killed_twice_is_one_story_told_by_links<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let (first, second) = (traced(&db, &app), traced(&db.another().await, &app));
    let worker = traced(&db.another().await, &app);
    for engine in [&first, &second] {
        let client = info_span!("client");
        dies_in_its_call(engine, &name, book(20)).instrument(client).await;
        db.let_leases_expire().await;
        db.let_time_pass().await;
    }
    // The worker's resume has a span of its own, which is not the parent of what it runs.
    assert_eq!(completed(&worker).instrument(info_span!("worker")).await.finished, 1);
    finished(first.call(&scope(), &key(&name), book(20)).await);

    let seen = of_key(&name);
    let names: Vec<_> = seen.iter().map(|(_, seen)| seen.name.as_str()).collect();
    assert_eq!(names, ["book execute", "book execute", "book resume", "book execute"]);
    let [one, two, resumed, replay] = seen.as_slice() else { unreachable!() };
    assert_eq!(one.1.links, []);
    assert_eq!(two.1.links, linked(one, one));
    assert_eq!(resumed.1.links, linked(one, two), "the worker knows the one killed last");
    assert_eq!(replay.1.links, [(LinkKind::Creation, at(one))], "who made this answer");
    assert!(resumed.1.parent.is_none() && one.1.level == Level::INFO, "{resumed:?}");
    // One of the attempts is final, and no killed one is an error.
    let statuses: Vec<_> = seen.iter().map(|(_, seen)| seen.status()).collect();
    assert_eq!(statuses, [("", ""), ("", ""), ("OK", ""), ("", "")]);
    let outcomes: Vec<_> = seen.iter().map(|(_, seen)| seen.outcome()).collect();
    assert_eq!(outcomes, ["", "", "finished", "replayed"]);
    let attempts: Vec<_> = seen.iter().map(|it| it.1.says("atomic_phases.attempt")).collect();
    assert_eq!(attempts, ["1", "2", "3", ""]);
    assert_eq!(replay.1.says("atomic_phases.replayed"), "true");
    assert_eq!(resumed.1.says("atomic_phases.recovery_point"), "booked");
    let ids: Vec<_> = seen.iter().map(|it| it.1.says("atomic_phases.request_id")).collect();
    assert!(!ids[0].is_empty() && ids.iter().all(|id| *id == ids[0]), "{ids:?}");

    let phases = |of: &Numbered| below(of.0).into_iter().map(|(_, seen)| seen.name);
    assert!(phases(one).eq(["phase booked", "phase charged"]));
    assert!(phases(two).eq(["phase charged"]));
    assert!(phases(resumed).eq(["phase charged", "phase answered"]));
    let charged = below(two.0).remove(0).1;
    let of = ["atomic_phases.request_id", "atomic_phases.attempt"].map(|field| charged.says(field));
    assert_eq!(of, [ids[0], "2"], "it may be all that arrives of a process that is killed");
    let kind = ["otel.kind", "atomic_phases.phase.kind", "atomic_phases.effect"];
    assert_eq!(kind.map(|field| charged.says(field)), ["client", "foreign", "idempotent"]);

    let taken_over = Some(EventKind::TakenOver);
    let expected = [(None, one), (taken_over, one), (taken_over, two)];
    assert_eq!(told(&first, &name).await, expected.map(|(kind, of)| (kind, Some(at(of)))));
    // Operators read it, too.
    let admin =
        |_: &http::request::Parts| Actor::new("ada", Permissions::admin(), Scopes::All).ok();
    let api = atomic_phases::console::Api::new(first.clone(), admin).router();
    let console = atomic_phases::console::Console::new(first.clone(), admin).router();
    let page = format!("/requests/{}", ids[0]);
    let (json, page) = (read(api, &page).await, read(console, &page).await);
    for of in [one, two] {
        let traceparent = at(of).to_string();
        assert!(json.contains(&traceparent), "{traceparent}: {json}");
        assert!(page.contains(&format!("trace <code>{}", &traceparent[3..35])), "{page}");
    }
}

async fn read(routes: axum::Router, path: &str) -> String {
    let request = http::Request::get(path).header("authorization", "Bearer token");
    let request = request.body(axum::body::Body::empty()).unwrap();
    let response = tower::ServiceExt::oneshot(routes, request).await.unwrap();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

async fn what_is_released_is_no_error_and_its_retry_is_linked_to_it<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced(&db, &app);
    let request = || troubled(Trouble::RetryForeignOnce);
    failed(engine.call(&scope(), &key(&name), request()).await);
    db.let_time_pass().await;
    finished(traced(&db.another().await, &app).call(&scope(), &key(&name), request()).await);
    let seen = of_key(&name);
    let [one, two] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(two.1.links, linked(one, one));
    assert_eq!((one.1.status(), one.1.outcome()), (("", ""), "failed"));
    assert_eq!((two.1.status(), two.1.outcome()), (("OK", ""), "finished"));
    let released = (Some(EventKind::Released), Some(at(one)));
    assert_eq!(told(&engine, &name).await, [(None, Some(at(one))), released]);
}

async fn a_request_that_gives_up_is_an_error_of_the_attempt_that_did<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced_as(&db, &app, |builder| builder.max_attempts(2));
    let request = || troubled(Trouble::RetryForeignAlways);
    failed(engine.call(&scope(), &key(&name), request()).await);
    db.let_time_pass().await;
    completed(&engine).await;
    let told = engine.call(&scope(), &key(&name), request()).await;
    assert!(matches!(told, Ok(Outcome::DeadLetter)), "{told:?}");
    let seen = of_key(&name);
    let [one, two, asked] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(one.1.status(), ("", ""));
    assert_eq!(two.1.status(), ("ERROR", "dead_letter"));
    assert_eq!(asked.1.status(), ("", ""), "it is told of an end that was another's");
    assert_eq!(asked.1.links, [(LinkKind::Creation, at(one))]);
    // A final reply ends the request, whatever its status; only a status of 500 and above is an error.
    for (trouble, status) in [(Trouble::RejectForeign, "OK"), (Trouble::RejectFirst, "OK")] {
        let name = self::name();
        finished(engine.call(&scope(), &key(&name), troubled(trouble)).await);
        assert_eq!(of_key(&name)[0].1.status(), (status, ""), "{trouble:?}");
    }
}

async fn a_request_that_was_accepted_is_linked_to_its_acceptance_alone<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced(&db, &app);
    engine.call(&scope(), &key(&name), book(20)).accept().await.unwrap();
    assert_eq!(completed(&engine).await.finished, 1);
    let seen = of_key(&name);
    let [accepted, resumed] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(accepted.1.outcome(), "accepted");
    assert_eq!(resumed.1.links, [(LinkKind::Creation, at(accepted))]);
    assert_eq!(resumed.1.status(), ("OK", ""));
}

async fn an_outcome_that_is_looked_into_is_linked_and_no_error<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced(&db, &app);
    let call = engine.call(&scope(), &key(&name), notify(Trouble::UnknownForeign)).await;
    assert!(matches!(call, Ok(Outcome::Unknown { .. })), "{call:?}");
    for answers in [false, true] {
        if answers {
            app.provider.answer_searches();
        }
        db.let_time_pass().await;
        reconciled(&engine).await;
    }
    let seen = of_key(&name);
    let [one, still_unknown, executed] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(still_unknown.1.links, linked(one, one));
    assert_eq!(executed.1.links, linked(one, still_unknown));
    let statuses: Vec<_> = seen.iter().map(|it| (it.1.status().0, it.1.outcome())).collect();
    assert_eq!(statuses, [("", "unknown"), ("", "unknown"), ("OK", "finished")]);
}

async fn requests_that_a_worker_takes_over_together_have_each_its_own_trace<S: TestDb>(db: S) {
    let app = App::default();
    let engine = traced(&db, &app);
    let request = || troubled(Trouble::RetryForeignAlways);
    let names: Vec<_> = (0..4).map(|_| name()).collect();
    for name in &names {
        engine.call(&scope(), &key(name), request()).accept().await.unwrap();
    }
    completed(&engine).await;
    for name in &names {
        failed(engine.call(&scope(), &key(name), request()).await);
        let seen = of_key(name);
        let [accepted, resumed, retried] = seen.as_slice() else { panic!("{seen:?}") };
        assert_eq!(resumed.1.links, [(LinkKind::Creation, at(accepted))]);
        assert_eq!(retried.1.links, linked(accepted, resumed));
    }
}

/// Whichever statement writes the job.
async fn g18_a_delivery_is_linked_to_the_phase_that_staged_its_job<S: TestDb>(db: S) {
    let app = App::default();
    let (engine, silent) = (traced(&db, &app), self::engine(&db, &app));
    for request in [None, Some(Form::InTurn), Some(Form::AsOne)] {
        let name = name();
        let call = (scope(), key(&name));
        match request {
            None => finished(engine.call(&call.0, &call.1, book(20)).await),
            Some(form) => finished(engine.call(&call.0, &call.1, form.parcel(Trouble::None)).await),
        };
        let (_, stages): (_, Vec<Numbered>) =
            of_key(&name).pop().map(|of| (of.0, below(of.0))).unwrap();
        let phase = |name: &str| at(stages.iter().find(|(_, seen)| seen.name == name).unwrap());
        let staged = match request {
            None => [("receipt", phase("phase answered")), ("thanks", phase("phase answered"))],
            Some(_) => [("label", phase("phase packed")), ("thanks", phase("phase delivered"))],
        };
        // The second one by an engine that does not trace.
        let (inbox, other) = (Inbox::default(), Inbox::default());
        let one = std::sync::Arc::new(Mutex::new(Vec::new()));
        for (engine, inbox) in [(&engine, &inbox), (&silent, &other)] {
            let (kept, inside) = (inbox.clone(), one.clone());
            let handlers = atomic_phases::worker::Handlers::new();
            let handlers =
                ["receipt", "thanks", "label"].into_iter().fold(handlers, |all, name| {
                    let (kept, inside) = (kept.clone(), inside.clone());
                    all.on(name, move |_: String, job| {
                        inside.lock().unwrap().push(Numbers.current());
                        kept.clone().keep(job)
                    })
                });
            let mut enqueuer = Enqueuer::new(engine, handlers, config().batch(1));
            assert_eq!(enqueuer.run_once().await.unwrap().delivered, 1);
            db.let_time_pass().await;
        }
        let (first, second) = (inbox.take().remove(0), other.take().remove(0));
        assert_eq!((first.name.as_str(), second.name.as_str()), (staged[0].0, staged[1].0));
        assert_eq!(second.traceparent(), Some(staged[1].1), "{request:?}");
        let id = first.id.to_string();
        let all = all();
        let delivery: Vec<_> =
            all.iter().filter(|it| it.1.says("atomic_phases.job_id") == id).collect();
        let [delivery] = delivery.as_slice() else { panic!("{delivery:?}") };
        assert_eq!(delivery.1.name, format!("job {}", first.name));
        assert_eq!(delivery.1.links, [(LinkKind::Staging, staged[0].1)], "{request:?}");
        assert_eq!(delivery.1.status(), ("OK", ""));
        // The handler's spans are within the delivery's span, and the context that it propagates names that span.
        assert_eq!(first.traceparent(), Some(at(delivery)));
        assert_eq!(one.lock().unwrap()[0], Some(at(delivery)));
    }
}

async fn a_delivery_is_an_error_once_it_gives_up<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced(&db, &app);
    finished(engine.call(&scope(), &key(&name), book(20)).await);
    let sink = atomic_phases::worker::Handlers::new()
        .on("receipt", async |_: String, _| Err(DeliveryError::retry("mail is down")));
    let mut enqueuer = Enqueuer::new(&engine, sink, config().max_deliveries(2));
    for _ in 0..2 {
        enqueuer.run_once().await.unwrap();
        db.let_time_pass().await;
    }
    let seen = of_key(&name);
    let [_, failed, dead] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!((failed.1.status(), failed.1.outcome()), (("", ""), "failed"));
    assert_eq!((dead.1.status(), dead.1.outcome()), (("ERROR", "dead_letter"), "dead_letter"));
    assert_eq!((failed.1.links.len(), &failed.1.links), (1, &dead.1.links));
}

async fn an_engine_without_traces_writes_none_and_leaves_those_of_others<S: TestDb>(db: S) {
    recording();
    let app = App::default();
    let (engine, silent) = (traced(&db, &app), self::engine(&db, &app));
    let names = [name(), name(), name(), name()];
    finished(silent.call(&scope(), &key(&names[0]), book(20)).await);
    finished(silent.call(&scope(), &key(&names[1]), Form::AsOne.parcel(Trouble::None)).await);
    silent.call(&scope(), &key(&names[2]), book(20)).accept().await.unwrap();
    dies_in_its_call(&silent, &names[3], book(20)).await;
    db.let_leases_expire().await;
    assert_eq!(completed(&silent).await.finished, 2);
    for table in ["keys", "staged_jobs"] {
        let kept = format!("SELECT count(*) FROM atomic_phases_{table} WHERE trace IS NOT NULL");
        assert_eq!(db.number(&kept).await, 0, "{table}");
    }
    assert!(names.iter().all(|name| of_key(name).is_empty()), "a span for a view of traces");
    let tabs = "SELECT count(*) FROM atomic_phases_keys WHERE events LIKE '%00-0%'";
    assert_eq!(db.number(tabs).await, 0);
    // The nodes are restarted one by one: one that does not trace continues what one that traces has begun.
    let name = self::name();
    dies_in_its_call(&engine, &name, book(20)).await;
    db.let_leases_expire().await;
    assert_eq!(completed(&silent).await.finished, 1);
    finished(engine.call(&scope(), &key(&name), book(20)).await);
    let seen = of_key(&name);
    let [one, replay] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(replay.1.links, [(LinkKind::Creation, at(one))]);
    let taken_over = (Some(EventKind::TakenOver), None);
    assert_eq!(told(&engine, &name).await, [(None, Some(at(one))), taken_over]);
}

async fn a_row_from_before_and_a_trace_that_nobody_can_read_are_gone_on_with<S: TestDb>(db: S) {
    let app = App::default();
    let (engine, silent) = (traced(&db, &app), self::engine(&db, &app));
    let name = name();
    dies_in_its_call(&silent, &name, book(20)).await;
    for _ in 0..2 {
        db.let_leases_expire().await;
        dies_in_its_call(&engine, &name, book(20)).await;
    }
    let seen = of_key(&name);
    let [two, three] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(two.1.links, [], "its maker is unknown");
    assert_eq!(three.1.links, [(LinkKind::PreviousAttempt, at(two))]);
    let bytes = if is_postgres::<S>() { "'\\x010203'" } else { "x'010203'" };
    db.sql(&format!("UPDATE atomic_phases_keys SET trace = {bytes}")).await;
    db.let_leases_expire().await;
    db.let_time_pass().await;
    assert_eq!(completed(&engine).await.finished, 1);
    assert_eq!(of_key(&name)[2].1.links, []);
}

async fn g19_no_span_has_a_key_a_scope_or_a_value<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced(&db, &app);
    failed(engine.call(&scope(), &key(&name), troubled(Trouble::RetryForeignOnce)).await);
    finished(engine.call(&scope(), &key(&name), troubled(Trouble::RetryForeignOnce)).await);
    finished(engine.call(&scope(), &key(&name), troubled(Trouble::None)).await);
    let mut enqueuer = Enqueuer::new(&engine, Inbox::default().sink(), config());
    while enqueuer.run_once().await.unwrap().delivered > 0 {}
    let ours = all()
        .into_iter()
        .filter(|(_, seen)| seen.fields.keys().any(|name| name.starts_with("atomic_phases.")));
    let ours: Vec<_> = ours.collect();
    // Three calls and two deliveries.
    assert_eq!(of_key(&name).len(), 5);
    for (_, seen) in ours {
        let whole = format!("{seen:?}");
        assert!(!whole.contains("canary") && !whole.contains("tenant-1"), "{whole}");
    }
}

async fn an_erased_request_has_no_trace<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced(&db, &app);
    finished(engine.call(&scope(), &key(&name), book(20)).await);
    db.sql("DELETE FROM atomic_phases_staged_jobs").await;
    let kept = "SELECT count(*) FROM atomic_phases_keys WHERE trace IS NOT NULL";
    assert_eq!(db.number(kept).await, 1);
    engine.erase(&scope(), &key(&name)).await.unwrap();
    assert_eq!(db.number(kept).await, 0);
}

/// The call was to create the row, and found one.
async fn a_call_that_runs_nothing_names_no_attempt_and_the_request_that_there_is<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced(&db, &app);
    let call = |request: Book| engine.call(&scope(), &key(&name), request);
    finished(call(book(20)).await);
    finished(call(book(20)).expect_new().await);
    assert!(matches!(call(book(21)).expect_new().await, Ok(Outcome::Mismatch)));
    let seen = of_key(&name);
    let [one, replay, mismatch] = seen.as_slice() else { panic!("{seen:?}") };
    let id = |it: &Numbered| it.1.says("atomic_phases.request_id").to_owned();
    assert_eq!((id(replay), id(mismatch)), (id(one), String::new()));
    assert_eq!(replay.1.links, [(LinkKind::Creation, at(one))]);
    for told in [replay, mismatch] {
        let says = |field: &str| told.1.says(&format!("atomic_phases.{field}")).to_owned();
        assert_eq!((says("attempt"), says("recovery_point")), Default::default(), "{told:?}");
    }

    // One that is unknown is named, too.
    let name = self::name();
    let call = async || engine.call(&scope(), &key(&name), notify(Trouble::UnknownForeign)).await;
    for _ in 0..2 {
        let told = call().await;
        assert!(matches!(told, Ok(Outcome::Unknown { .. })), "{told:?}");
    }
    let seen = of_key(&name);
    let [one, told] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!((id(told), told.1.says("atomic_phases.attempt")), (id(one), ""));
}

struct Panics;

impl TraceContext for Panics {
    fn current(&self) -> Option<Traceparent> {
        panic!("asked for")
    }

    fn link(&self, _: &Span, _: &[Link]) {
        panic!("asked for")
    }
}

async fn a_trace_context_that_panics_harms_no_request<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced(&db, &app);
    let lease = std::time::Duration::from_secs(60);
    let broken = engine_with(&db, &app, |builder| builder.lease(lease).traces(Panics));
    finished(broken.call(&scope(), &key(&self::name()), book(20)).await);
    // With earlier spans to link to, too.
    app.forget_bodies();
    failed(engine.call(&scope(), &key(&name), troubled(Trouble::RetryForeignOnce)).await);
    db.let_time_pass().await;
    assert_eq!(completed(&broken).await.finished, 1);
    let inbox = Inbox::default();
    let mut enqueuer = Enqueuer::new(&broken, inbox.sink(), config());
    for _ in 0..2 {
        enqueuer.run_once().await.unwrap();
    }
    assert_eq!(inbox.take().len(), 4, "of two requests");
}

/// A layer of the application panics at a span of the request: when it is created, entered, left, closed, updated,
/// or gets an event. The answer, its replay, a retry and a delivery are the same as without the panic, and no row
/// stays locked.
async fn a_subscriber_that_panics_harms_no_request_and_no_job<S: TestDb>(db: S) {
    let app = App::default();
    let engine = traced_as(&db, &app, |builder| {
        builder.back_off(std::time::Duration::from_millis(1), std::time::Duration::from_millis(1))
    });
    let places = [Place::New, Place::Record, Place::Enter, Place::Exit, Place::Close, Place::Event];
    for place in places {
        let name = name();
        PANICS.lock().unwrap().push((hash(&name), place, 0));
        app.forget_bodies();
        let request = || troubled(Trouble::RetryForeignOnce);
        let call = || engine.call(&scope(), &key(&name), request());
        // Its failure is an event, and its retry has something to be linked to.
        failed(call().await);
        db.let_time_pass().await;
        assert_eq!(completed(&engine).await.finished, 1, "{place:?}");
        assert!(finished(call().await).replayed, "{place:?}");
        finished(
            engine.call(&scope(), &key(&format!("{name}-2")), book(20)).__call_in_place().await,
        );
        let inbox = Inbox::default();
        let mut enqueuer = Enqueuer::new(&engine, inbox.sink(), config());
        for _ in 0..4 {
            enqueuer.run_once().await.unwrap();
        }
        let left = "SELECT count(*) FROM atomic_phases_staged_jobs";
        assert_eq!(db.number(left).await, 0, "{place:?}");
        assert_eq!(inbox.take().len(), 4, "each job once, {place:?}");
        let held = "SELECT count(*) FROM atomic_phases_keys WHERE status <> 'completed'";
        assert_eq!(db.number(held).await, 0, "{place:?}");
        let panics = PANICS.lock().unwrap().clone();
        let (_, _, times) = panics.iter().find(|(of, _, _)| *of == hash(&name)).unwrap();
        assert!(*times > 0, "it never panicked: {place:?}");
    }
}

/// The worst case is a worker, because the first thing that it records is its start.
async fn a_recorder_that_panics_ends_no_worker<S: TestDb>(db: S) {
    let (app, name) = (App::default(), name());
    let engine = traced(&db, &app);
    engine.call(&scope(), &key(&name), book(20)).accept().await.unwrap();
    let often = config().census_every(std::time::Duration::from_millis(20));
    let inbox = Inbox::default();
    let workers = engine.spawn_workers(often.sink(inbox.sink())).unwrap();
    until(async || inbox.0.lock().unwrap().len() == 2).await;
    workers.shutdown(std::time::Duration::from_secs(30)).await.unwrap();
    assert!(finished(engine.call(&scope(), &key(&name), book(20)).await).replayed);
    #[cfg(feature = "metrics")]
    assert!(recorder::PANICKED.load(std::sync::atomic::Ordering::SeqCst) > 50);
}

/// The job was delivered, and its result is not recorded: the store is unavailable, or another node has claimed the
/// job meanwhile.
async fn a_delivery_that_cannot_be_written_down_says_so<S: TestDb>(db: S) {
    let app = App::default();
    let engine = traced(&db, &app);
    let (gone, back) = match is_mysql::<S>() {
        true => (
            "RENAME TABLE atomic_phases_staged_jobs TO elsewhere",
            "RENAME TABLE elsewhere TO atomic_phases_staged_jobs",
        ),
        false => (
            "ALTER TABLE atomic_phases_staged_jobs RENAME TO elsewhere",
            "ALTER TABLE elsewhere RENAME TO atomic_phases_staged_jobs",
        ),
    };
    let others = "DELETE FROM atomic_phases_staged_jobs";
    for (during, outcome) in [(gone, "unavailable"), (others, "lost")] {
        // The store in memory has no statement that takes it away.
        if is_memory::<S>() && during == gone {
            continue;
        }
        let name = name();
        finished(engine.call(&scope(), &key(&name), book(20)).await);
        let store = db.clone();
        let sink = atomic_phases::worker::Handlers::new().on("receipt", move |_: String, _| {
            let store = store.clone();
            async move {
                store.sql(during).await;
                Ok::<_, DeliveryError>(())
            }
        });
        let short = config().delivery(std::time::Duration::from_secs(2));
        let mut enqueuer = Enqueuer::new(&engine, sink, short);
        assert_eq!(enqueuer.run_once().await.unwrap().lost, 1, "{outcome}");
        if during == gone {
            db.sql(back).await;
        }
        let seen = of_key(&name);
        let [_, delivery] = seen.as_slice() else { panic!("{seen:?}") };
        assert_eq!((delivery.1.status(), delivery.1.outcome()), (("", ""), outcome));
        db.sql(others).await;
    }
}

/// A call whose commit got no answer continues with its own row.
#[tokio::test(flavor = "multi_thread")]
async fn no_span_is_linked_to_itself_whatever_answer_is_lost() {
    use atomic_phases::fault::{Mode, explore};
    let (mut cases, short) = (0, std::time::Duration::from_millis(1));
    for trouble in [Trouble::None, Trouble::RejectFirst] {
        let world = async || {
            let (db, app) = (<atomic_phases::Sqlite as TestDb>::fresh().await, App::default());
            (traced_as(&db, &app, |builder| builder.back_off(short, short)), app)
        };
        let modes = [Mode::AckLost, Mode::NotSent, Mode::Drop];
        let report = explore(world, troubled(trouble)).modes(modes).crash_at_every_point();
        let report = report.run().await;
        report.assert_ok();
        cases += report.cases();
    }
    assert!(cases > 10, "{cases}");
    let all = all();
    assert!(all.iter().any(|(_, seen)| !seen.links.is_empty()));
    for one in &all {
        assert!(one.1.links.iter().all(|(_, to)| *to != at(one)), "{one:?}");
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files.into_iter().chain(folders.iter().flat_map(|folder| sources(folder))).collect()
}

/// The crate emits nothing except through `observe`, which catches panics of `tracing` and of a recorder. Within
/// `observe`, each of the two is called through `unharmed`.
#[test]
fn the_subscriber_and_the_recorder_are_asked_in_one_place_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    // The number of lines that may name them: `traces` has the type that applications receive, and `movable_task`
    // moves the subscriber from thread to thread without calling it.
    let allowed = [
        ("movable_task.rs", 2),
        ("observe.rs", 5),
        ("observe/metrics.rs", 3),
        ("observe/spans.rs", 3),
        ("observe/unharmed.rs", 7),
        ("traces.rs", 1),
    ];
    let all = sources(&root);
    assert!(all.len() > 200, "{all:?}");
    for path in all {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let words = ["tracing::", "with_recorder(", "register_counter"];
        let says = |line: &&str| words.iter().any(|word| line.contains(word));
        let past: Vec<&str> = code.filter(says).collect();
        let most =
            allowed.iter().find(|(allowed, _)| *allowed == name).map_or(0, |(_, most)| *most);
        assert!(past.len() <= most, "{name}: {past:#?}");
    }
}
