//! WIRE 51: the fixture of fingerprints under arbitrary_precision and preserve_order.

include!("../../fixtures/fingerprints.rs");
