//! A crash point whose name cannot be written in a script, and one that the engine has.

use atomic_phases::crash_point;

async fn spaced() {
    crash_point!("after pdf");
}

async fn taken() {
    crash_point!("after_call");
}

fn main() {}
