//! The headers of a send: a message within all bounds, or a problem that names the headers at fault.

#![no_main]

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use lisa_fuzz::is_sound;
use lisa_producer::fuzzing::{check, headers};
use lisa_core::time::UnixMs;
use lisa_core::topic::TopicSettings;

fuzz_target!(|input: &[u8]| {
    let mut map = HeaderMap::new();
    for line in input.split(|&byte| byte == b'\n') {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else {
            continue;
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            map.append(name, value);
        }
    }
    match headers(&map) {
        Ok(message) => {
            let given = map.get("lisa-id").or_else(|| map.get("idempotency-key"));
            let id = message.message_id().to_string();
            match given.and_then(|value| value.to_str().ok()) {
                Some(text) => assert_eq!(text.trim_matches('"'), id),
                None => assert_eq!(id.len(), 22),
            }
            // The topic must refuse an instant far ahead and an expiry before the due time.
            if let Ok(message) = check(
                message,
                &TopicSettings::default(),
                UnixMs::new(1_700_000_000_000),
            ) {
                is_sound(&message);
            }
        }
        Err(problem) => {
            let json = serde_json::to_value(&problem).expect("a problem is JSON");
            assert_eq!(json["status"], 422);
            let errors = json["errors"].as_array().expect("a list of what is wrong");
            assert!(!errors.is_empty());
            for error in errors {
                let field = error["field"].as_str().expect("a field");
                assert!(map.contains_key(field), "{field:?} was not given: {json}");
                assert!(!error["detail"].as_str().expect("a text").is_empty());
            }
        }
    }
});
