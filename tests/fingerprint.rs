//! WIRE 51: the fixture of fingerprints in the ordinary build.

include!("fixtures/fingerprints.rs");
