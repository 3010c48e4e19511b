//! [`read_whole`]: a body in time, or nothing of it.

use std::iter::successors;
use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body_util::LengthLimitError;

/// Why a body was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotRead {
    /// It is over the limit, or over that of a layer in front: the same body is refused again.
    TooLarge,
    /// It broke off, or took too long: the same body may be read the next time.
    NotArrived,
}

/// The whole body, of `most_bytes` at most, if it arrives `within` this time.
pub(crate) async fn read_whole(
    body: Body,
    most_bytes: usize,
    within: Duration,
) -> Result<Bytes, NotRead> {
    let arriving = axum::body::to_bytes(body, most_bytes);
    match tokio::time::timeout(within, arriving).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) if is_over(&error) => Err(NotRead::TooLarge),
        Ok(Err(_)) | Err(_) => Err(NotRead::NotArrived),
    }
}

/// Over a limit: this one, or one of a layer in front.
fn is_over(error: &(dyn std::error::Error + 'static)) -> bool {
    successors(Some(error), |error| error.source()).any(|error| error.is::<LengthLimitError>())
}
