//! [`Lint`]: the names of what a change can do, each with its level.

use std::fmt;

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Worth knowing.
    Allow,
    /// May cause trouble at a rollback, or with older rows.
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
        /// A kind of change to a definition, and what it does.
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

            /// Its level, unless the repository sets another.
            #[must_use]
            pub fn level(self) -> Level {
                match self { $(Self::$variant => Level::$level,)* }
            }

            /// What the change is, and what it does to rows.
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
    /// A phase was renamed without its earlier name in `was`: rows after it are left alone, and a foreign
    /// phase would call its provider under another derived key.
    PhaseRenamed "phase_renamed" Never
        retries "a retry of such a request is answered 503 until a build with the old name runs; finished requests replay"
        instead "add the earlier name: #[phase(was = \"old_name\")]; if it is another call, declare it in a new version: under the earlier name it would get the earlier call's provider key",
    /// The oldest name of a foreign phase was removed from `was`, so its derived key is another one: a call
    /// that may have been made is not repeated, and its row is left alone.
    ProviderKeyChanged "provider_key_changed" Never
        retries "a retry of such a request is answered 503 until the name is back; finished requests replay"
        instead "keep the oldest name at the end of `was`, for ever",
    /// The same parameters under the same names have another derived key than in the lock file: the way of
    /// deriving keys has changed, not the request.
    DerivedKeyChanged "derived_key_changed" Never
        retries "a call that is repeated is a second effect at the provider"
        instead "go back to the version of atomic-phases that wrote the file, and report this",
    /// A call that was idempotent is now to be made at most once: if it may have been made, no open intent
    /// records that.
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
    /// A version that was draining is retired. No file shows whether its last row is settled.
    VersionDrained "version_drained" Allow
        retries "a retry of an unfinished request of it is answered 503; finished requests replay"
        instead "compare the files with each database before the deploy: `cargo atomic-phases check --database-url ..`",
    /// A version is added beside the previous one.
    VersionAdded "version_added" Allow
        retries "a retry whose parameters are the same runs its request in the version that it began in, where that is registered"
        instead "deploy it to each node before the old version goes",
    /// Parameters of an earlier version do not decode as those of a later one: the parameters of a retry that a
    /// client sends now have the new type, and cannot be compared with them.
    VersionUnreadable "version_unreadable" Deny
        retries "a retry or replay of a request of the earlier version is answered 503 as long as its key lives"
        instead "give the new field a default (#[serde(default)]), keep the old form readable (#[serde(alias)]), or accept such requests with the type of that version",
    /// A definition is new.
    DefinitionAdded "definition_added" Allow
        retries "none is affected"
        instead "nothing",
    /// A phase is gone: rows beyond it are left alone, and rows before it skip it.
    PhaseRemoved "phase_removed" Deny
        retries "a retry of a request beyond it is answered 503 until an old build runs; finished requests replay"
        instead "remove it in a new version, and let the old one drain",
    /// A phase was inserted before others that rows may have passed: such rows are left alone.
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
    /// A foreign phase is now local.
    KindChanged "kind_changed" Deny
        retries "a retry of a request whose call may have been made is answered 503; finished requests replay"
        instead "give it a new name in a new version",
    /// A local phase is now foreign. No row in flight is affected, but after a rollback, rows whose call may have
    /// been made are left alone.
    BecameForeign "became_foreign" Warn
        retries "none is affected"
        instead "nothing; do not roll back while such a call is under way",
    /// The last phase is another one. No row can be after it, because its commit finishes the request.
    LastPhaseChanged "last_phase_changed" Allow
        retries "none is affected; finished requests replay what they answered"
        instead "nothing",
    /// Rows at some recovery point are left alone, for several changes together.
    RowsStranded "rows_stranded" Deny
        retries "a retry of such a request is answered 503 until an old build runs; finished requests replay"
        instead "make the change in a new version, and let the old one drain",
    /// A phase that was called at most once is now idempotent: a request with an open intent stays unknown, and
    /// every call from now on may be repeated.
    EffectClaimed "effect_claimed" Warn
        retries "none is affected"
        instead "make sure that the provider honors the derived key, from its documentation and by a test",
    /// A phase has lost its reconcile function: a request whose call is unknown waits for an
    /// operator.
    ReconcileDropped "reconcile_dropped" Warn
        retries "a retry of a request that is unknown is answered as unknown until an operator settles it"
        instead "keep #[reconcile(..)] until no request of it is unknown",
    /// A provider's window is longer, or was removed: calls that the provider has forgotten may be repeated.
    WindowWidened "window_widened" Deny
        retries "a retry may repeat a call after the time for which the provider was declared to remember it"
        instead "make sure that the provider remembers keys that long, also those of calls that were already made",
    /// A provider's window is shorter, or there is one now: more requests become unknown.
    WindowNarrowed "window_narrowed" Allow
        retries "a retry after the new window is answered as unknown"
        instead "nothing",
    /// A phase was renamed, with its earlier name in `was`.
    RenamedWithWas "renamed_with_was" Allow
        retries "none is affected"
        instead "nothing; keep `was` for ever on a foreign phase, else until no row knows the old name",
    /// An earlier name was removed from `was`: rows written under that name are left alone.
    WasDropped "was_dropped" Warn
        retries "a retry of a request of that time is answered 503"
        instead "keep the name until no row of that time is in flight",
    /// What a phase has stored does not decode as what it returns now.
    OutputUnreadable "output_unreadable" Deny
        retries "each attempt fails until the attempt cap, then the request waits for an operator; finished requests replay"
        instead "give the new field a default (#[serde(default)]), keep the old form readable (#[serde(alias)]), or make a new version",
    /// A stored output does not decode as what the phase returns now, but no phase that a row has still to run asks
    /// for it.
    OutputUnasked "output_unasked" Warn
        retries "none is affected"
        instead "nothing, as long as no phase asks for it; before one does, let the rows that have stored the earlier form drain",
    /// What a phase stores now does not decode in the previous build.
    OutputNotRollbackable "output_not_rollbackable" Warn
        retries "a node of the previous build fails such a request until the attempt cap"
        instead "first deploy a build that reads the new form, then one that writes it",
    /// Stored parameters do not decode as the request's type.
    RequestUnreadable "request_unreadable" Deny
        retries "no retry and no replay is served for such a request as long as its key lives: the parameters cannot be compared"
        instead "give the new field a default (#[serde(default)]), keep the old form readable (#[serde(alias)]), or make a new version",
    /// Parameters as they are stored now do not decode in the previous build.
    RequestNotRollbackable "request_not_rollbackable" Warn
        retries "a node of the previous build serves no retry and no replay of such a request"
        instead "first deploy a build that reads the new form, then one that writes it",
    /// The same stored parameters have another fingerprint each time they are decoded: a default comes from a random
    /// number or the clock, or elements are in another order each time.
    FingerprintUnstable "fingerprint_unstable" Deny
        retries "each retry and replay is a mismatch (422)"
        instead "make the default a constant, a HashSet a BTreeSet, or the field #[serde(default)] Unfingerprinted<..>",
    /// The same parameters have another fingerprint than before. Retries are recognized by decoding the stored
    /// parameters.
    FingerprintChanged "fingerprint_changed" Allow
        retries "a retry or replay of an earlier request costs one statement more"
        instead "nothing; a client that already sent what the type did not know gets a mismatch",
    /// A member of a stored value was removed, and an optional one of the same form was added: a value under the
    /// earlier name is ignored, and the next attempt sees another value than the previous one.
    MemberRenamed "member_renamed" Deny
        retries "a retry with another value of that member counts as the same request"
        instead "add the earlier name: #[serde(alias = \"old_name\")]; if it is another member, let the rows that have the old one drain, and then accept the change",
    /// A member of a stored value was removed: its value is ignored.
    MemberDropped "member_dropped" Warn
        retries "a retry with another value of that member counts as the same request"
        instead "nothing, if no phase needs it any more; if it has another name, #[serde(alias = \"old_name\")]",
    /// An optional member of an output, or of a job, is now required. The previous build writes it; values
    /// stored before it was added lack it. For parameters, see `retry_refused`.
    DefaultDropped "default_dropped" Warn
        retries "none is affected, except that of a request from before that member was added, which fails"
        instead "keep the default until no row from that time is left",
    /// A name or a form of an output, or of a job, that was read but not written, is no longer read. The previous build
    /// does not write it; values stored before that build have it. For parameters, see `retry_refused`.
    AliasDropped "alias_dropped" Warn
        retries "none is affected, except that of a request stored under that name or form, which fails"
        instead "keep the alias, or the form, until no row from that time is left",
    /// An absent member of the parameters has another default than before: if a client omits it, its retry has
    /// another fingerprint than its first request. Or the member is not written if it has its default
    /// (`skip_serializing_if`): then stored values, also of outputs, are read with the other default.
    DefaultChanged "default_changed" Deny
        retries "each retry and replay of a request that omitted it is a mismatch (422), as long as its key lives"
        instead "keep the default, and choose the new value in a phase; or take the member out of the comparison: Unfingerprinted<..>",
    /// Several forms of a value, which were read as the same, are now different values. The stored one has one form,
    /// and the client's retry sends another. Or a member that was not part of the fingerprint now is: it is no longer
    /// `Unfingerprinted`.
    RetryDiffers "retry_differs" Deny
        retries "each retry and replay of a request in such a form is a mismatch (422), as long as its key lives"
        instead "keep the type, and convert it in a phase; a new version does not help, because it is compared with what is stored, too; if each client sends the form that is stored, accept the change",
    /// A form that clients may send, and that was stored in another form (under an alias, in a form that is only read, or
    /// without a member), is now refused or ignored, and so is each retry that sends the same bytes again.
    RetryRefused "retry_refused" Deny
        retries "a client that sends this form is refused (4xx) or gets a mismatch (422), even if the answer to its request is stored"
        instead "keep the alias, the form or the default as long as a client sends this form; if none does any more, accept the change",
    /// Members that the type does not know were ignored, and are now refused.
    MembersRefused "members_refused" Allow
        retries "a client that sends such a member is refused (4xx), even if the answer to its request is stored"
        instead "nothing, if no client sends one",
    /// An optional member was added: values stored without it are read with its default.
    MemberAdded "member_added" Allow
        retries "a retry without it is the same request, as long as its row exists; a client that sent it before the type knew it gets a mismatch (422)"
        instead "nothing; with #[serde(skip_serializing_if = \"Option::is_none\")] new requests keep the keys that they had before, even if a row is lost",
    /// A stored number is read as another one: an integer as a float that cannot hold all its digits, or a float as a
    /// narrower one. A repeated call may send the provider another amount.
    NumberRounded "number_rounded" Deny
        retries "a retry is recognized, also one with another number that is rounded to the same; finished requests replay"
        instead "keep the type, or make a new version; if all stored numbers are known to be small, accept the change",
    /// A value that one alternative of an `untagged` type wrote is read as another, which is tried before it: the next
    /// attempt continues with another alternative than the previous one.
    AlternativeTaken "alternative_taken" Deny
        retries "a retry is recognized, and its request continues with the other alternative; finished requests replay"
        instead "keep the order of the alternatives and put a new one behind them, or tell them apart by a tag, in a new version",
    /// No value was found for an alternative of an `untagged` type: one that is tried before it accepts all of them, or
    /// it has a rule of its own.
    AlternativeHidden "alternative_hidden" Warn
        retries "a retry is recognized; its request continues with the alternative that takes its parameters first"
        instead "put the alternative that accepts less before the one that accepts more; for one with a rule of its own, give a sample",
    /// This definition no longer stages a job of this name: jobs that are staged are delivered only
    /// where a process has a handler of that name.
    JobRemoved "job_removed" Deny
        retries "none is affected"
        instead "keep the handler of the old name until no job of it is staged, and then accept the change",
    /// The arguments of a staged job do not decode as what its handler takes.
    JobUnreadable "job_unreadable" Deny
        retries "none is affected"
        instead "give the new field a default (#[serde(default)]), keep the old form readable (#[serde(alias)]), or give the job a new name",
    /// The arguments of a job as they are staged now do not decode in the previous build.
    JobNotRollbackable "job_not_rollbackable" Warn
        retries "none is affected"
        instead "first deploy a build that reads the new form, then one that writes it",
    /// A job of a new name.
    JobAdded "job_added" Allow
        retries "none is affected"
        instead "nothing; deploy its handler with it, or before",
    /// A part of a type could not be probed, and no sample contains it: its form is not checked.
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
