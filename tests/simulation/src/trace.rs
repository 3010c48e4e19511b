//! [`Trace`]: the events, line by line, with their times. Equal for equal seeds; a readable story.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

#[derive(Clone)]
pub struct Trace(Arc<Inner>);

struct Inner {
    began: Instant,
    told: Told,
    text: Mutex<(String, DefaultHasher)>,
}

/// Whether the lines are kept, or their hash only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Lines,
    Hash,
    Nothing,
}

impl Trace {
    pub fn new(told: Told) -> Self {
        let text = Mutex::new((String::new(), DefaultHasher::new()));
        Self(Arc::new(Inner { began: Instant::now(), told, text }))
    }

    pub fn elapsed(&self) -> Duration {
        self.0.began.elapsed()
    }

    pub fn note(&self, line: impl FnOnce() -> String) {
        if self.0.told == Told::Nothing {
            return;
        }
        let line = format!("{:>12.6} {}\n", self.elapsed().as_secs_f64(), line());
        let mut text = self.0.text.lock().unwrap();
        text.1.write(line.as_bytes());
        if self.0.told == Told::Lines {
            let _ = text.0.write_str(&line);
        }
    }

    pub fn text(&self) -> String {
        self.0.text.lock().unwrap().0.clone()
    }

    pub fn hash(&self) -> u64 {
        self.0.text.lock().unwrap().1.finish()
    }
}
