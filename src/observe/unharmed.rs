//! What the application watches by is its own code: a recorder of metrics, a subscriber of `tracing`, a
//! [`TraceContext`](crate::traces::TraceContext). It is asked in the middle of a request, and it may panic. So it is
//! asked by this module, and nowhere else (a test reads the sources for that): what it panics at goes on as if it were
//! not there. No request loses its answer or its lease by it, and no worker ends.

use std::fmt::Display;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use tracing::field::Value;
use tracing::span::Entered;

/// What it says; `None` where it panicked.
pub(crate) fn asked<T>(ask: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(ask)).ok()
}

/// What is said to nobody where it panics.
pub(super) fn told(tell: impl FnOnce()) {
    let _ = asked(tell);
}

/// A span of this crate, or the one that it was called in. A subscriber that panics at it does not have it.
#[derive(Debug)]
pub(crate) struct Span(Option<tracing::Span>);

impl Span {
    pub(super) fn made(make: impl FnOnce() -> tracing::Span) -> Self {
        Self(asked(make))
    }

    pub(crate) fn none() -> Self {
        Self(None)
    }

    pub(crate) fn current() -> Self {
        Self::made(tracing::Span::current)
    }

    pub(crate) fn record(&self, field: &'static str, value: impl Value) {
        if let Some(span) = &self.0 {
            told(|| {
                span.record(field, value);
            });
        }
    }

    pub(crate) fn record_text(&self, field: &'static str, value: &impl Display) {
        self.record(field, tracing::field::display(value));
    }

    /// As a [`TraceContext`](crate::traces::TraceContext) is given it.
    pub(crate) fn of_tracing(&self) -> Option<&tracing::Span> {
        self.0.as_ref()
    }

    pub(crate) fn in_scope<T>(&self, run: impl FnOnce() -> T) -> T {
        let _inside = self.enter();
        run()
    }

    /// The future, each time that it is polled within the span.
    pub(crate) fn around<F: Future + Unpin>(self, future: F) -> Within<F> {
        Within { span: self, future: Some(future) }
    }

    fn enter(&self) -> Inside<'_> {
        let entered = self.0.as_ref().and_then(|span| {
            let entered = asked(|| span.enter());
            if entered.is_none() {
                // It may be what this thread is in, as far as a part of the subscriber knows.
                told(|| {
                    span.with_subscriber(|(id, subscriber)| subscriber.exit(id));
                });
            }
            entered
        });
        Inside(entered)
    }
}

impl Clone for Span {
    fn clone(&self) -> Self {
        Self(self.0.as_ref().and_then(|span| asked(|| span.clone())))
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(span) = self.0.take() {
            told(|| drop(span));
        }
    }
}

struct Inside<'a>(Option<Entered<'a>>);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if let Some(entered) = self.0.take() {
            told(|| drop(entered));
        }
    }
}

/// See [`Span::around`]. What it is given by value is dropped within the span, too.
pub(crate) struct Within<F> {
    span: Span,
    future: Option<F>,
}

impl<F: Future + Unpin> Future for Within<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { span, future } = &mut *self;
        let _inside = span.enter();
        match future {
            Some(future) => Pin::new(future).poll(context),
            // It is taken out by the drop alone.
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for Within<F> {
    fn drop(&mut self) {
        let Self { span, future } = self;
        let _inside = span.enter();
        drop(future.take());
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    fn sources(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
        files.into_iter().chain(folders.iter().flat_map(|folder| sources(folder))).collect()
    }

    /// Of what the crate says, nothing is said past this module: neither to `tracing` nor to a recorder.
    #[test]
    fn the_subscriber_and_the_recorder_are_asked_here_alone() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        // Their own words, in the one place for each.
        let allowed = [
            "observe.rs",
            "observe/metrics.rs",
            "observe/spans.rs",
            "observe/unharmed.rs",
            // The type that applications are given.
            "traces.rs",
        ];
        let all = sources(&root);
        assert!(all.len() > 200, "{all:?}");
        for path in all {
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let says = |line: &&str| {
                ["tracing::", "metrics::with", "register_"].iter().any(|word| line.contains(word))
            };
            let past: Vec<&str> = code.filter(says).collect();
            assert!(past.is_empty() || allowed.contains(&name), "{name}: {past:#?}");
        }
    }
}
