//! [`assert_sound`]: finds, in a test, parameter types that compile but are not stored faithfully.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::fingerprint::{FingerprintRule, RequestOrigin, Step, fingerprint};
use crate::roundtrip::{self, Because, Loss, Order, difference};

/// How often the stored form is read: a set of two has the same order twice in half of the cases.
const READINGS: u32 = 32;

/// Panics unless a request can be stored, read back and compared: for a test of each request type.
///
/// Later attempts see the stored request, and a retry is recognized by its fingerprint. This test finds what is lost or
/// changed by storing it, before the first crash does:
///
/// | trap | found by | remedy |
/// |---|---|---|
/// | a field with `#[serde(skip)]`, or skipped if empty without a default | another value is read back | serialize it, or remove it from the type |
/// | a `Serialize` that redacts (`"***"`) | another value is read back | serialize the secret, and encrypt at rest with a [`Codec`](crate::codec::Codec) |
/// | a `HashSet`, or a `Vec` made of one | another order each time | `BTreeSet`, `BTreeMap`, or sort it |
/// | `Utc::now()`, a random id | another fingerprint each time the request is constructed | [`created_at`](crate::RequestContext::created_at) and [`uuid`](crate::RequestContext::uuid) in a phase |
/// | NaN, a map whose keys are tuples, an untagged enum whose variants look alike, `Some(None)` | no fingerprint, or another value is read back | refuse it where the request is parsed; a list of pairs; a tag; one `Option` |
///
/// `request` constructs the request as for a client's call: best from a body, so that defaults are tested, too.
/// Fill each collection with at least two elements, and test each optional field both present and
/// absent. The type needs `PartialEq`. A test in `tests/` sees the library as it is compiled without `cfg(test)`, so derive it
/// without a condition; only for a test in the library itself may it be `#[cfg_attr(test, derive(PartialEq))]`.
///
/// ```
/// use atomic_phases::request::assert_sound;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, PartialEq)]
/// struct CreateRide { user_id: i64, #[serde(default)] tags: Vec<String> }
///
/// assert_sound(|| serde_json::from_str::<CreateRide>(r#"{"user_id": 1}"#).unwrap());
/// assert_sound(|| CreateRide { user_id: 1, tags: vec!["night".into(), "child seat".into()] });
/// ```
///
/// # Panics
/// If the request is not sound, with the place and the rule. The text contains no value.
#[track_caller]
#[allow(clippy::panic)]
pub fn assert_sound<R>(request: impl Fn() -> R)
where
    R: Serialize + DeserializeOwned + PartialEq,
{
    if let Err(why) = judge(request) {
        panic!("the request is not sound: {why}");
    }
}

fn judge<R>(request: impl Fn() -> R) -> Result<(), String>
where
    R: Serialize + DeserializeOwned + PartialEq,
{
    let origin = RequestOrigin::default();
    let taken = |request: &R| fingerprint(&origin, request).map_err(|error| error.to_string());
    let made = request();
    let fingerprint = taken(&made)?;

    let again = request();
    if taken(&again)? != fingerprint {
        return Err(match difference(&made, &again, Order::Counts) {
            Some(Loss { path, because: Because::Order }) => {
                sentence(&path, FingerprintRule::Unordered)
            }
            loss => format!(
                "{} is another value each time that the request is made, so that a retry would look like \
                 another request; take a time or an id in a phase, by `ctx.created_at()` and `ctx.uuid(n)`",
                place(&path_of(loss))
            ),
        });
    }

    let stored = roundtrip::stored(&made).map_err(|loss| {
        let rule = match loss.because {
            Because::NotRead => FingerprintRule::NotRead,
            _ => FingerprintRule::NotStable,
        };
        sentence(&loss.path, rule)
    })?;
    for _ in 0..READINGS {
        let read: R = serde_json::from_str(stored.get()).map_err(|_| "it cannot be read back")?;
        if taken(&read)? != fingerprint {
            return Err(match difference(&made, &read, Order::Counts) {
                Some(Loss { path, because: Because::Order }) => {
                    sentence(&path, FingerprintRule::Unordered)
                }
                loss => sentence(&path_of(loss), FingerprintRule::NotStable),
            });
        }
        if read != made {
            return Err("what is read back from its stored form is written alike and is not equal: a \
                member is skipped, or its `Serialize` leaves something out (a redaction); make it part of \
                what is serialized, and encrypt it at rest with a `Codec`"
                .to_owned());
        }
    }
    Ok(())
}

fn sentence(path: &[Step], rule: FingerprintRule) -> String {
    format!("{}: {rule}", place(path))
}

fn path_of(loss: Option<Loss>) -> Vec<Step> {
    loss.map_or_else(Vec::new, |loss| loss.path)
}

fn place(path: &[Step]) -> String {
    match Step::path(path.iter()) {
        path if path.is_empty() => "the request".to_owned(),
        path => format!("`{path}`"),
    }
}
