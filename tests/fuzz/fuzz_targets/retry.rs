//! Retry policies as JSON, and their delays.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use lisa_fuzz::is_bounded;
use lisa_core::message::Record;
use lisa_core::retry::RetryPolicy;
use lisa_core::time::LONGEST_DELAY;

fuzz_target!(|input: (u32, u8, &str)| {
    let (failures, share, text) = input;
    let policy: RetryPolicy = match text.parse() {
        Ok(policy) => policy,
        Err(error) => {
            assert!(error.to_string().starts_with("not a retry policy"));
            return is_bounded(error);
        }
    };
    assert!(policy.check().is_ok());
    let random = f64::from(share) / 256.0;
    let plain = policy.delay(failures, 0.0);
    let delay = policy.delay(failures, random);
    assert!(
        plain <= delay && delay <= LONGEST_DELAY * 2,
        "{plain:?} {delay:?}"
    );
    assert!(
        policy.delay(failures.saturating_add(1), 0.0) >= plain
            || matches!(policy, RetryPolicy::List { .. })
    );

    // Redis returns exactly what was written; text may lose the last bit of a fraction.
    let record = Record {
        retry: Some(policy.clone()),
        ..Record::default()
    };
    let mut stored = Vec::new();
    record.encode(&mut stored);
    assert_eq!(Record::decode(stored.into()), Ok(record));
    let written = serde_json::to_string(&policy).expect("a policy is JSON");
    let again: RetryPolicy = written.parse().expect("what was written can be read");
    let (first, second) = (policy.delay(1, 0.0), again.delay(1, 0.0));
    assert!(
        first.abs_diff(second) <= Duration::from_nanos(1),
        "{written}"
    );
});
