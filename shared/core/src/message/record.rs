//! The stored part of a message: one immutable value in the `payload` hash, which Lua never parses.
//!
//! ```text
//! byte 0   format, 1
//! byte 1   flags: 1 the caller supplied the id, 2 has max_attempts, 4 has headers, 8 has a retry policy
//! u32      max_attempts, if flagged
//! u8       kind of the retry policy, if flagged; then its numbers:
//!            0 exponential: u64 base, f64 factor, u64 max, f64 jitter
//!            1 fixed: u64 delay, f64 jitter
//!            2 list: u8 number of delays, each u64, f64 jitter
//! u16      number of headers, if flagged; each: u8 length, name, u16 length, value
//! rest     the payload
//! ```
//! Numbers are big-endian, durations in ns. A record without flags adds two bytes to its payload.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, TryGetError};

use super::Headers;
use crate::retry::RetryPolicy;

const FORMAT: u8 = 1;
const CALLER_ID: u8 = 1;
const MAX_ATTEMPTS: u8 = 2;
const HEADERS: u8 = 4;
const RETRY: u8 = 8;

const EXPONENTIAL: u8 = 0;
const FIXED: u8 = 1;
const LIST: u8 = 2;

/// Number of bytes of a record that suffice for [`Record::decode_head`]: the longest policy is a list of 255 delays.
pub const RECORD_HEAD: usize = 2 + 4 + 10 + 8 * 255;

/// The part of a message that Redis stores.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// True if the caller supplied the id; it is then remembered for the dedup window after the message ends.
    pub caller_id: bool,
    /// Deliveries before the message is moved to garbage (dead letters); overrides the topic's setting.
    pub max_attempts: Option<u32>,
    /// The retry policy; overrides the topic's.
    pub retry: Option<RetryPolicy>,
    /// The headers.
    pub headers: Headers,
    /// The bytes to deliver.
    pub payload: Bytes,
}

impl Record {
    /// Returns the message's own retry policy, else the topic's.
    pub fn retry_policy<'a>(&'a self, of_topic: &'a RetryPolicy) -> &'a RetryPolicy {
        self.retry.as_ref().unwrap_or(of_topic)
    }

    /// Returns the length of the encoded record, in bytes.
    pub fn encoded_len(&self) -> usize {
        let headers: usize = self
            .headers
            .iter()
            .map(|(n, v)| 3 + n.len() + v.len())
            .sum();
        2 + self.max_attempts.map_or(0, |_| 4)
            + self.retry.as_ref().map_or(0, retry_len)
            + if self.headers.is_empty() {
                0
            } else {
                2 + headers
            }
            + self.payload.len()
    }

    /// Appends the encoded record.
    pub fn encode(&self, to: &mut Vec<u8>) {
        to.reserve(self.encoded_len());
        let flag = |set, flag| if set { flag } else { 0 };
        to.put_u8(FORMAT);
        to.put_u8(
            flag(self.caller_id, CALLER_ID)
                | flag(self.max_attempts.is_some(), MAX_ATTEMPTS)
                | flag(!self.headers.is_empty(), HEADERS)
                | flag(self.retry.is_some(), RETRY),
        );
        if let Some(max_attempts) = self.max_attempts {
            to.put_u32(max_attempts);
        }
        if let Some(retry) = &self.retry {
            put_retry(retry, to);
        }
        // The limits on names, values and their number keep every length within its type.
        if !self.headers.is_empty() {
            to.put_u16(self.headers.iter().len() as u16);
            for (name, value) in self.headers.iter() {
                to.put_u8(name.len() as u8);
                to.put_slice(name.as_bytes());
                to.put_u16(value.len() as u16);
                to.put_slice(value.as_bytes());
            }
        }
        to.put_slice(&self.payload);
    }

    /// Reads an encoded record; the payload shares the memory of `from`.
    ///
    /// # Errors
    /// [`InvalidRecord`] for anything that [`Record::encode`] does not write.
    pub fn decode(mut from: Bytes) -> Result<Self, InvalidRecord> {
        let (mut record, flags) = Self::take_head(&mut from)?;
        if flags & HEADERS != 0 {
            let count = from.try_get_u16().map_err(truncated)?;
            if count == 0 {
                return Err(InvalidRecord::Header);
            }
            let mut last = Bytes::new();
            for _ in 0..count {
                let name_len = from.try_get_u8().map_err(truncated)?;
                let name = take(&mut from, usize::from(name_len))?;
                let value_len = from.try_get_u16().map_err(truncated)?;
                let value = take(&mut from, usize::from(value_len))?;
                let text = |bytes| std::str::from_utf8(bytes).map_err(|_| InvalidRecord::Header);
                record
                    .headers
                    .insert_any(text(&name)?, text(&value)?)
                    .map_err(|_| InvalidRecord::Header)?;
                // As written: sorted, each once, and in lower case.
                if name <= last || name.iter().any(u8::is_ascii_uppercase) {
                    return Err(InvalidRecord::Header);
                }
                last = name;
            }
        }
        record.payload = from;
        Ok(record)
    }

    /// Reads the fields before headers and payload from the first [`RECORD_HEAD`] bytes of an encoded record.
    ///
    /// # Errors
    /// As [`Record::decode`].
    pub fn decode_head(mut from: Bytes) -> Result<Self, InvalidRecord> {
        Ok(Self::take_head(&mut from)?.0)
    }

    /// Removes the fields before the headers from `from`, and returns them with the flags.
    fn take_head(from: &mut Bytes) -> Result<(Self, u8), InvalidRecord> {
        let format = from.try_get_u8().map_err(truncated)?;
        if format != FORMAT {
            return Err(InvalidRecord::Format(format));
        }
        let flags = from.try_get_u8().map_err(truncated)?;
        if flags & !(CALLER_ID | MAX_ATTEMPTS | HEADERS | RETRY) != 0 {
            return Err(InvalidRecord::Flags(flags));
        }
        let mut record = Self {
            caller_id: flags & CALLER_ID != 0,
            ..Self::default()
        };
        if flags & MAX_ATTEMPTS != 0 {
            record.max_attempts = Some(from.try_get_u32().map_err(truncated)?);
        }
        if flags & RETRY != 0 {
            record.retry = Some(take_retry(from)?);
        }
        Ok((record, flags))
    }
}

fn truncated(_: TryGetError) -> InvalidRecord {
    InvalidRecord::Truncated
}

fn retry_len(retry: &RetryPolicy) -> usize {
    match retry {
        RetryPolicy::Exponential { .. } => 33,
        RetryPolicy::Fixed { .. } => 17,
        RetryPolicy::List { delays, .. } => 10 + 8 * delays.len(),
    }
}

fn put_retry(retry: &RetryPolicy, to: &mut Vec<u8>) {
    // The limits on a policy keep the numbers within their types.
    let nanos = |duration: &Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    match retry {
        RetryPolicy::Exponential {
            base,
            factor,
            max,
            jitter,
        } => {
            to.put_u8(EXPONENTIAL);
            to.put_u64(nanos(base));
            to.put_f64(*factor);
            to.put_u64(nanos(max));
            to.put_f64(*jitter);
        }
        RetryPolicy::Fixed { delay, jitter } => {
            to.put_u8(FIXED);
            to.put_u64(nanos(delay));
            to.put_f64(*jitter);
        }
        RetryPolicy::List { delays, jitter } => {
            to.put_u8(LIST);
            to.put_u8(delays.len() as u8);
            for delay in delays {
                to.put_u64(nanos(delay));
            }
            to.put_f64(*jitter);
        }
    }
}

fn take_retry(from: &mut Bytes) -> Result<RetryPolicy, InvalidRecord> {
    fn duration(from: &mut Bytes) -> Result<Duration, InvalidRecord> {
        let nanos = from.try_get_u64().map_err(truncated)?;
        Ok(Duration::from_nanos(nanos))
    }
    let policy = match from.try_get_u8().map_err(truncated)? {
        EXPONENTIAL => RetryPolicy::Exponential {
            base: duration(from)?,
            factor: from.try_get_f64().map_err(truncated)?,
            max: duration(from)?,
            jitter: from.try_get_f64().map_err(truncated)?,
        },
        FIXED => RetryPolicy::Fixed {
            delay: duration(from)?,
            jitter: from.try_get_f64().map_err(truncated)?,
        },
        LIST => {
            let count = from.try_get_u8().map_err(truncated)?;
            RetryPolicy::List {
                delays: (0..count)
                    .map(|_| duration(from))
                    .collect::<Result<_, _>>()?,
                jitter: from.try_get_f64().map_err(truncated)?,
            }
        }
        _ => return Err(InvalidRecord::Retry),
    };
    policy.check().map_err(|_| InvalidRecord::Retry)?;
    Ok(policy)
}

fn take(from: &mut Bytes, length: usize) -> Result<Bytes, InvalidRecord> {
    if from.len() < length {
        return Err(InvalidRecord::Truncated);
    }
    Ok(from.split_to(length))
}

/// The reason why stored bytes are not a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRecord {
    /// Written by a newer version, or not by Lisa.
    #[error("record has unknown format {0}: expected 1")]
    Format(u8),
    /// Written by a newer version.
    #[error("record has unknown flags {0:#010b}")]
    Flags(u8),
    /// A length goes past the end.
    #[error("record is truncated")]
    Truncated,
    /// A header that is not allowed.
    #[error("record has an invalid header")]
    Header,
    /// A retry policy of an unknown kind, or out of its bounds.
    #[error("record has an invalid retry policy")]
    Retry,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(record: &Record) -> Vec<u8> {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        assert_eq!(bytes.len(), record.encoded_len());
        bytes
    }

    fn complete() -> Record {
        let mut headers = Headers::default();
        headers.insert("Content-Type", "text/plain").expect("valid");
        headers.insert("tenant", "").expect("valid");
        Record {
            caller_id: true,
            max_attempts: Some(3),
            retry: Some(RetryPolicy::default()),
            headers,
            payload: Bytes::from_static(b"\0\xff payload"),
        }
    }

    #[test]
    fn a_record_is_read_back_as_written() {
        for record in [Record::default(), complete()] {
            assert_eq!(Record::decode(encoded(&record).into()), Ok(record));
        }
    }

    #[test]
    fn the_head_of_a_record_has_all_but_headers_and_payload() {
        let mut record = complete();
        record.payload = vec![b'x'; 2 * RECORD_HEAD].into();
        record.retry = Some(RetryPolicy::List {
            delays: vec![Duration::from_secs(1); 100],
            jitter: 0.0,
        });
        let whole = encoded(&record);
        let begin = whole[..RECORD_HEAD].to_vec();
        let expected = Record {
            headers: Headers::default(),
            payload: Bytes::new(),
            ..record
        };
        assert_eq!(Record::decode_head(begin.into()), Ok(expected));
        assert_eq!(
            Record::decode_head(encoded(&Record::default()).into()),
            Ok(Record::default())
        );
    }

    #[test]
    fn each_kind_of_retry_policy_is_read_back_as_written() {
        let longest = crate::time::LONGEST_DELAY;
        for retry in [
            RetryPolicy::Exponential {
                base: Duration::ZERO,
                factor: 1.5,
                max: longest,
                jitter: 1.0,
            },
            RetryPolicy::Fixed {
                delay: Duration::from_nanos(1),
                jitter: 0.0,
            },
            RetryPolicy::List {
                delays: vec![longest; 100],
                jitter: 0.1,
            },
        ] {
            let record = Record {
                retry: Some(retry),
                payload: Bytes::from_static(b"x"),
                ..Record::default()
            };
            let bytes = encoded(&record);
            for end in 2..bytes.len() - 1 {
                let cut = Record::decode(Bytes::copy_from_slice(&bytes[..end]));
                assert_eq!(cut, Err(InvalidRecord::Truncated), "{end}");
            }
            assert_eq!(Record::decode(bytes.into()), Ok(record));
        }
    }

    #[test]
    fn a_retry_policy_out_of_bounds_is_no_record() {
        let fixed = |jitter: f64| {
            let mut bytes = vec![FORMAT, RETRY, FIXED];
            bytes.put_u64(1_000_000);
            bytes.put_f64(jitter);
            Record::decode(bytes.into())
        };
        assert!(fixed(1.0).is_ok());
        for jitter in [1.1, -0.1, f64::NAN, f64::INFINITY] {
            assert_eq!(fixed(jitter), Err(InvalidRecord::Retry), "{jitter}");
        }
        let mut empty = vec![FORMAT, RETRY, LIST, 0];
        empty.put_f64(0.0);
        assert_eq!(Record::decode(empty.into()), Err(InvalidRecord::Retry));
        let unknown = vec![FORMAT, RETRY, 3];
        assert_eq!(Record::decode(unknown.into()), Err(InvalidRecord::Retry));
    }

    #[test]
    fn headers_in_a_form_that_is_never_written_are_no_record() {
        let headers = |names: &[&str]| {
            let mut bytes = vec![FORMAT, HEADERS];
            bytes.put_u16(names.len() as u16);
            for name in names {
                bytes.put_u8(name.len() as u8);
                bytes.put_slice(name.as_bytes());
                bytes.put_u16(0);
            }
            Record::decode(bytes.into())
        };
        assert!(headers(&["a", "b"]).is_ok());
        for names in [&[][..], &["A"], &["b", "a"], &["a", "a"], &[""]] {
            assert_eq!(headers(names), Err(InvalidRecord::Header), "{names:?}");
        }
    }

    #[test]
    fn a_plain_message_costs_two_bytes() {
        let record = Record {
            payload: Bytes::from_static(b"x"),
            ..Record::default()
        };
        assert_eq!(encoded(&record), b"\x01\x00x");
    }

    #[test]
    fn no_bytes_make_the_reader_panic() {
        let good = encoded(&complete());
        let header_end = good.len() - complete().payload.len();
        for end in 0..header_end {
            assert!(
                Record::decode(Bytes::copy_from_slice(&good[..end])).is_err(),
                "{end}"
            );
        }
        for flip in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[flip / 8] ^= 1 << (flip % 8);
            let _ = Record::decode(bytes.into());
        }
    }
}
