//! Which rows a dispatcher begins, and how often it searches, in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::key::Scope;
use crate::worker::backlog::BLOCKED;
use crate::worker::slots::LONG;

struct Row(u32);

impl Candidate for Row {
    type Id = u32;

    fn id(&self) -> u32 {
        self.0
    }

    fn scope(&self) -> &Scope {
        static SCOPE: std::sync::LazyLock<Scope> =
            std::sync::LazyLock::new(|| Scope::new("one").unwrap());
        &SCOPE
    }

    fn state(&self) -> [i64; 2] {
        [0, 0]
    }

    /// Below ten: one that was tried before.
    fn may_go_ahead(&self) -> bool {
        self.0 >= 10
    }
}

/// So many due rows, none of which comes to an end. A search takes a millisecond, and so does a row.
struct Stuck {
    rows: u32,
    is_admitted: bool,
    ends_as: fn() -> Settled,
    /// From this one on they come to an end.
    known: u32,
    searches: Arc<AtomicU32>,
    looked_at: Arc<AtomicU32>,
}

impl Source for Stuck {
    type Place = u32;
    type Found = Row;
    type Ended = u32;

    fn name(&self) -> &'static str {
        "stuck"
    }

    fn search(&self, after: u32, limit: u32) -> Searching<Row, u32> {
        self.searches.fetch_add(1, Ordering::SeqCst);
        let rows = self.rows;
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            if rows == u32::MAX {
                return Err(StoreError::NoConnection("asked for".to_owned()));
            }
            let end = (after + limit).min(rows);
            Ok(Page { rows: (after..end).map(Row).collect(), next: (end < rows).then_some(end) })
        })
    }

    fn admits(&mut self, _: &Row) -> bool {
        self.is_admitted
    }

    fn begin(&mut self, row: Row) -> impl Future<Output = u32> + Send + 'static {
        self.looked_at.fetch_add(1, Ordering::SeqCst);
        async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            row.0
        }
    }

    fn settle(&mut self, row: u32) -> Settled {
        if row < self.known { (self.ends_as)() } else { Settled::Progress }
    }
}

/// How often a worker at its defaults searches, and looks at rows, in 100 s.
async fn in_100_seconds(rows: u32, is_admitted: bool, ends_as: fn() -> Settled) -> (u32, u32) {
    in_seconds(100, rows, is_admitted, ends_as).await
}

async fn in_seconds(
    seconds: u64,
    rows: u32,
    is_admitted: bool,
    ends_as: fn() -> Settled,
) -> (u32, u32) {
    let (searches, looked_at) = <(Arc<AtomicU32>, Arc<AtomicU32>)>::default();
    let (seen, looked) = (searches.clone(), looked_at.clone());
    let known = u32::MAX;
    let stuck = Stuck { rows, is_admitted, ends_as, known, searches: seen, looked_at: looked };
    let mut dispatcher = Dispatcher::new(stuck, &WorkerConfig::default());
    dispatcher.forever(tokio::time::sleep(Duration::from_secs(seconds))).await;
    (searches.load(Ordering::SeqCst), looked_at.load(Ordering::SeqCst))
}

#[tokio::test(start_paused = true)]
async fn g17_what_is_not_to_be_run_is_searched_for_about_once_a_second() {
    let settled = || Settled::Progress;
    let (searches, looked_at) = in_100_seconds(50, false, settled).await;
    assert!((60..=200).contains(&searches), "{searches}");
    assert_eq!(looked_at, 0);
    // Ten searches a pass, and one at the end, with rests: 11 * 5 ms, and a second.
    let (searches, _) = in_100_seconds(10_000, false, settled).await;
    assert!((600..=2_000).contains(&searches), "{searches}");
    // Without an end: a fifth of the time.
    let (searches, _) = in_seconds(10, 1_000_000_000, false, settled).await;
    assert!((1_000..=2_010).contains(&searches), "{searches}");
}

#[tokio::test(start_paused = true)]
async fn g14_a_row_that_is_left_alone_is_read_once_a_minute() {
    let (searches, looked_at) = in_100_seconds(50, true, || Settled::Left).await;
    assert!((60..=200).contains(&searches), "{searches}");
    assert_eq!(looked_at, 100, "fifty, and fifty a minute later");
    let (_, looked_at) = in_100_seconds(50, true, || Settled::Failed).await;
    assert!((250..=350).contains(&looked_at), "after 1, 2, 4, 8, … s: {looked_at}");
}

/// A worker does not spin on rows that other nodes always win.
#[tokio::test(start_paused = true)]
async fn g17_what_is_always_lost_is_read_once_a_pass() {
    let (searches, looked_at) = in_100_seconds(50, true, || Settled::Lost).await;
    assert!((60..=200).contains(&searches), "{searches}");
    assert!(looked_at <= 200 * 50, "{looked_at}");
}

#[tokio::test(start_paused = true)]
async fn g17_a_store_that_is_away_is_asked_less_and_less_often() {
    let (searches, _) = in_100_seconds(u32::MAX, true, || Settled::Progress).await;
    assert!((5..=20).contains(&searches), "{searches}");
}

/// As a cron job does, that begins at the front each time.
#[tokio::test(start_paused = true)]
async fn g17_one_pass_comes_past_any_number_of_rows_that_come_to_nothing() {
    for ends_as in [|| Settled::Left, || Settled::Lost, || Settled::Failed] {
        let (searches, looked_at) = <(Arc<AtomicU32>, Arc<AtomicU32>)>::default();
        let (rows, is_admitted, known) = (15_150, true, 15_000);
        let (seen, looked) = (searches.clone(), looked_at.clone());
        let stuck = Stuck { rows, is_admitted, ends_as, known, searches: seen, looked_at: looked };
        Dispatcher::new(stuck, &WorkerConfig::default()).one_pass().await.unwrap();
        assert_eq!(looked_at.load(Ordering::SeqCst), known + 100);
    }
}

#[tokio::test(start_paused = true)]
async fn one_pass_begins_each_row_once_and_a_batch_at_most() {
    let (searches, looked_at) = <(Arc<AtomicU32>, Arc<AtomicU32>)>::default();
    let (seen, looked) = (searches.clone(), looked_at.clone());
    let ends_as = || Settled::Progress;
    let (rows, is_admitted, known) = (250, true, 0);
    let stuck = Stuck { rows, is_admitted, ends_as, known, searches: seen, looked_at: looked };
    let mut dispatcher = Dispatcher::new(stuck, &WorkerConfig::default());
    for expected in [100, 200, 250, 350] {
        dispatcher.one_pass().await.unwrap();
        assert_eq!(looked_at.load(Ordering::SeqCst), expected);
    }
}

struct OfScope(u32, Scope);

impl Candidate for OfScope {
    type Id = u32;

    fn id(&self) -> u32 {
        self.0
    }

    fn scope(&self) -> &Scope {
        &self.1
    }

    fn state(&self) -> [i64; 2] {
        [0, 0]
    }
}

/// So many due rows of one scope, and one of another scope. A search takes ten milliseconds.
struct Crowd {
    rows: u32,
    /// How many of the first scope become due in a second, with a wakeup each five milliseconds.
    grows: u32,
    /// How long work of the first scope takes, if it does not hang.
    takes: Option<Duration>,
    crowd: Scope,
    began: Instant,
    /// The place of the other scope's row, when it becomes due, and for how long it is early then.
    other: u32,
    other_at: Duration,
    early_for: Duration,
    other_begun: Arc<AtomicU32>,
}

impl Crowd {
    /// The work of the first scope hangs. The other's row is the last, and is not early.
    fn of(rows: u32, other_at: Duration) -> Self {
        let (grows, other, early_for) = (0, rows, Duration::ZERO);
        let (began, crowd) = (Instant::now(), Scope::new("crowd").unwrap());
        let other_begun = Arc::default();
        let takes = None;
        Self { rows, grows, takes, crowd, began, other, other_at, early_for, other_begun }
    }

    /// How many are due.
    fn due(&self) -> u32 {
        let age = self.began.elapsed();
        let crowd = self.rows + (f64::from(self.grows) * age.as_secs_f64()) as u32;
        if age < self.other_at { crowd.min(self.other) } else { crowd.max(self.other + 1) }
    }
}

impl Source for Crowd {
    type Place = u32;
    type Found = OfScope;
    type Ended = ();

    fn name(&self) -> &'static str {
        "crowd"
    }

    fn search(&self, after: u32, limit: u32) -> Searching<OfScope, u32> {
        let (all, crowd, other) = (self.due(), self.crowd.clone(), self.other);
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let end = (after + limit).min(all);
            let of = |row: u32| match row == other {
                true => OfScope(row, Scope::new("other").unwrap()),
                false => OfScope(row, crowd.clone()),
            };
            Ok(Page { rows: (after..end).map(of).collect(), next: (end < all).then_some(end) })
        })
    }

    fn admits(&mut self, found: &OfScope) -> bool {
        !self.is_early(found)
    }

    fn is_early(&self, found: &OfScope) -> bool {
        found.0 == self.other && self.began.elapsed() < self.other_at + self.early_for
    }

    fn begin(&mut self, row: OfScope) -> impl Future<Output = ()> + Send + 'static {
        let is_other = row.0 == self.other;
        self.other_begun.fetch_add(u32::from(is_other), Ordering::SeqCst);
        let takes = if is_other { Some(Duration::ZERO) } else { self.takes };
        async move {
            match takes {
                Some(takes) => tokio::time::sleep(takes).await,
                None => std::future::pending().await,
            }
        }
    }

    fn settle(&mut self, (): ()) -> Settled {
        Settled::Progress
    }

    async fn wakeup(&self) {
        match self.grows {
            0 => std::future::pending().await,
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// Whether the other scope's row was begun within this time after it became due and was no longer early.
async fn begins_within(source: Crowd, batch: u32, bound: Duration) -> bool {
    let other_begun = source.other_begun.clone();
    let until = source.other_at + source.early_for + bound;
    let config = WorkerConfig::default().batch(batch);
    let mut dispatcher = Dispatcher::new(source, &config);
    // Work that hangs would keep the dispatcher from ending.
    let work = dispatcher.forever(std::future::pending());
    let _ = tokio::time::timeout(until, work).await;
    other_begun.load(Ordering::SeqCst) > 0
}

#[tokio::test(start_paused = true)]
async fn g16_due_rows_of_one_scope_do_not_delay_another_scope() {
    for batch in [1, 100] {
        // At first it is behind a hundred pages, of fifty milliseconds with their rests.
        let [soon, late] = [Duration::from_secs(10), Duration::from_secs(30)];
        let crowd = Crowd::of(100_000, Duration::ZERO);
        assert!(begins_within(crowd, batch, soon).await, "{batch}");
        // Later it is looked for at the end, whatever the place of the pass.
        let crowd = Crowd::of(100_000, late);
        assert!(begins_within(crowd, batch, Duration::from_secs(2)).await, "{batch}");
        // Where work continues, at first behind ten times as many pages.
        let takes = Some(Duration::from_millis(500));
        let crowd = Crowd { takes, ..Crowd::of(100_000, Duration::ZERO) };
        assert!(begins_within(crowd, batch, Duration::from_secs(60)).await, "{batch}");
        let crowd = Crowd { takes, ..Crowd::of(100_000, Duration::from_secs(90)) };
        assert!(begins_within(crowd, batch, Duration::from_secs(2)).await, "{batch}");
    }
}

/// As a released request that its client has not repeated within the grace.
#[tokio::test(start_paused = true)]
async fn g16_an_early_row_is_begun_soon_after_it_is_no_longer_early() {
    // While it is early, twenty pages come behind it, and a pass ends there.
    let [late, early_for, soon] = [30, 20, 4].map(Duration::from_secs);
    let crowd = Crowd { grows: 1_000, other: 130_000, early_for, ..Crowd::of(100_000, late) };
    assert!(begins_within(crowd, 100, soon).await);
}

/// As a row that has rested, or was turned away: no look at the end finds it.
#[tokio::test(start_paused = true)]
async fn g17_a_pass_continues_however_many_wakeups_come() {
    let [early_for, bound] = [Duration::from_secs(30), Duration::from_secs(20)];
    let crowd = Crowd::of(100_000, Duration::ZERO);
    let crowd = Crowd { grows: 200, other: 50_000, early_for, ..crowd };
    assert!(begins_within(crowd, 100, bound).await);
}

/// So many jobs, each of another scope, of a name whose bound others hold.
struct NoRoom {
    rows: u32,
    asked: Arc<AtomicU32>,
}

impl Source for NoRoom {
    type Place = u32;
    type Found = OfScope;
    type Ended = u32;

    const CLAIMS_AHEAD: bool = true;

    fn name(&self) -> &'static str {
        "no room"
    }

    fn search(&self, after: u32, limit: u32) -> Searching<OfScope, u32> {
        let rows = self.rows;
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let end = (after + limit).min(rows);
            let of = |row: u32| OfScope(row, Scope::new(format!("tenant-{row}")).unwrap());
            Ok(Page { rows: (after..end).map(of).collect(), next: (end < rows).then_some(end) })
        })
    }

    fn admits(&mut self, _: &OfScope) -> bool {
        true
    }

    fn may_begin(&self, _: &OfScope) -> bool {
        self.asked.fetch_add(1, Ordering::SeqCst);
        false
    }

    fn room_of_kind(&self, _: &OfScope) -> Option<usize> {
        Some(0)
    }

    fn begin(&mut self, row: OfScope) -> impl Future<Output = u32> + Send + 'static {
        std::future::ready(row.0)
    }

    fn settle(&mut self, _: u32) -> Settled {
        Settled::Progress
    }
}

#[tokio::test(start_paused = true)]
async fn g16_jobs_of_a_name_without_room_take_bounded_memory_and_linear_time() {
    let asked = Arc::new(AtomicU32::new(0));
    let source = NoRoom { rows: 10_000, asked: asked.clone() };
    let mut dispatcher = Dispatcher::new(source, &WorkerConfig::default());
    dispatcher.forever(tokio::time::sleep(Duration::from_secs(10))).await;
    assert_eq!(dispatcher.backlog.len(), BLOCKED);
    // Of each row once a pass, of which there are about ten, and of those that wait at each event.
    let asked = asked.load(Ordering::SeqCst);
    assert!(asked <= 300_000, "{asked}");
}

/// A scope that always has new work, of which much is claimed ahead; ten that were tried are due from the second
/// second on.
struct Busy {
    gate: Arc<tokio::sync::Semaphore>,
    next: AtomicU32,
    began: Instant,
    tried: Arc<AtomicU32>,
}

impl Source for Busy {
    type Place = u32;
    type Found = Row;
    type Ended = u32;

    const CLAIMS_AHEAD: bool = true;

    fn name(&self) -> &'static str {
        "busy"
    }

    fn search(&self, _: u32, limit: u32) -> Searching<Row, u32> {
        let from = 10 + self.next.fetch_add(limit, Ordering::SeqCst);
        let tried = if self.began.elapsed() > LONG { 10 } else { 0 };
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let rows = (0..tried).chain(from..from + limit).map(Row).collect();
            Ok(Page { rows, next: None })
        })
    }

    fn admits(&mut self, _: &Row) -> bool {
        true
    }

    fn begin(&mut self, row: Row) -> impl Future<Output = u32> + Send + 'static {
        self.tried.fetch_add(u32::from(row.0 < 10), Ordering::SeqCst);
        let gate = self.gate.clone();
        async move {
            let _turn = gate.acquire_owned().await;
            tokio::time::sleep(Duration::from_millis(10)).await;
            row.0
        }
    }

    fn settle(&mut self, _: u32) -> Settled {
        Settled::Progress
    }
}

#[tokio::test(start_paused = true)]
async fn g17_what_was_tried_before_is_begun_although_its_scope_is_busy() {
    let tried = Arc::new(AtomicU32::new(0));
    let gate = Arc::new(tokio::sync::Semaphore::new(4));
    let (next, began) = (AtomicU32::new(0), Instant::now());
    let busy = Busy { gate, next, began, tried: tried.clone() };
    let mut dispatcher = Dispatcher::new(busy, &WorkerConfig::default());
    dispatcher.forever(tokio::time::sleep(Duration::from_secs(30))).await;
    assert!(tried.load(Ordering::SeqCst) >= 10, "in 30 s of other work of its scope");
}

/// Behind a rest, many jobs of a name whose bound is four become due, each of another scope; and behind them one of another
/// name.
struct Burst {
    rests_for: Duration,
    began: Instant,
    bounded: u32,
    /// How long each of them takes, if it does not hang.
    takes: Option<Duration>,
    under_way: Arc<AtomicU32>,
    other_begun: Arc<AtomicU32>,
}

struct Named(OfScope, &'static str);

impl Candidate for Named {
    type Id = u32;

    fn id(&self) -> u32 {
        self.0.id()
    }

    fn scope(&self) -> &Scope {
        self.0.scope()
    }

    fn state(&self) -> [i64; 2] {
        self.0.state()
    }

    fn kind(&self) -> &str {
        self.1
    }
}

impl Source for Burst {
    type Place = u32;
    type Found = Named;
    type Ended = bool;

    const CLAIMS_AHEAD: bool = true;

    fn name(&self) -> &'static str {
        "burst"
    }

    fn search(&self, after: u32, limit: u32) -> Searching<Named, u32> {
        let (bounded, is_due) = (self.bounded, self.began.elapsed() >= self.rests_for);
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let due = if is_due { bounded + 1 } else { 0 };
            let end = (after + limit).min(due);
            let of = |row: u32| {
                let of_scope = OfScope(row, Scope::new(format!("tenant-{row}")).unwrap());
                Named(of_scope, if row == bounded { "other" } else { "mail" })
            };
            Ok(Page { rows: (after..end).map(of).collect(), next: (end < due).then_some(end) })
        })
    }

    fn admits(&mut self, _: &Named) -> bool {
        true
    }

    fn may_begin(&self, found: &Named) -> bool {
        self.room_of_kind(found) != Some(0)
    }

    fn room_of_kind(&self, found: &Named) -> Option<usize> {
        let under_way = self.under_way.load(Ordering::SeqCst) as usize;
        (found.1 == "mail").then(|| 4_usize.saturating_sub(under_way))
    }

    fn begin(&mut self, found: Named) -> impl Future<Output = bool> + Send + 'static {
        let is_bounded = found.1 == "mail";
        self.under_way.fetch_add(u32::from(is_bounded), Ordering::SeqCst);
        self.other_begun.fetch_add(u32::from(!is_bounded), Ordering::SeqCst);
        let takes = if is_bounded { self.takes } else { Some(Duration::ZERO) };
        async move {
            match takes {
                Some(takes) => tokio::time::sleep(takes).await,
                None => std::future::pending().await,
            }
            is_bounded
        }
    }

    fn settle(&mut self, is_bounded: bool) -> Settled {
        self.under_way.fetch_sub(u32::from(is_bounded), Ordering::SeqCst);
        Settled::Progress
    }
}

#[tokio::test(start_paused = true)]
async fn g16_a_bounded_name_of_many_scopes_delays_no_other_name() {
    let burst = |bounded, rests_for, takes| {
        let (under_way, other_begun) = <(Arc<AtomicU32>, Arc<AtomicU32>)>::default();
        let seen = other_begun.clone();
        let began = Instant::now();
        (Burst { rests_for, began, bounded, takes, under_way, other_begun }, seen)
    };
    // Found in pages of a thousand, by a worker that had nothing to do.
    let (source, other_begun) = burst(1_100, Duration::from_secs(5), None);
    let mut dispatcher = Dispatcher::new(source, &WorkerConfig::default());
    let work = dispatcher.forever(std::future::pending());
    let _ = tokio::time::timeout(Duration::from_secs(10), work).await;
    // It is found again: nothing takes a row out of the index here.
    assert!(other_begun.load(Ordering::SeqCst) > 0, "by one that works on");
    // In a single pass, whose batch they fill.
    let (source, other_begun) = burst(100, Duration::ZERO, Some(Duration::from_secs(5)));
    Dispatcher::new(source, &WorkerConfig::default()).one_pass().await.unwrap();
    assert!(other_begun.load(Ordering::SeqCst) > 0, "in a single pass");
}
