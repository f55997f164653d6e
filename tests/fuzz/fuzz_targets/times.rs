//! Durations, instants and rates as people write them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use lisa_fuzz::{is_bounded, round_trips};
use lisa_core::time::{LONGEST_DELAY, UnixMs, When, format_duration, millis, parse_duration};
use lisa_core::topic::Rate;

fuzz_target!(|text: &str| {
    match parse_duration(text) {
        Ok(duration) => {
            assert!(duration <= LONGEST_DELAY);
            let written = format_duration(duration);
            assert_eq!(parse_duration(&written), Ok(duration), "{written}");
            let now = UnixMs::new(1_700_000_000_000);
            let due = When::After(duration).due(now);
            assert_eq!(due.since(now).as_millis() as u64, millis(duration));
            assert!(When::After(duration).check(now, LONGEST_DELAY).is_ok());
        }
        Err(error) => is_bounded(error),
    }
    match text.parse::<UnixMs>() {
        Ok(at) => {
            round_trips(&at);
            assert!(When::At(at).due(at) == at);
        }
        Err(error) => is_bounded(error),
    }
    match text.parse::<Rate>() {
        Ok(rate) => {
            round_trips(&rate);
            assert!((1..=Rate::MAX_COUNT).contains(&rate.count));
            assert!(rate.interval() > 0.0 && rate.default_burst() >= 1);
        }
        Err(error) => is_bounded(error),
    }
});
