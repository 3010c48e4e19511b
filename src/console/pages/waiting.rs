//! The inbox: unknown outcomes and dead letters, the longest waiting first.

use axum::response::Response;
use maud::{Markup, html};

use super::frame::Section;
use super::guard::Asked;
use super::list;
use super::requests::{cursor, next_link};
use crate::ops::{Filter, OperatorStore, OpsError, Permissions, State};

pub(super) async fn page<S: OperatorStore>(asked: Asked<S>) -> Response {
    asked.frame.answer(Section::Waiting, "Waiting", body(&asked).await)
}

async fn body<S: OperatorStore>(asked: &Asked<S>) -> Result<Markup, OpsError> {
    let Asked { ops, frame, query } = asked;
    let only = [State::Unknown, State::DeadLetter]
        .into_iter()
        .find(|state| state.as_str() == query.text("state"));
    let mut filter = match only {
        Some(state) => Filter::new().states([state]),
        None => Filter::waiting(),
    };
    if let Some(cursor) = cursor(query)? {
        filter = filter.after(cursor);
    }
    let (page, now) = (ops.list(filter).await?, asked.now().await?);
    let tabs = [("waiting", "All", None)].into_iter().chain([
        ("waiting?state=unknown", "Unknown outcomes", Some(State::Unknown)),
        ("waiting?state=dead_letter", "Dead letters", Some(State::DeadLetter)),
    ]);
    Ok(html! {
        h1 { "Waiting" }
        p.lead {
            "Nothing ends these by itself but a reconcile function that finds out what became of a call. Each \
             page says what an answer will change before it is given."
        }
        nav.tabs aria-label="Which" {
            @for (path, name, state) in tabs {
                a href=(frame.to(path)) aria-current=[(state == only).then_some("true")] { (name) }
            }
        }
        section #inbox data-live="5" aria-label="Requests that wait" {
            @if list::is_none(&page) {
                (list::none(query, "Nothing waits."))
            } @else {
                (list::inbox(frame, &page.rows, now, frame.may(Permissions::ACT)))
                (list::more(&page, now, |cursor| next_link(frame, "waiting", query, cursor)))
            }
        }
    })
}
