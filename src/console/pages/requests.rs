//! Requests by a filter that stands in the URL, and by scope and key, which do not.

use axum::body::Bytes;
use axum::response::Response;
use http::StatusCode;
use maud::{Markup, html};

use super::fields::{Fields, duration};
use super::format::{Now, name_of};
use super::frame::{Frame, Section};
use super::guard::{Asked, see_other};
use super::{bulk, list, trouble};
use crate::key::{IdempotencyKey, Scope};
use crate::ops::{Cursor, Filter, OperatorStore, OpsError, Page, State, Summary};

/// What may be chosen; the last is of rows that this build cannot read.
const CHOICES: &[State] = State::ALL.split_at(State::ALL.len() - 1).0;

pub(super) async fn page<S: OperatorStore>(asked: Asked<S>) -> Response {
    let Asked { ops, frame, query } = &asked;
    let listed = async { Ok((ops.list(filter(query)?).await?, asked.now().await?)) };
    let (status, list) = match listed.await {
        Ok((page, now)) => (StatusCode::OK, results(frame, query, &page, now)),
        Err(error @ (OpsError::BadFilter(_) | OpsError::BadCursor)) => {
            (trouble::status(&error), html! { p.error role="alert" { (error) } })
        }
        Err(error) => return trouble::page(frame, &error),
    };
    frame.page(status, Section::Requests, "Requests", all(frame, query, &Fields::read(b""), list))
}

/// `POST`: scope and key are what users gave, and a URL is in the logs of every proxy.
pub(super) async fn find<S: OperatorStore>(asked: Asked<S>, form: Bytes) -> Response {
    let Asked { ops, frame, query } = &asked;
    let form = Fields::read(&form);
    let told = match Scope::new(form.raw("scope")) {
        Ok(scope) if form.text("key").is_empty() => {
            let listed = async {
                let filter = Filter::new().scope(&scope);
                let filter = cursor(&form)?.into_iter().fold(filter, Filter::after);
                let (page, now) = (ops.list(filter).await?, asked.now().await?);
                Ok(of_scope(frame, &form, &page, now))
            };
            listed.await
        }
        Ok(scope) => match IdempotencyKey::new(form.text("key")) {
            Ok(key) => match ops.find(&scope, &key).await {
                Ok(row) => {
                    return see_other(&frame.to(format_args!("requests/{}", row.request_id)));
                }
                Err(error) => Err(error),
            },
            Err(_) => Err(OpsError::BadFilter(
                "a key is visible ASCII characters without spaces, 255 at most",
            )),
        },
        Err(_) => Err(OpsError::BadFilter("a scope is 1 to 255 characters")),
    };
    let (status, list) = match told {
        Ok(list) => (StatusCode::OK, list),
        Err(error @ (OpsError::NoSuchRequest | OpsError::BadFilter(_) | OpsError::BadCursor)) => {
            (trouble::status(&error), html! { p.error role="alert" { (error) "." } })
        }
        Err(error) => return trouble::page(frame, &error),
    };
    frame.page(status, Section::Requests, "Requests", all(frame, query, &form, list))
}

fn all(frame: &Frame, query: &Fields, sought: &Fields, list: Markup) -> Markup {
    html! {
        h1 { "Requests" }
        (finder(frame, sought))
        (filters(frame, query))
        (list)
    }
}

/// Where the list of before goes on.
pub(super) fn cursor(fields: &Fields) -> Result<Option<Cursor>, OpsError> {
    match fields.text("after") {
        "" => Ok(None),
        text => text.parse().map(Some),
    }
}

pub(super) fn next_link(frame: &Frame, page: &str, query: &Fields, cursor: &Cursor) -> Markup {
    let rest = query.query_without(&["after"]);
    let and = if rest.is_empty() { "" } else { "&" };
    let to = frame.to(format_args!("{page}?{rest}{and}after={cursor}"));
    html! {
        p {
            @if !query.text("after").is_empty() {
                a.button href=(frame.to(format_args!("{page}?{rest}"))) { "First page" } " "
            }
            a.button rel="next" href=(to) { "Next page" }
        }
    }
}

pub(super) fn filter(query: &Fields) -> Result<Filter, OpsError> {
    let mut states = Vec::new();
    for name in query.all("state").filter(|name| !name.is_empty()) {
        let state = State::ALL.into_iter().find(|state| state.as_str() == name);
        states.push(state.ok_or(OpsError::BadFilter("there is no such state"))?);
    }
    let mut filter = Filter::new().states(states);
    let time = |name| match query.text(name) {
        "" => Ok(None),
        text => match duration(text) {
            Some(time) => Ok(Some(time)),
            None => Err(OpsError::BadFilter("a time is a number and a unit: 90s, 15m, 2h, 3d")),
        },
    };
    if let Some(time) = time("older")? {
        filter = filter.older_than(time);
    }
    if let Some(time) = time("waiting")? {
        filter = filter.waiting_for(time);
    }
    let version = match query.text("version") {
        "" => None,
        text => Some(text.parse().map_err(|_| OpsError::BadFilter("a version is a whole number"))?),
    };
    match (query.text("definition"), version) {
        ("", None) => {}
        ("", Some(_)) => {
            return Err(OpsError::BadFilter("a version is one of a definition: name it, too"));
        }
        (name, version) => filter = filter.definition(name, version),
    }
    if !query.text("phase").is_empty() {
        filter = filter.phase(query.text("phase"));
    }
    if !query.text("reason").is_empty() {
        filter = filter.reason(query.text("reason"));
    }
    if !query.text("stranded").is_empty() {
        filter = filter.stranded();
    }
    Ok(cursor(query)?.into_iter().fold(filter, Filter::after))
}

fn finder(frame: &Frame, form: &Fields) -> Markup {
    html! {
        form.finder method="post" action=(frame.to("requests/find")) role="search" aria-label="By scope and key" {
            div.field {
                label for="find" { "Scope" }
                input #find name="scope" required maxlength="255" autocomplete="off" spellcheck="false"
                    value=(form.raw("scope"));
            }
            div.field {
                label for="key" { "Idempotency key " span.quiet { "(empty: all of the scope)" } }
                input #key name="key" maxlength="255" autocomplete="off" spellcheck="false"
                    value=(form.text("key"));
            }
            button { "Find" }
        }
    }
}

fn filters(frame: &Frame, query: &Fields) -> Markup {
    let is_open = !query.query_without(&["after"]).is_empty();
    let field = |name: &str, label: &str, hint: &str| {
        html! {
            div.field {
                label for=(format!("by-{name}")) { (label) }
                input id=(format!("by-{name}")) name=(name) value=(query.text(name)) placeholder=(hint)
                    autocomplete="off" spellcheck="false";
            }
        }
    };
    html! {
        details.filters open[is_open] {
            summary { "Filter" }
            form action=(frame.to("requests")) aria-label="Filter" {
                fieldset.states {
                    legend { "State" }
                    @for state in CHOICES {
                        label.check {
                            input type="checkbox" name="state" value=(state)
                                checked[query.all("state").any(|name| name == state.as_str())];
                            (name_of(*state))
                        }
                    }
                    label.check {
                        input type="checkbox" name="stranded" value="1" checked[!query.text("stranded").is_empty()];
                        "stranded: not of this build"
                    }
                }
                div.fields {
                    (field("definition", "Definition", "rides.create"))
                    (field("version", "Version", "1"))
                    (field("phase", "Phase", "charge_created"))
                    (field("reason", "Reason has in it", ""))
                    (field("older", "Accepted at least … ago", "15m, 2h, 3d"))
                    (field("waiting", "Waiting for at least", "15m, 2h, 3d"))
                }
                p { button { "Show" } " " a.button href=(frame.to("requests")) { "Show all" } }
            }
        }
    }
}

fn results(frame: &Frame, query: &Fields, page: &Page<Summary>, now: Now) -> Markup {
    html! {
        section #list data-live="10" aria-label="What was found" {
            @if list::is_none(page) {
                (list::none(query, "There is no such request."))
            } @else {
                (list::requests(frame, &page.rows, now))
                (list::more(page, now, |cursor| next_link(frame, "requests", query, cursor)))
                (bulk::choice(frame, query))
            }
        }
    }
}

fn of_scope(frame: &Frame, form: &Fields, page: &Page<Summary>, now: Now) -> Markup {
    html! {
        section #list aria-label="Requests of the scope" {
            @if list::is_none(page) {
                (list::none(form, "There is no request of this scope."))
            } @else {
                (list::requests(frame, &page.rows, now))
                (list::more(page, now, |cursor| html! {
                    form method="post" action=(frame.to("requests/find")) {
                        input type="hidden" name="scope" value=(form.raw("scope"));
                        input type="hidden" name="after" value=(cursor);
                        button { "Next page" }
                    }
                }))
            }
        }
    }
}
