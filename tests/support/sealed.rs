//! A codec that seals what is stored: HMAC-SHA256 in counter mode to encrypt, and to authenticate
//! ciphertext and place (encrypt-then-MAC). For tests: an application takes an AEAD cipher.

use std::borrow::Cow;

use atomic_phases::{Codec, CodecError, Place};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const NONCE: usize = 16;
const TAG: usize = 32;

#[derive(Clone)]
pub struct Sealed(Vec<u8>);

impl Sealed {
    pub fn with(secret: &[u8]) -> Self {
        Self(secret.to_vec())
    }

    fn mac(&self, purpose: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).unwrap();
        mac.update(purpose);
        for part in parts {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac
    }

    fn tag(&self, place: Place<'_>, sealed: &[u8]) -> Hmac<Sha256> {
        let place = [place.scope.as_str(), place.key.as_str(), place.column].map(str::as_bytes);
        self.mac(b"tag", &[place[0], place[1], place[2], sealed])
    }

    fn crypt(&self, nonce: &[u8], text: &mut [u8]) {
        for (counter, block) in text.chunks_mut(32).enumerate() {
            let stream = self.mac(b"stream", &[nonce, &counter.to_be_bytes()]).finalize();
            block.iter_mut().zip(stream.into_bytes()).for_each(|(byte, with)| *byte ^= with);
        }
    }
}

impl Codec for Sealed {
    fn encode<'v>(
        &self,
        place: Place<'_>,
        plain: Cow<'v, [u8]>,
    ) -> Result<Cow<'v, [u8]>, CodecError> {
        let nonce = uuid::Uuid::new_v4().into_bytes();
        let mut sealed = nonce.to_vec();
        sealed.extend_from_slice(&plain);
        self.crypt(&nonce, &mut sealed[NONCE..]);
        let tag = self.tag(place, &sealed).finalize().into_bytes();
        sealed.extend_from_slice(&tag);
        Ok(Cow::Owned(sealed))
    }

    fn decode<'v>(
        &self,
        place: Place<'_>,
        stored: Cow<'v, [u8]>,
    ) -> Result<Cow<'v, [u8]>, CodecError> {
        if stored.len() < NONCE + TAG {
            return Err(CodecError("too short to be sealed"));
        }
        let (sealed, tag) = stored.split_at(stored.len() - TAG);
        let known = self.tag(place, sealed).verify_slice(tag);
        known.map_err(|_| CodecError("not sealed here, or with another key"))?;
        let (nonce, text) = sealed.split_at(NONCE);
        let mut plain = text.to_vec();
        self.crypt(nonce, &mut plain);
        Ok(Cow::Owned(plain))
    }
}
