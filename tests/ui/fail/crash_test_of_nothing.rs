//! A crash test that returns something else than an explorer.

use atomic_phases::fault::crash_test;

#[crash_test]
async fn no_explorer() -> u8 {
    1
}

fn main() {}
