//! HTTP dates: the three forms that RFC 9110, 5.6.7, asks a recipient to accept.

use chrono::{DateTime, NaiveDateTime, Utc};

/// Reads `Sun, 06 Nov 1994 08:49:37 GMT`, and the two obsolete forms.
pub(super) fn parse(text: &str) -> Option<DateTime<Utc>> {
    let obsolete = |format| NaiveDateTime::parse_from_str(text, format).ok();
    DateTime::parse_from_rfc2822(text)
        .map(|date| date.to_utc())
        .ok()
        .or_else(|| obsolete("%A, %d-%b-%y %H:%M:%S GMT").map(|date| date.and_utc()))
        .or_else(|| obsolete("%a %b %e %H:%M:%S %Y").map(|date| date.and_utc()))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn the_three_forms_of_rfc_9110_are_one_instant() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse(text).map(|date| date.timestamp()), Some(784_111_777), "{text}");
        }
        for text in ["", "tomorrow", "784111777", "Mon, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
