//! The text of numbers and strings in the canonical form, pinned here and independent of how any
//! version of serde_json, ryu or zmij would write them.

use std::fmt::Display;
use std::io::Write as _;

use super::error::{FingerprintError, FingerprintRule};

/// An integer: decimal, exact, of any width.
pub(super) fn write_integer(out: &mut Vec<u8>, integer: impl Display) {
    // Writing to a Vec cannot fail.
    let _ = write!(out, "{integer}");
}

/// A float: the shortest digits that read back as the same value, always with an exponent, so that
/// no float has the text of an integer. `1.0` is `1e0`, `0.1` is `1e-1`.
///
/// An `f32` comes here widened: equal values have equal texts, whatever their width.
pub(super) fn write_float(out: &mut Vec<u8>, float: f64) -> Result<(), FingerprintError> {
    if !float.is_finite() {
        return Err(FingerprintError::new(FingerprintRule::NotFinite));
    }
    // The two zeros are equal to every handler that does not go looking for the sign.
    let float = if float == 0.0 { 0.0 } else { float };
    let _ = write!(out, "{float:e}");
    Ok(())
}

/// A `serde_json::Number` as it comes under the feature `arbitrary_precision`: its source text.
/// Read the way serde_json reads a number without the feature, so that both give one fingerprint.
pub(super) fn write_number_token(out: &mut Vec<u8>, token: &str) -> Result<(), FingerprintError> {
    if let Ok(integer) = serde_json::from_str::<u64>(token) {
        write_integer(out, integer);
    } else if let Ok(integer) = serde_json::from_str::<i64>(token) {
        write_integer(out, integer);
    } else {
        let float = serde_json::from_str::<f64>(token)
            .map_err(|_| FingerprintError::new(FingerprintRule::NumberOutOfRange))?;
        write_float(out, float)?;
    }
    Ok(())
}

/// A string in quotes, with the escapes that JSON demands and no others. No Unicode normalisation:
/// two texts that look the same and have different bytes are different (row 54 of the contract).
pub(super) fn write_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut written = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        let short = match byte {
            b'"' => b'"',
            b'\\' => b'\\',
            0x08 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            0x0c => b'f',
            b'\r' => b'r',
            0x00..=0x1f => b'u',
            _ => continue,
        };
        out.extend_from_slice(&bytes[written..at]);
        out.extend_from_slice(&[b'\\', short]);
        if short == b'u' {
            let _ = write!(out, "{byte:04x}");
        }
        written = at + 1;
    }
    out.extend_from_slice(&bytes[written..]);
    out.push(b'"');
}
