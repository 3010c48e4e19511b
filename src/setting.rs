//! [`SettingError`]: a number or a text of the configuration that cannot work, with the bound that it breaks.
//!
//! Nothing that an application sets is clamped: who sets a number has a reason, and finds out at the start that it does not
//! hold. An argument of a call is refused by that call, such as the number of rows of a page. What another system asks for is
//! bounded instead, such as the back-off of a receiver's `Retry-After`: the application cannot change what it asks for.
//! `tests/readme/refusals.rs` has the list of these.

use std::time::Duration;

/// A number or a text of the configuration that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting} is {value}, but it must be {bound}")]
#[non_exhaustive]
pub struct SettingError {
    /// The method or field that sets it.
    pub setting: &'static str,
    /// What it was given.
    pub value: String,
    /// What it must be instead.
    pub bound: String,
}

pub(crate) const MILLISECOND: Duration = Duration::from_millis(1);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
pub(crate) const DAY: Duration = Duration::from_secs(24 * 3600);
/// The shortest lease and the longest.
pub(crate) const LEASE: (Duration, Duration) = (Duration::from_millis(100), DAY);
/// The longest time that is kept in a row: every database's timestamps hold it.
pub(crate) const CENTURY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

pub(crate) fn duration(
    setting: &'static str,
    value: Duration,
    least: Duration,
    most: Duration,
) -> Result<(), SettingError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let bound = format!("{least:?} to {most:?}");
    Err(SettingError { setting, value: format!("{value:?}"), bound })
}

/// A text that is not what `bound` says.
pub(crate) fn refused(setting: &'static str, value: &str, bound: &str) -> SettingError {
    SettingError { setting, value: shown(value, 100), bound: bound.to_owned() }
}

/// A text in quotes, with `…` behind them if it has more than `most` characters.
fn shown(value: &str, most: usize) -> String {
    let cut: String = value.chars().take(most).collect();
    let more = if cut.len() < value.len() { "…" } else { "" };
    format!("{cut:?}{more}")
}

/// A text that is shown to people, in `most` characters.
pub(crate) fn text(setting: &'static str, value: &str, most: usize) -> Result<(), SettingError> {
    if value.chars().count() <= most && !value.contains(char::is_control) {
        return Ok(());
    }
    let value = shown(value, most + 20);
    let bound = format!("of {most} characters at most, none of them a control character");
    Err(SettingError { setting, value, bound })
}

pub(crate) fn number(
    setting: &'static str,
    value: impl TryInto<u64>,
    least: u64,
    most: u64,
) -> Result<(), SettingError> {
    let value = value.try_into().unwrap_or(u64::MAX);
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(SettingError { setting, value: value.to_string(), bound: format!("{least} to {most}") })
}
