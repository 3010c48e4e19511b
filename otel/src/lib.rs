#![doc = include_str!("../README.md")]
#![warn(missing_debug_implementations, unreachable_pub)]

use atomic_phases::traces::{Link, LinkKind, TraceContext, Traceparent};
use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Spans as the layer of `tracing-opentelemetry` knows them: for
/// [`EngineBuilder::traces`](atomic_phases::engine::EngineBuilder::traces). Where the subscriber has no such layer,
/// there is no context, and nothing is linked.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenTelemetry;

impl TraceContext for OpenTelemetry {
    fn current(&self) -> Option<Traceparent> {
        let context = Span::current().context();
        let context = context.span().span_context().clone();
        let (trace, span) = (context.trace_id().to_bytes(), context.span_id().to_bytes());
        Traceparent::new(trace, span, context.trace_flags().to_u8()).ok()
    }

    fn link(&self, span: &Span, to: &[Link]) {
        for link in to {
            let kind = KeyValue::new(LinkKind::ATTRIBUTE, link.kind.as_str());
            span.add_link_with_attributes(context_of(&link.to), vec![kind]);
        }
    }
}

/// Of a span of another process, or of this one at another time. Its `tracestate` is not kept.
fn context_of(trace: &Traceparent) -> SpanContext {
    SpanContext::new(
        TraceId::from_bytes(trace.trace_id()),
        SpanId::from_bytes(trace.span_id()),
        TraceFlags::new(trace.flags()),
        true,
        TraceState::NONE,
    )
}
