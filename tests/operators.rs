//! Operators: the layer `ops`, its JSON API, and the web console.

#![allow(dead_code, unreachable_pub, missing_docs)]

mod console;
mod ops;
mod support;
