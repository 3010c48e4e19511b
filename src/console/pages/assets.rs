//! The style, the script and the icon. Their address has their hash in it, so that a browser keeps them;
//! under any other hash they are answered too: while a build replaces another, a page of one may ask the other
//! for them.

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{StatusCode, Uri};
use sha2::{Digest, Sha256};

use super::fields::Named;
use crate::key::hex;

const FILES: [(&str, &str, &str); 3] = [
    ("console.css", "text/css; charset=utf-8", include_str!("assets/console.css")),
    ("console.js", "text/javascript; charset=utf-8", include_str!("assets/console.js")),
    ("icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
];

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    FILES.iter().for_each(|(_, _, content)| hash.update(content));
    hex(&hash.finalize()[..8])
});

pub(super) fn version() -> &'static str {
    &VERSION
}

pub(super) async fn file(Named(name): Named, uri: Uri) -> Response {
    let Some((_, media_type, content)) = FILES.into_iter().find(|(file, _, _)| *file == name)
    else {
        return (StatusCode::NOT_FOUND, "not found\n").into_response();
    };
    let keep = match uri.path().rsplit('/').nth(1) == Some(version()) {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    ([(CONTENT_TYPE, media_type), (CACHE_CONTROL, keep)], content).into_response()
}
