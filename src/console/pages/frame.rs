//! [`Frame`]: what is around every page.

use std::fmt::Display;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use maud::{DOCTYPE, Markup, html};

use super::assets;
use super::format::visible;
use crate::ops::{Actor, Permissions};

/// Which of the parts of the console a page is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Overview,
    Waiting,
    Requests,
    Jobs,
    Definitions,
    Pauses,
    Bulk,
    Audit,
    None,
}

const SECTIONS: [(Section, &str, &str, Permissions); 8] = [
    (Section::Overview, "overview", "Overview", Permissions::READ),
    (Section::Waiting, "waiting", "Waiting", Permissions::READ),
    (Section::Requests, "requests", "Requests", Permissions::READ),
    (Section::Jobs, "jobs", "Jobs", Permissions::READ),
    (Section::Definitions, "definitions", "Definitions", Permissions::READ),
    (Section::Pauses, "pauses", "Pauses", Permissions::READ),
    (Section::Bulk, "bulk", "Bulk", Permissions::READ),
    (Section::Audit, "audit", "Audit", Permissions::AUDIT),
];

/// Who looks, and the way from the page to the console's root.
#[derive(Debug)]
pub(super) struct Frame {
    root: String,
    actor: String,
    may: Permissions,
}

impl Frame {
    /// `path`: of the page, from the console's root on.
    pub(super) fn new(path: &str, actor: &Actor) -> Self {
        let depth = path.matches('/').count().saturating_sub(1);
        Self { root: "../".repeat(depth), actor: actor.name().to_owned(), may: actor.permissions() }
    }

    /// A link to a page: each is relative, because where the console is mounted is not known here.
    pub(super) fn to(&self, page: impl Display) -> String {
        format!("{}{page}", self.root)
    }

    pub(super) fn may(&self, needs: Permissions) -> bool {
        self.may.contain(needs)
    }

    pub(super) fn actor(&self) -> &str {
        &self.actor
    }

    pub(super) fn page(
        &self,
        status: StatusCode,
        section: Section,
        title: &str,
        body: Markup,
    ) -> Response {
        let asset = |file: &str| self.to(format_args!("assets/{}/{file}", assets::version()));
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="robots" content="noindex";
                    title { (visible(title)) " · atomic-phases" }
                    link rel="icon" type="image/svg+xml" href=(asset("icon.svg"));
                    link rel="stylesheet" href=(asset("console.css"));
                    script src=(asset("console.js")) defer {}
                }
                body data-search=(self.to("requests#find")) {
                    a.skip href="#main" { "Skip to the page" }
                    header.bar {
                        a.brand href=(self.to("overview")) { "atomic" span { "·" } "phases" }
                        nav aria-label="Console" {
                            ul {
                                @for (one, path, name, needs) in SECTIONS {
                                    @if self.may(needs) {
                                        li {
                                            a href=(self.to(path))
                                                aria-current=[(one == section).then_some("page")] { (name) }
                                        }
                                    }
                                }
                            }
                        }
                        p.actor title=(format!("may {}", self.may)) {
                            span.unseen { "Signed in as " }
                            bdi { (visible(&self.actor)) }
                        }
                    }
                    main #main tabindex="-1" { (body) }
                    footer {
                        p { "Times are the database's; the exact time stands behind each in UTC. " span #live {} }
                    }
                }
            }
        };
        let html = [(CONTENT_TYPE, "text/html; charset=utf-8")];
        (status, html, page.into_string()).into_response()
    }
}
