use crate::key::{IdempotencyKey, Scope};
use crate::phase::DerivedKey;
#[derive(Clone, Debug)]
pub struct DerivedKeys;
impl DerivedKeys {
    pub fn plain() -> Self {
        Self
    }
    pub(crate) fn derive(
        &self,
        scope: &Scope,
        key: &IdempotencyKey,
        d: &str,
        p: &str,
        f: &str,
        _r: uuid::Uuid,
    ) -> DerivedKey {
        use sha2::Digest;
        let t = format!("{}|{}|{d}|{p}|{f}", scope.as_str(), key.as_str());
        DerivedKey(crate::key::hex(&sha2::Sha256::digest(t.as_bytes())[..16]))
    }
}
