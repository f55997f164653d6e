//! Recurring messages: `[schedules.<name>]`.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::table::Table;
use super::topics;
use crate::recurring::RecurringMessage;
use lisa_core::time::UnixMs;
use lisa_core::topic::{ScheduleName, Topic, TopicSettings};

/// Reads `[schedules]`.
pub(super) fn read(
    root: &mut Table<'_>,
    topics: &BTreeMap<Topic, TopicSettings>,
) -> BTreeMap<ScheduleName, RecurringMessage> {
    let mut schedules = BTreeMap::new();
    for (name, table) in root.entries("schedules") {
        let name = match name.parse::<ScheduleName>() {
            Ok(name) => Some(name),
            Err(error) => {
                table.name_problem(&error.to_string());
                None
            }
        };
        let schedule = schedule(table.without_inheritance(), topics);
        if let (Some(name), Some(schedule)) = (name, schedule) {
            schedules.insert(name, schedule);
        }
    }
    schedules
}

fn schedule(
    mut table: Table<'_>,
    topics: &BTreeMap<Topic, TopicSettings>,
) -> Option<RecurringMessage> {
    let schedule = RecurringMessage::read(&mut table);
    if let Some(schedule) = &schedule {
        let topic = &schedule.topic;
        topics::look_for(&table, "topic", topic, topics);
        let settings = topics.get(topic);
        if let Some(why) = settings.and_then(|settings| schedule.too_large(settings)) {
            table.reject("payload", why);
        }
        // A warning may depend on the clock of this host; nothing else does.
        let now = UnixMs::from(SystemTime::now());
        for warning in schedule.cron.warnings(&schedule.time_zone, now) {
            table.warning("cron", warning);
        }
    }
    table.finish();
    schedule
}
