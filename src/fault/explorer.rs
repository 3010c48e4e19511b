//! [`Explorer`]: one request, crashed at every point, and driven to its end each time.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Instant;

use super::Mutant;
use super::case::{CASE, Case, Driver, Turn};
use super::case_runner::{
    Assertion, CaseRunner, Check, Lost, MAX_ATTEMPTS, Who, Wrong, listed, shown, told,
};
use super::failovers::failovers;
use super::mode::{Fault, Mode};
use super::plan::Read;
use super::points::Point;
use super::report::{Failure, Report};
use super::turns::Stop;
use crate::engine::Engine;
use crate::key::{IdempotencyKey, Scope};
use crate::phase::Reply;
use crate::request::RequestDefinition;
use crate::store::{Status, Store};

type Effects<W> = Box<dyn for<'w> Fn(&'w W) -> Pin<Box<dyn Future<Output = String> + 'w>>>;

/// Crashes a request at every point and drives it to its end; see the [module](crate::fault).
#[must_use = "an explorer does nothing until it is run"]
pub struct Explorer<F, R, W> {
    world: F,
    request: R,
    other: Option<R>,
    modes: Vec<Mode>,
    pairs: bool,
    switches: usize,
    expects_new: bool,
    accepts: bool,
    always: Vec<Check<W>>,
    finally: Vec<Check<W>>,
    effects: Option<Effects<W>>,
    same_reply: bool,
    settles: bool,
    mutant: Option<Mutant>,
}

impl<F, R, W> std::fmt::Debug for Explorer<F, R, W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Explorer").field("modes", &self.modes).finish_non_exhaustive()
    }
}

/// Explores `request`. For each case, `world` creates a fresh engine on a new or emptied database, and the
/// value that the checks look at.
pub fn explore<F, S, A, R, W>(world: F, request: R) -> Explorer<F, R, W>
where
    F: AsyncFn() -> (Engine<S, A>, W),
    S: Store,
    A: Send + Sync + 'static,
    R: RequestDefinition<S, A>,
    W: 'static,
{
    Explorer {
        world,
        request,
        other: None,
        modes: Vec::new(),
        pairs: false,
        switches: 0,
        expects_new: false,
        accepts: false,
        always: Vec::new(),
        finally: Vec::new(),
        effects: None,
        same_reply: true,
        settles: false,
        mutant: None,
    }
}

fn named<W: 'static>(name: &'static str, check: impl AsyncFn(&W) + 'static) -> Check<W> {
    let check = Rc::new(check);
    let boxed: Assertion<W> = Box::new(move |world| {
        let check = check.clone();
        Box::pin(async move { check(world).await })
    });
    (name, boxed)
}

impl<F, R, W: 'static> Explorer<F, R, W> {
    /// Runs a case for each mode at each point where it is possible: panic, drop, a lost commit, a lost
    /// answer, a serialization failure, a deadlock, a cut connection, a failed call, and a call whose answer
    /// was lost. Each is run twice: once the client's retries finish the request, once the background workers
    /// do.
    pub fn crash_at_every_point(self) -> Self {
        let modes = Mode::all();
        self.modes(modes.into_iter().filter(|mode| !mode.is_of_a_competitor()))
    }

    /// Adds a second fault to each of these cases: at every point that the same attempt still passes, if it
    /// continues, and at every point that the recovery passes.
    pub fn and_at_every_pair(mut self) -> Self {
        self.pairs = true;
        self
    }

    /// Adds another worker at every point: a duplicate that arrives while the first holder stalls, and a
    /// takeover that finishes before the first holder, which has lost its lease, continues. At every commit,
    /// adds a takeover that holds the key, or has finished, before the first holder, whose commit got no
    /// answer, can resolve the outcome.
    pub fn with_competitor(self) -> Self {
        self.modes([Mode::Stall, Mode::Duplicate, Mode::OutOfTouch, Mode::Outrun])
    }

    /// Adds cases in which a foreign call has its effect, and then commits before it, which were acknowledged, are
    /// lost, as in a failover to a standby that lags. There is a case for each call and each number of commits, up
    /// to all of them. The attempt ends with the database. Then the client retries, or a worker continues, under the
    /// same [derived keys](crate::phase::DerivedKey): if all commits are lost, with a new request; otherwise from the
    /// recovery point before the lost commits, and the phases behind it run again.
    ///
    /// There is no other fault in these cases, and each must settle. If a case ends as *unknown*, a phase has sent
    /// its provider something else under the same key: a value derived from the lost row
    /// ([`uuid`](crate::RequestContext::uuid), [`created_at`](crate::RequestContext::created_at),
    /// [`request_id`](crate::RequestContext::request_id)), or an output that a phase computes differently when it runs
    /// again, instead of a value derived from the request. Your fake provider must refuse a key that comes with other
    /// parameters, as real ones do.
    ///
    /// An `at_most_once` call has no such case, and no case loses the intent of one: the call would be made twice, whatever
    /// the phase does (G2). [`always`](Self::always) is not checked between the failover and
    /// the next attempt, because the database then lacks what a provider has done.
    ///
    /// The explorer copies the tables of the engine's database and brings the copies back: on PostgreSQL those of the
    /// schemas of the `search_path`, to the schema `atomic_phases_standby`; on MariaDB and MySQL to tables whose names
    /// begin with `atomic_phases_standby_`. Triggers do not run meanwhile. So on PostgreSQL the role must be allowed to set
    /// `session_replication_role`, as a superuser is; on MariaDB and MySQL the database may have no triggers. Otherwise
    /// the case fails and says so. Sequences of PostgreSQL, and what is in another database, are not brought back.
    pub fn and_lost_rows(self) -> Self {
        self.modes([Mode::RowLost])
    }

    /// Adds cases in which the store cannot be read, once: at each read of a run without other faults, and behind each
    /// fault of the other modes, at each read of the rest of its attempt and of the recovery.
    pub fn and_failed_reads(self) -> Self {
        self.modes([Mode::ReadFails])
    }

    /// Makes each call say that its key is new ([`Call::expect_new`](crate::engine::Call::expect_new)):
    /// correctly the first time, and wrongly in each retry.
    pub fn with_calls_that_expect_new(mut self) -> Self {
        self.expects_new = true;
        self
    }

    /// Makes the first call only [accept](crate::engine::Call::accept) the request; retries and workers run
    /// it. Faults and competitors then begin with the acceptance.
    pub fn with_a_call_that_accepts(mut self) -> Self {
        self.accepts = true;
        self
    }

    /// Adds cases with two workers on the key, of which one runs from point to point while the other stalls,
    /// in every order with at most `switches` switches between them. Each switch is run once with all leases
    /// live and once with all leases expired. Two switches are some hundred cases for a request of three
    /// phases. They find what [`with_competitor`](Self::with_competitor) cannot: a worker that continues for
    /// a few points only, and is itself overtaken. If one worker must wait for a row that the other is about
    /// to write, the other continues.
    pub fn and_two_workers(mut self, switches: usize) -> Self {
        self.switches = switches;
        self
    }

    /// Adds these modes.
    pub fn modes(mut self, modes: impl IntoIterator<Item = Mode>) -> Self {
        self.modes.extend(modes);
        self
    }

    /// Sends another request under the same key at every point; it must be refused (G9).
    pub fn and_another(mut self, other: R) -> Self {
        self.other = Some(other);
        self
    }

    /// A check after every attempt of every case. It fails by panicking, so `assert_eq!` works.
    pub fn always(mut self, name: &'static str, check: impl AsyncFn(&W) + 'static) -> Self {
        self.always.push(named(name, check));
        self
    }

    /// A check at the end of every case.
    pub fn check(mut self, name: &'static str, check: impl AsyncFn(&W) + 'static) -> Self {
        self.finally.push(named(name, check));
        self
    }

    /// The effects of the request, as your function reads them. They must be the same at the end of every
    /// case and of the clean run.
    pub fn effects<T: Debug>(mut self, effects: impl AsyncFn(&W) -> T + 'static) -> Self {
        let effects = Rc::new(effects);
        self.effects = Some(Box::new(move |world| {
            let effects = effects.clone();
            Box::pin(async move { format!("{:?}", effects(world).await) })
        }));
        self
    }

    /// Allows a reply that differs from the clean run's, for example because it contains a time. Each case
    /// must still have one reply, for the first client and for every replay.
    pub fn replies_may_differ(mut self) -> Self {
        self.same_reply = false;
        self
    }

    /// Requires that every case ends with an answer. Without it, a case may also end as *unknown*. That is
    /// correct for the engine, but a defect of yours if the provider can be asked: a reconcile function that
    /// never finds the call leaves each such case to an operator.
    pub fn always_settles(mut self) -> Self {
        self.settles = true;
        self
    }

    /// Breaks a guarantee of the engine on purpose, to test that your checks find it.
    #[doc(hidden)]
    pub fn with_mutant(mut self, mutant: Mutant) -> Self {
        self.mutant = Some(mutant);
        self
    }
}

const OF_THE_LOST_ROW: &str = "its row was lost with an acknowledged commit, and the retry is unknown: the provider \
    was asked under the same key with other parameters, most likely with what is made of the row that is lost: \
    ctx.uuid, ctx.created_at, ctx.request_id. Send ctx.key_uuid, and what the request's parameters say";

const OF_LOST_COMMITS: &str = "acknowledged commits were lost, and the request is unknown: the provider was asked under \
    the same key with other parameters, most likely with an output of a phase whose commit was lost and which came to \
    another when it ran again. Send ctx.key_uuid, and what the request's parameters say";

const UNSETTLED: &str = "whether the call was executed stays unknown, and every case was to be settled: the \
    reconcile function did not find out, or there is none";

/// What a case came to.
struct Ran {
    /// Of a request that was completed.
    reply: Option<Reply>,
    effects: Option<String>,
    /// What each attempt passed.
    passed: Vec<Vec<Point>>,
    /// What each attempt has read.
    reads: Vec<Vec<Read>>,
    /// Where two workers may take another turn.
    stops: Vec<Stop>,
    /// Whether the reply can be compared with another case's.
    is_of_the_first: bool,
    /// What a failover has lost.
    lost: Option<Lost>,
    /// Why it is not settled.
    reason: Option<String>,
}

impl<F, S, A, R, W> Explorer<F, R, W>
where
    F: AsyncFn() -> (Engine<S, A>, W),
    S: Store,
    A: Send + Sync + 'static,
    R: RequestDefinition<S, A>,
    W: 'static,
{
    /// Runs the clean case, then every case until one fails. If the environment variable `ATOMIC_PHASES_CASE`
    /// has the line that a failure prints, runs only that case. Prints nothing except its progress, on a
    /// terminal.
    pub async fn run(self) -> Report {
        let began = Instant::now();
        let mut report = Report::new(R::DEFINITION.name);
        // Boxed, so that the futures of a user's crate are no deeper than rustc computes by default.
        let failure = Box::pin(self.explore(&mut report)).await.err();
        report.end(failure, began.elapsed());
        report
    }

    async fn explore(&self, report: &mut Report) -> Result<(), Failure> {
        let clean =
            self.clean(report).await.map_err(|wrong| Failure { case: Case::CLEAN, wrong })?;
        match Case::of_the_environment() {
            Some(Ok(case)) => {
                self.can_happen(&case).map_err(|wrong| Failure { case: case.clone(), wrong })?;
                return self.judge(case, &clean, report).await.map(drop);
            }
            Some(Err(error)) => {
                let wrong = format!("{CASE}: {error}");
                return Err(Failure { case: Case::CLEAN, wrong });
            }
            None => {}
        }
        self.crash(&clean, report).await?;
        self.interleave(&clean, report).await
    }

    /// The run to which nothing happens, with which all others are compared.
    async fn clean(&self, report: &mut Report) -> Result<Ran, Wrong> {
        let clean = Box::pin(self.case(&Case::CLEAN)).await?;
        if self.accepts
            && let [accepted, _] = &clean.passed[..]
        {
            report.clean_run(accepted.clone());
            return Ok(clean);
        }
        let [passed] = &clean.passed[..] else {
            let attempts = clean.passed.len();
            return Err(format!(
                "the request took {attempts} attempts with nothing going wrong: what it is \
                 compared with has to finish in one"
            ));
        };
        if passed.is_empty() {
            return Err("the clean run passed no point: there is nothing to crash at".to_owned());
        }
        // One that finishes early passes the first of them.
        let declared = R::DEFINITION.points();
        let mut rest = declared.iter();
        if !passed
            .iter()
            .filter(|point| !point.is_own())
            .all(|point| rest.any(|next| next == point))
        {
            return Err(format!(
                "the clean run passed {}, and what is declared is {}",
                listed(passed),
                listed(&declared)
            ));
        }
        report.clean_run(passed.clone());
        Ok(clean)
    }

    /// Each fault at each point; and after it, each at each point of the rest of its attempt and of the
    /// recovery.
    async fn crash(&self, clean: &Ran, report: &mut Report) -> Result<(), Failure> {
        for (_, read) in self.failed_reads(clean.reads.first()) {
            for driver in Driver::BOTH {
                let case = Case::Crashes { faults: vec![vec![read.clone()]], driver };
                self.judge(case, clean, report).await?;
            }
        }
        for (at, first) in self.faults(clean.passed.first()) {
            for driver in Driver::BOTH {
                let case = Case::Crashes { faults: vec![vec![first.clone()]], driver };
                let ran = self.judge(case, clean, report).await?;
                let mut seconds = self.reads_behind(at, &first, &ran);
                if self.pairs && !first.mode.is_of_a_competitor() {
                    seconds.extend(self.seconds(&first, &ran));
                }
                for faults in seconds {
                    self.judge(Case::Crashes { faults, driver }, clean, report).await?;
                }
            }
        }
        if self.modes.contains(&Mode::RowLost) {
            report.list(Mode::RowLost);
            for faults in failovers(&clean.passed, &R::DEFINITION, S::CONCURRENT) {
                for driver in Driver::BOTH {
                    let case = Case::Crashes { faults: faults.clone(), driver };
                    self.judge(case, clean, report).await?;
                }
            }
        }
        Ok(())
    }

    /// What cannot be read in a case in which this went wrong first, at the point of this index.
    fn reads_behind(&self, at: usize, first: &Fault, ran: &Ran) -> Vec<Vec<Vec<Fault>>> {
        let later = self.failed_reads(ran.reads.first()).into_iter();
        let later = later.filter(|(behind, _)| *behind > at);
        let next = self.failed_reads(ran.reads.get(1)).into_iter();
        later
            .map(|(_, read)| vec![vec![first.clone(), read]])
            .chain(next.map(|(_, read)| vec![vec![first.clone()], vec![read]]))
            .collect()
    }

    /// Each read that was made, failing, with the number of points before it.
    fn failed_reads(&self, reads: Option<&Vec<Read>>) -> Vec<(usize, Fault)> {
        let reads = reads.filter(|_| self.modes.contains(&Mode::ReadFails));
        let reads = reads.map(Vec::as_slice).unwrap_or_default();
        let failing = reads.iter().enumerate().map(|(index, Read { behind, point })| {
            let visit = point.visit_behind(reads[..index].iter().map(|earlier| &earlier.point));
            (*behind, Fault { point: point.clone(), visit, mode: Mode::ReadFails })
        });
        failing.collect()
    }

    /// What else can go wrong in a case in which this went wrong first: later in the same attempt, or in
    /// the next.
    fn seconds(&self, first: &Fault, ran: &Ran) -> Vec<Vec<Vec<Fault>>> {
        let is_a_crash = |(_, second): &(usize, Fault)| !second.mode.is_of_a_competitor();
        let attempt = self.faults(ran.passed.first());
        // After some it continues: a failed commit is tried again, one without an answer is asked about.
        let at = attempt.iter().find(|(_, fault)| fault == first).map(|(index, _)| *index);
        let later = attempt.into_iter().filter(is_a_crash);
        let later = later.filter(|(index, _)| at.is_some_and(|at| *index > at));
        let next = self.faults(ran.passed.get(1)).into_iter().filter(is_a_crash);
        later
            .map(|(_, second)| vec![vec![first.clone(), second]])
            .chain(next.map(|(_, second)| vec![vec![first.clone()], vec![second]]))
            .collect()
    }

    /// Two workers in every order, the fewest turns first.
    async fn interleave(&self, clean: &Ran, report: &mut Report) -> Result<(), Failure> {
        if self.switches == 0 {
            return Ok(());
        }
        let orders = Driver::BOTH.map(|second| (Vec::new(), second));
        let mut orders: VecDeque<(Vec<Turn>, Driver)> = orders.into();
        while let Some((turns, second)) = orders.pop_front() {
            let case = Case::Turns { turns: turns.clone(), second };
            let ran = self.judge(case, clean, report).await?;
            if turns.len() == self.switches {
                continue;
            }
            for Stop { point, visit, may_expire } in ran.stops {
                for expires in [false, true].into_iter().take(1 + usize::from(may_expire)) {
                    let turn = Turn { point: point.clone(), visit, expires };
                    orders.push_back(([turns.as_slice(), &[turn]].concat(), second));
                }
            }
        }
        Ok(())
    }

    /// Each mode that is legal at each point that was passed, with the index of the point.
    fn faults(&self, passed: Option<&Vec<Point>>) -> Vec<(usize, Fault)> {
        let passed = passed.map(Vec::as_slice).unwrap_or_default();
        let mut faults = Vec::new();
        for (index, point) in passed.iter().enumerate() {
            let visit = point.visit_behind(&passed[..index]);
            for mode in self.modes.iter().filter(|mode| !mode.is_of_a_failover()) {
                if mode.is_legal_at(point, &R::DEFINITION, S::CONCURRENT) {
                    faults.push((index, Fault { point: point.clone(), visit, mode: *mode }));
                }
            }
        }
        faults
    }

    /// Of a case from a script.
    fn can_happen(&self, case: &Case) -> Result<(), Wrong> {
        let Case::Crashes { faults, .. } = case else { return Ok(()) };
        let legal =
            |fault: &&Fault| fault.mode.is_legal_at(&fault.point, &R::DEFINITION, S::CONCURRENT);
        match faults.iter().flatten().find(|fault| !legal(fault) || fault.mode.needs_a_process()) {
            Some(fault) => Err(format!("{fault} cannot happen there, on this store, in a test")),
            None => Ok(()),
        }
    }

    /// Runs the case and compares it with the clean run.
    async fn judge(&self, case: Case, clean: &Ran, report: &mut Report) -> Result<Ran, Failure> {
        report.count(&case);
        let ran = Box::pin(self.case(&case)).await.and_then(|ran| self.compare(ran, clean));
        match ran {
            Ok(ran) if ran.reply.is_some() => Ok(ran),
            Ok(ran) => {
                report.count_unknown();
                let wrong = match ran.lost {
                    Some(Lost::Row) => OF_THE_LOST_ROW,
                    Some(Lost::LaterCommits) => OF_LOST_COMMITS,
                    None if self.settles => UNSETTLED,
                    None => return Ok(ran),
                };
                let wrong = match ran.reason.filter(|_| ran.lost.is_some()) {
                    Some(reason) => format!("{wrong}. Its reason: {reason}"),
                    None => wrong.to_owned(),
                };
                Err(Failure { case, wrong })
            }
            Err(wrong) => Err(Failure { case, wrong }),
        }
    }

    fn compare(&self, ran: Ran, clean: &Ran) -> Result<Ran, Wrong> {
        let (Some(reply), Some(expected)) = (&ran.reply, &clean.reply) else { return Ok(ran) };
        if self.same_reply && ran.is_of_the_first && reply != expected {
            return Err(format!(
                "the reply is {}, and in a clean run {} (if it may differ: replies_may_differ())",
                shown(reply),
                shown(expected)
            ));
        }
        match (&ran.effects, &clean.effects) {
            (Some(effects), Some(expected)) if effects != expected => {
                Err(format!("the effects are {effects}, and in a clean run {expected}"))
            }
            _ => Ok(ran),
        }
    }

    async fn case(&self, case: &Case) -> Result<Ran, Wrong> {
        let (engine, world) = (self.world)().await;
        let broken = |_| "the explorer's own key is not valid".to_owned();
        let mut runner = CaseRunner {
            engine,
            world,
            scope: Scope::new("explorer").map_err(broken)?,
            key: IdempotencyKey::new("explored").map_err(broken)?,
            request: &self.request,
            other: self.other.as_ref(),
            expects_new: self.expects_new,
            accepts: self.accepts,
            mutant: self.mutant,
            always: &self.always,
            told: Vec::new(),
            finishers: 0,
            was_unknown: false,
            lost: None,
            last: None,
            reads: Vec::new(),
            said: None,
        };
        if runner.status().await?.is_some() {
            return Err("the database is not fresh: each case needs an empty one".to_owned());
        }
        let (mut passed, mut stops, mut settled) = (Vec::new(), Vec::new(), false);
        let (faults, driver) = match case {
            Case::Crashes { faults, driver } => (&faults[..], *driver),
            Case::Turns { turns, second } => {
                stops = runner.take_turns(turns, *second).await?;
                settled = runner.is_settled().await?;
                runner.pass_time().await?;
                (&[][..], Driver::Retry)
            }
        };
        while !settled && passed.len() < MAX_ATTEMPTS {
            // Of the first attempt there is no row yet, of which workers could know.
            let of_it = faults.get(passed.len()).map(Vec::as_slice).unwrap_or_default();
            passed.push(runner.attempt(of_it, driver, Who::First).await?);
            // What the database lacks now, a provider may have.
            if !of_it.iter().any(|fault| fault.mode == Mode::RowLost) {
                runner.hold(&self.always).await?;
            }
            settled = runner.is_settled().await? && passed.len() >= faults.len();
            if !settled {
                runner.pass_time().await?;
            }
        }
        let status = runner.status().await?;
        if !settled && status != Some(Status::Unknown) {
            return Err(format!(
                "not settled after {MAX_ATTEMPTS} attempts: it {}; {}",
                told(status),
                runner.last()
            ));
        }
        let is_of_the_first = runner.is_begun_by_the_first().await?;
        let reply = match status {
            Some(Status::Completed) => Some(runner.replay().await?),
            _ => None,
        };
        runner.probe().await?;
        runner.hold(&self.finally).await?;
        let effects = match &self.effects {
            Some(effects) => Some(effects(&runner.world).await),
            None => None,
        };
        let reason = runner.row().await?.and_then(|row| row.reason);
        let (lost, reads) = (runner.lost, runner.reads);
        Ok(Ran { reply, effects, passed, reads, stops, is_of_the_first, lost, reason })
    }
}
