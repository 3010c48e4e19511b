//! [`Lint`]: the names of what a change can do, each with its level.

use std::fmt;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Worth knowing.
    Allow,
    /// May surprise at a rollback, or at rows of some age.
    Warn,
    /// Strands or loses rows that are in flight.
    Deny,
    /// As [`Deny`](Self::Deny), and no setting changes it.
    Never,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allow => "note",
            Self::Warn => "warning",
            Self::Deny => "error",
            Self::Never => "error (never)",
        })
    }
}

macro_rules! lints {
    ($($(#[doc = $what:literal])+ $variant:ident $name:literal $level:ident
        retries $retries:literal instead $instead:literal,)*) => {
        /// What a change of a definition does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Lint {
            $($(#[doc = $what])+ $variant,)*
        }

        impl Lint {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Its name, by which it is explained and configured.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Its level where the repository says nothing else.
            #[must_use]
            pub fn level(self) -> Level {
                match self { $(Self::$variant => Level::$level,)* }
            }

            /// What it is.
            #[must_use]
            pub fn what(self) -> &'static str {
                match self { $(Self::$variant => concat!($($what),+).trim_ascii(),)* }
            }

            /// What happens to clients' retries and to replays.
            #[must_use]
            pub fn retries(self) -> &'static str {
                match self { $(Self::$variant => $retries,)* }
            }

            /// What to write instead.
            #[must_use]
            pub fn instead(self) -> &'static str {
                match self { $(Self::$variant => $instead,)* }
            }
        }
    };
}

lints! {
    /// A phase has another name, and does not say which it had: rows behind it are left alone, and a foreign
    /// phase would call its provider under another derived key.
    PhaseRenamed "phase_renamed" Never
        retries "a retry of such a request is answered 503 until a build with the old name runs; finished requests replay"
        instead "say the earlier name: #[phase(was = \"old_name\")]; if it is another call, declare it in a new version: under the earlier name it would get the earlier one's provider key",
    /// The oldest name of a foreign phase is gone from `was`, so that its derived key is another one: a call
    /// that may have been made is not repeated, and its row is left alone.
    ProviderKeyChanged "provider_key_changed" Never
        retries "a retry of such a request is answered 503 until the name is back; finished requests replay"
        instead "keep the oldest name at the end of `was`, for ever",
    /// The same parameters under the same names have another derived key than the lock file recorded: what
    /// makes keys has changed, not the request.
    DerivedKeyChanged "derived_key_changed" Never
        retries "a call that is repeated is a second effect at the provider"
        instead "go back to the version of atomic-phases that wrote the file, and report this",
    /// A call that was idempotent is to be made at most once: where it may have been made, there is no open
    /// intent that says so.
    EffectWeakened "effect_weakened" Never
        retries "a retry of such a request is answered as unknown until it is reconciled; finished requests replay"
        instead "declare the new class in a new version, and let the old one drain",
    /// A definition has another name: its rows are left alone, keys that were used count as used for another
    /// request, and every derived key changes.
    DefinitionRenamed "definition_renamed" Never
        retries "each retry and replay of a key that was used under the old name is a mismatch (422)"
        instead "keep the name, only the type may be renamed; delete the old name's lock file if it was never deployed",
    /// A definition is gone, with rows that may still be there.
    DefinitionRemoved "definition_removed" Deny
        retries "retries are not served; rows in flight are left alone"
        instead "keep it registered until no row of it is in flight, then `cargo atomic-phases retire`; delete its lock file if it was never deployed",
    /// A version is gone, or retired in the deploy that brings the one after it, with rows that may still be there.
    VersionDropped "version_dropped" Deny
        retries "a retry of an unfinished request of that version is answered 503; finished requests replay"
        instead "register both versions until the old one is drained, then `cargo atomic-phases retire --database-url ..`; delete its lock file if it was never deployed",
    /// A version that is retired is registered again.
    VersionRevived "version_revived" Warn
        retries "none is affected"
        instead "write a new version, or remove the lock file of the retired one",
    /// The version that new requests are of is marked as retired: what is unfinished of it is left alone.
    VersionRetired "version_retired" Warn
        retries "a retry of an unfinished request of it is answered 503; finished requests replay"
        instead "deploy a build that begins no request of it, wait until `cargo atomic-phases definitions drained` says so, and retire it then",
    /// A version that was draining is retired. Whether its last row is settled stands in no file.
    VersionDrained "version_drained" Allow
        retries "a retry of an unfinished request of it is answered 503; finished requests replay"
        instead "hold the files against each database before the deploy: `cargo atomic-phases check --database-url ..`",
    /// A version comes beside the one before it.
    VersionAdded "version_added" Allow
        retries "a retry whose parameters are the same runs its request in the version that it began in, where that is registered"
        instead "deploy it to each node before the old version goes",
    /// Parameters of an earlier version do not decode as those of a later one: a retry that a client sends now
    /// is of the new version's type, and cannot be compared with them.
    VersionUnreadable "version_unreadable" Deny
        retries "a retry or replay of a request of the earlier version is answered 503 as long as its key lives"
        instead "give the new field a default (#[serde(default)]), keep the old form readable (#[serde(alias)]), or let such requests in by the type of that version",
    /// A definition is new.
    DefinitionAdded "definition_added" Allow
        retries "none is affected"
        instead "nothing",
    /// A phase is gone: rows beyond it are left alone, and rows before it skip it.
    PhaseRemoved "phase_removed" Deny
        retries "a retry of a request beyond it is answered 503 until an old build runs; finished requests replay"
        instead "remove it in a new version, and let the old one drain",
    /// A phase stands before others that rows may have passed: such rows are left alone.
    PhaseInserted "phase_inserted" Deny
        retries "a retry of a request beyond it is answered 503 until an old build runs; finished requests replay"
        instead "insert it in a new version, or directly before the last phase",
    /// A phase was put where no row in flight has passed.
    PhaseAdded "phase_added" Allow
        retries "none is affected"
        instead "nothing; a rollback leaves the rows that have passed it to the newer build",
    /// The same phases in another order: rows that have passed some of them are left alone.
    PhasesReordered "phases_reordered" Deny
        retries "a retry of such a request is answered 503 until an old build runs; finished requests replay"
        instead "order them anew in a new version, and let the old one drain",
    /// A phase that was foreign is local, or the other way round.
    KindChanged "kind_changed" Deny
        retries "a retry of a request whose call may have been made is answered 503; finished requests replay"
        instead "give it a new name in a new version",
    /// A local phase is foreign now. No row in flight minds, but a rollback leaves rows alone whose call may have
    /// been made.
    BecameForeign "became_foreign" Warn
        retries "none is affected"
        instead "nothing; do not roll back while such a call is under way",
    /// The last phase is another one. No row stands behind it: its commit finishes the request.
    LastPhaseChanged "last_phase_changed" Allow
        retries "none is affected; finished requests replay what they answered"
        instead "nothing",
    /// Rows at some recovery point are left alone, for several changes together.
    RowsStranded "rows_stranded" Deny
        retries "a retry of such a request is answered 503 until an old build runs; finished requests replay"
        instead "make the change in a new version, and let the old one drain",
    /// A phase that was called at most once is idempotent now: an intent that is open stays unknown, and
    /// everything from now on may be repeated.
    EffectClaimed "effect_claimed" Warn
        retries "none is affected"
        instead "make sure that the provider honors the derived key, from its documentation and by a test",
    /// No function asks the provider any more what became of a call: a request whose call is unknown waits for an
    /// operator.
    ReconcileDropped "reconcile_dropped" Warn
        retries "a retry of a request that is unknown is answered as unknown until an operator settles it"
        instead "keep #[reconcile(..)] until no request of it is unknown",
    /// A provider's window is longer, or gone: calls may be repeated that the provider has forgotten.
    WindowWidened "window_widened" Deny
        retries "a retry may repeat a call after the time that the provider was said to remember it"
        instead "make sure that the provider remembers keys so long, also those of calls that were made already",
    /// A provider's window is shorter, or there is one now: more requests become unknown.
    WindowNarrowed "window_narrowed" Allow
        retries "a retry after the new window is answered as unknown"
        instead "nothing",
    /// A phase has another name and says which it had.
    RenamedWithWas "renamed_with_was" Allow
        retries "none is affected"
        instead "nothing; keep `was` for ever on a foreign phase, else until no row knows the old name",
    /// An earlier name is gone from `was`: rows of the time before that rename are left alone.
    WasDropped "was_dropped" Warn
        retries "a retry of a request of that time is answered 503"
        instead "keep the name until no row of that time is in flight",
    /// What a phase has stored does not decode as what it returns now.
    OutputUnreadable "output_unreadable" Deny
        retries "each attempt fails until the attempt cap, then the request waits for an operator; finished requests replay"
        instead "give the new field a default (#[serde(default)]), keep the old form readable (#[serde(alias)]), or make a new version",
    /// What a phase has stored is not read as what it returns now, and no phase that a row comes to asks for it.
    OutputUnasked "output_unasked" Warn
        retries "none is affected"
        instead "nothing, as long as no phase asks for it; let the rows drain that have stored the earlier form before one does",
    /// What a phase stores now does not decode in the build before.
    OutputNotRollbackable "output_not_rollbackable" Warn
        retries "a node of the build before fails such a request until the attempt cap"
        instead "deploy the reading of the new form first, and the writing of it afterwards",
    /// Stored parameters do not decode as the request's type.
    RequestUnreadable "request_unreadable" Deny
        retries "no retry and no replay is served for such a request as long as its key lives: the parameters cannot be compared"
        instead "give the new field a default (#[serde(default)]), keep the old form readable (#[serde(alias)]), or make a new version",
    /// Parameters as they are stored now do not decode in the build before.
    RequestNotRollbackable "request_not_rollbackable" Warn
        retries "a node of the build before serves no retry and no replay of such a request"
        instead "deploy the reading of the new form first, and the writing of it afterwards",
    /// The same stored parameters have another fingerprint each time that they are decoded: a default that is
    /// made by chance or by the clock, or elements that are in another order each time.
    FingerprintUnstable "fingerprint_unstable" Deny
        retries "each retry and replay is a mismatch (422)"
        instead "make the default a constant, a HashSet a BTreeSet, or the field #[serde(default)] Unfingerprinted<..>",
    /// The same parameters have another fingerprint than before. Retries are recognized by decoding the stored
    /// parameters.
    FingerprintChanged "fingerprint_changed" Allow
        retries "a retry or replay of an earlier request costs one statement more"
        instead "nothing; a client that already sent what the type did not know is told of a mismatch",
    /// A member of a stored value is gone, and one of the same form has come, which may be absent: a value under the
    /// earlier name is passed over, and the next attempt sees another value than the one before.
    MemberRenamed "member_renamed" Deny
        retries "a retry with another value of that member counts as the same request"
        instead "say the earlier name: #[serde(alias = \"old_name\")]; if it is another member, let the rows drain that have the old one, and then accept the change",
    /// A member of a stored value is not known any more: its value is passed over.
    MemberDropped "member_dropped" Warn
        retries "a retry with another value of that member counts as the same request"
        instead "nothing, where no phase needs it any more; if it has another name, #[serde(alias = \"old_name\")]",
    /// A member of an output, or of a job, that could be absent has to be there. The build before writes it; what was
    /// stored before it came is without it. Of parameters it is `retry_refused`.
    DefaultDropped "default_dropped" Warn
        retries "none is affected, but that of a request of the time before that member came fails"
        instead "keep the default until no row of that time is left",
    /// A name or a form of an output, or of a job, that was read, and not written, is not read any more. The build before
    /// does not write it; what was stored before that build came has it. Of parameters it is `retry_refused`.
    AliasDropped "alias_dropped" Warn
        retries "none is affected, but that of a request of the time of that name or form fails"
        instead "keep the alias, or the form, until no row of that time is left",
    /// A member of the parameters that is absent is another value than before: a client that leaves it out, and sends
    /// its request again, sends another request by its fingerprint. Or it was left out where it was that value
    /// (`skip_serializing_if`): then what is stored, of outputs too, is read as the other one.
    DefaultChanged "default_changed" Deny
        retries "each retry and replay of a request that left it out is a mismatch (422), as long as its key lives"
        instead "keep the default, and choose the new value in a phase; or take the member out of the comparison: Unfingerprinted<..>",
    /// What a client may send in several forms was read as one, and is told apart now: what was stored is the one form,
    /// and the bytes that the client sends again are another. Or a member counts in the comparison that did not: an
    /// `Unfingerprinted` that is none any more.
    RetryDiffers "retry_differs" Deny
        retries "each retry and replay of a request in such a form is a mismatch (422), as long as its key lives"
        instead "keep the type, and make the other one of it in a phase; a new version is compared with what is stored, too, so it does not help; where each client sends the form that is stored, accept the change",
    /// What a client may send was read, and stored in another form: under an alias, in a form that is only read, or
    /// without a member. It is refused now, or passed over, and with it each retry that sends the same bytes again.
    RetryRefused "retry_refused" Deny
        retries "a client that sends it so is refused (4xx) or told of a mismatch (422), also where it asks again for an answer that there is"
        instead "keep the alias, the form or the default as long as a client sends it so; where none does any more, accept the change",
    /// Members that the type does not know were passed over, and are refused now.
    MembersRefused "members_refused" Allow
        retries "a client that sends such a member is refused (4xx), also where it asks again for an answer that there is"
        instead "nothing, where no client sends one",
    /// A member has come that may be absent: what was stored without it reads as its default.
    MemberAdded "member_added" Allow
        retries "a retry without it is the same request, as long as its row is there; a client that already sent it, when the type did not know it, is told of a mismatch (422)"
        instead "nothing; with #[serde(skip_serializing_if = \"Option::is_none\")] new requests keep the keys that they had before, also where a row is lost",
    /// A stored number is read as another one: an integer as a float that does not have all its digits, or a float as a
    /// narrower one. A provider that was asked once is asked again for another amount.
    NumberRounded "number_rounded" Deny
        retries "a retry is recognized, also one with another number that is rounded to the same; finished requests replay"
        instead "keep the type, or make a new version; where each number that is stored is known to be small, accept the change",
    /// A value that one alternative of an `untagged` type wrote is read as another, which is tried before it: the next
    /// attempt goes on with another alternative than the one before.
    AlternativeTaken "alternative_taken" Deny
        retries "a retry is recognized, and its request goes on with the other alternative; finished requests replay"
        instead "keep the order of the alternatives and put a new one behind them, or tell them apart by a tag, in a new version",
    /// No value was found of an alternative of an `untagged` type: one that is tried before it takes all of them, or
    /// it takes what it takes by a rule of its own.
    AlternativeHidden "alternative_hidden" Warn
        retries "a retry is recognized; its request goes on with the alternative that takes its parameters first"
        instead "put the alternative that takes less in front of the one that takes more; of one with a rule of its own, give a sample",
    /// A job of this name is not staged any more, by this definition: those that are staged are delivered only
    /// where a process has a handler of that name.
    JobRemoved "job_removed" Deny
        retries "none is affected"
        instead "keep the handler of the old name until no job of it is staged, and then accept the change",
    /// The arguments of a staged job do not decode as what its handler takes.
    JobUnreadable "job_unreadable" Deny
        retries "none is affected"
        instead "give the new field a default (#[serde(default)]), keep the old form readable (#[serde(alias)]), or give the job a new name",
    /// The arguments of a job as they are staged now do not decode in the build before.
    JobNotRollbackable "job_not_rollbackable" Warn
        retries "none is affected"
        instead "deploy the reading of the new form first, and the writing of it afterwards",
    /// A job of a new name.
    JobAdded "job_added" Allow
        retries "none is affected"
        instead "nothing; deploy its handler with it, or before",
    /// A part of a type could not be probed, and no sample has it: its form is not checked.
    NotProbed "not_probed" Allow
        retries "not known"
        instead "give a sample: Definitions::sample, Definitions::output_sample; the type of a job: Definitions::job",
}

impl Lint {
    /// By its name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|lint| lint.name() == name)
    }
}

impl fmt::Display for Lint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lint_is_found_by_its_name_and_says_what_to_do() {
        for lint in Lint::ALL {
            assert_eq!(Lint::named(lint.name()), Some(*lint));
            assert!(!lint.instead().is_empty() && !lint.retries().is_empty());
            assert!(lint.what().ends_with('.'), "{lint}");
        }
    }
}
