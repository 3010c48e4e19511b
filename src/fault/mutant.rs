//! [`Mutant`]: the engine with one guarantee broken, to see the kit find it.

/// Declares [`Mutant`] from one list: first those that the explorer and the simulation find, then those of one of them.
macro_rules! mutants {
    (
        Both { $($(#[$of_both:meta])* $both:ident,)* }
        Simulation { $($(#[$of_simulation:meta])* $simulation:ident,)* }
        Explorer { $($(#[$of_explorer:meta])* $explorer:ident,)* }
    ) => {
        /// A guarantee that is broken on purpose: bugs that this kit finds. Each is one that a library of this
        /// kind has had, or that its authors were warned of.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Mutant {
            $($(#[$of_both])* $both,)*
            $($(#[$of_simulation])* $simulation,)*
            $($(#[$of_explorer])* $explorer,)*
        }

        impl Mutant {
            /// All of them.
            #[must_use]
            pub fn all() -> &'static [Self] {
                &[$(Self::$both,)* $(Self::$simulation,)* $(Self::$explorer,)*]
            }

            /// Whether it shows in time, beside other requests, by a webhook or with a codec that fails, and not in
            /// one request by itself: such a one is for the simulation (`docs/simulation.md`), and not for the
            /// explorer.
            #[must_use]
            pub fn needs_simulation(self) -> bool {
                matches!(self, $(Self::$simulation)|*)
            }

            /// Whether it takes one fault at one commit, or a wait within a call, which the explorer puts there and
            /// the simulation almost never draws.
            #[must_use]
            pub fn needs_explorer(self) -> bool {
                matches!(self, $(Self::$explorer)|*)
            }
        }
    };
}

mutants! {
    Both {
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
        /// The client receives a reply other than the stored one (G8).
        ReplyBuiltTwice,
        /// A commit without an answer is taken for done (G7, G8).
        AssumeCommitted,
        /// A call that may have been made is made again, at a provider that honors no key (G2).
        RepeatOpenIntent,
        /// A process that resolves its unknown commit takes the key from the current holder (G3, G10).
        TakeOverWithoutToken,
        /// A lease counts from when the answer is read, and not from before its statement was sent (G2, G3).
        ConfirmWhenRead,
        /// An intent whose commit was lost is taken for written, since the recovery point is the same (G2).
        AssumeIntent,
        /// A call that accepted a request takes the row from the worker that runs it by now (G10).
        RecoverAccepted,
    }
    Simulation {
        /// The same as `ConfirmWhenRead`, of a lease as it is acquired (G2, G3).
        AcquireWhenRead,
        /// A window's age counts from when the answer that contains it is read, and not from before its statement was
        /// sent (G11).
        WindowWhenRead,
        /// The claim of a staged job counts from when the answer is read (G18).
        ClaimWhenRead,
        /// Whether what a call created may have ended by now is counted from when its commit's answer was read,
        /// and not from before it was sent (G10).
        RetentionWhenRead,
        /// A call that its phase left behind in a task is made after the phase has ended (G2).
        CallAfterPhase,
        /// A transaction stays open while a foreign call runs (G20).
        TransactionOverCall,
        /// The first attempt sees digits of its creation time that no later attempt sees (G5).
        PreciseCreatedAt,
        /// A first phase that failed is reported as a key in progress, although no process works on it (G10).
        FailureToldAsBusy,
        /// Attempts that a client began during a back-off count against the cap (G17).
        CountEveryAttempt,
        /// What is tried again is tried again without a pause (G17).
        NoPause,
        /// A worker whose search found nothing to begin searches again immediately (G17).
        NoRest,
        /// A worker begins new work when all that it began has ended (G16).
        RefillWhenEmpty,
        /// One scope may hold all slots of a worker (G16).
        NoShare,
        /// A provider's window begins anew when a request is released (G11).
        WindowFromRelease,
        /// A call is over by the time limit of the build that asks about it, and not by that of the one which
        /// began it (G2).
        OwnTimeLimit,
        /// An acceptance whose commit got no answer, or failed, is reported as accepted (G8).
        AcceptedUnwritten,
        /// A replay comes without the headers that are stored with its reply (G8).
        ReplayWithoutHeaders,
        /// A request is released behind a call that is made at most once and may have been executed (G2).
        ReleaseExecuted,
        /// The same where a reconcile function said that it was, and its reply cannot be stored (G2).
        ReleaseReconciled,
        /// The takeover that finds an intent counts as an attempt, so that a word about the one that called comes
        /// to nothing (G17).
        CountIntentFound,
        /// A resolution that cannot be stored has acquired the row before it is refused (G17).
        EncodeBehindTakeOver,
        /// A resolution of a call of an erased request is refused, as if the request did not wait for it (G17).
        RefuseBehindErasure,
        /// A resolution of one request of a key is applied to the next one (G2).
        AnyLife,
        /// An outcome that a build without a reconcile function left is asked about by none that has it (G17).
        NeverAskedLater,
        /// A worker gives back what it has claimed ahead of its turn as it was found, although another process has
        /// begun it since (G2, G6).
        GiveBackAsFound,
        /// A call that has created no key has used up the rate of its scope (G16).
        RateKeptOfFailed,
        /// A call that has created a key gives back what it took of the rate (G16).
        RateGivenBack,
        /// The keys that are being created do not count against a quota (G16).
        CountCommittedOnly,
        /// A call that expects a new key is refused by a quota before it has looked whether the key has a row (G16).
        QuotaBeforeRow,
        /// An unknown outcome is asked about beyond the cap of reconciliations (G17).
        AskForEver,
    }
    Explorer {
        /// The commit of the next holder is taken for the own, which was lost (G7, G10).
        AskWithoutToken,
        /// A call that is under way continues after its lease has run out (G2).
        CallWithoutLease,
        /// A renewal that fails is taken for one that has succeeded (G2).
        CallBehindFailedRenewal,
    }
}
