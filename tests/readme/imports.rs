//! Imports go down: from a room to one below it, and never in a circle. So a reader follows a request from the top to the
//! bottom, and a change has one place.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The rooms, from the top to the bottom. Those of one line do not import each other in a circle.
const ROOMS: [&[&str]; 12] = [
    &["console", "http", "worker", "fault", "simulation"],
    &["compat"],
    &["ops"],
    &["engine"],
    &["client", "config", "replay_cache", "sound"],
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
        "moment",
        "repeats",
        "roundtrip",
        "setting",
        "task",
    ],
];

/// What generated code, and what a file with phases, names: they are above everything.
const DOORS: [&str; 2] = ["__private", "prelude"];

/// What asks a type and what it is asked for are one recursion: each part of a type is asked as the type is.
const ONE_RECURSION: &str = "probe";

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

    /// What a path that stands in a module names, from the root of the crate on. `None`: a name of another crate.
    fn absolute(&self, within: &Module, path: &[String]) -> Option<Module> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
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

    /// What a module imports by `use`, with the name that it has there.
    fn imports(&self, of: &Module) -> Vec<(Module, String)> {
        let trees = self.0[of].split("use ").skip(1).filter_map(|rest| rest.split_once(';'));
        let paths = trees.flat_map(|(tree, _)| paths(tree));
        let known = paths.filter_map(|(path, name)| Some((self.absolute(of, &path)?, name)));
        known.collect()
    }

    /// The file in which something is declared, whatever names it again on the way.
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

    /// The files that a file needs, but for those around it and those within it.
    fn needs(&self, file: &Module) -> BTreeSet<Module> {
        let text = &self.0[file];
        let inline = ["crate::", "super::", "self::"].iter().flat_map(|start| {
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
                !found.is_empty() && !found.starts_with(file) && !file.starts_with(found)
            })
            .collect()
    }

    /// Files that import each other in a circle, each with one that leads back to it.
    fn circles(&self) -> Vec<String> {
        let doors = |file: &&Module| file.first().is_none_or(|room| DOORS.contains(&room.as_str()));
        let files: Vec<&Module> = self.0.keys().filter(|file| !doors(file)).collect();
        let needs: BTreeMap<&Module, BTreeSet<Module>> =
            files.iter().map(|file| (*file, self.needs(file))).collect();
        let reaches = |from: &Module, to: &Module| {
            let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
            while let Some(at) = left.pop() {
                for next in needs.get(at).into_iter().flatten() {
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
        let edges =
            needs.iter().flat_map(|(file, of)| of.iter().map(move |needed| (*file, needed)));
        let circular = edges.filter(|(file, needed)| {
            let is_one = |module: &Module| module[0] == ONE_RECURSION;
            !(is_one(file) && is_one(needed)) && reaches(needed, file)
        });
        circular
            .map(|(file, needed)| format!("{} -> {}", file.join("/"), needed.join("/")))
            .collect()
    }
}

fn module(path: &Path) -> Module {
    let mut names: Module = path.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|name| name == "mod" || name == "lib") {
        names.pop();
    }
    names
}

/// A file's code without its comments, its unit tests, the links of its documentation and its hooks: by those the engine
/// calls what injects faults and simulates time, which are empty where they are off.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let lines = lines.filter(|line| {
        let is_link = line.trim_start().starts_with("doc = ");
        !is_link
            && !["crate::fault::", "crate::simulation::"].iter().any(|hook| line.contains(hook))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Each path of a `use`, and the name that it brings.
fn paths(tree: &str) -> Vec<(Vec<String>, String)> {
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
    let height = |room: &str| ROOMS.iter().position(|rooms| rooms.contains(&room));
    let mut upward = Vec::new();
    for file in sources.0.keys().filter(|file| !file.is_empty()) {
        let room = file[0].as_str();
        if DOORS.contains(&room) {
            continue;
        }
        let own = height(room).unwrap_or_else(|| panic!("{room} is in no line of ROOMS"));
        for needed in sources.needs(file) {
            let below = height(&needed[0]);
            if below.is_none_or(|below| below < own) {
                upward.push(format!("{} -> {}", file.join("/"), needed.join("/")));
            }
        }
    }
    assert!(upward.is_empty(), "imports that go up:\n{}", upward.join("\n"));
    let circles = sources.circles();
    assert!(
        circles.is_empty(),
        "files that import each other in a circle:\n{}",
        circles.join("\n")
    );
}

#[test]
fn a_circle_is_seen_behind_a_name_that_is_given_on() {
    let file = |module: &str, text: &str| (names(module), code(text));
    let sources = |lower: &str| {
        Sources(BTreeMap::from([
            file(
                "store",
                "mod pool;\nmod rows;\npub use self::{pool::Pool, rows::{Row as Found, self}};",
            ),
            file("store::pool", "use super::Found;\nstruct Pool;"),
            file("store::rows", lower),
        ]))
    };
    assert_eq!(sources("struct Row; // as crate::store::Pool").circles(), Vec::<String>::new());
    let both = ["store/pool -> store/rows", "store/rows -> store/pool"];
    assert_eq!(sources("use crate::store::Pool;\nstruct Row;").circles(), both);
    assert_eq!(sources("struct Row(super::Pool);").circles(), both);
}
