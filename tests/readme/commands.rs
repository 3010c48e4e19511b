//! Each command of cargo that a page shows names programs, packages and features that are there.

use std::path::Path;

use super::files;

/// What follows `cargo` in the texts of a page, up to the end of the command.
fn commands(page: &str) -> impl Iterator<Item = &str> {
    let starts = page.match_indices("cargo ").map(|(at, _)| &page[at + "cargo ".len()..]);
    starts.map(|text| text.split(['`', '\n', '#']).next().unwrap().trim())
}

/// Why a command cannot be run, if it names something that is not there.
fn is_wrong(command: &str, tests: &[String]) -> Option<String> {
    let manifest = include_str!("../../Cargo.toml");
    let mut words = command.split_whitespace().take_while(|word| *word != "--");
    let verb = words.next()?;
    if !["run", "test", "bench", "build"].contains(&verb) {
        return None;
    }
    let missing = |what: &str, name: &str| Some(format!("`cargo {command}`: no {what} {name}"));
    while let Some(word) = words.next() {
        // The filter of the tests that are run, or a placeholder for one.
        let is_filter = verb == "test" && !word.starts_with('-') && word != "NAME";
        let is_a_test = |part: &str| tests.iter().any(|test| test.contains(part));
        if is_filter && !word.split("::").all(is_a_test) {
            return missing("test", word);
        }
        if !["--example", "--test", "--bench", "--package", "-p", "--features", "--manifest-path"]
            .contains(&word)
        {
            continue;
        }
        let name = words.next()?;
        let is_there = |folder: &str| {
            let path = Path::new(folder);
            path.join(format!("{name}.rs")).exists() || path.join(name).join("main.rs").exists()
        };
        match word {
            "--example" if !is_there("examples") => return missing("example", name),
            "--test" if !is_there("tests") => return missing("program of tests", name),
            "--bench" if !manifest.contains(&format!("name = \"{name}\"")) => {
                return missing("bench", name);
            }
            "--manifest-path" if !Path::new(name).exists() => return missing("manifest", name),
            "--package" | "-p" => {
                let folder = name.strip_prefix("atomic-phases").unwrap_or(name).trim_matches('-');
                if !Path::new(folder).join("Cargo.toml").exists() {
                    return missing("package", name);
                }
            }
            "--features" => {
                let is_unknown = |feature: &&str| !manifest.contains(&format!("\n{feature} = ["));
                if let Some(feature) = name.split(',').find(is_unknown) {
                    return missing("feature", feature);
                }
            }
            _ => {}
        }
    }
    None
}

/// The names of functions, files and folders of tests, by which a command selects them.
fn tests() -> Vec<String> {
    let mut sources = Vec::new();
    for below in ["src", "tests", "cli/tests", "otel/tests"] {
        files(below, &[".rs"], &mut sources);
    }
    let functions = sources.iter().flat_map(|(_, text)| text.split("fn ").skip(1));
    let names = functions.filter_map(|rest| super::words(rest).next().map(ToOwned::to_owned));
    let modules = sources.iter().flat_map(|(path, _)| path.iter());
    names.chain(modules.map(|name| name.to_string_lossy().into_owned())).collect()
}

#[test]
fn each_command_of_cargo_names_what_is_there() {
    let tests = tests();
    let mut pages = vec![("README.md".into(), super::README.to_owned())];
    files("docs", &[".md"], &mut pages);
    let all = pages.iter().flat_map(|(path, page)| commands(page).map(move |c| (path, c)));
    let all: Vec<_> = all.collect();
    let wrong: Vec<_> = all
        .iter()
        .filter_map(|(path, command)| {
            Some(format!("{}: {}", path.display(), is_wrong(command, &tests)?))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let run = all.iter().filter(|(_, command)| command.contains("--example rocket_rides")).count();
    assert!(run >= 2, "the flagship's command is on {run} pages");
    for (command, missing) in [
        ("run --example rocket_ride", "no example rocket_ride"),
        ("test --all-features --test lease", "no program of tests lease"),
        ("run --example quickstart --features axum,consol", "no feature consol"),
        ("test --package atomic-phases-client", "no package atomic-phases-client"),
        ("test --test processes fails_over_twice", "no test fails_over_twice"),
        ("test --test engine requests::twice_over", "no test requests::twice_over"),
    ] {
        assert!(is_wrong(command, &tests).is_some_and(|why| why.ends_with(missing)), "{command}");
    }
}
