//! [`escaped`]: a document as a terminal may show it, too.

use crate::plain::is_shown;

/// The same document, in which each letter that would move a cursor or turn a line is escaped. JSON has such letters
/// in its texts only, where they may be written either way; what is beside of them is white space.
pub(crate) fn escaped(document: &str) -> String {
    let mut out = String::with_capacity(document.len());
    for letter in document.chars() {
        match is_shown(letter) || matches!(letter, '\n' | '\r' | '\t') {
            true => out.push(letter),
            // None of them takes two units.
            false => out.push_str(&format!("\\u{:04x}", u32::from(letter))),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn what_is_stored_does_not_move_the_cursor_and_stays_what_it_is() {
        let stored = Value::from("a\u{1b}[2J\u{9b}31m\u{7f}\u{202e}b\u{61c}ä\n");
        for document in [stored.to_string(), format!("[\n\t{stored},\r\n1.50]")] {
            let told = escaped(&document);
            assert!(told.chars().all(|letter| is_shown(letter) || "\n\r\t".contains(letter)));
            let both = [&document, &told].map(|text| serde_json::from_str::<Value>(text).unwrap());
            assert_eq!(both[0], both[1], "{told}");
        }
    }
}
