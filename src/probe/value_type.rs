//! How a type is put behind the functions of a [`ValueType`].

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ValueType;
use super::answer::Answers;
use super::question::Question;
use super::written::Written;
use atomic_phases_compat::Shape;

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
