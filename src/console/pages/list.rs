//! Requests as rows of a table.

use maud::{Markup, html};

use super::fields::Fields;
use super::format::{Now, bdi, chip, short, table};
use super::frame::Frame;
use crate::ops::{Page, State, Summary};

/// Its definition and its id, as a link.
pub(super) fn link(frame: &Frame, row: &Summary) -> Markup {
    let (name, version) = &row.definition;
    html! {
        a.request href=(frame.to(format_args!("requests/{}", row.request_id))) {
            span.definition { (bdi(name)) " v" (version) }
            " " code { (short(row.request_id)) }
        }
        @if row.stranded.is_some() { " " span.chip.stranded { "stranded" } }
    }
}

/// At which phase it stands.
pub(super) fn place(row: &Summary) -> Markup {
    match (&row.open_intent, &row.phase) {
        (Some(phase), _) => html! { "call of " code { (bdi(phase)) } " open" },
        (None, Some(phase)) if row.may_have_been_called => {
            html! { code { (bdi(phase)) } " may have been called" }
        }
        (None, Some(phase)) => html! { "at " code { (bdi(phase)) } },
        (None, None) => html! { span.quiet { "–" } },
    }
}

pub(super) fn reason(row: &Summary) -> Markup {
    match &row.reason {
        Some(reason) => html! { span.reason { (bdi(reason)) } },
        None => html! { span.quiet { "–" } },
    }
}

fn next(row: &Summary, now: Now) -> Markup {
    match (row.leased_until, row.next_at) {
        (Some(until), _) => html! { "lease ends " (now.relative(until)) },
        (None, Some(at)) => now.relative(at),
        (None, None) => html! { span.quiet { "–" } },
    }
}

/// What waits for an operator, with what is to be done about it.
pub(super) fn inbox(frame: &Frame, rows: &[Summary], now: Now, may_act: bool) -> Markup {
    let cells = rows.iter().map(|row| {
        let to = frame.to(format_args!("requests/{}#settle", row.request_id));
        let since = row.waiting_since.unwrap_or(row.created_at);
        let next = match (row.state, row.leased_until, row.next_at) {
            (State::DeadLetter, ..) | (_, _, None) => html! { span.quiet { "an operator" } },
            (_, Some(lease), _) if lease > now.0 => html! { "is looked into" },
            (_, _, Some(at)) => html! { "asked " (now.relative(at)) },
        };
        let answer = html! {
            a.button href=(to) {
                @if may_act { "Settle" } @else { "View" }
                span.unseen { " request " (short(row.request_id)) }
            }
        };
        let since = now.age(since);
        vec![link(frame, row), chip(row.state), place(row), reason(row), since, next, answer]
    });
    let head = ["Request", "State", "Stands", "Why it stopped", "Waiting for", "Next", "Act"];
    table("Requests that wait, the longest waiting first", &head, cells)
}

/// Any requests.
pub(super) fn requests(frame: &Frame, rows: &[Summary], now: Now) -> Markup {
    let cells = rows.iter().map(|row| {
        vec![
            link(frame, row),
            chip(row.state),
            place(row),
            reason(row),
            html! { (row.attempts) },
            now.relative(row.created_at),
            next(row, now),
        ]
    });
    let head = ["Request", "State", "Stands", "Reason", "Attempt", "Accepted", "Next"];
    table("Requests", &head, cells)
}

/// How far the search came, and the way on.
pub(super) fn more<T, N>(page: &Page<T, N>, now: Now, next: impl FnOnce(&N) -> Markup) -> Markup {
    html! {
        div.more {
            p.quiet {
                @match page.searched_to {
                    None => { (page.rows.len()) " shown" }
                    Some(to) => {
                        @if page.rows.is_empty() { "None " } @else { (page.rows.len()) " shown, none more " }
                        "among the ten thousand searched, which reach to " (now.relative(to))
                    }
                }
            }
            @if let Some(cursor) = &page.next { (next(cursor)) }
        }
    }
}

/// In place of a list with nothing in it; behind another page there is no more.
pub(super) fn none(query: &Fields, text: &str) -> Markup {
    let is_behind = ["after", "before"].iter().any(|name| !query.text(name).is_empty());
    html! { p.empty { @if is_behind { "No more." } @else { (text) } } }
}

/// Whether there is none at all: behind a search that found none there may be some.
pub(super) fn is_none<T, N>(page: &Page<T, N>) -> bool {
    page.rows.is_empty() && page.next.is_none()
}
