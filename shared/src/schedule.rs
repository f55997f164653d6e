//! Recurring messages: what a schedule sends, and at which times.
//!
//! Reads no clock and sends nothing; the manager does.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cron::{Cron, TimeZone};
use crate::message::{Headers, MergeKey, MessageId, OrderingKey};
use crate::retry::RetryPolicy;
use crate::time::UnixMs;
use crate::topic::{Topic, name};

name!(
    /// The name of a schedule: `[a-z0-9][a-z0-9_-]{0,46}`, so that the ids of its messages are short enough.
    ScheduleName, "schedule", "[a-z0-9][a-z0-9_-]{0,46}",
    |text| crate::topic::fits(text, 47, b"_-") && crate::topic::starts_well(text)
);

/// A message that is sent again and again.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Where it is sent to.
    pub topic: Topic,
    /// When.
    pub cron: Cron,
    /// The clocks that `cron` means.
    pub time_zone: TimeZone,
    /// How late the newest of the times that were missed may still be made up for. Up to 365 d.
    pub catch_up: Duration,
    /// What is sent.
    pub message: Template,
}

/// What each message of a schedule is like.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Template {
    /// Its payload.
    pub payload: String,
    /// Its headers.
    pub headers: Headers,
    /// Its ordering key.
    pub key: Option<OrderingKey>,
    /// Its merge key.
    pub merge_key: Option<MergeKey>,
    /// Its priority.
    pub priority: i32,
    /// How long after its due time it is worthless; else as the topic says.
    pub ttl: Option<Duration>,
    /// How often it may be delivered; else as the topic says.
    pub max_attempts: Option<u32>,
    /// When it is tried again; else as the topic says.
    pub retry: Option<RetryPolicy>,
}

impl Schedule {
    /// Gives the time that is to be sent for next, by whoever has sent for all up to `done`: one after `now`, or the newest
    /// of those that were missed. `None` where the calendar ends.
    pub fn next(&self, done: UnixMs, now: UnixMs) -> Option<UnixMs> {
        let first = self.cron.next(&self.time_zone, done)?;
        if first > now {
            return Some(first);
        }
        let catch_up = u64::try_from(self.catch_up.as_millis()).unwrap_or(u64::MAX);
        // One that is as late as is allowed is not too late.
        let too_late = now.get().saturating_sub(catch_up).saturating_sub(1);
        let after = done.max(UnixMs::new(too_late));
        self.cron
            .last(&self.time_zone, after, now)
            .or_else(|| self.cron.next(&self.time_zone, now))
    }

    /// Whether the schedule has this time.
    pub fn has(&self, time: UnixMs) -> bool {
        let before = UnixMs::new(time.get().saturating_sub(1));
        self.cron.next(&self.time_zone, before) == Some(time)
    }

    /// Gives a text that changes with the times.
    pub fn rule(&self) -> String {
        format!("{} {}", self.cron, self.time_zone)
    }
}

impl ScheduleName {
    /// Gives the id of the message for one of its times, in UTC: `nightly:20261122T030000Z`. Whoever sends it, it is stored once.
    pub fn message_id(&self, time: UnixMs) -> MessageId {
        let time = jiff::Timestamp::from(time).strftime("%Y%m%dT%H%M%SZ");
        format!("{self}:{time}")
            .parse()
            .expect("names are short enough for ids")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> UnixMs {
        format!("2026-11-21T{text}Z").parse().unwrap()
    }

    fn hourly(catch_up: u64) -> Schedule {
        Schedule {
            topic: "reports".parse().unwrap(),
            cron: "0 0 * * * *".parse().unwrap(),
            time_zone: TimeZone::UTC,
            catch_up: Duration::from_secs(catch_up),
            message: Template::default(),
        }
    }

    #[test]
    fn of_the_times_that_were_missed_the_newest_is_made_up_for_if_it_is_not_too_late() {
        let next = |catch_up, done, now| hourly(catch_up).next(at(done), at(now));
        assert_eq!(next(3600, "10:00:00", "10:59:00"), Some(at("11:00:00")));
        assert_eq!(next(3600, "10:00:00", "11:00:00"), Some(at("11:00:00")));
        assert_eq!(next(3600, "10:00:00", "15:20:00"), Some(at("15:00:00")));
        assert_eq!(next(1200, "10:00:00", "15:20:00"), Some(at("15:00:00")));
        assert_eq!(next(1199, "10:00:00", "15:20:00"), Some(at("16:00:00")));
        assert_eq!(next(0, "10:00:00", "15:00:00"), Some(at("15:00:00")));
        assert_eq!(next(0, "10:00:00", "15:00:00.001"), Some(at("16:00:00")));
        // Sent ahead of time.
        assert_eq!(next(3600, "16:00:00", "15:59:58"), Some(at("17:00:00")));
    }

    #[test]
    fn a_schedule_knows_its_times() {
        assert!(hourly(0).has(at("11:00:00")));
        assert!(!hourly(0).has(at("11:00:00.001")));
        assert!(!hourly(0).has(at("11:00:01")));
    }

    #[test]
    fn the_id_names_the_schedule_and_the_time_and_fits() {
        let id = |name: &str| {
            name.parse::<ScheduleName>()
                .unwrap()
                .message_id(at("03:00:00.999"))
        };
        assert_eq!(id("nightly").as_str(), "nightly:20261121T030000Z");
        assert_eq!(id(&"x".repeat(47)).as_str().len(), 64);
        for bad in ["", "Nightly", "a b", "a:b", "-a", &"x".repeat(48)] {
            assert!(bad.parse::<ScheduleName>().is_err(), "{bad}");
        }
    }
}
