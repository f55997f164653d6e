//! Records of messages in Redis: any bytes are either a record or an error.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use lisa_fuzz::is_bounded;
use lisa_core::message::Record;

fuzz_target!(|stored: &[u8]| {
    match Record::decode(Bytes::copy_from_slice(stored)) {
        Ok(record) => {
            assert!(record.headers.iter().len() <= 64);
            assert!(
                record
                    .retry
                    .as_ref()
                    .is_none_or(|policy| policy.check().is_ok())
            );
            let mut again = Vec::new();
            record.encode(&mut again);
            assert_eq!(again.len(), record.encoded_len());
            assert_eq!(again, stored, "only what is written is read");
        }
        Err(error) => is_bounded(error),
    }
});
