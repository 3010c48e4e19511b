//! The program itself: tables, usage errors, profiles, man pages and completions.

use super::*;

#[test]
fn the_tables_of_a_database_are_brought_up_to_date() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    std::fs::write(&file, "").unwrap();
    let file = format!("sqlite://{}", file.display());
    for url in [file, cluster::new_database(), mariadb::new_database()] {
        let run = Run::on(&["--database-url", &url]);
        let (code, told) = run.told(&["migrate", "status"]);
        assert_eq!(code, 6);
        assert!(told.starts_with("missing "), "{told}");
        for words in
            [&["status"][..], &["retry", "00000000-0000-4000-8000-000000000000", "--reason", "r"]]
        {
            let (code, told) = run.told(words);
            assert_eq!((code, told.contains("`migrate up`")), (1, true), "{url}: {told}");
        }
        let (code, told) = run.told(&["migrate", "up"]);
        assert_eq!(code, 0, "{told}");
        assert_eq!(run.told(&["migrate", "status"]), (0, "no migration is missing\n".to_owned()));
        assert_eq!(run.told(&["status"]).0, 0);
    }
}

#[test]
fn usage_errors_exit_with_two() {
    let unnamed = Run::on(&[]);
    let (code, told) = unnamed.told(&["status"]);
    assert_eq!((code, told.contains("--database-url")), (2, true), "{told}");
    let both = Run::on(&["--url", "http://localhost", "--database-url", "sqlite://x"]);
    assert_eq!(both.told(&["status"]).0, 2);
    for url in ["127.0.0.1:5000", "example.com/ops"] {
        let (code, told) = Run::on(&["--url", url]).told(&["status"]);
        assert_eq!((code, told.contains("https://")), (2, true), "{told}");
    }
    for url in ["oracle://host/db", "app.db"] {
        assert_eq!(Run::on(&["--database-url", url]).told(&["status"]).0, 2, "{url}");
    }
    // A script's variable that is not set.
    for flag in ["--definition", "--phase", "--reason", "--scope"] {
        for empty in ["", " "] {
            let erase = ["bulk", "erase", "--state", "finished", flag, empty, "--because", "r"];
            let (code, told) = Run::on(&["--url", "http://127.0.0.1:9"]).told(&erase);
            assert_eq!((code, told.contains("a condition is not empty")), (2, true), "{told}");
        }
    }
    // No clock holds a time that is so far ahead.
    for seconds in ["0", "86401", "18446744073709551615"] {
        let run = Run::on(&["--url", "http://127.0.0.1:9", "--timeout", seconds]);
        let (code, told) = run.told(&["status"]);
        assert_eq!((code, told.contains("1..=86400")), (2, true), "{told}");
    }
    assert_eq!(Run::on(&["--database-url", "sqlite://none.db"]).told(&["status"]).0, 1);
    assert!(!std::path::Path::new("none.db").exists());
}

/// As in a container, where no user is logged in.
#[test]
fn who_acts_on_a_database_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    std::fs::write(&file, "").unwrap();
    let run = |user: &[(&str, &str)], command: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_atomic-phases"));
        program.env_clear().envs(user.iter().copied()).args(command);
        let ran = program.args(["--database-url", &format!("sqlite://{}", file.display())]);
        let ran = ran.output().unwrap();
        (ran.status.code().unwrap(), String::from_utf8(ran.stderr).unwrap())
    };
    assert_eq!(run(&[], &["migrate", "up"]).0, 0, "it is not an act of the audit");
    // Who only reads is in no audit.
    for read in [&["status"][..], &["list"], &["audit"], &["bulk", "list"], &["jobs", "list"]] {
        let (code, said) = run(&[], read);
        assert_eq!(code, 0, "{read:?}: {said}");
    }
    let id = "00000000-0000-4000-8000-000000000000";
    let acts: [&[&str]; 5] = [
        &["retry", id, "--reason", "r"],
        &["erase", id, "--yes", "--reason", "r"],
        &["unpause", "pilots.call", "called", "--reason", "r"],
        &["bulk", "retry", "--state", "dead_letter", "--because", "r"],
        &["jobs", "discard", id, "--reason", "r"],
    ];
    for act in acts {
        let (code, said) = run(&[], act);
        assert_eq!((code, said.contains("--as NAME")), (2, true), "{act:?}: {said}");
    }
    let retry = [acts[0], &["--as", "ada"]].concat();
    assert_eq!(run(&[], &retry).0, 4, "there is none");
    for name in ["USER", "LOGNAME"] {
        assert_eq!(run(&[(name, "ada")], acts[0]).0, 4, "{name}");
    }
    let (code, said) = run(&[("USER", "a\u{7}")], &["status"]);
    assert_eq!((code, said.contains("control character")), (2, true), "{said}");
}

#[test]
fn a_profile_says_who_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("app.db");
    std::fs::write(&file, "").unwrap();
    let database = format!("sqlite://{}", file.display());
    let profiles = format!("[local]\ndatabase-url = '{database}'\nas = 'grace'\nformat = 'json'\n");
    std::fs::create_dir(dir.path().join("atomic-phases")).unwrap();
    std::fs::write(dir.path().join("atomic-phases/profiles.toml"), profiles).unwrap();
    let run = Run { settings: dir.path().to_owned(), ..Run::on(&["--profile", "local"]) };
    assert_eq!(run.told(&["migrate", "up"]).0, 0);
    assert_eq!(run.told(&["list"]), (0, "[]\n".to_owned()));
    let (code, told) = run.told(&["list", "-o", "table"]);
    assert_eq!((code, told.lines().count()), (0, 1), "an argument counts before it: {told}");
    let (code, told) = run.told(&["config", "-o", "table"]);
    assert_eq!(code, 0, "{told}");
    let line = |name: &str| {
        let line = told.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("profile "), "profile local --profile");
    assert_eq!(line("database-url"), format!("database-url {database} the profile"));
    assert_eq!(line("as"), "as grace the profile");
    assert_eq!(line("timeout"), "timeout 30 by default");
    assert_eq!(line("format"), "format table --format");
    let run = Run { way: Vec::new(), ..run };
    let (code, told) = run.told(&["status"]);
    assert_eq!((code, told.contains("--profile")), (2, true), "none is named: {told}");
}

/// Each command of a help, with its subcommands: `bulk`, `bulk retry`.
fn commands(run: &Run, behind: &[&str]) -> Vec<Vec<String>> {
    let help = run.told(&[behind, &["--help"]].concat()).1;
    let Some((_, listed)) = help.split_once("\nCommands:\n") else { return Vec::new() };
    let lines = listed.lines().take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(!names.is_empty(), "{help}");
    let mut all = Vec::new();
    for name in names {
        let whole = [behind, &[name]].concat();
        all.push(whole.iter().map(|&word| word.to_owned()).collect());
        all.extend(commands(run, &whole));
    }
    all
}

#[test]
fn each_command_has_a_man_page() {
    let run = Run::on(&[]);
    let (code, told) = run.told(&["man"]);
    assert!(code == 0 && told.contains(".TH atomic-phases 1"), "{told}");
    assert!(told.contains("Exit codes"), "{told}");
    let commands = commands(&run, &[]);
    let has = |name: &str| commands.iter().any(|words| words.join(" ") == name);
    assert!(has("resolve executed") && has("bulk stop") && has("jobs retry") && has("config"));
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().to_str().unwrap();
    assert_eq!(run.told(&["man", "--into", folder]).0, 0);
    for words in &commands {
        let page = dir.path().join(format!("atomic-phases-{}.1", words.join("-")));
        let page = std::fs::read_to_string(&page).unwrap_or_else(|_| panic!("no {page:?}"));
        let last = words.last().unwrap();
        assert!(
            page.contains(".SH SYNOPSIS") && page.contains(&last.replace('-', "\\-")),
            "{page}"
        );
    }
    let pages = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(pages, commands.len() + 1, "and its own");
    let nowhere = dir.path().join("none").display().to_string();
    assert_eq!(run.told(&["man", "--into", &nowhere]).0, 1);
}

#[test]
fn completions_have_each_command_and_are_what_the_shell_reads() {
    let run = Run::on(&[]);
    let commands = commands(&run, &[]);
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let (code, told) = run.told(&["completions", shell]);
        assert_eq!(code, 0, "{told}");
        for name in commands.iter().flatten() {
            assert!(told.contains(name.as_str()), "{shell}: {name}");
        }
        let file = dir.path().join(shell);
        std::fs::write(&file, told).unwrap();
        match Command::new(shell).arg("-n").arg(&file).output() {
            Ok(read) => assert!(read.status.success() && read.stderr.is_empty(), "{read:?}"),
            Err(_) => println!("{shell} is not there: its completions were not read"),
        }
    }
    // As for `atomic-phases bulk st<Tab>`.
    let ask = "source \"$0\"; COMP_WORDS=(atomic-phases bulk st); COMP_CWORD=2; \
               $(complete -p atomic-phases | sed 's/.* -F \\([^ ]*\\) .*/\\1/') atomic-phases st bulk; \
               echo \"${COMPREPLY[@]}\"";
    let read =
        Command::new("bash").args(["-c", ask]).arg(dir.path().join("bash")).output().unwrap();
    assert_eq!(String::from_utf8(read.stdout).unwrap(), "stop\n");
}
