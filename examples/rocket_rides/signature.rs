//! The signature of a webhook, as Stripe makes it: `t=1492774577,v1=5257a869e7…`, where `v1` is the
//! HMAC-SHA-256, in hex, of the time, a full stop and the raw body.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

pub const SIGNATURE: &str = "stripe-signature";

/// How old an event may be, and how far the two clocks may be apart: an event that was overheard is of
/// no use later.
const TOLERANCE: u64 = 300;

/// More than a provider sends while a secret is being replaced.
const MAX_SIGNATURES: usize = 8;

/// What the header says. Proves nothing before [`signs`](Self::signs) does.
pub struct Signature {
    time: u64,
    /// Several while the secret is being replaced.
    v1: Vec<Vec<u8>>,
}

impl Signature {
    pub fn parse(header: &str) -> Option<Self> {
        let fields = || header.split(',').filter_map(|field| field.trim().split_once('='));
        let time = fields().find(|(name, _)| *name == "t")?.1.parse().ok()?;
        let v1 = fields().filter(|(name, _)| *name == "v1").take(MAX_SIGNATURES);
        let v1: Vec<_> = v1.filter_map(|(_, hex)| unhex(hex)).collect();
        (!v1.is_empty()).then_some(Self { time, v1 })
    }

    pub fn is_recent(&self, now: u64) -> bool {
        self.time.abs_diff(now) <= TOLERANCE
    }

    /// Whether one of them was made with `secret`, compared in constant time.
    pub fn signs(&self, secret: &str, body: &[u8]) -> bool {
        let Some(mac) = mac(secret, self.time, body) else { return false };
        self.v1.iter().any(|v1| mac.clone().verify_slice(v1).is_ok())
    }
}

/// The header for `body`, for the provider's half of this example.
pub fn sign(secret: &str, time: u64, body: &[u8]) -> String {
    let bytes = mac(secret, time, body).map(|mac| mac.finalize().into_bytes()).unwrap_or_default();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={time},v1={hex}")
}

/// `None` never: HMAC takes a key of any length.
fn mac(secret: &str, time: u64, body: &[u8]) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).ok()?;
    mac.update(format!("{time}.").as_bytes());
    mac.update(body);
    Some(mac)
}

fn unhex(hex: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pair = |pair: &[u8]| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?);
    hex.as_bytes().chunks(2).map(pair).collect()
}
