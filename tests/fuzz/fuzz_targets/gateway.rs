//! The bodies that a gateway reads: of pulls, of batches of outcomes and leases, and of all actions of SQS; and its signatures.

#![no_main]

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use lisa_consumer::gateway::fuzzing::{batch, pull, signature, sqs};
use lisa_fuzz::{in_bounded_memory, is_bounded};

fuzz_target!(|input: &[u8]| {
    if let Err(problem) = in_bounded_memory(input.len(), || pull(input)) {
        is_bounded(problem.detail());
    }
    let array = Bytes::copy_from_slice(input);
    if let Err(problem) = in_bounded_memory(input.len(), || batch(array)) {
        is_bounded(problem.detail());
    }
    for error in in_bounded_memory(input.len(), || sqs(input)) {
        is_bounded(error);
    }
    let mut headers = HeaderMap::new();
    for line in input.split(|&byte| byte == b'\n') {
        if let Ok(value) = HeaderValue::from_bytes(line) {
            headers.append(AUTHORIZATION, value);
        }
    }
    if let Err(error) = signature(&headers) {
        is_bounded(error);
    }
});
