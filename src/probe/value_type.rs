//! [`ValueType`]: a type whose values are stored, behind functions that do not name it.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::answer::Answers;
use super::question::Question;
use super::written::Written;
use atomic_phases_compat::Shape;

/// A type whose values are stored, without its name. These functions are all that is compiled for each type of an
/// application; what asks them is compiled once.
#[derive(Clone, Copy)]
pub struct ValueType {
    answered: fn(&mut Answers<'_>) -> (bool, Shape, Value),
    written: fn(&str) -> Option<Written>,
    rewritten: fn(&str) -> Option<String>,
    reads: fn(&str) -> bool,
}

impl ValueType {
    /// Of `T`.
    #[must_use]
    pub const fn of<T: Serialize + DeserializeOwned>() -> Self {
        Self {
            answered: answered::<T>,
            written: |json| Written::of(&serde_json::from_str::<T>(json).ok()?),
            rewritten: |json| serde_json::to_string(&serde_json::from_str::<T>(json).ok()?).ok(),
            reads: |json| serde_json::from_str::<T>(json).is_ok(),
        }
    }

    /// Whether stored JSON decodes.
    pub(crate) fn reads(self, json: &str) -> bool {
        (self.reads)(json)
    }

    /// What the type writes after it has read this, if it reads that.
    pub(super) fn rewritten(self, json: &str) -> Option<String> {
        (self.rewritten)(json)
    }

    /// How the type writes what it reads here.
    pub(super) fn written(self, json: &str) -> Option<Written> {
        (self.written)(json)
    }

    /// Asks for a value: whether there is one, what was asked for, and what was given.
    pub(super) fn answered(self, answers: &mut Answers<'_>) -> (bool, Shape, Value) {
        (self.answered)(answers)
    }
}

fn answered<T: Serialize + DeserializeOwned>(answers: &mut Answers<'_>) -> (bool, Shape, Value) {
    let (value, shape, input) = Question::framed(answers, |question| T::deserialize(question));
    if answers.was_forced
        && let Ok(value) = &value
    {
        answers.written = Written::of(value);
    }
    (value.is_ok(), shape, input)
}

impl std::fmt::Debug for ValueType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ValueType")
    }
}
