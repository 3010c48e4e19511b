//! What `#[atomic_phases]` accepts, and how it refuses the rest: each file of `tests/ui/fail` is
//! named after the mistake that it makes, and stands next to what the compiler says.
//!
//! After a change of a message: `TRYBUILD=overwrite cargo test --test ui --all-features`, and read
//! the difference. A few messages are rustc's own and may change with its version.

#![cfg(feature = "sqlite")]

#[test]
fn declarations_compile_and_mistakes_are_told() {
    // One object, so that trybuild builds all files in one go.
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/fail/*.rs");
}
