//! Cron expressions: an accepted one is kept, and its next time is found at once.

#![no_main]

use chrono::{DateTime, Utc};
use croner::parser::{CronParser, Seconds, Year};
use libfuzzer_sys::fuzz_target;
use lisa_fuzz::{is_bounded, round_trips};
use lisa_service::config::Cron;

fuzz_target!(|text: &str| {
    match text.parse::<Cron>() {
        Ok(cron) => {
            round_trips(&cron);
            assert_eq!(cron.as_str().split(' ').count(), 6);
            // As the manager's schedule reads it. The target's time limit defines "at once".
            let parser = CronParser::builder()
                .seconds(Seconds::Required)
                .year(Year::Disallowed)
                .build();
            let pattern = parser.parse(cron.as_str()).expect("checked");
            let now: DateTime<Utc> =
                DateTime::UNIX_EPOCH + chrono::TimeDelta::seconds(1_767_225_599);
            let next = pattern.find_next_occurrence(&now, false);
            let next = next.expect("what never comes is refused");
            assert!(next > now, "{cron}: {next}");
        }
        Err(error) => is_bounded(error),
    }
});
