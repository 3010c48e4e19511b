//! What is stored, as a terminal or a log may show it.

pub(crate) fn is_shown(letter: char) -> bool {
    let turns = matches!(
        letter,
        '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    !letter.is_control() && !turns
}

/// Without control characters, and without what turns the direction of a line.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|letter| if is_shown(letter) { letter } else { '\u{fffd}' }).collect()
}
