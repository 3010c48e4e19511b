//! An application cannot implement `Store`: what it extends has no name outside of the library.

use atomic_phases::store::{AdminStore, WorkerStore};

struct Mine;

impl AdminStore for Mine {}

impl WorkerStore for Mine {}

fn main() {}
