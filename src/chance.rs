//! Every random number that the engine, its workers and the client make: ids, jitter, orders.
//!
//! In a simulation they come from its seed.

use std::time::Duration;

use uuid::Uuid;

use crate::moment::wall_clock;

/// A random UUID.
pub(crate) fn uuid() -> Uuid {
    simulated! {
        if let Some(bits) = crate::simulation::random_bits() {
            return uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid();
        }
    }
    Uuid::new_v4()
}

/// A UUID of version 7: the milliseconds of this machine's clock, then 74 random bits. An index of such ids grows at its
/// end, where those of random ones dirty a page each. Nothing rests on the order, so the clock may be wrong.
pub(crate) fn uuid_by_time() -> Uuid {
    let bytes = uuid().into_bytes();
    // Not those with the version and the variant of version 4.
    let mut random = [0; 10];
    random[..6].copy_from_slice(&bytes[..6]);
    random[6..].copy_from_slice(&bytes[12..]);
    let millis = u64::try_from(wall_clock().timestamp_millis()).unwrap_or_default();
    uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
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

/// A back-off with up to a quarter less, so that what failed together is not tried again together.
pub(crate) fn shortened(back_off: Duration) -> Duration {
    back_off.saturating_sub((back_off / 4).mul_f64(fraction()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_by_time_are_in_the_order_of_their_creation_and_never_twice_the_same() {
        let first = uuid_by_time();
        let same_time: std::collections::HashSet<_> = (0..1000).map(|_| uuid_by_time()).collect();
        assert_eq!(same_time.len(), 1000);
        std::thread::sleep(std::time::Duration::from_millis(2));
        let last = uuid_by_time();
        assert!(first < last && same_time.iter().all(|id| *id < last));
        assert_eq!(last.get_version_num(), 7);
    }
}
