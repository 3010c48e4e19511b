//! The web console: what its pages show, what they do, and who may use them; over a socket and in a browser.

#![allow(dead_code, unreachable_pub, missing_docs)]

#[path = "../support/mod.rs"]
mod support;

#[path = "../ops/cast.rs"]
mod cast;

mod accessibility;
mod acts;
mod browser;
mod desk;
mod guards;
mod hostile;
mod html;
mod pages;
mod unanswered;
mod walk;
mod webdriver;
