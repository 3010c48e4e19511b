//! Definitions: which builds requests wait for, and which processes run them.

use axum::response::Response;
use maud::{Markup, html};

use super::format::{Now, bdi, short, table};
use super::frame::{Frame, Section};
use super::guard::Asked;
use crate::ops::{DefinitionView, NodeView, OperatorStore, OpsError, PhaseViewKind};

pub(super) async fn page<S: OperatorStore>(asked: Asked<S>) -> Response {
    asked.frame.answer(Section::Definitions, "Definitions", body(&asked).await)
}

async fn body<S: OperatorStore>(asked: &Asked<S>) -> Result<Markup, OpsError> {
    let Asked { ops, frame, .. } = asked;
    let (definitions, nodes) = (ops.definitions().await?, ops.nodes().await?);
    let now = asked.now().await?;
    Ok(html! {
        h1 { "Definitions" }
        p.lead {
            "Each phase list that a process runs or that unfinished requests were begun under. Where requests stand \
             under a list that no process runs, another build has to go on with them: one whose phases still fit, or \
             the one that is gone."
        }
        section #definitions data-live="15" aria-label="Definitions" {
            @if definitions.is_empty() {
                p.empty {
                    @if ops.actor().sees_every_scope() {
                        "No process runs workers, and no request is unfinished."
                    } @else {
                        "No process runs workers, and among the requests that were read, you may see none that is \
                         unfinished."
                    }
                }
            } @else {
                (lists(frame, &definitions, now))
            }
        }
        section #nodes data-live="15" aria-label="Processes" {
            h2 { "Processes that announce themselves" }
            @if nodes.is_empty() {
                p.empty { "None was seen for a day." }
            } @else {
                (processes(&nodes, now))
            }
        }
    })
}

fn lists(frame: &Frame, all: &[DefinitionView], now: Now) -> Markup {
    let cells = all.iter().map(|one| {
        let (name, version) = &one.definition;
        let of = serde_urlencoded::to_string([
            ("definition", name.clone()),
            ("version", version.to_string()),
        ]);
        let to = |more: &str| {
            frame.to(format_args!("requests?{}{more}", of.as_deref().unwrap_or_default()))
        };
        let number =
            |count: u32| html! { (count) @if one.or_more { "+" span.unseen { " or more" } } };
        vec![
            html! { a href=(to("")) { (bdi(name)) " v" (version) } },
            phases(one),
            html! {
                @match (one.nodes, one.requests) {
                    (0, 1..) => { span.chip.dead_letter { "none" } }
                    (nodes, _) => { (nodes) }
                }
            },
            html! {
                (number(one.requests))
                @if let Some(oldest) = one.oldest { ", the oldest for " (now.age(oldest)) }
            },
            number(one.waiting),
            html! {
                @match one.stranded {
                    None => { span.quiet { "–" } }
                    Some(0) => { (number(0)) }
                    Some(stranded) => { a href=(to("&stranded=1")) { (number(stranded)) } }
                }
            },
        ]
    });
    let head = ["Definition", "Phases", "Processes", "Unfinished requests", "Waiting", "Stranded"];
    table("Definitions and their phase lists", &head, cells)
}

fn phases(one: &DefinitionView) -> Markup {
    html! {
        @if one.phases.is_empty() { span.quiet { "of a form that this build does not know" } }
        @for (index, (name, kind)) in one.phases.iter().enumerate() {
            @if index > 0 { " → " }
            code { (bdi(name)) }
            @match kind {
                PhaseViewKind::Local => {}
                PhaseViewKind::Idempotent => { " (idempotent)" }
                PhaseViewKind::AtMostOnce => { " (at most once)" }
            }
        }
    }
}

fn processes(nodes: &[NodeView], now: Now) -> Markup {
    let cells = nodes.iter().map(|node| {
        vec![
            html! {
                @match &node.name {
                    Some(name) => { (bdi(name)) }
                    None => { code { (short(node.id)) } }
                }
            },
            html! { @if let Some(build) = &node.build { (bdi(build)) } },
            html! {
                @for (index, (name, version)) in node.definitions.iter().enumerate() {
                    @if index > 0 { ", " }
                    (bdi(name)) " v" (version)
                }
            },
            now.relative(node.started_at),
            html! {
                @if node.is_gone { span.chip.dead_letter { "gone" } " " }
                (now.relative(node.seen_at))
            },
        ]
    });
    let head = ["Process", "Build", "Definitions", "Started", "Seen"];
    table("Processes that announce themselves", &head, cells)
}
