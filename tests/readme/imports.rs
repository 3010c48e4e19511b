//! Imports go down: from a room, which is a module of the crate, to a lower one. No files import each other in a
//! circle, except a module and its parts; nor do the files and folders that are side by side in a folder. So a reader can follow a request from the top to the bottom, and a change
//! has one place.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The rooms, from the top to the bottom. Those of one line do not import each other in a circle either.
const ROOMS: [&[&str]; 12] = [
    &["console", "http", "worker", "fault", "simulation"],
    &["compat"],
    &["ops"],
    &["engine"],
    &["client", "config", "replay_cache"],
    &["request"],
    &["phase"],
    &["store"],
    &["observe"],
    &["codec", "definition", "derived_key", "job", "traces"],
    &["probe"],
    &[
        "caller",
        "chance",
        "error",
        "fingerprint",
        "key",
        "latch",
        "lock",
        "moment",
        "number",
        "panics",
        "redis_connection",
        "repeats",
        "roundtrip",
        "setting",
        "task",
        "movable_task",
    ],
];

/// Modules that only re-export others: for generated code, and for a file with phases. They are above everything.
const ENTRANCES: [&str; 2] = ["__private", "prelude"];

/// Where the engine asks what a test has arranged. Builds without fault injection and simulation have none of it.
const HOOKS: [(&str, &str); 8] = [
    ("chance", "simulation"),
    ("engine", "fault"),
    ("engine", "simulation"),
    ("fault", "simulation"),
    ("moment", "fault"),
    ("moment", "simulation"),
    ("store", "simulation"),
    ("task", "simulation"),
];

/// Files of unit tests that name what is above them, as a store that they run on.
const OF_TESTS: [&str; 1] = ["store/guards"];

type Module = Vec<String>;

struct Sources(BTreeMap<Module, String>);

impl Sources {
    fn read(root: &str) -> Self {
        let (mut files, mut sources) = (Vec::new(), BTreeMap::new());
        super::files(root, &[".rs"], &mut files);
        for (path, text) in files {
            let path = path.strip_prefix(root).unwrap().with_extension("");
            sources.insert(module(&path), code(&text));
        }
        Self(sources)
    }

    /// What a path in a module names, from the root of the crate on. `None`: a name of another crate.
    fn absolute(&self, within: &Module, path: &[String]) -> Option<Module> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            // The crate also names itself this way, for the code that the macro generates.
            "crate" | "atomic_phases" => Some(rest.to_vec()),
            "self" => Some([within, rest].concat()),
            "super" => {
                let above = within[..within.len().checked_sub(1)?].to_vec();
                match rest.first().is_some_and(|next| next == "super") {
                    true => self.absolute(&above, rest),
                    false => Some([&above, rest].concat()),
                }
            }
            _ => {
                let child = [within.as_slice(), std::slice::from_ref(first)].concat();
                self.0.contains_key(&child).then(|| [within, path].concat())
            }
        }
    }

    /// What a module imports by `use`, with its local name.
    fn imports(&self, of: &Module) -> Vec<(Module, String)> {
        let trees = self.0[of].split("use ").skip(1).filter_map(|rest| rest.split_once(';'));
        let paths = trees.flat_map(|(tree, _)| paths(tree));
        let known = paths.filter_map(|(path, name)| Some((self.absolute(of, &path)?, name)));
        known.collect()
    }

    /// The file that declares something, past any re-export.
    fn file_of(&self, path: &[String], steps: usize) -> Option<Module> {
        let depth = (0..=path.len()).rev().find(|depth| self.0.contains_key(&path[..*depth]))?;
        let (file, rest) = (path[..depth].to_vec(), &path[depth..]);
        let Some(name) = rest.first().filter(|_| steps > 0) else { return Some(file) };
        let again = self.imports(&file).into_iter().find(|(of, known)| known == name && of != path);
        match again {
            Some((of, _)) => self.file_of(&[of.as_slice(), &rest[1..]].concat(), steps - 1),
            None => Some(file),
        }
    }

    /// The files that a file needs, except for its parents and its children.
    fn needs(&self, file: &Module) -> BTreeSet<Module> {
        let text = &self.0[file];
        let starts = ["crate::", "atomic_phases::", "super::", "self::"];
        let inline = starts.iter().flat_map(|start| {
            text.match_indices(start).map(|(at, _)| {
                let end =
                    |letter: char| !letter.is_alphanumeric() && letter != '_' && letter != ':';
                let path = text[at..].split(end).next().unwrap_or_default();
                path.split("::")
                    .filter(|name| !name.is_empty())
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
        });
        let inline = inline.filter_map(|path| self.absolute(file, &path));
        let used = self.imports(file).into_iter().map(|(path, _)| path);
        used.chain(inline)
            .filter_map(|path| self.file_of(&path, 12))
            .filter(|found| {
                let is_hook = |hook: &(&str, &str)| file[0] == hook.0 && found[0] == hook.1;
                !found.is_empty()
                    && !found.starts_with(file)
                    && !file.starts_with(found)
                    && !HOOKS.iter().any(is_hook)
            })
            .collect()
    }

    /// Whether a file imports the whole crate, and so everything that is above it.
    fn imports_the_crate(&self, file: &Module) -> bool {
        let mut paths = self.imports(file).into_iter().map(|(path, _)| path);
        paths.any(|path| path.is_empty() || path == ["*"])
    }

    /// The files of rooms, and what each needs.
    fn edges(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let is_of_a_room =
            |file: &&Module| file.first().is_some_and(|room| !ENTRANCES.contains(&room.as_str()));
        let files = self.0.keys().filter(is_of_a_room);
        files.map(|file| (file.clone(), self.needs(file))).collect()
    }

    /// Imports that do not go down.
    fn upward(&self) -> Vec<String> {
        let height = |room: &str| ROOMS.iter().position(|rooms| rooms.contains(&room));
        let mut upward = Vec::new();
        for (file, needs) in self.edges() {
            let room = file[0].as_str();
            let own = height(room).unwrap_or_else(|| panic!("{room} is in no line of ROOMS"));
            if self.imports_the_crate(&file) {
                upward.push(format!("{} -> the whole crate", file.join("/")));
            }
            for needed in needs {
                if height(&needed[0]).is_none_or(|below| below < own) {
                    upward.push(format!("{} -> {}", file.join("/"), needed.join("/")));
                }
            }
        }
        upward
    }

    /// Files that import each other in a circle, and rooms and folders of one room that do, each with one import that closes
    /// the circle.
    fn circles(&self) -> Vec<String> {
        let mut files = self.edges();
        files.retain(|file, _| !OF_TESTS.contains(&file.join("/").as_str()));
        // Of each import, what stands side by side: two rooms, or what is in one folder.
        let mut neighbours: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for (file, needs) in &files {
            for needed in needs {
                let above = file.iter().zip(needed).take_while(|(own, other)| own == other).count();
                let (own, other) = (file[..=above].to_vec(), needed[..=above].to_vec());
                neighbours.entry(own).or_default().insert(other);
            }
        }
        let edges = circular(&files).into_iter().chain(circular(&neighbours));
        let edges = edges.map(|(from, to)| format!("{} -> {}", from.join("/"), to.join("/")));
        edges.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// The edges of a graph that are part of a circle.
fn circular(graph: &BTreeMap<Module, BTreeSet<Module>>) -> Vec<(&Module, &Module)> {
    let leads_to = |from: &Module, to: &Module| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(at) = left.pop() {
            for next in graph.get(at).into_iter().flatten() {
                if next == to {
                    return true;
                }
                if seen.insert(next) {
                    left.push(next);
                }
            }
        }
        false
    };
    let edges = graph.iter().flat_map(|(from, needs)| needs.iter().map(move |to| (from, to)));
    edges.filter(|(from, to)| leads_to(to, from)).collect()
}

fn module(path: &Path) -> Module {
    let mut names: Module = path.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|name| name == "mod" || name == "lib") {
        names.pop();
    }
    names
}

/// A file's code without its comments and literals, its unit tests, and the links of its documentation.
pub(super) fn code(text: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        // A block of tests ends at the brace below the beginning of its first line.
        let is_of_a_test =
            line.trim() == "#[cfg(test)]" && lines.peek().is_some_and(|next| next.ends_with('{'));
        if is_of_a_test {
            let end = line.replace("#[cfg(test)]", "}");
            lines.by_ref().find(|line| *line == end);
        } else if !line.trim_start().starts_with("doc = ") {
            kept.push(line);
        }
    }
    without_literals(&kept.join("\n"))
}

fn without_literals(text: &str) -> String {
    let (mut left, mut kept) = (text, String::new());
    while let Some(first) = left.chars().next() {
        let raw = left.trim_start_matches('r').trim_start_matches('#');
        let marks = left.len() - raw.len();
        let (skipped, instead) = if left.starts_with("//") {
            (left.find('\n').unwrap_or(left.len()), "")
        } else if (left.starts_with("r\"") || left.starts_with("r#")) && raw.starts_with('"') {
            let end = format!("\"{}", "#".repeat(marks - 1));
            let within = &raw[1..];
            (marks + 1 + within.find(&end).map_or(within.len(), |at| at + end.len()), "\"\"")
        } else if let Some(within) = left.strip_prefix('"') {
            let mut escaped = false;
            let end = within.find(|letter| {
                let ends = letter == '"' && !escaped;
                escaped = letter == '\\' && !escaped;
                ends
            });
            (end.map_or(left.len(), |at| at + 2), "\"\"")
        } else if left.starts_with("'\"'") {
            (3, "''")
        } else if left.starts_with("'\\\"'") {
            (4, "''")
        } else {
            (first.len_utf8(), &left[..first.len_utf8()])
        };
        kept.push_str(instead);
        left = &left[skipped..];
    }
    kept
}

/// Each path of a `use`, and the name that it imports.
pub(super) fn paths(tree: &str) -> Vec<(Vec<String>, String)> {
    let tree = tree.trim();
    if let Some((before, within)) = tree.split_once('{') {
        let within = within.trim_end().trim_end_matches('}');
        let before: Vec<String> = names(before);
        let (mut depth, mut from, mut parts) = (0, 0, Vec::new());
        for (at, letter) in within.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    parts.push(&within[from..at]);
                    from = at + 1;
                }
                _ => {}
            }
        }
        parts.push(&within[from..]);
        let paths = parts.into_iter().filter(|part| !part.trim().is_empty()).flat_map(paths);
        return paths
            .map(|(path, name)| match path.as_slice() {
                [own] if own == "self" => {
                    (before.clone(), before.last().cloned().unwrap_or_default())
                }
                _ => ([before.as_slice(), &path].concat(), name),
            })
            .collect();
    }
    let (path, name) = tree.split_once(" as ").unwrap_or((tree, tree));
    let name = names(name).pop().unwrap_or_default();
    vec![(names(path), name)]
}

fn names(path: &str) -> Vec<String> {
    path.split("::").map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

#[test]
fn imports_go_down() {
    let sources = Sources::read("src");
    let upward = sources.upward();
    assert!(upward.is_empty(), "imports that go up:\n{}", upward.join("\n"));
    let circles = sources.circles();
    assert!(
        circles.is_empty(),
        "files, folders or rooms that import each other in a circle:\n{}",
        circles.join("\n")
    );
}

fn sources<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Sources {
    Sources(files.into_iter().map(|(module, text)| (names(module), code(text))).collect())
}

#[test]
fn an_import_that_goes_up_is_seen_in_each_form() {
    let below = |text: &str| {
        let root = ("", "pub use engine::Engine;");
        sources([root, ("engine", "struct Engine;"), ("key", "struct Key;"), ("store::mod", text)])
    };
    for text in [
        "use crate::engine::Engine;",
        "use crate::{engine::Engine, key::Key};",
        "use crate::Engine;",
        "use atomic_phases::engine::Engine;",
        "use super::super::engine::Engine;",
        "fn f() { use crate::engine; }",
        "fn f() -> crate::engine::Engine {}",
        "#[cfg(test)]\nmod tests;\nuse crate::engine::Engine;",
        "const AT: &str = \"http://\"; type E = crate::engine::Engine;",
        "const AT: char = '\"'; type E = crate::engine::Engine; const TO: char = '\"';",
    ] {
        assert_eq!(below(text).upward(), ["store/mod -> engine"], "{text}");
    }
    for text in
        ["use crate as c;", "use crate::{self as c};", "use crate::*;", "use super::super::*;"]
    {
        assert_eq!(below(text).upward(), ["store/mod -> the whole crate"], "{text}");
    }
    for text in [
        "use crate::key::Key;",
        "// use crate::engine::Engine;",
        "const TARGET: &str = \"atomic_phases::engine\";",
        "const TEXT: &str = r#\"crate::engine::Engine\"#;",
        "#[cfg(test)]\nmod tests {\n    use crate::engine::Engine;\n}",
    ] {
        assert_eq!(below(text).upward(), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn a_circle_is_seen_behind_a_name_that_is_given_on() {
    let pool = |lower| {
        let given_on =
            "mod pool;\nmod rows;\npub use self::{pool::Pool, rows::{Row as Found, self}};";
        let upper = "use super::Found;\nstruct Pool;";
        sources([("store", given_on), ("store::pool", upper), ("store::rows", lower)])
    };
    assert_eq!(pool("struct Row; // as crate::store::Pool").circles(), Vec::<String>::new());
    let both = ["store/pool -> store/rows", "store/rows -> store/pool"];
    assert_eq!(pool("use crate::store::Pool;\nstruct Row;").circles(), both);
    assert_eq!(pool("struct Row(super::Pool);").circles(), both);
}

#[test]
fn a_circle_of_rooms_is_seen_though_no_files_are_in_one() {
    let rooms = sources([
        ("key", ""),
        ("key::one", "use crate::error::Of;"),
        ("key::other", "struct Other;"),
        ("error", "struct Of;"),
        ("error::with", "use crate::key::other::Other;"),
    ]);
    assert_eq!(rooms.circles(), ["error -> key", "key -> error"]);
}

#[test]
fn a_circle_of_folders_is_seen_in_a_room() {
    let store = |statement| {
        sources([
            ("store", "mod statement;\nmod postgres;"),
            ("store::statement", statement),
            ("store::postgres", "mod numbered;\nmod rows;"),
            ("store::postgres::numbered", "struct Shape;"),
            ("store::postgres::rows", "use crate::store::statement::Part;"),
        ])
    };
    let both = ["store/postgres -> store/statement", "store/statement -> store/postgres"];
    let named =
        "struct Part;\nmacro_rules! s { () => { $crate::store::postgres::numbered::Shape } }";
    assert_eq!(store(named).circles(), both);
    assert_eq!(store("struct Part;").circles(), Vec::<String>::new());
}
