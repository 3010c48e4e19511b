//! How much waits, and what the newest requests came to.

use std::collections::BTreeMap;

use axum::response::Response;
use maud::{Markup, html};

use super::format::{Now, bdi, table};
use super::frame::{Frame, Section};
use super::guard::Asked;
use super::{chart, list};
use crate::ops::{
    Count, Counts, Cursor, Filter, OperatorStore, OpsError, Page, Permissions, State, Summary,
};

/// How many of the newest requests are judged by.
const NEWEST: u32 = 200;

/// How many of those that wait the longest are shown.
const LONGEST: u32 = 6;

pub(super) async fn page<S: OperatorStore>(asked: Asked<S>) -> Response {
    asked.frame.answer(Section::Overview, "Overview", body(&asked).await)
}

async fn body<S: OperatorStore>(asked: &Asked<S>) -> Result<Markup, OpsError> {
    let Asked { ops, frame, .. } = asked;
    let counts = ops.counts().await?;
    let waiting = ops.list(Filter::waiting().page(LONGEST)).await?;
    let newest = ops.list(Filter::new().page(NEWEST)).await?;
    let now = asked.now().await?;
    Ok(html! {
        h1 { "Overview" }
        section #counts data-live="5" aria-label="How much waits" {
            (tiles(frame, &counts, now))
            h2 { "Waiting the longest" }
            @if list::is_none(&waiting) {
                p.empty { "Nothing waits for you." }
            } @else if waiting.rows.is_empty() {
                (behind(&waiting, now, |cursor| frame.to(format_args!("waiting?after={cursor}"))))
            } @else {
                (list::inbox(frame, &waiting.rows, now, frame.may(Permissions::ACT)))
                @if waiting.next.is_some() {
                    p.more { a.button href=(frame.to("waiting")) { "All that wait" } }
                }
            }
        }
        section #newest data-live="5" aria-label="The newest requests" {
            h2 { "The newest " (newest.rows.len()) " requests" }
            @if list::is_none(&newest) {
                p.empty { "There is no request yet." }
            } @else if newest.rows.is_empty() {
                (behind(&newest, now, |cursor| frame.to(format_args!("requests?after={cursor}"))))
            } @else {
                (chart::arrivals(&newest.rows, now))
                (by_definition(frame, &newest.rows))
            }
        }
    })
}

/// Of an operator before whose requests there are thousands of others.
fn behind(page: &Page<Summary>, now: Now, next: impl FnOnce(&Cursor) -> String) -> Markup {
    list::more(
        page,
        now,
        |cursor| html! { a.button rel="next" href=(next(cursor)) { "Search further" } },
    )
}

fn tiles(frame: &Frame, counts: &Counts, now: Now) -> Markup {
    let since = counts.oldest_waiting;
    let oldest = match since {
        Some(since) => html! { "the oldest for " (now.age(since)) },
        None if counts.unknown.or_more => html! { "none among those searched" },
        None => html! { "none" },
    };
    let tiles = [
        ("unknown", "Unknown outcomes", counts.unknown, "waiting?state=unknown", oldest),
        (
            "dead_letter",
            "Dead letters",
            counts.dead_letters,
            "waiting?state=dead_letter",
            html! { "gave up" },
        ),
        (
            "stranded",
            "Stranded",
            counts.stranded,
            "requests?stranded=1",
            html! { "not for this build" },
        ),
        (
            "due",
            "Due",
            counts.due,
            "requests?state=due&state=lease_ended&state=accepted",
            html! {
                @if counts.none_announced { "and no process is announced" } @else { "for a worker" }
            },
        ),
        ("job", "Dead jobs", counts.dead_jobs, "jobs", html! { "not delivered" }),
        ("late", "Late jobs", counts.late_jobs, "jobs#late-jobs", html! { "due for a minute" }),
    ];
    html! {
        ul.tiles {
            @for (class, name, count, path, note) in tiles {
                li { (tile(frame, class, name, count, path, &note)) }
            }
        }
    }
}

fn tile(frame: &Frame, class: &str, name: &str, count: Count, path: &str, note: &Markup) -> Markup {
    let class = match count.number == 0 && !count.or_more {
        true => "tile none".to_owned(),
        false => format!("tile {class}"),
    };
    html! {
        a class=(class) href=(frame.to(path)) {
            span.name { (name) }
            span.number { (count.number) @if count.or_more { "+" span.unseen { " or more" } } }
            span.note { (note) }
        }
    }
}

/// What became of some requests of one definition.
#[derive(Default)]
struct Came {
    finished: usize,
    in_work: usize,
    waiting: usize,
    more_than_once: usize,
}

fn by_definition(frame: &Frame, rows: &[Summary]) -> Markup {
    let mut all: BTreeMap<&(String, u32), Came> = BTreeMap::new();
    for row in rows {
        let came = all.entry(&row.definition).or_default();
        came.more_than_once += usize::from(row.attempts > 1);
        match row.state {
            State::Finished | State::Erased => came.finished += 1,
            State::Unknown | State::DeadLetter => came.waiting += 1,
            _ => came.in_work += 1,
        }
    }
    let cells = all.into_iter().map(|((name, version), came)| {
        let of = serde_urlencoded::to_string([
            ("definition", name.clone()),
            ("version", version.to_string()),
        ]);
        let to = frame.to(format_args!("requests?{}", of.unwrap_or_default()));
        vec![
            html! { a href=(to) { (bdi(name)) " v" (version) } },
            html! { (came.finished) },
            html! { (came.in_work) },
            html! { (came.waiting) },
            html! { (came.more_than_once) },
        ]
    });
    let head = ["Definition", "Finished", "In work", "Waiting", "More than one attempt"];
    table("The newest requests by definition", &head, cells)
}
