//! The small parts of the pages: texts of others, times, states, tables.

use std::borrow::Cow;
use std::fmt::Write as _;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use maud::{Markup, html};
use uuid::Uuid;

use crate::ops::State;

/// A text that a client or an operator wrote. What would turn the text around it, or cannot be seen, is shown by its
/// number.
pub(super) fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unseen) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match is_unseen(letter) {
            // Writing to a String cannot fail.
            true => drop(write!(out, "⟦U+{:04X}⟧", u32::from(letter))),
            false => out.push(letter),
        }
    }
    Cow::Owned(out)
}

fn is_unseen(letter: char) -> bool {
    let is_control = letter.is_control() && !matches!(letter, '\n' | '\t');
    let turns = matches!(letter, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}');
    is_control || turns || matches!(letter, '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The same, isolated from the direction of what is around it.
pub(super) fn bdi(text: &str) -> Markup {
    html! { bdi { (visible(text)) } }
}

/// A sentence of the library, in which `` `code` `` is marked.
pub(super) fn sentence(text: &str) -> Markup {
    html! {
        bdi {
            @for (index, part) in text.split('`').enumerate() {
                @if index % 2 == 0 { (visible(part)) } @else { code { (visible(part)) } }
            }
        }
    }
}

/// In two units at most.
pub(super) fn span(time: TimeDelta) -> String {
    let seconds = time.num_seconds().max(0);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

fn element(at: DateTime<Utc>, text: &str) -> Markup {
    html! {
        time datetime=(at.to_rfc3339_opts(SecondsFormat::Millis, true))
            title=(at.format("%Y-%m-%d %H:%M:%S UTC")) { (text) }
    }
}

/// The database's time when a page was read: the clock of the service, which may be another, is asked by no page.
#[derive(Clone, Copy)]
pub(super) struct Now(pub(super) DateTime<Utc>);

impl Now {
    /// How long ago it was, or how long it is until then.
    pub(super) fn relative(self, at: DateTime<Utc>) -> Markup {
        let ago = self.0 - at;
        // Less than a second is none.
        match ago.num_seconds() < 0 {
            true => element(at, &format!("in {}", span(-ago))),
            false => element(at, &format!("{} ago", span(ago))),
        }
    }

    /// For how long.
    pub(super) fn age(self, at: DateTime<Utc>) -> Markup {
        element(at, &span(self.0 - at))
    }
}

/// Date and time.
pub(super) fn exact(at: DateTime<Utc>) -> Markup {
    element(at, &at.format("%Y-%m-%d %H:%M:%S").to_string())
}

pub(super) fn name_of(state: State) -> String {
    state.as_str().replace('_', " ")
}

/// A state by colour, and by its name.
pub(super) fn chip(state: State) -> Markup {
    let class = format!("chip {}", state.as_str());
    html! { span class=(class) { (name_of(state)) } }
}

/// The last eight digits of an id, for which a page has room. They are random; the first ones of a request's id are the
/// time, and the same for all requests of a minute.
pub(super) fn short(id: Uuid) -> String {
    format!("…{:08x}", id.as_u128() as u32)
}

/// A table that becomes a list of cards where there is no room for it. Its roles are said, because the
/// display of a card takes them away.
pub(super) fn table(
    caption: &str,
    head: &[&str],
    rows: impl IntoIterator<Item = Vec<Markup>>,
) -> Markup {
    html! {
        table role="table" {
            caption.unseen { (caption) }
            thead role="rowgroup" {
                tr role="row" { @for name in head { th role="columnheader" scope="col" { (name) } } }
            }
            tbody role="rowgroup" {
                @for row in rows {
                    tr role="row" {
                        @for (name, cell) in head.iter().zip(row) {
                            td role="cell" data-label=(name) { div { (cell) } }
                        }
                    }
                }
            }
        }
    }
}

/// Names and values below each other; an empty value is left out.
pub(super) fn facts(rows: Vec<(&str, Option<Markup>)>) -> Markup {
    html! {
        dl.facts {
            @for (name, value) in rows {
                @if let Some(value) = value { div { dt { (name) } dd { (value) } } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_turn_a_text_is_shown_by_its_number() {
        assert_eq!(visible("plain\ttext\n"), "plain\ttext\n");
        assert_eq!(visible("a\u{202e}b\u{0}\u{200b}"), "a⟦U+202E⟧b⟦U+0000⟧⟦U+200B⟧");
        assert_eq!(bdi("<b>\"").into_string(), "<bdi>&lt;b&gt;&quot;</bdi>");
    }

    #[test]
    fn two_ids_of_one_moment_are_shortened_differently() {
        let at = |random| uuid::Builder::from_unix_timestamp_millis(1_700_000_000_000, &random);
        let (one, other) = (at([7; 10]).into_uuid(), at([8; 10]).into_uuid());
        assert_eq!((one.get_version_num(), short(one).as_str()), (7, "…07070707"));
        assert_ne!(short(one), short(other));
        // It is how the whole id ends, so that one is found by the other.
        let id = crate::chance::uuid_by_time();
        assert!(id.to_string().ends_with(short(id).trim_start_matches('…')), "{id}");
    }

    #[test]
    fn a_span_has_two_units_at_most() {
        let of = |seconds| span(TimeDelta::seconds(seconds));
        assert_eq!((of(-1), of(59), of(61)), ("0 s".into(), "59 s".into(), "1 min".into()));
        assert_eq!((of(3661), of(90_000)), ("1 h 1 min".into(), "1 d 1 h".into()));
    }
}
