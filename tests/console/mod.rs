//! The web console: what its pages show, what they do, and who may use them; over a socket and in a browser.

mod accessibility;
mod acts;
mod browser;
mod browser_acts;
mod browser_live;
mod desk;
mod guards;
mod hostile;
mod html;
mod pages;
mod pause_acts;
mod refused_acts;
mod unanswered;
mod walk;
mod webdriver;

use crate::ops::cast;
