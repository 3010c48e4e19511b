//! The nodes' codec, whose key service is unavailable from time to time, as the plan says.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use atomic_phases::codec::{Codec, CodecError, Place};

use super::judge::Watched;
use super::plan::{HEALED, Plan};
use super::trace::Trace;

/// Stores everything unchanged, or fails.
#[derive(Clone)]
pub struct KeyService {
    pub plan: Arc<Plan>,
    pub trace: Trace,
    pub watched: Arc<Mutex<Watched>>,
    /// How often each was asked for, by all nodes.
    pub asked: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl KeyService {
    fn ask(&self, what: &str, place: Place<'_>) -> Result<(), CodecError> {
        // Few plans have one that fails.
        if self.plan.codec.is_empty() {
            return Ok(());
        }
        let what = format!("{what} {}", place.column);
        let mut asked = self.asked.lock().unwrap();
        let asked = asked.entry(what.clone()).or_default();
        let number = *asked;
        *asked += 1;
        let fails = self.plan.codec.get(&what).is_some_and(|fails| fails.contains(&number));
        if !fails || self.trace.elapsed() >= HEALED {
            return Ok(());
        }
        self.trace.note(|| format!("codec: {what} fails, {}", place.key.as_str()));
        self.watched.lock().unwrap().covers(format!("codec: {what}"));
        Err(CodecError("the key service is away"))
    }
}

impl Codec for KeyService {
    fn encode<'v>(
        &self,
        place: Place<'_>,
        plain: Cow<'v, [u8]>,
    ) -> Result<Cow<'v, [u8]>, CodecError> {
        self.ask("encode", place).map(|()| plain)
    }

    fn decode<'v>(
        &self,
        place: Place<'_>,
        stored: Cow<'v, [u8]>,
    ) -> Result<Cow<'v, [u8]>, CodecError> {
        self.ask("decode", place).map(|()| stored)
    }
}
