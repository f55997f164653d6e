//! The parsers of untrusted input, exported for the fuzz targets only.

use axum::http::HeaderMap;
use bytes::Bytes;
use lisa_service::http::{Problem, read_fields};

use super::pull::PullOptions;
use super::{batch, sqs};

/// Parses the options of a pull.
///
/// # Errors
/// One problem that lists everything that is wrong.
pub fn pull(body: &[u8]) -> Result<(), Problem> {
    read_fields::<PullOptions>(body).map(drop)
}

/// Parses an array of outcomes and leases, without their tokens. An element that is wrong fails alone.
///
/// # Errors
/// Not an array, or one with too many elements.
pub fn batch(array: Bytes) -> Result<(), Problem> {
    batch::parse(array)
}

/// Parses a body as the parameters of each SQS action. Returns the errors.
pub fn sqs(body: &[u8]) -> Vec<String> {
    sqs::parse(body)
}

/// Parses the signature of a request to the routes of SQS.
///
/// # Errors
/// A text that the client sees.
pub fn signature(headers: &HeaderMap) -> Result<(), String> {
    sqs::parse_signature(headers)
}
