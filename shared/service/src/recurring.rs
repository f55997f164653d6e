//! Recurring messages: the message that a schedule sends, and its times.
//!
//! Reads no clock and sends nothing; the manager does both.

use std::time::Duration;

use crate::cron::{Cron, TimeZone};
use lisa_core::message::{Headers, MessageOptions};
use lisa_core::time::UnixMs;
use lisa_core::topic::Topic;

/// A message that is sent at each time of a schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct RecurringMessage {
    /// The topic that it is sent to.
    pub topic: Topic,
    /// The times of the schedule.
    pub cron: Cron,
    /// The time zone of `cron`.
    pub time_zone: TimeZone,
    /// The longest delay after which the newest missed time is still sent. At most 365 d.
    pub catch_up: Duration,
    /// The content and the options of each message.
    pub message: MessageTemplate,
}

/// The content and the options of each message of a schedule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MessageTemplate {
    /// Its payload.
    pub payload: String,
    /// Its headers.
    pub headers: Headers,
    /// Its options, without a due time and an id, which the schedule determines.
    pub options: MessageOptions,
}

impl RecurringMessage {
    /// Returns the next time to send for, if all times up to `done` have been sent. That is the newest missed time if it is
    /// at most `catch_up` late, else the first time after `done` and `now`. Returns `None` at the end of the calendar.
    pub fn next(&self, done: UnixMs, now: UnixMs) -> Option<UnixMs> {
        let first = self.cron.next(&self.time_zone, done)?;
        if first > now {
            return Some(first);
        }
        let catch_up = u64::try_from(self.catch_up.as_millis()).unwrap_or(u64::MAX);
        // A time that is exactly `catch_up` late is still sent.
        let too_late = now.get().saturating_sub(catch_up).saturating_sub(1);
        let after = done.max(UnixMs::new(too_late));
        self.cron
            .last(&self.time_zone, after, now)
            .or_else(|| self.cron.next(&self.time_zone, now))
    }

    /// Returns whether this is a time of the schedule.
    pub fn has(&self, time: UnixMs) -> bool {
        let before = UnixMs::new(time.get().saturating_sub(1));
        self.cron.next(&self.time_zone, before) == Some(time)
    }

    /// Returns a text that changes whenever the times do: the cron expression and the time zone.
    pub fn rule(&self) -> String {
        format!("{} {}", self.cron, self.time_zone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> UnixMs {
        format!("2026-11-21T{text}Z").parse().unwrap()
    }

    fn hourly(catch_up: u64) -> RecurringMessage {
        RecurringMessage {
            topic: "reports".parse().unwrap(),
            cron: "0 0 * * * *".parse().unwrap(),
            time_zone: TimeZone::UTC,
            catch_up: Duration::from_secs(catch_up),
            message: MessageTemplate::default(),
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
}
