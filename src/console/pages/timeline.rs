//! What happened to a request, one thing a line.

use maud::{Markup, html};

use super::audit::{given, outcome};
use super::format::{bdi, exact};
use crate::ops::{Event, EventKind, Happened};

pub(super) fn happened(one: &Happened) -> Markup {
    html! {
        li {
            (exact(one.at)) " "
            @match &one.what {
                Event::Accepted => { "accepted" }
                Event::Committed { recovery_point } => { "committed " code { (bdi(recovery_point)) } }
                Event::Waits { reason } => {
                    "stopped, and waits"
                    @if let Some(reason) = reason { ": " span.reason { (bdi(reason)) } }
                }
                Event::Left { kind, attempt, phase, reason } => {
                    (event_text(*kind)) ", attempt " (attempt)
                    @if let Some(phase) = phase { " at " code { (bdi(phase)) } }
                    @if let Some(reason) = reason { ": " span.reason { (bdi(reason)) } }
                }
                Event::Staged { job } => { "staged the job " code { (bdi(job)) } }
                Event::Acted(act) => {
                    strong { (bdi(&act.actor)) } " " (bdi(&act.act)) " " (outcome(act)) (given(act))
                    span.reason { " “" (bdi(&act.reason)) "”" }
                }
            }
            @if let Some(trace) = &one.trace {
                span.quiet { ", trace " code { (trace.trace_hex()) } }
            }
        }
    }
}

fn event_text(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Released => "failed, and was released",
        EventKind::TakenOver => "lease ended, and was taken over",
        EventKind::Unknown => "became unknown",
        EventKind::WindowPassed => "its window passed, so that no call may be repeated",
        EventKind::StillUnknown => "looked into, and still unknown",
        EventKind::DeadLetter => "gave up",
        EventKind::Reconciled => "reconciled",
        EventKind::Resolved => "resolved",
    }
}
