//! What needs no server: whether the pages and the sources agree, and what the macro accepts.

mod readme;
#[cfg(feature = "sqlite")]
mod ui;
