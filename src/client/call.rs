//! [`KeyedCall`]: one logical call, its key and its attempts.

use std::time::Duration;

use crate::key::IdempotencyKey;
use crate::setting::{SettingError, refused};

use super::decide::{Attempt, Decision, End, decide};
use super::policy::RetryPolicy;

/// One logical call: "book this ride", however many requests that takes. Its idempotency key is
/// created with it, once. Not `Clone`: a second call is another call, with another key.
///
/// A caller that must survive its own crash stores the key before the first attempt, and continues
/// with [`with_key`](Self::with_key).
#[derive(Debug)]
pub struct KeyedCall {
    key: IdempotencyKey,
    policy: RetryPolicy,
    attempts: u32,
}

/// How a key is written in the `Idempotency-Key` header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyForm {
    /// As is: what Stripe and most others expect. Right for keys of letters, digits, `-` and `_`,
    /// such as those created here and those derived for foreign systems. A key that begins with `"` is
    /// [refused](KeyedCall::check), because a server would read it as the quoted form of another key.
    #[default]
    Bare,
    /// As a quoted structured-field string, as the IETF draft requires. Right for every key.
    Quoted,
}

impl KeyedCall {
    /// A new call, with a new random key (a version 4 UUID).
    #[must_use]
    pub fn new(policy: RetryPolicy) -> Self {
        Self::with_key(IdempotencyKey::random(), policy)
    }

    /// A call with an existing key: stored by an earlier run of this program, or derived.
    #[must_use]
    pub fn with_key(key: impl Into<IdempotencyKey>, policy: RetryPolicy) -> Self {
        Self { key: key.into(), policy, attempts: 0 }
    }

    /// The key that each attempt sends.
    #[must_use]
    pub fn key(&self) -> &IdempotencyKey {
        &self.key
    }

    /// Whether the policy can work, and a server cannot take the key in this form for another one. `Caller::send` asks before
    /// it sends anything; an application that sends by itself asks before the first attempt.
    ///
    /// # Errors
    /// [`SettingError`] names the setting that cannot work, and for a key the form to use.
    pub fn check(&self, form: KeyForm) -> Result<(), SettingError> {
        const BOUND: &str =
            "Quoted for a key that begins with a double quote: a server would read another key";
        self.policy.check()?;
        match form {
            KeyForm::Bare if self.key.as_str().starts_with('"') => {
                Err(refused("KeyForm", "Bare", BOUND))
            }
            KeyForm::Bare | KeyForm::Quoted => Ok(()),
        }
    }

    /// The value of the `Idempotency-Key` header.
    #[must_use]
    pub fn header_value(&self, form: KeyForm) -> String {
        let key = self.key.as_str();
        match form {
            KeyForm::Bare => key.to_owned(),
            KeyForm::Quoted => format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\"")),
        }
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &RetryPolicy {
        &self.policy
    }

    /// How many attempts have ended.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Counts a finished attempt, and says what to do next: [`decide`] with this call's policy.
    /// `elapsed` is the time since the first attempt began, `random` uniform over `u32`.
    #[must_use]
    pub fn decide(&mut self, end: End, elapsed: Duration, random: u32) -> Decision {
        self.attempts = self.attempts.saturating_add(1);
        decide(&self.policy, &Attempt { number: self.attempts, end, elapsed, random })
    }
}
