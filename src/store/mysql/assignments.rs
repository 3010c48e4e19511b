//! A rule about the texts of this store's updates. MySQL assigns from left to right, and each expression sees what was
//! assigned before it; the standard, and MariaDB with `SIMULTANEOUS_ASSIGNMENT`, let each see the row as it was. Where
//! no expression reads a column that is assigned before it, both come to the same row.

use std::path::Path;

/// The text literals of each item of a source file, one behind the other, with a `?` for what is between two of them.
fn texts(source: &str) -> Vec<String> {
    let mut texts = vec![String::new()];
    let lines = source.lines().filter(|line| !line.trim().starts_with("//"));
    let (mut in_literal, mut between) = (false, false);
    for line in lines {
        let begins = line.starts_with(|first: char| first.is_ascii_lowercase());
        if begins && !in_literal {
            texts.push(String::new());
            between = false;
        }
        let Some(text) = texts.last_mut() else { continue };
        let line = if in_literal { line.trim_start() } else { line };
        let mut signs = line.chars().peekable();
        while let Some(sign) = signs.next() {
            match (sign, in_literal) {
                ('"', true) => (in_literal, between) = (false, false),
                ('"', false) => in_literal = true,
                // An escaped sign, or the end of a line that goes on.
                ('\\', true) => drop(signs.next()),
                // A quote as a character.
                ('\'', false) if signs.peek() == Some(&'"') => drop(signs.next()),
                (sign, true) => text.push(sign),
                (sign, false) if sign.is_alphabetic() && !between => {
                    text.push('?');
                    between = true;
                }
                (_, false) => {}
            }
        }
    }
    texts
}

/// The parts of a text between its commas, outside of brackets.
fn parts(text: &str) -> Vec<&str> {
    let (mut depth, mut from, mut parts) = (0_u32, 0, Vec::new());
    for (at, sign) in text.char_indices() {
        match sign {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}

/// A column, without its table.
fn column(name: &str) -> &str {
    let name = name.trim().trim_matches('?');
    name.rsplit('.').next().unwrap_or(name)
}

/// The columns that are read behind their assignment, and how many are assigned.
fn read_too_late(update: &str) -> (Vec<String>, usize) {
    let Some((_, set)) = update.split_once(" SET ") else { return (Vec::new(), 0) };
    let set = set.split(" WHERE ").next().unwrap_or(set);
    let (mut assigned, mut late): (Vec<&str>, Vec<String>) = (Vec::new(), Vec::new());
    for part in parts(set) {
        let Some((name, value)) = part.split_once(" = ") else { continue };
        let is_of_a_name = |sign: char| sign.is_alphanumeric() || sign == '_';
        let read = value.split(|sign: char| !is_of_a_name(sign));
        late.extend(read.filter(|word| assigned.contains(word)).map(str::to_owned));
        assigned.push(column(name));
    }
    (late, assigned.len())
}

#[test]
fn g11_no_update_reads_a_column_behind_its_assignment() {
    let store = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store");
    let (mut updates, mut assignments) = (0, 0);
    for folder in ["in_millis", "mysql"] {
        for file in std::fs::read_dir(store.join(folder)).unwrap() {
            let path = file.unwrap().path();
            if path.ends_with(file!().rsplit('/').next().unwrap()) {
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            let source = source.split("#[cfg(test)]\nmod tests").next().unwrap();
            for text in texts(source).iter().filter(|text| text.contains("UPDATE atomic_phases_")) {
                let (late, assigned) = read_too_late(text);
                assert!(late.is_empty(), "{late:?} in {text} of {}", path.display());
                updates += 1;
                assignments += assigned;
            }
        }
    }
    println!("{assignments} assignments in {updates} updates");
    assert!(updates >= 15 && assignments >= 60, "{assignments} in {updates}");
}

#[test]
fn what_is_read_too_late_is_found() {
    for (update, found) in [
        ("UPDATE t SET a = 1, b = CASE WHEN a = 1 THEN b ELSE ? END WHERE c = 1", &["a"][..]),
        ("UPDATE t AS j SET j.a = j.a + 1, j.b = least(j.c, j.a) WHERE a = 1", &["a"]),
        ("UPDATE t SET b = CASE WHEN a = 1 THEN b END, a = a + 1, ? WHERE a = b", &[]),
    ] {
        assert_eq!(read_too_late(update).0, found, "{update}");
    }
    let source = "statement! {\n    /// A \"text\".\n    A in D, {\n        a: i64 },\n    \"UPDATE t SET a = \", a,\n    \", \\\n     b = a\"\n}\n";
    let text = texts(source).pop().unwrap();
    assert!(text.ends_with("UPDATE t SET a = ?, b = a"), "{text}");
    assert_eq!(read_too_late(&text).0, ["a"]);
}
