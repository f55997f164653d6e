//! The responses of pages: packed, with a tag, and with the headers that keep browsers safe.

use std::io::Write;

use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    IF_NONE_MATCH, REFERRER_POLICY, VARY,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Returns a document; nothing but its tag if the browser has it already.
pub(super) fn document(headers: &HeaderMap, status: StatusCode, text: String) -> Response {
    let hash: [u8; 32] = Sha256::digest(text.as_bytes()).into();
    let tag: String = hash[..12]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    // Weak: the same for both encodings.
    let tag = format!("W/\"{tag}\"");
    let has = headers
        .get(IF_NONE_MATCH)
        .is_some_and(|have| have.as_bytes() == tag.as_bytes());
    if has && status == StatusCode::OK {
        return (StatusCode::NOT_MODIFIED, [(ETAG, tag)]).into_response();
    }
    let kind = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (VARY, "accept-encoding"),
    ];
    let mut response = (status, kind, [(ETAG, tag)]).into_response();
    let packed = takes_gzip(headers).then(|| gzip(text.as_bytes(), Compression::fast()));
    *response.body_mut() = match packed {
        Some(Ok(packed)) => {
            let headers = response.headers_mut();
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            packed.into()
        }
        _ => text.into(),
    };
    response
}

/// Returns true if the client takes gzip, and does not refuse it with a weight of zero.
pub(super) fn takes_gzip(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(ACCEPT_ENCODING).iter();
    let all = lines.filter_map(|line| line.to_str().ok());
    all.flat_map(|line| line.split(',')).any(|one| {
        let (name, weight) = one.split_once(';').unwrap_or((one, ""));
        let weight = weight.trim().strip_prefix("q=").unwrap_or("1");
        name.trim().eq_ignore_ascii_case("gzip") && weight.parse().is_ok_and(|q: f32| q > 0.0)
    })
}

pub(super) fn gzip(text: &[u8], level: Compression) -> std::io::Result<Vec<u8>> {
    let mut packer = GzEncoder::new(Vec::new(), level);
    packer.write_all(text)?;
    packer.finish()
}

pub(super) fn with_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // The framework's own errors have no page, and must not be taken for one.
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_page_is_the_page() {
        let text = "<p>ä</p>".repeat(1000);
        let packed = gzip(text.as_bytes(), Compression::fast()).unwrap();
        let unpacked = std::io::read_to_string(flate2::read::GzDecoder::new(&*packed));
        assert_eq!(unpacked.unwrap(), text);
    }

    #[test]
    fn gzip_is_used_only_where_it_is_taken() {
        for (line, expected) in [
            ("gzip, deflate, br", true),
            ("br;q=1.0, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip;q=x", false),
            ("identity", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(line));
            assert_eq!(takes_gzip(&headers), expected, "{line}");
        }
    }
}
