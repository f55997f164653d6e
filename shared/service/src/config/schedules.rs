//! Recurring messages: `[schedules.<name>]`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value as Json;

use super::table::Table;
use super::topics;
use crate::cron::TimeZone;
use crate::recurring::{MessageTemplate, RecurringMessage};
use lisa_core::fields::{Any, Field, Fields, Limits, Reader, Value, within};
use lisa_core::message::{Headers, MessageOptions};
use lisa_core::retry::RetryPolicy;
use lisa_core::time::DAY;
use lisa_core::topic::{ScheduleName, Topic, TopicSettings};

const HOUR: Duration = Duration::from_hours(1);

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
    let topic: Option<Topic> = table.required("topic", "The topic to send to.");
    let cron = table.required(
        "cron",
        "When to send: second minute hour day month weekday.",
    );
    let time_zone = table.read(
        Field::new("time_zone", TimeZone::UTC, "The time zone of `cron`."),
        Any,
    );
    let catch_up = table.read(
        Field::new(
            "catch_up",
            HOUR,
            "How late the newest missed time is still sent.",
        ),
        within(..=365 * DAY),
    );
    let message = message(&mut table);
    if let Some(topic) = &topic {
        topics::look_for(&table, "topic", topic, topics);
    }
    let settings = topic.as_ref().and_then(|topic| topics.get(topic));
    if let Some(most) = settings.map(|settings| settings.max_payload)
        && message.payload.len() as u64 > most.get()
    {
        let size = message.payload.len();
        table.reject(
            "payload",
            format!("has {size} bytes, and the topic allows up to {most}"),
        );
    }
    table.finish();
    Some(RecurringMessage {
        topic: topic?,
        cron: cron?,
        time_zone,
        catch_up,
        message,
    })
}

fn message(table: &mut Table<'_>) -> MessageTemplate {
    let payload = table.read(Field::new("payload", String::new(), "The payload."), Any);
    let retry = table.optional_table("retry").map(|mut table| {
        let retry = RetryPolicy::read_fields(&mut table);
        table.finish();
        retry
    });
    let options = MessageOptions::read_fields(&mut Only {
        table,
        names: &["key", "merge_key", "priority", "ttl", "max_attempts"],
    });
    MessageTemplate {
        payload,
        headers: headers(table),
        options: MessageOptions { retry, ..options },
    }
}

/// Reads the fields that a schedule may have. The others have their defaults, and are unknown keys.
struct Only<'t, 'a> {
    table: &'t mut Table<'a>,
    names: &'static [&'static str],
}

impl Reader for Only<'_, '_> {
    fn read<T: Value>(&mut self, field: Field<T>, limits: impl Limits<T>) -> T {
        match self.names.contains(&field.name) {
            true => self.table.read(field, limits),
            false => field.default,
        }
    }

    fn table<F: Fields>(&mut self, name: &'static str) -> F {
        self.table.table(name)
    }

    fn problem(&mut self, name: &'static str, value: Json, message: String) {
        Reader::problem(self.table, name, value, message);
    }
}

fn headers(table: &mut Table<'_>) -> Headers {
    let mut headers = Headers::default();
    for (name, value) in table.texts::<String>("headers", "The headers.") {
        if let Err(error) = headers.insert(&name, &value) {
            table.reject(&format!("headers.{name}"), error.to_string());
        }
    }
    headers
}
