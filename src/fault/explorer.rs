//! [`Explorer`]: one request, crashed at every point, and driven to its end each time.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::time::Instant;

use super::Mutant;
use super::case::{CASE, Case, Driver, Turn};
use super::case_runner::CaseRunner;
use super::cases::Cases;
use super::mode::Mode;
use super::report::{Failure, Report};
use super::verdict::{CaseEnd, Expectations, Observed, Wrong, points_of_the_clean_run};
use crate::engine::Engine;
use crate::key::{IdempotencyKey, Scope};
use crate::request::RequestDefinition;
use crate::store::Store;

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
    expected: Expectations<W>,
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
        expected: Expectations::new(),
        mutant: None,
    }
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
        self.expected.always(name, check);
        self
    }

    /// A check at the end of every case.
    pub fn check(mut self, name: &'static str, check: impl AsyncFn(&W) + 'static) -> Self {
        self.expected.finally(name, check);
        self
    }

    /// The effects of the request, as your function reads them. They must be the same at the end of every
    /// case and of the clean run.
    pub fn effects<T: Debug>(mut self, effects: impl AsyncFn(&W) -> T + 'static) -> Self {
        self.expected.effects(effects);
        self
    }

    /// Allows a reply that differs from the clean run's, for example because it contains a time. Each case
    /// must still have one reply, for the first client and for every replay.
    pub fn replies_may_differ(mut self) -> Self {
        self.expected.same_reply = false;
        self
    }

    /// Requires that every case ends with an answer. Without it, a case may also end as *unknown*. That is
    /// correct for the engine, but a defect of yours if the provider can be asked: a reconcile function that
    /// never finds the call leaves each such case to an operator.
    pub fn always_settles(mut self) -> Self {
        self.expected.settles = true;
        self
    }

    /// Breaks a guarantee of the engine on purpose, to test that your checks find it.
    #[doc(hidden)]
    pub fn with_mutant(mut self, mutant: Mutant) -> Self {
        self.mutant = Some(mutant);
        self
    }
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
                self.cases()
                    .can_happen(&case)
                    .map_err(|wrong| Failure { case: case.clone(), wrong })?;
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
    async fn clean(&self, report: &mut Report) -> Result<CaseEnd, Wrong> {
        let clean = Box::pin(self.case(&Case::CLEAN)).await?;
        let passed = points_of_the_clean_run(&clean, self.accepts, &R::DEFINITION)?;
        report.clean_run(passed.to_vec());
        Ok(clean)
    }

    fn cases(&self) -> Cases<'_> {
        Cases {
            modes: &self.modes,
            pairs: self.pairs,
            switches: self.switches,
            definition: R::DEFINITION,
            concurrent: S::CONCURRENT,
        }
    }

    /// Each fault at each point; and after it, each at each point of the rest of its attempt and of the
    /// recovery.
    async fn crash(&self, clean: &CaseEnd, report: &mut Report) -> Result<(), Failure> {
        let cases = self.cases();
        for read in cases.reads_that_fail(clean) {
            for driver in Driver::BOTH {
                let case = Case::Crashes { faults: vec![vec![read.clone()]], driver };
                self.judge(case, clean, report).await?;
            }
        }
        for (at, first) in cases.first_faults(clean) {
            for driver in Driver::BOTH {
                let case = Case::Crashes { faults: vec![vec![first.clone()]], driver };
                let end = self.judge(case, clean, report).await?;
                for faults in cases.behind(at, &first, &end) {
                    self.judge(Case::Crashes { faults, driver }, clean, report).await?;
                }
            }
        }
        if self.modes.contains(&Mode::RowLost) {
            report.list(Mode::RowLost);
            for faults in cases.failovers(clean) {
                for driver in Driver::BOTH {
                    let case = Case::Crashes { faults: faults.clone(), driver };
                    self.judge(case, clean, report).await?;
                }
            }
        }
        Ok(())
    }

    /// Two workers in every order, the fewest turns first.
    async fn interleave(&self, clean: &CaseEnd, report: &mut Report) -> Result<(), Failure> {
        if self.switches == 0 {
            return Ok(());
        }
        let cases = self.cases();
        let orders = Driver::BOTH.map(|second| (Vec::new(), second));
        let mut orders: VecDeque<(Vec<Turn>, Driver)> = orders.into();
        while let Some((turns, second)) = orders.pop_front() {
            let case = Case::Turns { turns: turns.clone(), second };
            let end = self.judge(case, clean, report).await?;
            let longer = cases.with_a_turn_more(&turns, end.stops).into_iter();
            orders.extend(longer.map(|turns| (turns, second)));
        }
        Ok(())
    }

    /// Runs the case and compares it with the clean run.
    async fn judge(
        &self,
        case: Case,
        clean: &CaseEnd,
        report: &mut Report,
    ) -> Result<CaseEnd, Failure> {
        report.count(&case);
        let end = Box::pin(self.case(&case)).await;
        let judged = end.and_then(|end| self.expected.compare(end, clean)).and_then(|end| {
            if end.reply.is_some() {
                return Ok(end);
            }
            report.count_unknown();
            self.expected.may_stay_unknown(end)
        });
        judged.map_err(|wrong| Failure { case, wrong })
    }

    /// Runs the case on a fresh engine and database.
    async fn case(&self, case: &Case) -> Result<CaseEnd, Wrong> {
        let (engine, world) = (self.world)().await;
        let broken = |_| "the explorer's own key is not valid".to_owned();
        let runner = CaseRunner {
            engine,
            world,
            scope: Scope::new("explorer").map_err(broken)?,
            key: IdempotencyKey::new("explored").map_err(broken)?,
            request: &self.request,
            other: self.other.as_ref(),
            expects_new: self.expects_new,
            accepts: self.accepts,
            mutant: self.mutant,
            expected: &self.expected,
            observed: Observed::default(),
            lost: None,
            reads: Vec::new(),
        };
        // Boxed, as `run` says.
        Box::pin(runner.run(case)).await
    }
}
