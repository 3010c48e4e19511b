//! [`Codec`]: how parameters, outputs, staged arguments and replies are encoded at rest.
//!
//! Plain JSON and bytes by default. An application that must encrypt uses `EncryptingCodec` (feature
//! `encryption`) or implements this trait; the engine applies it to all user data, and to nothing
//! else.

#[cfg(feature = "encryption")]
mod encrypting;

use std::borrow::Cow;

#[cfg(feature = "encryption")]
pub use encrypting::EncryptingCodec;

use crate::job::JobId;
use crate::key::{IdempotencyKey, Scope};

/// Where a stored value belongs. Authenticate it together with the value (as the associated data of
/// an AEAD cipher), so that a value moved to another row or column does not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Place<'a> {
    /// The row's scope.
    pub scope: &'a Scope,
    /// The row's idempotency key.
    pub key: &'a IdempotencyKey,
    /// The column's name.
    pub column: &'static str,
    /// For the arguments of a staged job: which of the key's jobs it is.
    pub job: Option<JobId>,
}

/// Encodes stored values. Decoding must return the encoded value; the encoded
/// bytes may differ each time: a random nonce is fine. A panic counts as a [`CodecError`].
///
/// ```
/// use std::borrow::Cow;
///
/// use atomic_phases::codec::{Codec, CodecError, Place};
/// # mod zstd {
/// #     pub fn compress(bytes: &[u8]) -> Vec<u8> { bytes.to_vec() }
/// #     pub fn decompress(bytes: &[u8]) -> Option<Vec<u8>> { Some(bytes.to_vec()) }
/// # }
///
/// /// Large values are stored compressed, behind a byte that says so.
/// struct Compressing;
///
/// impl Codec for Compressing {
///     fn encode<'v>(&self, _: Place<'_>, plain: Cow<'v, [u8]>) -> Result<Cow<'v, [u8]>, CodecError> {
///         let (mark, bytes) = match plain.len() {
///             0..1000 => (0, plain.into_owned()),
///             _ => (1, zstd::compress(&plain)),
///         };
///         Ok([vec![mark], bytes].concat().into())
///     }
///
///     fn decode<'v>(&self, _: Place<'_>, stored: Cow<'v, [u8]>) -> Result<Cow<'v, [u8]>, CodecError> {
///         match stored.split_first() {
///             Some((0, plain)) => Ok(plain.to_vec().into()),
///             Some((1, bytes)) => {
///                 let plain = zstd::decompress(bytes).ok_or(CodecError("not compressed by us"))?;
///                 Ok(plain.into())
///             }
///             _ => Err(CodecError("not written by this codec")),
///         }
///     }
/// }
/// ```
pub trait Codec: Send + Sync + 'static {
    /// Encodes the engine's value for storage.
    ///
    /// # Errors
    /// [`CodecError`]; then nothing is written.
    fn encode<'v>(
        &self,
        place: Place<'_>,
        plain: Cow<'v, [u8]>,
    ) -> Result<Cow<'v, [u8]>, CodecError>;

    /// Decodes a stored value.
    ///
    /// # Errors
    /// [`CodecError`] if this process cannot read the value (another key, a row that was tampered
    /// with). The row, or the staged job, is left to other nodes, never restarted.
    fn decode<'v>(
        &self,
        place: Place<'_>,
        stored: Cow<'v, [u8]>,
    ) -> Result<Cow<'v, [u8]>, CodecError>;
}

/// A value could not be encoded or decoded. The error reveals nothing about the value (G19).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CodecError(pub &'static str);

/// Stores everything as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainCodec;

impl Codec for PlainCodec {
    fn encode<'v>(&self, _: Place<'_>, plain: Cow<'v, [u8]>) -> Result<Cow<'v, [u8]>, CodecError> {
        Ok(plain)
    }

    fn decode<'v>(&self, _: Place<'_>, stored: Cow<'v, [u8]>) -> Result<Cow<'v, [u8]>, CodecError> {
        Ok(stored)
    }
}
