//! [`Limits`]: whose rows an operator may see.

/// The scopes whose rows an operator may see: all, those that are named, or those that begin so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub(crate) only: Option<Vec<String>>,
    pub(crate) prefix: String,
}

impl Limits {
    pub(crate) fn allow_all(&self) -> bool {
        self.only.is_none() && self.prefix.is_empty()
    }

    /// As the statements judge it.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn allow(&self, scope: &str) -> bool {
        let named = self.only.as_ref().is_none_or(|only| only.iter().any(|one| one == scope));
        named && scope.starts_with(&self.prefix)
    }
}
