//! [`StrandedBecause`]: why this process leaves a row to another one, and what an operator can do about it.

use atomic_phases_compat::StopsBecause;

/// Why this process does not continue a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum StrandedBecause {
    /// No definition of that name is registered.
    UnknownDefinition,
    /// The definition is registered, but not in that version. Register that version as well until its rows
    /// have ended.
    UnknownVersion,
    /// The definition has no phase of that name. Keep the phase, or name it in a `was = ".."`.
    UnknownRecoveryPoint,
    /// The definition knows the row's phases, but not in this order: a phase was inserted or moved before the
    /// row's recovery point, or before a call that may have been made. Run the previous build until these
    /// rows have continued, or put the phase elsewhere.
    PhasesReordered,
    /// The call that may have been made used a derived key that this build would not use, because the oldest
    /// `was` was dropped, or the phase was renamed without one or removed. Calling again would be a second
    /// effect (G1). Restore the phase or its `was`, or run the previous build until these rows have
    /// continued.
    ProviderKeyChanged,
    /// The call that may have been made used a derived key of another secret or salt, which this process does
    /// not have. Calling again would be a second effect (G1). Pass that secret to
    /// [`DerivedKeys::also_continue`](crate::config::DerivedKeys::also_continue).
    DerivedKeysChanged,
    /// A phase whose call may have been made is now local. Run the previous build until these rows have
    /// continued.
    KindChanged,
    /// The call was declared idempotent when the row ran, so it may have been made without an intent; now it
    /// is declared `at_most_once` (G2). The row becomes `unknown` when it is resumed.
    CallMayHaveBeenMade,
    /// The outcome of its call is unknown, and the phase has no reconcile function in this build. A build
    /// that has one calls it, or an operator settles the request.
    NotAskedHere,
    /// A newer build of this crate wrote the row, with a format of the fingerprint or the phase list that
    /// this one does not know.
    NewerForm,
    /// The codec of this process cannot decode the stored values, most likely because it has another secret.
    Sealed,
    /// The stored parameters do not decode as the registered type. Each attempt fails, up to the
    /// attempt cap.
    ParametersUndecodable,
    /// A stored output does not decode as the type that a later phase asks for, or the stored context
    /// is not JSON. Each attempt fails, up to the attempt cap.
    OutputsUndecodable,
}

impl StrandedBecause {
    /// The explanation for an operator.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownDefinition => "its definition is not registered here",
            Self::UnknownVersion => "its definition is registered here in other versions only",
            Self::UnknownRecoveryPoint => {
                "the definition has no phase of its recovery point: keep the phase, or name it in `was`"
            }
            Self::PhasesReordered => {
                "a phase was inserted or moved before its recovery point or before its call"
            }
            Self::ProviderKeyChanged => {
                "a call may have been made under another provider key: restore its phase, or the oldest `was`"
            }
            Self::DerivedKeysChanged => {
                "a call may have been made under another secret of the derived keys: add it by `also_continue`"
            }
            Self::KindChanged => "a call may have been made by a phase that is local now",
            Self::CallMayHaveBeenMade => {
                "a call may have been made when its phase was declared idempotent, without an intent"
            }
            Self::NotAskedHere => {
                "its outcome is unknown, and its phase has no reconcile function in this build"
            }
            Self::NewerForm => "it was written by a newer version of atomic-phases",
            Self::Sealed => "the codec of this process cannot open its stored values",
            Self::ParametersUndecodable => {
                "its stored parameters do not decode as the registered type"
            }
            Self::OutputsUndecodable => {
                "its stored outputs do not decode as the types that the later phases ask for"
            }
        }
    }

    /// What to do, where [`as_str`](Self::as_str) does not say it.
    #[must_use]
    pub fn remedy(self) -> Option<&'static str> {
        match self {
            Self::UnknownDefinition | Self::UnknownVersion => {
                Some("register it beside the others until its rows have ended")
            }
            Self::PhasesReordered => Some(
                "run the build before until these rows have ended; put the phase directly before the last, or \
                 make the change in a new version",
            ),
            Self::KindChanged => Some("run the build before until these rows have ended"),
            Self::CallMayHaveBeenMade => {
                Some("declare the new class in a new version, and let the old one drain")
            }
            Self::NotAskedHere => Some("run a build that asks it, or settle it as an operator"),
            Self::NewerForm => Some("run the newer build"),
            Self::Sealed => Some("give the process the secret that sealed them"),
            Self::ParametersUndecodable | Self::OutputsUndecodable => {
                Some("give the new field a default, or keep the old form readable")
            }
            Self::UnknownRecoveryPoint | Self::ProviderKeyChanged | Self::DerivedKeysChanged => {
                None
            }
        }
    }

    /// One word, for a metric's label.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::UnknownDefinition => "unknown_definition",
            Self::UnknownVersion => "unknown_version",
            Self::UnknownRecoveryPoint => "unknown_recovery_point",
            Self::PhasesReordered => "phases_reordered",
            Self::ProviderKeyChanged => "provider_key_changed",
            Self::DerivedKeysChanged => "derived_keys_changed",
            Self::KindChanged => "kind_changed",
            Self::CallMayHaveBeenMade => "call_may_have_been_made",
            Self::NotAskedHere => "not_asked_here",
            Self::NewerForm => "newer_form",
            Self::Sealed => "sealed",
            Self::ParametersUndecodable => "parameters_undecodable",
            Self::OutputsUndecodable => "outputs_undecodable",
        }
    }
}

impl std::fmt::Display for StrandedBecause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<StopsBecause> for StrandedBecause {
    fn from(because: StopsBecause) -> Self {
        match because {
            StopsBecause::UnknownRecoveryPoint => Self::UnknownRecoveryPoint,
            StopsBecause::PhasesReordered => Self::PhasesReordered,
            StopsBecause::ProviderKeyChanged => Self::ProviderKeyChanged,
            StopsBecause::KindChanged => Self::KindChanged,
        }
    }
}
