//! Each command of cargo that a page shows names programs, packages and features that are there.

use std::path::Path;

use super::files;

/// What follows `cargo` in the texts of a page, up to the end of the command.
fn commands(page: &str) -> impl Iterator<Item = &str> {
    let starts = page.match_indices("cargo ").map(|(at, _)| &page[at + "cargo ".len()..]);
    starts.map(|text| text.split(['`', '\n', '#']).next().unwrap().trim())
}

/// Why a command cannot be run, if it names something that is not there.
fn is_wrong(command: &str) -> Option<String> {
    let manifest = include_str!("../../Cargo.toml");
    let mut words = command.split_whitespace().take_while(|word| *word != "--");
    if !["run", "test", "bench", "build"].contains(&words.next()?) {
        return None;
    }
    let missing = |what: &str, name: &str| Some(format!("`cargo {command}`: no {what} {name}"));
    while let Some(word) = words.next() {
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

#[test]
fn each_command_of_cargo_names_what_is_there() {
    let mut pages = vec![("README.md".into(), super::README.to_owned())];
    files("docs", &[".md"], &mut pages);
    let all = pages.iter().flat_map(|(path, page)| commands(page).map(move |c| (path, c)));
    let all: Vec<_> = all.collect();
    let wrong: Vec<_> = all
        .iter()
        .filter_map(|(path, command)| Some(format!("{}: {}", path.display(), is_wrong(command)?)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let run = all.iter().filter(|(_, command)| command.contains("--example rocket_rides")).count();
    assert!(run >= 2, "the flagship's command is on {run} pages");
    for (command, missing) in [
        ("run --example rocket_ride", "no example rocket_ride"),
        ("test --all-features --test lease", "no program of tests lease"),
        ("run --example quickstart --features axum,consol", "no feature consol"),
        ("test --package atomic-phases-client", "no package atomic-phases-client"),
    ] {
        assert!(is_wrong(command).is_some_and(|why| why.ends_with(missing)), "{command}");
    }
}
