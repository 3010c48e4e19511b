//! [`ScopeLimits`]: whose rows an operator may see.

use std::fmt;

use crate::key::ShortHash;

/// The scopes whose rows an operator may see: all, those that are named, or those that begin so.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ScopeLimits {
    pub(crate) only: Option<Vec<String>>,
    pub(crate) prefix: String,
}

impl fmt::Debug for ScopeLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // G19: hashed, as a scope is.
        match &self.only {
            _ if self.allow_all() => f.write_str("ScopeLimits(none)"),
            Some(only) => {
                let only: Vec<_> = only.iter().map(|scope| ShortHash(scope).to_string()).collect();
                write!(f, "ScopeLimits(#{})", only.join(", #"))
            }
            None => write!(f, "ScopeLimits(prefix #{})", ShortHash(&self.prefix)),
        }
    }
}

impl ScopeLimits {
    pub(crate) fn allow_all(&self) -> bool {
        self.only.is_none() && self.prefix.is_empty()
    }

    /// As the statements judge it.
    pub(crate) fn allow(&self, scope: &str) -> bool {
        let named = self.only.as_ref().is_none_or(|only| only.iter().any(|one| one == scope));
        named && scope.starts_with(&self.prefix)
    }

    /// Whether every scope that `others` allow is allowed. Limits that allow none are within those only that allow all:
    /// whose they are must not be known to another actor.
    pub(crate) fn contain(&self, others: &Self) -> bool {
        if self.allow_all() {
            return true;
        }
        match &others.only {
            None => self.only.is_none() && others.prefix.starts_with(&self.prefix),
            Some(only) => {
                let mut allowed = only.iter().filter(|scope| others.allow(scope)).peekable();
                allowed.peek().is_some() && allowed.all(|scope| self.allow(scope))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(scopes: &[&str]) -> ScopeLimits {
        ScopeLimits {
            only: Some(scopes.iter().map(|scope| (*scope).to_owned()).collect()),
            ..of("")
        }
    }

    fn of(prefix: &str) -> ScopeLimits {
        ScopeLimits { only: None, prefix: prefix.to_owned() }
    }

    #[test]
    fn g16_limits_contain_those_whose_every_scope_they_allow() {
        for within in [of(""), of("eu/"), only(&["a"]), only(&[])] {
            assert!(of("").contain(&within), "{within:?}");
            assert_eq!(within.contain(&of("")), within == of(""), "{within:?}");
        }
        assert!(of("eu/").contain(&of("eu/")) && of("eu/").contain(&of("eu/de/")));
        assert!(!of("eu/de/").contain(&of("eu/")) && !of("eu/").contain(&of("us/")));
        assert!(of("eu/").contain(&only(&["eu/a", "eu/b"])));
        assert!(!of("eu/").contain(&only(&["eu/a", "us/b"])));
        assert!(only(&["a", "b"]).contain(&only(&["b"])) && only(&["a"]).contain(&only(&["a"])));
        assert!(!only(&["a"]).contain(&only(&["a", "b"])) && !only(&["a"]).contain(&of("a")));
        assert!(!only(&["a"]).contain(&only(&[])) && !only(&[]).contain(&only(&[])));
        // Of a list and a prefix, what both allow.
        let both = ScopeLimits { prefix: "eu/".to_owned(), ..only(&["eu/a", "us/b"]) };
        assert!(only(&["eu/a"]).contain(&both) && !only(&["us/b"]).contain(&both));
    }
}
