//! [`plain`]: what is stored, as a terminal or a log may show it.

/// Without control characters, and without what turns the direction of a line.
pub(crate) fn plain(text: &str) -> String {
    let is_shown = |letter: char| {
        !letter.is_control()
            && !matches!(letter, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|letter| if is_shown(letter) { letter } else { '\u{fffd}' }).collect()
}
