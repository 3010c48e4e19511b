//! [`Actor`]: who asks, what they may do, and whose requests they may see.

use std::fmt;
use std::ops::BitOr;

use crate::key::{Scope, ShortHash};
use crate::store::operators::ScopeLimits;

/// Longest name of an actor, in characters.
const MAX_NAME: usize = 200;

/// An operator. The audit records each act under the actor's name.
///
/// The application creates it for the authenticated person. There is no default: the application
/// must choose the permissions.
///
/// ```
/// use atomic_phases::ops::{Actor, Permissions, Scopes};
///
/// let on_call = Actor::new("ada@example.com", Permissions::responder(), Scopes::All)?;
/// # Ok::<(), atomic_phases::ops::InvalidActor>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    name: String,
    permissions: Permissions,
    limits: ScopeLimits,
}

/// The name of an [`Actor`] is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an actor's name is 1 to {MAX_NAME} characters, and none of them a control character")]
#[non_exhaustive]
pub struct InvalidActor;

/// Whether an actor can have this name.
pub(super) fn is_name(name: &str) -> bool {
    let length = name.chars().count();
    !name.trim().is_empty() && length <= MAX_NAME && !name.contains(char::is_control)
}

impl Actor {
    /// An actor of this name, with these permissions, for the requests of these scopes.
    ///
    /// # Errors
    /// [`InvalidActor`] if the name is empty, longer than 200 characters, or contains a control character.
    pub fn new(
        name: impl Into<String>,
        permissions: Permissions,
        scopes: Scopes,
    ) -> Result<Self, InvalidActor> {
        let name = name.into();
        match is_name(&name) {
            true => Ok(Self { name, permissions, limits: scopes.limits() }),
            false => Err(InvalidActor),
        }
    }

    /// The name in the audit.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the actor may do.
    #[must_use]
    pub fn permissions(&self) -> Permissions {
        self.permissions
    }

    /// Whether the actor may see the requests of every scope.
    #[must_use]
    pub fn sees_every_scope(&self) -> bool {
        self.limits.allow_all()
    }

    /// Who started a bulk act, on whose behalf a worker does it.
    pub(super) fn of_bulk(name: String, limits: ScopeLimits) -> Self {
        Self { name, permissions: Permissions::ACT | Permissions::ERASE, limits }
    }

    pub(crate) fn limits(&self) -> &ScopeLimits {
        &self.limits
    }
}

/// Whose requests an actor may see and act on. Each search has this as a condition in its statement; requests
/// of other scopes appear not to exist.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scopes {
    /// All scopes.
    All,
    /// Only these scopes. An empty list allows none.
    Only(Vec<Scope>),
    /// Scopes that begin with this text, for example `eu/`. An empty text allows all scopes.
    Prefix(String),
}

impl Scopes {
    fn limits(self) -> ScopeLimits {
        match self {
            Self::All => ScopeLimits::default(),
            Self::Only(scopes) => {
                let only = scopes.iter().map(|scope| scope.as_str().to_owned()).collect();
                ScopeLimits { only: Some(only), ..ScopeLimits::default() }
            }
            Self::Prefix(prefix) => ScopeLimits { prefix, ..ScopeLimits::default() },
        }
    }
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("All"),
            Self::Only(scopes) => f.debug_tuple("Only").field(scopes).finish(),
            // G19: hashed, as a scope is.
            Self::Prefix(prefix) => write!(f, "Prefix(#{})", ShortHash(prefix)),
        }
    }
}

/// A set of permissions: [`READ`](Self::READ)` | `[`ACT`](Self::ACT), or one of the presets.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Permissions(u8);

impl Permissions {
    /// Nothing at all.
    pub const NONE: Self = Self(0);
    /// Lists, states, reasons and times; no key, no scope and no value.
    pub const READ: Self = Self(1);
    /// The key, the scope and the stored values of a request, and the hashes of values in the audit. Each reveal is audited.
    pub const REVEAL: Self = Self(2);
    /// To resolve and retry requests, and to retry and discard jobs.
    pub const ACT: Self = Self(4);
    /// To erase requests.
    pub const ERASE: Self = Self(8);
    /// To read what was done, by which operator and why.
    pub const AUDIT: Self = Self(16);
    /// To pause foreign phases, which holds back the requests of every scope.
    pub const PAUSE: Self = Self(32);
    /// To start bulk acts, in addition to the permission for the act itself.
    pub const BULK: Self = Self(64);

    const NAMED: [(Self, &'static str); 7] = [
        (Self::READ, "read"),
        (Self::REVEAL, "reveal"),
        (Self::ACT, "act"),
        (Self::ERASE, "erase"),
        (Self::AUDIT, "audit"),
        (Self::PAUSE, "pause"),
        (Self::BULK, "bulk"),
    ];

    /// Reads only: [`READ`](Self::READ).
    #[must_use]
    pub fn viewer() -> Self {
        Self::READ
    }

    /// For the person on call: [`READ`](Self::READ), [`ACT`](Self::ACT), [`AUDIT`](Self::AUDIT),
    /// [`PAUSE`](Self::PAUSE) and [`BULK`](Self::BULK).
    #[must_use]
    pub fn responder() -> Self {
        Self::READ | Self::ACT | Self::AUDIT | Self::PAUSE | Self::BULK
    }

    /// Everything.
    #[must_use]
    pub fn admin() -> Self {
        Self::NAMED.iter().fold(Self::NONE, |all, (one, _)| all | *one)
    }

    /// These permissions and `others`, like `|`, in a constant.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Whether this set contains all of `others`.
    #[must_use]
    pub fn contain(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }
}

impl BitOr for Permissions {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.and(other)
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::NAMED.iter().filter(|(one, _)| self.contain(*one));
        let names: Vec<&str> = named.map(|(_, name)| *name).collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(" and "))
    }
}

impl fmt::Debug for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permissions({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preset_contains_what_it_says() {
        let all = [
            Permissions::READ,
            Permissions::REVEAL,
            Permissions::ACT,
            Permissions::ERASE,
            Permissions::AUDIT,
            Permissions::PAUSE,
            Permissions::BULK,
        ];
        let held = |held: Permissions| all.map(|one| held.contain(one));
        assert_eq!(held(Permissions::NONE), [false; 7]);
        assert_eq!(held(Permissions::viewer()), [true, false, false, false, false, false, false]);
        assert_eq!(held(Permissions::responder()), [true, false, true, false, true, true, true]);
        assert_eq!(held(Permissions::admin()), [true; 7]);
        assert_eq!(
            Permissions::responder().to_string(),
            "read and act and audit and pause and bulk"
        );
    }

    #[test]
    fn an_actor_has_a_name_that_fits_a_line() {
        let of = |name: &str| Actor::new(name, Permissions::viewer(), Scopes::All).is_ok();
        assert!(of("ada") && of(&"ä".repeat(200)));
        assert!(!of("") && !of("  ") && !of("a\nb") && !of(&"a".repeat(201)));
    }

    #[test]
    fn g16_limits_are_those_of_the_scopes() {
        let scope = |text: &str| Scope::new(text).unwrap();
        let allows =
            |scopes: Scopes| ["eu/a", "eu/b", "us/a"].map(|one| scopes.clone().limits().allow(one));
        assert_eq!(allows(Scopes::All), [true; 3]);
        assert_eq!(allows(Scopes::Only(vec![scope("eu/b")])), [false, true, false]);
        assert_eq!(allows(Scopes::Only(vec![])), [false; 3]);
        assert_eq!(allows(Scopes::Prefix("eu/".into())), [true, true, false]);
    }
}
