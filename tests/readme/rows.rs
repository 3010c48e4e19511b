//! SQLite's and MySQL's rows are read by `rows` (`src/store/in_millis/tuple_rows.rs`), because by diesel's `load` a row that is
//! a tuple of tuples takes the compiler minutes.

const STORES: [&str; 2] = ["src/store/mysql", "src/store/sqlite"];

/// A row by name is one type, and no tuple. An atomic number has a `load`, too.
const OTHERS: [&str; 2] = ["sql_query(", "Ordering::"];

fn loads(text: &str) -> Vec<&str> {
    let is_load = |line: &&str| {
        let loads = [".load(", ".load::<", ".get_result(", ".get_result::<(", ".first::<("];
        loads.iter().any(|load| line.contains(load))
            && !OTHERS.iter().any(|other| line.contains(other))
    };
    text.lines().map(str::trim).filter(is_load).collect()
}

#[test]
fn no_row_of_tuples_is_loaded() {
    let mut files = Vec::new();
    for store in STORES {
        super::files(store, &[".rs"], &mut files);
    }
    let found: Vec<_> = files.iter().flat_map(|(_, text)| loads(text)).collect();
    let read = files.iter().filter(|(_, text)| text.contains(".rows")).count();
    assert!(read > 8, "{read}");
    assert!(found.is_empty(), "`rows`, and not diesel's `load`:\n{}", found.join("\n"));
    for seen in ["find.load::<(String, StoredRow)>(conn)", "let rows = look.load(conn)?;"] {
        assert_eq!(loads(seen), [seen]);
    }
}
