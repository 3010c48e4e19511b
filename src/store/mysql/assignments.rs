//! A rule about the texts of this store's updates. MySQL assigns from left to right, and each expression sees what was
//! assigned before it; the standard, and MariaDB with `SIMULTANEOUS_ASSIGNMENT`, let each see the row as it was. Where
//! no expression reads a column that is assigned before it, both come to the same row.

use std::collections::HashMap;
use std::path::Path;

/// A piece of a source file: a text literal (`true`), or the code around it.
type Piece = (bool, String);

/// The pieces of each item of a source file.
fn items(source: &str) -> Vec<Vec<Piece>> {
    let mut items = vec![Vec::new()];
    let mut in_literal = false;
    for line in source.lines().filter(|line| !line.trim().starts_with("//")) {
        // A bound of an item's stands behind its name.
        let begins = line.starts_with(|first: char| first.is_ascii_lowercase());
        let begins = begins && !line.starts_with("where");
        if begins && !in_literal {
            items.push(Vec::new());
        }
        let Some(item) = items.last_mut() else { continue };
        let line = if in_literal { line.trim_start() } else { line };
        let mut signs = line.chars().peekable();
        while let Some(sign) = signs.next() {
            match (sign, in_literal) {
                ('"', _) => in_literal = !in_literal,
                // An escaped sign, or the end of a line that goes on.
                ('\\', true) => drop(signs.next()),
                // A quote as a character.
                ('\'', false) if signs.peek() == Some(&'"') => drop(signs.next()),
                _ => push(item, in_literal, sign),
            }
        }
        if !in_literal {
            push(item, false, ' ');
        }
    }
    items
}

fn push(item: &mut Vec<Piece>, in_literal: bool, sign: char) {
    if item.last().is_none_or(|(is_literal, _)| *is_literal != in_literal) {
        item.push((in_literal, String::new()));
    }
    if let Some((_, piece)) = item.last_mut() {
        piece.push(sign);
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_of_a_name = |sign: char| sign.is_alphanumeric() || sign == '_';
    text.split(move |sign: char| !is_of_a_name(sign)).filter(|word| !word.is_empty())
}

/// The code in front of an item's first literal.
fn head(item: &[Piece]) -> &str {
    match item.first() {
        Some((false, code)) => code,
        _ => "",
    }
}

/// The literals of an item, one behind the other. Between them, and between the fields of a statement and its first one,
/// each word of the code is the text that it stands for, or a `?`.
fn text(item: &[Piece], named: &HashMap<String, String>) -> String {
    let mut text = String::new();
    for (at, (is_literal, piece)) in item.iter().enumerate() {
        if *is_literal {
            text.push_str(piece);
            continue;
        }
        let code = match at {
            0 => piece.split_once('}').map_or("", |(_, behind_fields)| behind_fields),
            _ => piece.as_str(),
        };
        for word in words(code) {
            text.push_str(named.get(word).map_or("?", String::as_str));
        }
    }
    text
}

/// The text of each item of a source file. The file's constants are in it, and what the file has as parts of statements,
/// where a field has the type of one.
fn texts(source: &str) -> Vec<String> {
    let items = items(source);
    let (mut constants, mut parts) = (HashMap::new(), Vec::new());
    for item in &items {
        let own = text(item, &HashMap::new());
        if let Some((before, _)) = head(item).split_once(": &str =") {
            constants.insert(words(before).last().unwrap_or_default().to_owned(), own);
        } else if let Some((_, part)) = head(item).split_once("Part<D> for ") {
            parts.push((format!(": {}", words(part).next().unwrap_or_default()), own));
        }
    }
    let whole = |item: &Vec<Piece>| {
        let mut named = constants.clone();
        for (part, text) in &parts {
            if let Some((before, _)) = head(item).split_once(part.as_str()) {
                named.insert(words(before).last().unwrap_or_default().to_owned(), text.clone());
            }
        }
        text(item, &named)
    };
    items.iter().map(whole).collect()
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

/// What an update assigns: up to the `WHERE` that is outside of brackets.
fn assignments(update: &str) -> Option<&str> {
    let list = update
        .split_once(" SET ")
        .or_else(|| update.split_once(" ON DUPLICATE KEY UPDATE "))
        .map(|(_, list)| list)?;
    let is_outside = |at: &usize| {
        let before = &list[..*at];
        before.matches('(').count() == before.matches(')').count()
    };
    let end = list.match_indices(" WHERE ").map(|(at, _)| at).find(is_outside);
    Some(&list[..end.unwrap_or(list.len())])
}

/// The columns that are read behind their assignment, and how many are assigned.
fn read_too_late(update: &str) -> (Vec<String>, usize) {
    let (mut assigned, mut late): (Vec<&str>, Vec<String>) = (Vec::new(), Vec::new());
    for part in parts(assignments(update).unwrap_or_default()) {
        let Some((name, value)) = part.split_once(" = ") else { continue };
        late.extend(words(value).filter(|word| assigned.contains(word)).map(str::to_owned));
        assigned.push(column(name));
    }
    (late, assigned.len())
}

#[test]
fn g11_no_update_reads_a_column_behind_its_assignment() {
    let store = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store");
    let (mut updates, mut assignments) = (0, 0);
    for folder in ["in_millis", "mysql", "mysql/fault"] {
        for file in std::fs::read_dir(store.join(folder)).unwrap() {
            let path = file.unwrap().path();
            if path.is_dir() || path.ends_with(file!().rsplit('/').next().unwrap()) {
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            let source = source.split("#[cfg(test)]\nmod tests").next().unwrap();
            for text in texts(source).iter().filter(|text| text.contains("UPDATE ")) {
                let (late, assigned) = read_too_late(text);
                assert!(late.is_empty(), "{late:?} in {text} of {}", path.display());
                updates += usize::from(assigned > 0);
                assignments += assigned;
            }
        }
    }
    println!("{assignments} assignments in {updates} updates");
    assert!(updates >= 20 && assignments >= 110, "{assignments} in {updates}");
}

#[test]
fn what_is_read_too_late_is_found() {
    for (update, found) in [
        ("UPDATE t SET a = 1, b = CASE WHEN a = 1 THEN b ELSE ? END WHERE c = 1", &["a"][..]),
        ("UPDATE t AS j SET j.a = j.a + 1, j.b = least(j.c, j.a) WHERE a = 1", &["a"]),
        ("UPDATE t SET b = CASE WHEN a = 1 THEN b END, a = a + 1, ? WHERE a = b", &[]),
        // Behind a subquery, and of a table that is one.
        ("UPDATE t SET a = 1, b = EXISTS (SELECT 1 FROM u WHERE c = 1), d = a WHERE e = 1", &["a"]),
        (
            "UPDATE (SELECT a FROM t WHERE b = 1) AS d JOIN t ON t.a = d.a SET t.b = 1, t.c = t.b",
            &["b"],
        ),
        ("INSERT INTO t VALUES (1) ON DUPLICATE KEY UPDATE a = 1, b = a", &["a"]),
    ] {
        assert_eq!(read_too_late(update).0, found, "{update}");
    }
    let statement = "statement! {\n    /// A \"text\".\n    A in D, {\n        a: i64, event: New },\n    \"UPDATE t SET a = \", a,\n    \", \\\n     b = a\"\n}\n";
    let constants = "const FIRST: &str = \"UPDATE t SET a = 1, \\\n    c = (2 + \";\nconst SECOND: &str = \"), b = a\";\n\nstatement! {\n    A in D, {},\n    [FIRST], a, [SECOND], \" WHERE c = 1\"\n}\n";
    let part = "impl<D: InMillis> Part<D> for New\nwhere\n    D: Db {\n    f(\", b = a\");\n}\n\nstatement! {\n    A in D, { a: i64, event: New },\n    \"UPDATE t SET a = \", a, event, \" WHERE c = 1\"\n}\n";
    for (source, whole) in [
        (statement, "UPDATE t SET a = ?, b = a"),
        (constants, "UPDATE t SET a = 1, c = (2 + ?), b = a WHERE c = 1"),
        (part, "UPDATE t SET a = ?, b = a WHERE c = 1"),
    ] {
        let text = texts(source).pop().unwrap();
        assert_eq!(text, whole);
        assert_eq!(read_too_late(&text).0, ["a"]);
    }
}
