//! The two formats of a batch: lines of JSON, which are answered as they arrive, and a JSON array.

use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, AsHeaderName, CONTENT_TYPE};

/// The format of a batch, and of its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One item per line (NDJSON).
    Lines,
    /// A JSON array of items.
    Array,
}

impl Format {
    /// Returns its media type.
    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Lines => "application/x-ndjson",
            Self::Array => "application/json",
        }
    }

    /// Returns the format of the request: lines, unless it is declared as JSON.
    #[must_use]
    pub fn of_request(headers: &HeaderMap) -> Self {
        if names(headers, CONTENT_TYPE, Self::Array.media_type()) {
            Self::Array
        } else {
            Self::Lines
        }
    }

    /// Returns the format of the response to a request of this format: the same, unless only the other one is accepted.
    #[must_use]
    pub fn accepted(self, headers: &HeaderMap) -> Self {
        let accepts = |kind| names(headers, ACCEPT, kind);
        match [Self::Lines, Self::Array].map(|format| accepts(format.media_type())) {
            _ if accepts("*/*") => self,
            [true, false] => Self::Lines,
            [false, true] => Self::Array,
            _ => self,
        }
    }
}

/// Returns true if a header names this media type.
pub fn names(headers: &HeaderMap, header: impl AsHeaderName, media_type: &str) -> bool {
    let values = headers.get_all(header).into_iter();
    let texts = values.filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(',')).any(|kind| {
        let (kind, _) = kind.split_once(';').unwrap_or((kind, ""));
        kind.trim().eq_ignore_ascii_case(media_type)
    })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn a_response_has_the_format_of_the_request_unless_only_the_other_is_accepted() {
        const JSON: &str = "application/json";
        const LINES: &str = "application/x-ndjson";
        for (sent, accepted, format) in [
            ("", "", Format::Lines),
            ("text/plain", "*/*", Format::Lines),
            (LINES, "", Format::Lines),
            (JSON, "", Format::Array),
            ("Application/JSON; charset=utf-8", "*/*", Format::Array),
            (LINES, "application/json;q=0.9", Format::Array),
            (LINES, "application/json, text/plain, */*", Format::Lines),
            (JSON, LINES, Format::Lines),
            (
                JSON,
                "application/json, application/x-ndjson",
                Format::Array,
            ),
            (
                LINES,
                "application/x-ndjson, application/json",
                Format::Lines,
            ),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(sent));
            headers.insert(ACCEPT, HeaderValue::from_static(accepted));
            let chosen = Format::of_request(&headers).accepted(&headers);
            assert_eq!(chosen, format, "{sent}, {accepted}");
        }
    }
}
