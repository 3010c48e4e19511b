//! What a caller gave, of whichever type it is: the one place of the request path that knows the type.

use std::sync::Arc;

use super::bound::{BoundRequest, WithApp};
use crate::fingerprint::{
    Fingerprint, FingerprintError, FingerprintRule, FingerprintVersion, RequestOrigin, fingerprint,
    fingerprint_in,
};
use crate::panics;
use crate::request::RequestDefinition;
use crate::roundtrip::{self, Because, Loss, Order, difference};
use crate::store::Store;

use super::outcome::CallError;

/// What the caller gave, of whichever type it is.
pub(super) struct Given<R, A> {
    pub(super) origin: RequestOrigin,
    pub(super) request: R,
    pub(super) app: Arc<A>,
}

pub(super) trait Asking<S: Store>: Send + Sync {
    fn origin(&self) -> &RequestOrigin;

    /// The parameters as they are stored.
    fn params(&self) -> serde_json::Result<Vec<u8>>;

    /// The parameters as each attempt sees them: read from their stored form, so many times. `given` is
    /// the fingerprint of what the caller gave.
    fn read_params(
        &self,
        params: &[u8],
        given: &Fingerprint,
        readings: u32,
    ) -> Result<Box<dyn BoundRequest<S>>, CallError>;

    /// The fingerprint in another version than that of this process.
    fn fingerprint_in(&self, version: FingerprintVersion) -> Option<Fingerprint>;

    /// The fingerprint of stored parameters, read by the caller's type; `None` where they are not of
    /// that type.
    fn fingerprint_of(&self, params: &[u8]) -> Option<Fingerprint>;
}

/// What a type's `Deserialize` and `Serialize` do with stored parameters is the application's; one that panics has not read
/// them.
fn caught<T>(read: impl FnOnce() -> Option<T>) -> Option<T> {
    panics::catch(read).flatten()
}

impl<R: serde::Serialize, A> Given<R, A> {
    /// Whether the parameters have their fingerprint still, once they were stored and read.
    fn compare(&self, read: &R, given: &Fingerprint) -> Result<(), CallError> {
        // Both are of what the caller gave, so the time that it takes reveals nothing.
        if fingerprint(&self.origin, read)?.as_str() != given.as_str() {
            let loss = difference(&self.request, read, Order::Counts);
            let Loss { path, because } =
                loss.unwrap_or(Loss { path: Vec::new(), because: Because::Differs });
            let rule = match because {
                Because::Order => FingerprintRule::Unordered,
                _ => FingerprintRule::NotStable,
            };
            return Err(FingerprintError::at(path, rule).into());
        }
        Ok(())
    }
}

impl<S, A, R> Asking<S> for Given<R, A>
where
    S: Store,
    A: Send + Sync + 'static,
    R: RequestDefinition<S, A>,
{
    fn origin(&self) -> &RequestOrigin {
        &self.origin
    }

    fn params(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&self.request)
    }

    fn read_params(
        &self,
        params: &[u8],
        given: &Fingerprint,
        readings: u32,
    ) -> Result<Box<dyn BoundRequest<S>>, CallError> {
        let not_read = || {
            let loss = caught(|| roundtrip::stored(&self.request).err());
            let path = loss.map_or_else(Vec::new, |loss| loss.path);
            CallError::from(FingerprintError::at(path, FingerprintRule::NotRead))
        };
        let read = || {
            let read = caught(|| serde_json::from_slice::<R>(params).ok()).ok_or_else(not_read)?;
            panics::catch(|| self.compare(&read, given)).unwrap_or_else(|| Err(not_read()))?;
            Ok::<_, CallError>(read)
        };
        // The fingerprint refuses such a float, except in an `Unfingerprinted`.
        if let Some(loss) = roundtrip::float_written_as_null(&self.request, params) {
            return Err(FingerprintError::at(loss.path, FingerprintRule::NotFinite).into());
        }
        // What has another fingerprint each time that it is read would make a mismatch of each retry.
        for _ in 1..readings {
            read()?;
        }
        Ok(Box::new(WithApp { request: read()?, app: self.app.clone() }))
    }

    fn fingerprint_in(&self, version: FingerprintVersion) -> Option<Fingerprint> {
        fingerprint_in(version, &self.origin, &self.request).ok()
    }

    fn fingerprint_of(&self, params: &[u8]) -> Option<Fingerprint> {
        caught(|| {
            let read: R = serde_json::from_slice(params).ok()?;
            fingerprint(&self.origin, &read).ok()
        })
    }
}
