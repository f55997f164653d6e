//! The files that pages load. They are part of the program, and their URLs contain a hash of their content.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG};
use axum::http::{HeaderMap, StatusCode, header::IF_NONE_MATCH};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

/// A file with its name, which includes the hash.
pub(super) struct Asset {
    name: String,
    kind: &'static str,
    hash: String,
    content: &'static [u8],
}

impl Asset {
    fn new(stem: &str, ending: &str, kind: &'static str, content: &'static [u8]) -> Self {
        let hash: [u8; 32] = Sha256::digest(content).into();
        let hash: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            name: format!("{stem}.{hash}.{ending}"),
            kind,
            hash,
            content,
        }
    }

    /// Returns the path below the dashboard's base path.
    pub(super) fn path(&self) -> String {
        format!("/assets/{}", self.name)
    }
}

macro_rules! asset {
    ($name:ident, $stem:literal, $ending:literal, $kind:literal) => {
        pub(super) static $name: LazyLock<Asset> = LazyLock::new(|| {
            let content = include_bytes!(concat!("assets/", $stem, ".", $ending));
            Asset::new($stem, $ending, $kind, content)
        });
    };
}

asset!(CSS, "app", "css", "text/css; charset=utf-8");
asset!(JS, "app", "js", "text/javascript; charset=utf-8");
asset!(
    MORPH,
    "idiomorph.min",
    "js",
    "text/javascript; charset=utf-8"
);
asset!(ICON, "icon", "svg", "image/svg+xml");

/// Serves a file, which browsers may keep for a year.
pub(super) async fn serve(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let all = [&*CSS, &*JS, &*MORPH, &*ICON];
    let Some(asset) = all.into_iter().find(|asset| asset.name == name) else {
        return (StatusCode::NOT_FOUND, [(CONTENT_TYPE, "text/html")], "").into_response();
    };
    let tag = format!("\"{}\"", asset.hash);
    let kept = [
        (
            CACHE_CONTROL,
            "public, max-age=31536000, immutable".to_owned(),
        ),
        (ETAG, tag.clone()),
    ];
    if headers
        .get(IF_NONE_MATCH)
        .is_some_and(|have| have.as_bytes() == tag.as_bytes())
    {
        return (StatusCode::NOT_MODIFIED, kept).into_response();
    }
    (kept, [(CONTENT_TYPE, asset.kind)], asset.content).into_response()
}
