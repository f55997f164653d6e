//! The files that pages load. They are part of the program, and their URLs contain a hash of their content. Each is compressed
//! once.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, VARY};
use axum::http::{HeaderMap, StatusCode, header::IF_NONE_MATCH};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use sha2::{Digest, Sha256};

use super::document::{gzip, takes_gzip};

/// A file with its name, which includes the hash.
pub(super) struct Asset {
    name: String,
    kind: &'static str,
    /// The same for both encodings, so it is weak.
    tag: String,
    content: &'static [u8],
    /// The content as gzip; empty if it cannot be compressed.
    packed: Vec<u8>,
}

impl Asset {
    fn new(stem: &str, ending: &str, kind: &'static str, content: &'static [u8]) -> Self {
        let hash: [u8; 32] = Sha256::digest(content).into();
        let hash: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            name: format!("{stem}.{hash}.{ending}"),
            kind,
            tag: format!("W/\"{hash}\""),
            packed: gzip(content, Compression::best()).unwrap_or_default(),
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
asset!(CHARTS, "charts", "js", "text/javascript; charset=utf-8");
asset!(
    MORPH,
    "idiomorph.min",
    "js",
    "text/javascript; charset=utf-8"
);
asset!(ICON, "icon", "svg", "image/svg+xml");

/// Serves a file, which browsers may keep for a year.
pub(super) async fn serve(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let all = [&*CSS, &*JS, &*CHARTS, &*MORPH, &*ICON];
    let Some(asset) = all.into_iter().find(|asset| asset.name == name) else {
        return (StatusCode::NOT_FOUND, [(CONTENT_TYPE, "text/html")], "").into_response();
    };
    let tag = &asset.tag;
    let kept = [
        (
            CACHE_CONTROL,
            "public, max-age=31536000, immutable".to_owned(),
        ),
        (ETAG, tag.clone()),
        (VARY, "accept-encoding".to_owned()),
    ];
    if headers
        .get(IF_NONE_MATCH)
        .is_some_and(|have| have.as_bytes() == tag.as_bytes())
    {
        return (StatusCode::NOT_MODIFIED, kept).into_response();
    }
    let kind = [(CONTENT_TYPE, asset.kind)];
    match takes_gzip(&headers) && !asset.packed.is_empty() {
        true => (kept, kind, [(CONTENT_ENCODING, "gzip")], &*asset.packed).into_response(),
        false => (kept, kind, asset.content).into_response(),
    }
}
