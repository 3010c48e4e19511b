//! [`Config`]: which request, by which processes, in which environment, under which faults, and by which rules. The
//! engine's rules are [`Rules::ENGINE`]; each other value is a mistake that the checker must find, or a choice that
//! it must find harmless.

/// The phases of the modelled requests. A phase's name is its identity, as in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Local.
    Ride,
    /// Local.
    Note,
    /// Foreign, idempotent.
    Charge,
    /// Foreign, at most once.
    Mail,
    /// Local; the last one.
    Receipt,
}

/// What an engine may do in a phase.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A transaction with the phase's writes and the recovery point.
    Local,
    /// A call with a derived key, which may be repeated.
    Idempotent,
    /// A call that must not be repeated.
    AtMostOnce,
}

impl Phase {
    /// Each of them.
    pub const ALL: [Self; 5] = [Self::Ride, Self::Note, Self::Charge, Self::Mail, Self::Receipt];

    /// What it is.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            Self::Ride | Self::Note | Self::Receipt => Kind::Local,
            Self::Charge => Kind::Idempotent,
            Self::Mail => Kind::AtMostOnce,
        }
    }
}

/// A request definition. The committed phases of a row are a prefix of one.
pub type List = &'static [Phase];

/// The flagship: the first phase's commit creates the row, and the last phase's commit also stores the charge.
pub const RIDE: List = &[Phase::Ride, Phase::Charge, Phase::Receipt];
/// With an additional commit in the middle.
pub const TOUR: List = &[Phase::Ride, Phase::Charge, Phase::Note, Phase::Receipt];
/// The flagship after a deploy that added a phase.
pub const NEWER_RIDE: List = &[Phase::Ride, Phase::Note, Phase::Charge, Phase::Receipt];
/// A provider that can only be called at most once.
pub const LETTER: List = &[Phase::Ride, Phase::Mail, Phase::Receipt];
/// The first phase is foreign: its reservation is a commit of its own.
pub const CHARGE_FIRST: List = &[Phase::Charge, Phase::Receipt];
/// Both classes of foreign phases, one right after the other, and the last one answers.
pub const CHARGE_AND_MAIL: List = &[Phase::Charge, Phase::Mail];

/// The kinds of processes that run requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A client's call: may create the row, and receives the reply.
    Client,
    /// The completer: takes over what exists.
    Completer,
    /// The reconciler: takes over unknown rows.
    Reconciler,
}

/// A process that works on one key. It may crash and restart.
#[derive(Clone, Copy)]
pub struct Node {
    /// Who it is.
    pub role: Role,
    /// The key it works on.
    pub key: u8,
    /// The phase list that it was built with.
    pub list: List,
}

/// The foreign system.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    /// At most one effect for each derived key.
    Honours,
    /// The same, within its window.
    Forgets,
    /// Each call is an effect.
    Ignores,
}

/// Which delays may exceed the time limits that were chosen for them.
#[derive(Clone, Copy)]
pub struct World {
    /// The foreign system.
    pub provider: Provider,
    /// A holder may stall between its take-over and its call, for longer than the window's margin.
    pub stalls_past_margin: bool,
    /// A request may take longer than its retention, because it waits for the reconciler or an operator.
    pub outlives_retention: bool,
    /// A call whose creation got no answer may read again after the retention of the created row.
    pub stalls_past_retention: bool,
    /// A call may begin or arrive after the reconcile function returned *not executed*.
    pub calls_after_answer: bool,
}

/// What a guarded write compares. The engine: all four.
#[derive(Clone, Copy)]
pub struct Fence {
    /// The request's id.
    pub request: bool,
    /// The lease token.
    pub token: bool,
    /// The recovery point.
    pub point: bool,
    /// That the row is in progress.
    pub status: bool,
}

/// How a commit without an answer is resolved.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Resolve {
    /// By the holder's own guarded take-over, which raises the token. The engine.
    TakeOver,
    /// By a read that waits for the row's lock, and does not raise the token.
    LockingRead,
    /// By a plain read.
    PlainRead,
    /// It is taken for failed.
    AssumeFailed,
}

/// What the provider's key is derived from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum DerivedKey {
    /// Idempotency key and phase. The engine.
    KeyAndPhase,
    /// Also from the row's id, which is an option of the engine.
    Salted,
    /// Something fresh.
    PerAttempt,
    /// The phase alone.
    PhaseOnly,
}

/// When the intent to make an at-most-once call is written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// It is durable before the call. The engine.
    Durable,
    /// It is sent before the call.
    NotAwaited,
    /// It is durable, and a take-over ignores it.
    Overlooked,
}

/// When the engine checks that the provider still remembers the key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Horizon {
    /// At the take-over only.
    AtTakeOver,
    /// And right before the call, with a renewal of the lease. The engine.
    BeforeCall,
    /// Never.
    Unchecked,
}

/// The request id with which a call creates the row again after an unanswered creation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RequestId {
    /// Under the same, but not past the retention: then the call fails. The engine.
    OfCallInTime,
    /// Under the same, however late.
    OfCall,
    /// Under a new one.
    OfCreation,
}

/// The rules of the engine, or of a mistaken one.
#[derive(Clone, Copy)]
pub struct Rules {
    /// What a guarded write compares.
    pub fence: Fence,
    /// How a commit without an answer is resolved.
    pub resolve: Resolve,
    /// What the key for the provider is made of.
    pub derived_key: DerivedKey,
    /// When the intent is written.
    pub intent: Intent,
    /// When the window is checked.
    pub horizon: Horizon,
    /// Which request id a repeated creation has.
    pub request_id: RequestId,
    /// The retention counts from the finish, and not from the creation.
    pub retention_from_finish: bool,
    /// A take-over raises the token.
    pub take_over_raises: bool,
    /// A lease ends some time after its holder died.
    pub leases_end: bool,
    /// A phase's writes and its recovery point are one commit.
    pub one_commit: bool,
    /// The reply is sent after the commit that stores it.
    pub reply_after_commit: bool,
    /// The reaper deletes finished rows only.
    pub reaps_finished_only: bool,
    /// The reconciler takes the row over, and its writes are guarded.
    pub reconciler_is_fenced: bool,
    /// A row's next phase is found by the names of its phases, and not by their number.
    pub place_by_name: bool,
}

impl Fence {
    /// The engine's.
    pub const FULL: Self = Self { request: true, token: true, point: true, status: true };
    /// None.
    pub const NONE: Self = Self { request: false, token: false, point: false, status: false };
}

impl Rules {
    /// What the engine does.
    pub const ENGINE: Self = Self {
        fence: Fence::FULL,
        resolve: Resolve::TakeOver,
        derived_key: DerivedKey::KeyAndPhase,
        intent: Intent::Durable,
        horizon: Horizon::BeforeCall,
        request_id: RequestId::OfCallInTime,
        retention_from_finish: true,
        take_over_raises: true,
        leases_end: true,
        one_commit: true,
        reply_after_commit: true,
        reaps_finished_only: true,
        reconciler_is_fenced: true,
        place_by_name: true,
    };
}

/// How often each thing may go wrong, or time may pass. Finite, so that every run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Budget {
    /// A process dies and comes back.
    pub crashes: u8,
    /// A lease ends while its holder lives.
    pub zombies: u8,
    /// A connection, or a call's answer, is lost.
    pub losses: u8,
    /// A run stops by itself: a transient failure, a shutdown.
    pub stops: u8,
    /// A finished row's retention passes.
    pub retentions: u8,
    /// The reconciler takes a row up.
    pub reconciles: u8,
    /// The database fails over to a replica that may lag.
    pub failovers: u8,
}

impl Budget {
    /// `n` crashes, zombies and losses, and nothing else.
    #[must_use]
    pub const fn of(n: u8) -> Self {
        Self {
            crashes: n,
            zombies: n,
            losses: n,
            stops: 0,
            retentions: 0,
            reconciles: 0,
            failovers: 0,
        }
    }
}

/// A configuration to be checked.
#[derive(Clone, Copy)]
pub struct Config {
    /// Who works.
    pub nodes: &'static [Node],
    /// In which world.
    pub world: World,
    /// Under which faults.
    pub budget: Budget,
    /// By which rules.
    pub rules: Rules,
}
