//! An error says what happened once: its text does not repeat that of its source, and what it wraps is its source. So
//! a report that follows the causes has each of them once.

use std::error::Error;
use std::time::Duration;

use atomic_phases::Engine;
use atomic_phases::client::{RetryPolicy, SendError};
use atomic_phases::compat::{FolderError, Levels, Lock, Locks};
use atomic_phases::engine::{BuildError, CallError, EraseError, ResolveError};
use atomic_phases::fingerprint::{RequestOrigin, fingerprint};
use atomic_phases::store::{DbError, Sqlite, StoreError};
use atomic_phases::worker::{Webhook, WebhookError};

fn of_the_database() -> DbError {
    diesel::result::Error::NotInTransaction.into()
}

fn of_the_store() -> StoreError {
    StoreError::Database { doing: "read the key", error: of_the_database() }
}

/// Of a library's own, whose text holds no cause.
fn of_http() -> reqwest::Error {
    reqwest::Client::new().get("no URL").build().unwrap_err()
}

fn webhook() -> Webhook {
    Webhook::new("http://127.0.0.1:9/", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap()
}

fn locks(name: &str, text: &str) -> FolderError {
    Locks::from_files([(name.to_owned(), text.to_owned())]).unwrap_err()
}

/// The errors that have a source, and the number of texts behind their own.
async fn with_a_source() -> Vec<(Box<dyn Error>, usize)> {
    let db = Sqlite::connect(":memory:").await.unwrap();
    let built = Engine::builder(db).max_attempts(0).build().map(|_| ()).unwrap_err();
    assert!(matches!(built, BuildError::Setting(_)));
    let nan = fingerprint(&RequestOrigin::default(), &f64::NAN).unwrap_err();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a@1.toml");
    std::fs::write(&file, [0xff]).unwrap();
    vec![
        (Box::new(of_the_store()), 1),
        (Box::new(CallError::Unavailable(of_the_store())), 2),
        (Box::new(ResolveError::Unavailable(of_the_store())), 2),
        (Box::new(EraseError::Unavailable(of_the_store())), 2),
        // These are their source, with the same text.
        (Box::new(CallError::Fingerprint(nan)), 0),
        (Box::new(built), 0),
        (Box::new(SendError::Policy(RetryPolicy::new(Duration::ZERO).check().unwrap_err())), 0),
        (Box::new(SendError::Invalid(of_http())), 2),
        (Box::new(WebhookError::Client(of_http())), 2),
        (Box::new(Webhook::new("example.com", "").unwrap_err()), 1),
        (Box::new(webhook().within(Duration::ZERO).unwrap_err()), 0),
        (Box::new(locks("a@1.toml", "no lock")), 1),
        (Box::new(Locks::read(folder.path()).unwrap_err()), 1),
        (Box::new(locks("b@1.toml", LOCK)), 0),
        (Box::new(Lock::parse("no lock").unwrap_err()), 0),
        (Box::new(Levels::from_manifest("=").unwrap_err()), 0),
    ]
}

/// A lock file of another definition.
const LOCK: &str = include_str!("../../cli/tests/rides.create@1.toml");

fn texts(error: &dyn Error) -> Vec<String> {
    let mut texts = vec![error.to_string()];
    let mut source = error.source();
    while let Some(cause) = source {
        texts.push(cause.to_string());
        source = cause.source();
    }
    texts
}

/// Whether a text is in one that comes before it.
fn repeats(texts: &[String]) -> bool {
    let is_in_an_earlier = |at: usize| texts[..at].iter().any(|text| text.contains(&texts[at]));
    (1..texts.len()).any(is_in_an_earlier)
}

#[tokio::test]
async fn each_error_says_each_cause_once_and_keeps_it() {
    for (error, causes) in with_a_source().await {
        let texts = texts(&*error);
        assert_eq!(texts.len(), causes + 1, "{texts:#?}");
        assert!(!repeats(&texts), "{texts:#?}");
        assert!(texts.iter().all(|text| !text.is_empty()), "{texts:#?}");
    }
    assert!(repeats(&["a: b".to_owned(), "b".to_owned()]), "it finds nothing");
}

/// The list above has every error that declares a source.
#[test]
fn each_error_with_a_source_is_in_the_list() {
    let mut files = Vec::new();
    for folder in ["src", "compat/src"] {
        sources(std::path::Path::new(folder), &mut files);
    }
    let declares = ["#[source]", "#[from]", "#[error(transparent)]", "fn source(&self)"];
    let mut with: Vec<&str> = files
        .iter()
        .filter(|(_, text)| declares.iter().any(|word| text.contains(word)))
        .map(|(path, _)| path.as_str())
        .collect();
    with.sort_unstable();
    let known = [
        "compat/src/folder.rs",
        "src/client/send.rs",
        "src/engine/builder.rs",
        "src/engine/erase.rs",
        "src/engine/outcome.rs",
        "src/engine/resolve/types.rs",
        // Its unit test checks it: `a_chain_of_causes_says_each_cause_once`.
        "src/ops/error.rs",
        "src/store/error.rs",
        "src/worker/webhook.rs",
    ];
    assert_eq!(with, known);
}

fn sources(folder: &std::path::Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
        }
    }
}
