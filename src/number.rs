//! [`to_u32`]: a number of rows, letters or bytes, in 32 bits.

/// The number, or the largest that there is.
pub(crate) fn to_u32(number: impl TryInto<u32>) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}
