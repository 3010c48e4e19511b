//! Cuts the hooks of fault injection out of Rust files, in place: `unhook FILE…`, for `benches/hooks`,
//! which compiles it with rustc alone. What is cut becomes blank, so that each line and column stays
//! where it was. It knows the forms that the hooks have; `benches/hooks` looks for what it missed.

use std::ops::Range;

const ATTRIBUTE: &str = "#[cfg(feature = \"fault-injection\")]";
const NEGATED: [&str; 2] = [
    "#[cfg(not(feature = \"fault-injection\"))]",
    "#[cfg_attr(not(feature = \"fault-injection\"), doc(hidden))]",
];

/// Each with how many arguments stand before the code that stays.
const AROUND_CODE: [(&str, usize); 3] = [("committing!(", 2), ("inside!(", 1), ("carried!(", 0)];

fn main() {
    for file in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, unhooked(&text)).unwrap();
    }
}

fn unhooked(text: &str) -> Vec<u8> {
    let mut source = Source { text: text.into(), code: code_of(text) };
    while let Some(at) = source.find_text(ATTRIBUTE) {
        let end = source.item_end(at + ATTRIBUTE.len());
        source.blank(source.with_what_is_above(at)..end);
    }
    while let Some(at) = source.find_code("pub mod fault;") {
        source.blank(source.with_what_is_above(at)..source.item_end(at));
    }
    for attribute in NEGATED {
        while let Some(at) = source.find_text(attribute) {
            source.blank(at..at + attribute.len());
        }
    }
    while let Some(at) = source.find_code("reach!(") {
        source.blank(at..source.item_end(at));
    }
    for (hook, before) in AROUND_CODE {
        while let Some(at) = source.find_code(hook) {
            // The parentheses stay around the code.
            let open = at + hook.len() - 1;
            let code = (0..before).fold(open + 1, |from, _| source.argument_end(from));
            source.blank(at..open);
            source.blank(open + 1..code);
        }
    }
    source.blank_comments_about("fault-injection");
    source.text
}

struct Source {
    text: Vec<u8>,
    /// The same with blanks for comments, strings and characters.
    code: Vec<u8>,
}

impl Source {
    fn blank(&mut self, range: Range<usize>) {
        for byte in self.text[range.clone()].iter_mut().chain(&mut self.code[range]) {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
    }

    fn find_text(&self, what: &str) -> Option<usize> {
        let found = |at: &usize| self.text[*at..].starts_with(what.as_bytes());
        (0..self.text.len()).find(|at| self.code[*at] == b'#' && found(at))
    }

    fn find_code(&self, what: &str) -> Option<usize> {
        (0..self.code.len()).find(|at| {
            let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
            self.code[*at..].starts_with(what.as_bytes())
                && !self.code[..*at].last().is_some_and(is_word)
        })
    }

    /// Where the docs and attributes above begin, which belong to the same item.
    fn with_what_is_above(&self, at: usize) -> usize {
        let line = |end: usize| {
            self.text[..end]
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |newline| newline + 1)
        };
        let mut start = line(at);
        while start > 0 {
            let above = line(start - 1);
            let text = self.text[above..start].trim_ascii_start();
            if !text.starts_with(b"///") && !text.starts_with(b"#[") {
                break;
            }
            start = above;
        }
        start
    }

    /// The end of an item, a statement, a match arm or a field.
    fn item_end(&self, from: usize) -> usize {
        let mut start = self.past_blanks(from);
        while self.code[start..].starts_with(b"#[") {
            start = self.past_blanks(self.closing(start + 1) + 1);
        }
        let starts_with = |words: &[&str]| {
            let text = self.code[start..].strip_prefix(b"pub ").unwrap_or(&self.code[start..]);
            words.iter().any(|word| text.starts_with(word.as_bytes()))
        };
        let to_semicolon = starts_with(&["use ", "let ", "return ", "const ", "mod ", "reach!"]);
        let to_brace = starts_with(&["fn ", "async fn ", "pub(super) async fn ", "if "]);
        let mut at = start;
        loop {
            match self.code[at] {
                b';' => return at + 1,
                b',' if !to_semicolon && !to_brace => return at + 1,
                // The last one of those that it stands among.
                b')' | b']' | b'}' => return at,
                b'(' | b'[' => at = self.closing(at),
                b'{' => {
                    at = self.closing(at);
                    if !to_semicolon {
                        return at + 1;
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Past the comma behind an argument.
    fn argument_end(&self, from: usize) -> usize {
        let mut at = from;
        while self.code[at] != b',' {
            assert!(!b")]}".contains(&self.code[at]), "an argument is missing");
            at = if b"([{".contains(&self.code[at]) { self.closing(at) + 1 } else { at + 1 };
        }
        at + 1
    }

    /// The bracket that closes the one at `open`.
    fn closing(&self, open: usize) -> usize {
        let mut depth = 0;
        for at in open.. {
            match self.code[at] {
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return at;
            }
        }
        unreachable!()
    }

    fn past_blanks(&self, from: usize) -> usize {
        (from..).find(|at| !self.code[*at].is_ascii_whitespace()).unwrap()
    }

    fn blank_comments_about(&mut self, word: &str) {
        let mut start = 0;
        while start < self.text.len() {
            let rest = &self.text[start..];
            let end = start + rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            let line = std::str::from_utf8(&self.text[start..end]).unwrap();
            if line.contains(word) && self.code[start..end].trim_ascii().is_empty() {
                self.blank(start..end);
            }
            start = end + 1;
        }
    }
}

/// The text with blanks for comments, strings and characters.
fn code_of(text: &str) -> Vec<u8> {
    let (bytes, mut code) = (text.as_bytes(), text.as_bytes().to_vec());
    let mut at = 0;
    while at < bytes.len() {
        let end = at + literal_or_comment(&text[at..]);
        if end > at && raw_string_is_a_word(bytes, at) {
            at += 1;
            continue;
        }
        for byte in &mut code[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        // Some character, of which only the first byte can begin anything.
        at = end.max(at + text[at..].chars().next().map_or(1, char::len_utf8));
    }
    code
}

/// An r at the end of a word begins no raw string.
fn raw_string_is_a_word(bytes: &[u8], at: usize) -> bool {
    bytes[at] == b'r' && at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
}

/// How long the comment, string or character is that stands at the beginning; 0 if none does.
fn literal_or_comment(text: &str) -> usize {
    let up_to = |from: usize, end: &str| match text[from..].find(end) {
        Some(length) => from + length + end.len(),
        None => text.len(),
    };
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return up_to(2, "*/");
    }
    if let Some(raw) = text.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        return match raw[hashes..].starts_with('"') {
            true => up_to(hashes + 2, &format!("\"{}", "#".repeat(hashes))),
            false => 0,
        };
    }
    let quote = text.chars().next().unwrap();
    let mut chars = text.char_indices().skip(1);
    match quote {
        '"' => {
            while let Some((at, char)) = chars.next() {
                match char {
                    '\\' => drop(chars.next()),
                    '"' => return at + 1,
                    _ => {}
                }
            }
            text.len()
        }
        '\'' => match chars.next() {
            // Past what is escaped, which may be a quote.
            Some((_, '\\')) => up_to(3, "'"),
            // Else it is a lifetime.
            _ => chars.next().filter(|(_, char)| *char == '\'').map_or(0, |(at, _)| at + 1),
        },
        _ => 0,
    }
}
