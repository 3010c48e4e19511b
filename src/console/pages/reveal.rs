//! A key, a scope, a value: shown once the operator has said why, and after the audit has it.

use axum::body::Bytes;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::{Markup, html};
use serde_json::value::RawValue;

use super::fields::{Fields, Named, id_of};
use super::format::{bdi, facts, visible};
use super::frame::{Frame, Section};
use super::guard::Asked;
use super::request::{name_of, reveal_form};
use super::trouble::{self, NoAnswer};
use crate::ops::{OperatorStore, OpsError, Revealed, What};
use crate::phase::Reply;

/// A value beyond this is shown as it is stored, without lines of its own.
const LAID_OUT: usize = 256 << 10;

/// `POST`: nothing that users gave is in a URL, and a reveal is an act.
pub(super) async fn page<S: OperatorStore>(
    Named(id): Named,
    asked: Asked<S>,
    form: Bytes,
) -> Response {
    let Asked { ops, frame, .. } = &asked;
    let form = Fields::read(&form);
    let what = What::ALL.into_iter().find(|what| name_of(*what) == form.text("what"));
    let revealed = match (id_of(&id), what) {
        (Ok(id), Some(what)) => {
            let (ops, reason) = (ops.clone(), form.text("reason").to_owned());
            let reveal = async move { ops.reveal(id, what, &reason).await };
            match tokio::spawn(reveal).await {
                Ok(revealed) => revealed.map(|revealed| (id, what, revealed)),
                Err(task) => return trouble::lost_task(frame, &task),
            }
        }
        (Ok(_), None) => Err(OpsError::BadFilter("there is no such value: choose one of the list")),
        (Err(error), _) => Err(error),
    };
    match revealed {
        Ok((id, what, revealed)) => {
            let title = format!("Revealed: {}", name_of(what));
            let back = frame.to(format_args!("requests/{id}"));
            let body = body(frame, &title, &back, what, &revealed);
            frame.answer(Section::Requests, &title, Ok(body))
        }
        Err(error @ OpsError::BadReason) => {
            let title = "Not revealed";
            let page = html! {
                h1 { (title) }
                p.error role="alert" { "Nothing is shown: " (error) "." }
                @if let Ok(id) = id_of(&id) { (reveal_form(frame, id, what, form.raw("reason"))) }
            };
            frame.page(trouble::status(&error), Section::Requests, title, page)
        }
        // The audit row may be written by then.
        Err(error) if error.is_of_no_answer() => trouble::unanswered(frame, NoAnswer::ToAct),
        Err(error) => trouble::page(frame, &error),
    }
}

fn body(frame: &Frame, title: &str, back: &str, what: What, revealed: &Revealed) -> Markup {
    let code = |text: &str| Some(html! { code { (bdi(text)) } });
    html! {
        h1 { (title) }
        p.lead { "That " bdi { (visible(frame.actor())) } " revealed it, and why, is in the audit." }
        (facts(vec![
            ("Scope", code(revealed.scope.as_str())),
            ("Key", code(revealed.key.as_str())),
        ]))
        @if let Some(json) = &revealed.json {
            pre.value tabindex="0" data-copy="" { (visible(&laid_out(json))) }
        } @else if let Some(reply) = &revealed.reply {
            (facts(vec![
                ("Status", Some(html! { (reply.status()) })),
                ("Headers", Some(html! {
                    @for (name, value) in reply.headers() { code { (bdi(name)) ": " (bdi(value)) } br; }
                })),
            ]))
            (body_of(reply))
        } @else if what != What::Key {
            p.empty { "There is none: it was never stored, or is erased by now." }
        }
        p { a.button href=(back) { "Back to the request" } }
    }
}

/// The body of a reply: as it is stored, and JSON with lines. Bytes that are not UTF-8 are shown as the API tells them.
fn body_of(reply: &Reply) -> Markup {
    match std::str::from_utf8(reply.bytes()) {
        Ok(text) => html! {
            pre.value tabindex="0" data-copy="" {
                // A browser drops the line end behind the tag.
                @if text.starts_with('\n') { "\n" }
                (visible(&laid_out(text)))
            }
        },
        Err(_) => html! {
            p { "The body is not UTF-8 text. It is shown as base64:" }
            pre.value tabindex="0" data-copy="" { (STANDARD.encode(reply.bytes())) }
        },
    }
}

/// JSON with a line for each member, and any other text as it is: white space is dropped only where it has no meaning.
/// Works on the text: a number is shown with the digits it was stored with, and what is nested deeply only moves no
/// further to the right.
fn laid_out(text: &str) -> String {
    if text.len() > LAID_OUT || serde_json::from_str::<&RawValue>(text).is_err() {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() * 2);
    let (mut depth, mut in_text, mut is_escaped) = (0_usize, false, false);
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth.min(20)));
    };
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if in_text {
            in_text = is_escaped || letter != '"';
            is_escaped = !is_escaped && letter == '\\';
            out.push(letter);
            continue;
        }
        match letter {
            '{' | '[' => {
                out.push(letter);
                depth += 1;
                if !matches!(letters.peek(), Some('}' | ']')) {
                    line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                if !out.ends_with(['{', '[']) {
                    line(&mut out, depth);
                }
                out.push(letter);
            }
            ',' => {
                out.push(',');
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            ' ' | '\n' | '\r' | '\t' => {}
            other => {
                in_text = other == '"';
                out.push(other);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_laid_out_with_the_digits_it_has() {
        let json = r#"{"a":[1,18446744073709551617,0.10],"b":{},"c":"x,\"{\\","d":[]}"#;
        let text = "{\n  \"a\": [\n    1,\n    18446744073709551617,\n    0.10\n  ],\n  \"b\": {},\n  \
                    \"c\": \"x,\\\"{\\\\\",\n  \"d\": []\n}";
        assert_eq!(laid_out(json), text);
        assert_eq!(laid_out("\"text, {\""), "\"text, {\"");
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        let text = laid_out(&deep);
        assert!(text.starts_with("[\n  [\n") && text.len() < 10_000_000);
        let large = format!("[{}1]", "1,".repeat(LAID_OUT));
        assert_eq!(laid_out(&large), large);
    }

    #[test]
    fn a_text_that_is_not_json_is_shown_as_it_is_stored() {
        for text in [
            "[14:05 pilot 7] told at noon",
            "{\"id\": 1}\n{\"id\": 2}\n",
            "{ not: json }",
            "[1, 2] and more",
            "[1, 2,]",
            " ",
            "",
        ] {
            assert_eq!(laid_out(text), text);
        }
        assert_eq!(laid_out(" [1 , 2]\n"), "[\n  1,\n  2\n]");
    }

    #[test]
    fn a_body_that_is_not_utf8_is_shown_as_base64_and_says_so() {
        let bytes = body_of(&Reply::new(200).body([b'{', 0xff, b'}'])).into_string();
        assert!(bytes.contains("is not UTF-8") && bytes.contains(">e/99<"), "{bytes}");
        assert!(!bytes.contains('\u{fffd}'), "{bytes}");
        let text = body_of(&Reply::text(200, "[14:05 pilot 7] told at noon")).into_string();
        assert!(text.contains(">[14:05 pilot 7] told at noon<"), "{text}");
        let text = body_of(&Reply::text(200, "\na\n")).into_string();
        assert!(text.contains(">\n\na\n<"), "{text}");
    }
}
