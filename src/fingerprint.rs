#[derive(Clone, Debug, Default)]
pub struct RequestOrigin {
    pub method: String,
    pub path: String,
    pub query: Option<String>,
}
#[derive(Debug, thiserror::Error)]
#[error("stub")]
pub struct FingerprintError;
pub(crate) struct Fingerprint(String);
impl Fingerprint {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
    pub(crate) fn matches(&self, stored: &str) -> Option<bool> {
        stored.starts_with("v1:").then(|| stored == self.0)
    }
}
pub(crate) fn fingerprint<T: serde::Serialize + ?Sized>(
    _o: &RequestOrigin,
    p: &T,
) -> Result<Fingerprint, FingerprintError> {
    use sha2::Digest;
    let json = serde_json::to_vec(p).map_err(|_| FingerprintError)?;
    Ok(Fingerprint(format!("v1:{}", crate::key::hex(&sha2::Sha256::digest(&json)))))
}
