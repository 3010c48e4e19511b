//! [`Mutant`]: the engine with one guarantee broken, to see the kit find it.

/// A guarantee that is broken on purpose: bugs that this kit finds. Each is one that a library of this
/// kind has had, or that its authors were warned of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mutant {
    /// A holder whose lease was taken over still commits its writes (G3).
    NoFence,
    /// Business writes and recovery point in two commits (G4).
    SecondCommit,
    /// A running request answers *in progress* to another request under its key (G9).
    LockBeforeFingerprint,
    /// Another request under a used key is taken for the first (G9).
    SkipFingerprint,
    /// A lease is judged by the clock of a node that is ahead (G10).
    ApplicationClock,
    /// Each attempt sends the provider another key (G1).
    FreshDerivedKey,
    /// The reply that is told is not the reply that is stored (G8).
    ReplyBuiltTwice,
    /// A commit without an answer is taken for done (G7, G8).
    AssumeCommitted,
    /// A call that may have been made is made again, at a provider that honours no key (G2).
    RepeatOpenIntent,
    /// Who asks what became of its commit takes the key from whoever holds it by now (G3, G10).
    TakeOverWithoutToken,
    /// A lease counts from when the answer is read, and not from before its statement was sent (G2, G3).
    ConfirmWhenRead,
    /// An intent whose commit was lost is taken for written, since the recovery point is the same (G2).
    AssumeIntent,
    /// A call that accepted a request takes the row from the worker that runs it by now (G10).
    RecoverAccepted,
}

impl Mutant {
    /// All of them.
    #[must_use]
    pub fn all() -> [Self; 13] {
        [
            Self::NoFence,
            Self::SecondCommit,
            Self::LockBeforeFingerprint,
            Self::SkipFingerprint,
            Self::ApplicationClock,
            Self::FreshDerivedKey,
            Self::ReplyBuiltTwice,
            Self::AssumeCommitted,
            Self::RepeatOpenIntent,
            Self::TakeOverWithoutToken,
            Self::ConfirmWhenRead,
            Self::AssumeIntent,
            Self::RecoverAccepted,
        ]
    }
}
