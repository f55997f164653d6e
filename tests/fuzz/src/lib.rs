//! Shared code of the fuzz targets: checks of memory, of errors and of messages.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use bytes::Bytes;
use lisa_core::message::{PreparedMessage, Record};
use peak_alloc::PeakAlloc;

/// Counts what Lisa allocates, and not libFuzzer.
#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// The most memory that a body may take while it is read, as a multiple of its length.
const MULTIPLE: usize = 4;

/// The most memory that a body may take beyond that: 4096 values, see `lisa_service::http::json::FEW`.
const SURPLUS: usize = 1024 * 1024;

/// Runs a parser of a body of `len` bytes, and checks the memory that it takes.
pub fn in_bounded_memory<T>(len: usize, parse: impl FnOnce() -> T) -> T {
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let parsed = parse();
    let taken = MEMORY.peak_usage().saturating_sub(before);
    assert!(taken <= MULTIPLE * len + SURPLUS, "{taken} bytes for {len}");
    parsed
}

/// A secret that no output may repeat. It has bytes that no seed has by chance.
pub const SECRET: &str = "s3cr3tQ";

/// The longest text that an error of a single value may have: what it repeats of the input is cut.
const LONGEST_ERROR: usize = 2000;

/// Checks that an error is short enough for a log line and an answer.
pub fn is_bounded(error: impl Display) {
    let text = error.to_string();
    assert!(!text.is_empty());
    assert!(text.len() <= LONGEST_ERROR, "{} bytes: {text}", text.len());
}

/// Checks that a value is the same after it was written and read again.
pub fn round_trips<T>(value: &T)
where
    T: Display + FromStr + PartialEq + Debug,
    T::Err: Debug,
{
    let text = value.to_string();
    let again: T = text.parse().expect("what was written can be read");
    assert_eq!(&again, value, "{text:?}");
}

/// Checks that an accepted message keeps every bound, and that it can be read back from Redis unchanged.
pub fn is_sound(message: &PreparedMessage) {
    let record = &message.record;
    assert!(record.headers.iter().len() <= 64);
    assert!(
        record
            .max_attempts
            .is_none_or(|number| (1..=1000).contains(&number))
    );
    assert!(
        record
            .retry
            .as_ref()
            .is_none_or(|policy| policy.check().is_ok())
    );
    assert_eq!(
        message.route(),
        message
            .options
            .route()
            .unwrap_or_else(|| message.id.route())
    );
    assert_ne!(message.options.replace.as_ref(), Some(&message.id));
    let mut stored = Vec::new();
    record.encode(&mut stored);
    assert_eq!(stored.len(), record.encoded_len());
    assert_eq!(Record::decode(Bytes::from(stored)).as_ref(), Ok(record));
}
