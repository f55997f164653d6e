//! Recurring messages: `[schedules.<name>]`.

use std::collections::BTreeMap;
use std::time::Duration;

use super::table::Table;
use super::topics;
use crate::cron::TimeZone;
use crate::message::Headers;
use crate::schedule::{Schedule, ScheduleName, Template};
use crate::time::LONGEST_DELAY;
use crate::topic::{Topic, TopicSettings};

const HOUR: Duration = Duration::from_secs(3600);

/// Reads `[schedules]`.
pub(super) fn read(
    root: &mut Table<'_>,
    topics: &BTreeMap<Topic, TopicSettings>,
) -> BTreeMap<ScheduleName, Schedule> {
    let mut schedules = BTreeMap::new();
    for (name, table) in root.entries("schedules") {
        let name = match name.parse::<ScheduleName>() {
            Ok(name) => Some(name),
            Err(error) => {
                table.name_problem(&error.to_string());
                None
            }
        };
        if let (Some(name), Some(schedule)) = (name, schedule(table, topics)) {
            schedules.insert(name, schedule);
        }
    }
    schedules
}

fn schedule(mut table: Table<'_>, topics: &BTreeMap<Topic, TopicSettings>) -> Option<Schedule> {
    let topic: Option<Topic> = table.required("topic", "the topic to send to");
    let cron = table.required("cron", "when to send: second minute hour day month weekday");
    let time_zone = table.or("time_zone", TimeZone::UTC);
    let catch_up = table.bounded("catch_up", HOUR, Duration::ZERO..=365 * 24 * HOUR);
    let message = message(&mut table);
    if let Some(topic) = &topic {
        topics::look_for(&table, topic, topics);
    }
    let settings = topic.as_ref().and_then(|topic| topics.get(topic));
    if let Some(most) = settings.map(|settings| settings.max_payload)
        && message.payload.len() as u64 > most
    {
        let size = message.payload.len();
        table.problem(
            "payload",
            format!("it has {size} bytes, the topic takes up to {most}"),
        );
    }
    table.finish();
    Some(Schedule {
        topic: topic?,
        cron: cron?,
        time_zone,
        catch_up,
        message,
    })
}

fn message(table: &mut Table<'_>) -> Template {
    let ttl = table.optional_bounded("ttl", Duration::from_millis(1)..=LONGEST_DELAY);
    let max_attempts = table.optional_bounded("max_attempts", 1..=1000);
    let (has_retry, retry) = (table.has("retry"), table.table("retry"));
    let retry = has_retry.then(|| {
        let policy = topics::retry(retry);
        if let Err(problems) = policy.check() {
            for problem in problems {
                let message = format!("allowed is {}", problem.allowed);
                table.problem_with(problem.key, message, &problem.value);
            }
        }
        policy
    });
    Template {
        payload: table.or("payload", String::new()),
        headers: headers(table),
        key: table.optional("key"),
        merge_key: table.optional("merge_key"),
        priority: table.or("priority", 0),
        ttl,
        max_attempts,
        retry,
    }
}

fn headers(table: &mut Table<'_>) -> Headers {
    let mut headers = Headers::default();
    for (name, value) in table.texts("headers") {
        if let Err(error) = headers.insert(&name, &value) {
            table.problem(&format!("headers.{name}"), error.to_string());
        }
    }
    headers
}
