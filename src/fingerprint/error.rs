//! [`FingerprintError`]: which part of the parameters has no fingerprint, and what to do.
//!
//! It names fields and positions. It never holds a value, and the key of a map is a value (G19).

use std::fmt;

/// How deep objects and arrays may be nested: as deep as serde_json reads them.
pub(crate) const MAX_DEPTH: usize = 128;

/// The request's parameters have no fingerprint. Names the place, and the rule that is violated there.
///
/// ```
/// use atomic_phases::fingerprint::{FingerprintRule, RequestOrigin, fingerprint};
///
/// #[derive(serde::Serialize)]
/// struct Order { items: Vec<Item> }
/// #[derive(serde::Serialize)]
/// struct Item { price: f64 }
///
/// let order = Order { items: vec![Item { price: f64::NAN }] };
/// let error = fingerprint(&RequestOrigin::default(), &order).unwrap_err();
/// assert_eq!(error.path(), "items[0].price");
/// assert_eq!(error.rule(), FingerprintRule::NotFinite);
/// ```
#[derive(Debug, thiserror::Error)]
#[error("no fingerprint of {}: {rule}", self.place())]
pub struct FingerprintError {
    /// From the innermost step outwards: pushed while the error travels up.
    steps: Vec<Step>,
    rule: FingerprintRule,
}

/// What keeps parameters from having a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FingerprintRule {
    /// A float is NaN or infinite.
    #[error(
        "a float that is NaN or infinite has no JSON form, and a resumed run would see another \
         value; refuse it where the request is parsed"
    )]
    NotFinite,
    /// A `serde_json::Number` that no 64-bit integer or float can hold.
    #[error("a number is outside of what 64 bits can hold; refuse it where the request is parsed")]
    NumberOutOfRange,
    /// One member occurs twice in one object.
    #[error(
        "a member occurs twice in one object; look for a flattened field or a rename that repeats \
         the name of another"
    )]
    DuplicateMember,
    /// A map's key is not text.
    #[error(
        "a map's key has to be a string, a number, a bool, a char or a unit variant; use such a \
         key or a list of pairs"
    )]
    MapKey,
    /// Objects and arrays are nested deeper than 128.
    #[error("objects and arrays are nested deeper than {}; flatten the parameters", MAX_DEPTH)]
    TooDeep,
    /// An `Unfingerprinted` that is not a field of a struct.
    #[error(
        "`Unfingerprinted` leaves out a member and stands where none is; make it the type of a \
         field, and write `Unfingerprinted<Option<T>>` for an optional one"
    )]
    NotAMember,
    /// The elements of an array come back from their stored form in another order: a `HashSet`.
    #[error(
        "its elements have another order each time that it is read, so that a retry would look like \
         another request; use a `BTreeSet`, or a `Vec` that is sorted where the request is parsed"
    )]
    Unordered,
    /// The stored form of the value does not decode.
    #[error(
        "it does not deserialize from what it serializes to, so that no later attempt could read it; \
         give a member that is skipped `#[serde(default)]`, and both halves of serde the same form"
    )]
    NotRead,
    /// The stored form of the value decodes as another value.
    #[error(
        "another value comes back from its stored form, so that a retry would look like another \
         request; a member that is skipped needs `#[serde(default)]` with the value that was skipped, an \
         untagged enum variants that differ, and an `Option` none inside of it"
    )]
    NotStable,
    /// The value's own `Serialize` implementation reported an error. Its text is not kept.
    #[error(
        "its `Serialize` implementation failed; its message is withheld, because it may quote the value: \
         serialize it in a test to see it"
    )]
    Refused,
}

/// One step of the way from a value to a place within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A field or variant: a name from the source code.
    Field(&'static str),
    /// A member of a map: its name came with the request, so it is not kept.
    Entry,
    /// An element.
    Index(usize),
}

impl Step {
    /// Steps from the outermost inwards, as a reader wants them.
    pub(crate) fn path<'s>(steps: impl Iterator<Item = &'s Self>) -> String {
        let mut path = String::new();
        for step in steps {
            match step {
                Self::Field(name) if path.is_empty() => path.push_str(name),
                Self::Field(name) => {
                    path.push('.');
                    path.push_str(name);
                }
                Self::Entry => path.push_str("[key]"),
                Self::Index(index) => path.push_str(&format!("[{index}]")),
            }
        }
        path
    }
}

impl FingerprintError {
    pub(super) fn new(rule: FingerprintRule) -> Self {
        Self { steps: Vec::new(), rule }
    }

    /// At the end of `path`, which leads from the parameters inwards.
    pub(crate) fn at(mut path: Vec<Step>, rule: FingerprintRule) -> Self {
        path.reverse();
        Self { steps: path, rule }
    }

    /// The way from the parameters to the place.
    pub(super) fn into_path(mut self) -> Vec<Step> {
        self.steps.reverse();
        self.steps
    }

    /// The same error, seen from one step further out.
    pub(super) fn within(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// The rule that is violated.
    #[must_use]
    pub fn rule(&self) -> FingerprintRule {
        self.rule
    }

    /// The place, as in `items[2].price`; empty for the parameters as a whole. A member of a map,
    /// a flattened field among them, is shown as `[key]`.
    #[must_use]
    pub fn path(&self) -> String {
        Step::path(self.steps.iter().rev())
    }

    fn place(&self) -> String {
        match self.path() {
            path if path.is_empty() => "the request's parameters".to_owned(),
            path => format!("`{path}`"),
        }
    }
}

impl serde::ser::Error for FingerprintError {
    /// The message is dropped: a foreign `Serialize` may put anything into it.
    fn custom<T: fmt::Display>(_message: T) -> Self {
        Self::new(FingerprintRule::Refused)
    }
}
