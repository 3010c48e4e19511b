//! One file connects to Redis, for the sink and for the cache. When a connection has to be replaced is learned from one
//! incident at a time (a failover, a silent network, a client that hangs up): what one has taught holds for both.

use super::files;
use super::imports::code;

/// What may connect, and keep a connection.
const CONNECTS: [&str; 3] = ["redis::Client", "redis::aio", "IntoConnectionInfo"];

#[test]
fn one_file_connects_to_redis() {
    let mut sources = Vec::new();
    files("src", &[".rs"], &mut sources);
    let connects = |text: &str| {
        let code = code(text);
        CONNECTS.iter().any(|name| code.contains(name))
    };
    let found: Vec<String> = sources
        .iter()
        .filter(|(_, text)| connects(text))
        .map(|(path, _)| path.display().to_string())
        .collect();
    assert_eq!(found, ["src/redis_connection.rs"]);
}
