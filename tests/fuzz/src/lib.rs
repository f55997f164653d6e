//! Shared code of the fuzz targets: checks of errors and of messages.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use bytes::Bytes;
use lisa_core::message::{PreparedMessage, Record};

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
