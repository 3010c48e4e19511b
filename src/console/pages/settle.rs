//! Which acts there are for a request, and the form in which one is chosen.

use maud::{Markup, html};

use super::act::Act;
use super::fields::{Fields, carried};
use super::format::bdi;
use super::frame::Frame;
use crate::ops::{Details, Permissions, PhaseViewKind, State};

/// The phase whose call a word can be about.
fn call_of(details: &Details) -> Option<&str> {
    let mut phases = details.phases.iter();
    let next = phases.find(|phase| phase.is_current() && phase.kind != PhaseViewKind::Local);
    details.summary.open_intent.as_deref().or(next.map(|phase| phase.name.as_str()))
}

/// The acts that fit where the request stands, and that the actor may do.
pub(super) struct Offered<'a> {
    retry: bool,
    /// The phase whose call a word can be about.
    call: Option<&'a str>,
    /// Whether that call has no outcome.
    is_open: bool,
    finish: bool,
    erase: bool,
}

impl<'a> Offered<'a> {
    pub(super) fn of(frame: &Frame, details: &'a Details) -> Self {
        let row = &details.summary;
        let is_dead = row.state == State::DeadLetter;
        let is_over = matches!(row.state, State::Finished | State::Erased);
        let may_act = frame.may(Permissions::ACT);
        Self {
            retry: is_dead && row.open_intent.is_none() && may_act,
            call: call_of(details).filter(|_| waits(details) && may_act),
            is_open: !is_dead || row.open_intent.is_some(),
            finish: may_act && !is_over && row.state != State::Running,
            erase: frame.may(Permissions::ERASE) && (is_dead || row.state == State::Finished),
        }
    }

    /// Whether this act is among them. `attempt`: that of the call which the operator has looked at.
    pub(super) fn has(&self, act: &Act, attempt: u32, details: &Details) -> bool {
        let is_the_call =
            |phase: &str| self.call == Some(phase) && attempt == details.summary.attempts;
        match act {
            Act::Executed { phase, .. } => is_the_call(phase),
            Act::NotExecuted { phase, .. } => self.is_open && is_the_call(phase),
            Act::Finish { .. } => self.finish,
            Act::Retry => self.retry,
            Act::Erase => self.erase,
        }
    }

    /// Whether the form of these acts has this field.
    pub(super) fn asks_for(&self, field: &str) -> bool {
        match field {
            "output" => self.call.is_some(),
            "body" => self.finish,
            _ => !self.is_nothing(),
        }
    }

    fn is_nothing(&self) -> bool {
        !self.retry && self.call.is_none() && !self.finish && !self.erase
    }
}

fn waits(details: &Details) -> bool {
    matches!(details.summary.state, State::DeadLetter | State::Unknown)
}

/// As what the request was read: a review that comes too late tells what has changed since.
pub(super) fn read_at(details: &Details) -> Markup {
    let row = &details.summary;
    html! {
        (carried("version", row.version.as_str()))
        (carried("was", row.state.as_str()))
        (carried("read_at", &details.read_at.to_rfc3339()))
    }
}

/// The form in which an act is chosen; `typed` is what was typed into it before.
pub(super) fn form(frame: &Frame, details: &Details, typed: &Fields) -> Markup {
    let row = &details.summary;
    let offered = Offered::of(frame, details);
    if offered.is_nothing() {
        return html! {
            @if waits(details) && !frame.may(Permissions::ACT) {
                p.quiet #settle { "To settle it needs the permission to act." }
            }
        };
    }
    let choice = |value: &str, name: &str, hint: Markup, more: Markup| {
        choice(value, name, typed.text("act") == value, &hint, &more)
    };
    html! {
        section #settle {
            @if waits(details) { h2 { "Settle it" } } @else { h2 { "Act" } }
            form.settle method="post" action=(frame.to(format_args!("requests/{}/plan", row.request_id))) {
                (read_at(details))
                @if !typed.raw("reason").is_empty() { (carried("reason", typed.raw("reason"))) }
                fieldset {
                    legend { "What do you know, or want?" }
                    @if offered.retry {
                        (choice("retry", "Let it try again", html! {
                            "From its last committed phase, with a new count of attempts."
                        }, html! {}))
                    }
                    @if let Some(phase) = offered.call {
                        input type="hidden" name="phase" value=(phase);
                        input type="hidden" name="attempt" value=(row.attempts);
                        (choice("executed", "The call was executed", html! {
                            "You know what " code { (bdi(phase)) } " would have returned."
                        }, html! {
                            label for="output" { "Its output, as JSON" }
                            textarea #output name="output" rows="4" spellcheck="false"
                                placeholder="{\"id\": \"ntf_00000001\"}" { "\n" (typed.raw("output")) }
                        }))
                        @if offered.is_open {
                            (choice("not_executed", "The call was not executed", html! {
                                "The call of attempt " (row.attempts) " had no effect and will have none: it may be \
                                 made again."
                            }, html! {}))
                        }
                    }
                    @if offered.finish {
                        (choice("finish", "Finish it with a reply", html! {
                            "You have settled it by hand. No later phase runs; each retry is answered with this."
                        }, reply_fields(typed)))
                    }
                    @if offered.erase {
                        (choice("erase", "Erase what users gave", html! {
                            "Parameters, outputs and reply go. The key stays used until its retention ends."
                        }, html! {}))
                    }
                }
                p { button { "Review" } " " span.quiet { "Nothing is changed yet." } }
            }
        }
    }
}

fn choice(value: &str, name: &str, is_chosen: bool, hint: &Markup, more: &Markup) -> Markup {
    let id = format!("act-{value}");
    html! {
        div.choice {
            input type="radio" name="act" id=(id) value=(value) required checked[is_chosen]
                aria-describedby=(format!("{id}-hint"));
            label for=(id) { (name) }
            p.quiet id=(format!("{id}-hint")) { (hint) }
            div.more-fields { (more) }
        }
    }
}

fn reply_fields(typed: &Fields) -> Markup {
    let status = Some(typed.text("status")).filter(|status| !status.is_empty()).unwrap_or("200");
    let is_text = typed.text("media") == "text";
    html! {
        label for="status" { "Status" }
        input #status name="status" inputmode="numeric" value=(status) size="4" autocomplete="off";
        label for="media" { "Body is" }
        select #media name="media" {
            option value="json" { "JSON" }
            option value="text" selected[is_text] { "plain text" }
        }
        label for="body" { "Body" }
        textarea #body name="body" rows="4" spellcheck="false" { "\n" (typed.raw("body")) }
    }
}
