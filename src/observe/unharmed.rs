//! What the application watches by is its own code: a recorder of metrics, a subscriber of `tracing`, a
//! [`TraceContext`](crate::traces::TraceContext). The engine calls it in the middle of a request, and it may panic. So
//! this module calls it, and no other one (`tests/traces/panics.rs` reads the sources for that), and catches the panic:
//! the request keeps its answer and its lease, and the worker continues, as if there were no recorder or subscriber.

use std::fmt::Display;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tracing::field::Value;
use tracing::span::Entered;

use crate::panics::catch;

/// Tells the application's code something. If that code panics, it has not heard it, and nothing else happens.
pub(super) fn caught(tell: impl FnOnce()) {
    let _ = catch(tell);
}

/// A span of this crate, or the one that it was called in. None where no subscriber wants it, or the subscriber has panicked
/// at it: then there is nothing to tell.
#[derive(Debug)]
pub(crate) struct Span(Option<tracing::Span>);

impl Span {
    pub(super) fn make(make: impl FnOnce() -> tracing::Span) -> Self {
        Self(catch(|| Some(make()).filter(|span| !span.is_disabled())).flatten())
    }

    pub(crate) fn none() -> Self {
        Self(None)
    }

    pub(crate) fn current() -> Self {
        Self::make(tracing::Span::current)
    }

    pub(crate) fn record(&self, field: &'static str, value: impl Value) {
        if let Some(span) = &self.0 {
            caught(|| {
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
            let entered = catch(|| span.enter());
            if entered.is_none() {
                // It may be what this thread is in, as far as a part of the subscriber knows.
                caught(|| {
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
        Self(self.0.as_ref().and_then(|span| catch(|| span.clone())))
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(span) = self.0.take() {
            caught(|| drop(span));
        }
    }
}

struct Inside<'a>(Option<Entered<'a>>);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if let Some(entered) = self.0.take() {
            caught(|| drop(entered));
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
    use super::*;

    #[test]
    fn a_span_that_no_subscriber_wants_is_none() {
        assert!(Span::current().of_tracing().is_none());
    }
}
