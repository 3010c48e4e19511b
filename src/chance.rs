//! Every random number that the engine, its workers and the client make: ids, jitter, orders.
//!
//! In a simulation they come from its seed.

use uuid::Uuid;

/// A random UUID.
pub(crate) fn uuid() -> Uuid {
    simulated! {
        if let Some(bits) = crate::simulation::random_bits() {
            return uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid();
        }
    }
    Uuid::new_v4()
}

/// A number, uniform over `u32`.
pub(crate) fn number() -> u32 {
    // The last four bytes of a version 4 UUID are random, all of them.
    uuid().as_u128() as u32
}

/// A number from 0 to `bound`, both included.
pub(crate) fn up_to(bound: u64) -> u64 {
    uuid().as_u128() as u64 % bound.saturating_add(1).max(1)
}

/// A number from 0 to 1.
pub(crate) fn fraction() -> f64 {
    f64::from(number()) / f64::from(u32::MAX)
}
