//! The schedules whose last send failed, for what needs attention. Reads a bounded number of them, and no others.

use std::collections::{BTreeMap, BTreeSet};

use lisa_core::broker::{BrokerError, StoredSchedule};
use lisa_core::time::shorten_to;
use lisa_core::topic::{ScheduleName, Topic};
use lisa_service::http::client::{reach, reaches, reaches_named};

use super::Schedules;

/// The largest number of failing schedules that are read.
const READ: usize = 1000;
/// The largest number of schedules of a topic that are named.
const NAMED: usize = 3;
/// The longest text of an error that is shown, in characters.
const ERROR: usize = 120;

/// The schedules whose last send failed and that are not paused, by topic.
#[derive(Debug, Default)]
pub(crate) struct FailingSchedules {
    /// Those of each topic; under `None` those whose definition cannot be read.
    pub(crate) topics: BTreeMap<Option<Topic>, FailingOfTopic>,
    /// True if there are more than were read.
    pub(crate) is_cut: bool,
}

/// The failing schedules of one topic.
#[derive(Debug)]
pub(crate) struct FailingOfTopic {
    /// The first ones by name.
    names: Vec<ScheduleName>,
    /// The number of all.
    count: u64,
    /// The error of the first one.
    error: String,
}

impl FailingOfTopic {
    /// Returns the first one.
    pub(crate) fn first(&self) -> Option<&ScheduleName> {
        self.names.first()
    }

    /// Returns the names of the first schedules, the number of the others, and the error of the first one, in words.
    pub(crate) fn text(&self) -> String {
        let names: Vec<_> = self.names.iter().map(ScheduleName::as_str).collect();
        let noun = match self.count {
            1 => "schedule",
            _ => "schedules",
        };
        let more = match self.count - names.len() as u64 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let error = shorten_to(&self.error, ERROR);
        format!("{noun} {}{more} cannot send: {error}", names.join(", "))
    }
}

impl FailingSchedules {
    /// Drops those of all topics but one.
    pub(crate) fn keep_only(&mut self, topic: &Topic) {
        self.topics.retain(|of, _| of.as_ref() == Some(topic));
    }
}

impl Schedules<'_> {
    /// Returns the schedules that the client reaches and whose last send failed, except those that are paused: the first 1,000 by name.
    /// One that a configuration declares is included only if this process has that configuration.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub(crate) async fn failing(self) -> Result<FailingSchedules, BrokerError> {
        let reach = reach();
        let mut names = BTreeSet::new();
        for start in reach.starts_of_schedules("") {
            names.extend(self.broker.failing_schedules(start, READ + 1).await?);
        }
        names.retain(|name| reach.has_schedule(name));
        let count = names.len();
        let names: Vec<_> = names.into_iter().take(READ).collect();
        let mut failing = FailingSchedules {
            is_cut: names.len() < count,
            ..FailingSchedules::default()
        };
        let mut rest = &names[..];
        while !rest.is_empty() {
            // Fewer at a time if their definitions are large.
            let read = self.broker.read_schedules(rest).await?;
            rest = rest.get(read.len().max(1)..).unwrap_or_default();
            failing.add(self, read);
        }
        Ok(failing)
    }
}

impl FailingSchedules {
    /// Adds those of these schedules that the client reaches.
    fn add(&mut self, schedules: Schedules<'_>, read: Vec<StoredSchedule>) {
        for stored in read {
            let topic = match schedules.parse(&stored) {
                Some(Ok((schedule, _))) if reaches(&schedule.topic) => Some(schedule.topic),
                Some(Err(_)) if reaches_named(None) => None,
                // Of another team, removed in the meantime, or in the file of other managers.
                Some(_) | None => continue,
            };
            let Some((_, error)) = stored.faults.error.filter(|_| stored.paused.is_none()) else {
                continue;
            };
            let of_topic = self.topics.entry(topic).or_insert(FailingOfTopic {
                names: Vec::new(),
                count: 0,
                error,
            });
            of_topic.count += 1;
            if of_topic.names.len() < NAMED {
                of_topic.names.push(stored.name);
            }
        }
    }
}
