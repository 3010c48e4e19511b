//! What is not a crash test.

#![allow(unused_imports)]

use atomic_phases::fault::{Explore, crash_test};

#[crash_test]
fn not_async() -> impl Explore {
    explorer()
}

#[crash_test]
async fn has_parameters(store: u8) -> impl Explore {
    explorer()
}

#[crash_test]
async fn is_generic<S>() -> impl Explore {
    explorer()
}

#[crash_test]
async fn returns_nothing() {
    explorer();
}

#[crash_test(pairs)]
async fn has_options() -> impl Explore {
    explorer()
}

#[crash_test]
#[test]
async fn is_a_test_already() -> impl Explore {
    explorer()
}

#[crash_test]
struct NoFunction;

fn main() {}
