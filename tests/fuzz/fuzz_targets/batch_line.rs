//! A line of a batch: a message within all bounds that can be written as a line again, or a problem. A batch as an array: each
//! element is a line.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lisa_fuzz::{in_bounded_memory, is_sound};
use lisa_producer::fuzzing::{array, check, line};
use lisa_core::message::{Expiry, PreparedMessage};
use lisa_core::time::{UnixMs, When, format_duration};
use lisa_core::topic::TopicSettings;
use serde_json::{Value, json};

const NOW: UnixMs = UnixMs::new(1_700_000_000_000);

fn read(text: &[u8]) -> Option<PreparedMessage> {
    match in_bounded_memory(text.len(), || line(text)) {
        Ok(message) => check(message, &TopicSettings::default(), NOW).ok(),
        Err(problem) => {
            let json = serde_json::to_value(&problem).expect("a problem is JSON");
            assert_eq!(json["status"], 422);
            assert!(!problem.detail().is_empty());
            None
        }
    }
}

/// Writes a message the way a client would.
fn write(message: &PreparedMessage) -> Value {
    let (record, options) = (&message.record, &message.options);
    let mut line = json!({
        "payload_text": std::str::from_utf8(&record.payload).ok(),
        "id": message.id,
        "max_attempts": record.max_attempts,
        "headers": record.headers,
        "key": options.key,
        "merge_key": options.merge_key,
        "priority": options.priority,
        "replace": options.replace,
    });
    match message.when {
        When::After(delay) => line["delay"] = format_duration(delay).into(),
        When::At(at) => line["deliver_at"] = at.to_string().into(),
    }
    match options.expiry {
        Some(Expiry::After(ttl)) => line["ttl"] = format_duration(ttl).into(),
        Some(Expiry::At(at)) => line["expires_at"] = at.to_string().into(),
        None => {}
    }
    line
}

fuzz_target!(|text: &[u8]| {
    for element in array(text).unwrap_or_default() {
        read(element.as_bytes());
    }
    let Some(message) = read(text) else { return };
    is_sound(&message);
    if message.record.caller_id && std::str::from_utf8(&message.record.payload).is_ok() {
        let mut again =
            read(write(&message).to_string().as_bytes()).expect("what was written can be read");
        // A policy may lose the last bit of a fraction in a text; the target `retry` looks at that.
        again.record.retry.clone_from(&message.record.retry);
        assert_eq!(again, message);
    }
});
