//! Where the documentation explains what an error is about.

use syn::Error;

/// A heading in the documentation of the library.
#[derive(Clone, Copy)]
pub(crate) enum Page {
    Block,
    Marks,
    Stores,
    Options,
    EffectClasses,
    Names,
    Signature,
    Asks,
    Returns,
    Reconcile,
    CrashTest,
}

impl Page {
    fn path(self) -> &'static str {
        match self {
            Self::Block => "attr.atomic_phases.html#on-the-impl-block",
            Self::Marks => "attr.atomic_phases.html#on-the-methods",
            Self::Stores => "attr.atomic_phases.html#several-stores",
            Self::Options => "attr.phase.html#options",
            Self::EffectClasses => "attr.phase.html#effect-classes",
            Self::Names => "attr.phase.html#its-name",
            Self::Signature => "attr.phase.html#its-signature",
            Self::Asks => "attr.phase.html#what-it-may-ask-for",
            Self::Returns => "attr.phase.html#what-it-returns",
            Self::Reconcile => "attr.reconcile.html",
            Self::CrashTest => "fault/attr.crash_test.html",
        }
    }

    /// The text of an error, with a link behind it.
    pub(crate) fn explains(self, text: impl std::fmt::Display) -> String {
        format!("{text}\nsee https://docs.rs/atomic-phases/latest/atomic_phases/{}", self.path())
    }

    /// The same errors, each of one token, with a link behind each.
    pub(crate) fn on(self, errors: Error) -> Error {
        let linked = errors.clone().into_iter();
        let linked = linked.map(|error| Error::new(error.span(), self.explains(&error)));
        linked
            .reduce(|mut all, next| {
                all.combine(next);
                all
            })
            .unwrap_or(errors)
    }
}
