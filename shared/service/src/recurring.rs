//! Recurring messages: the message that a schedule sends, and its times.
//!
//! Reads no clock and sends nothing; the manager does both. A schedule that no file declares can be stored for all managers.

use std::time::Duration;

use serde_json::{Map, Value as Json};

use crate::cron::{Cron, TimeZone};
use lisa_core::broker::{Broker, BrokerError, MAX_DEFINITION, MissedTimes, SchedulePut};
use lisa_core::fields::{
    Any, Field, FieldProblem, Fields, JsonReader, Limits, Reader, TableReader, Value, within,
};
use lisa_core::message::{Headers, MessageOptions};
use lisa_core::time::{DAY, UnixMs};
use lisa_core::topic::{ScheduleName, ScheduleQuota, Topic, TopicSettings};

const HOUR: Duration = Duration::from_hours(1);
/// The options of a message that a schedule may set, besides `retry`. The schedule determines the others.
const OPTIONS: [&str; 5] = ["key", "merge_key", "priority", "ttl", "max_attempts"];
/// The most missed times that are counted at once.
const COUNTED: usize = 100;

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

/// The reason why a schedule cannot be stored.
#[derive(Debug, thiserror::Error)]
pub enum PutScheduleError {
    /// The topic does not exist, or Redis failed.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The payload, or the whole definition, is too large.
    #[error("payload: {0}")]
    Payload(String),
}

impl RecurringMessage {
    /// Reads a schedule. Returns `None` if a required field is missing or wrong, which is a problem.
    pub fn read(from: &mut impl TableReader) -> Option<Self> {
        let topic = from.required_field("topic", "The topic to send to.");
        let cron = from.required_field(
            "cron",
            "When to send: second minute hour day month weekday.",
        );
        let time_zone = Field::new("time_zone", TimeZone::UTC, "The time zone of `cron`.");
        let time_zone = from.read(time_zone, Any);
        let catch_up = Field::new(
            "catch_up",
            HOUR,
            "How late the newest missed time is still sent.",
        );
        let catch_up = from.read(catch_up, within(..=365 * DAY));
        let message = MessageTemplate::read(from);
        Some(Self {
            topic: topic?,
            cron: cron?,
            time_zone,
            catch_up,
            message,
        })
    }

    /// Reads a schedule from its definition.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn from_definition(text: &str) -> Result<Self, String> {
        let object: Map<String, Json> =
            serde_json::from_str(text).map_err(|error| error.to_string())?;
        Self::from_fields(&object).map_err(|problems| {
            let problems = problems.iter().map(ToString::to_string);
            problems.collect::<Vec<_>>().join("; ")
        })
    }

    /// Reads a schedule from the fields of its definition. A field that is `null` is missing.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn from_fields(fields: &Map<String, Json>) -> Result<Self, Vec<FieldProblem>> {
        let mut reader = JsonReader::new(fields).null_is_missing();
        let read = Self::read(&mut reader);
        match (read, reader.finish()) {
            (Some(read), problems) if problems.is_empty() => Ok(read),
            (_, problems) => Err(problems),
        }
    }

    /// Returns the fields of its definition, from which it can be read. Options that are not set are missing.
    pub fn fields(&self) -> Map<String, Json> {
        let MessageTemplate {
            payload,
            headers,
            options,
        } = &self.message;
        let headers = headers.iter().map(|(name, value)| (name, value.into()));
        let headers: Map<String, Json> =
            headers.map(|(n, v): (_, Json)| (n.to_owned(), v)).collect();
        let priority = Some(options.priority).filter(|priority| *priority != 0);
        let fields = [
            ("topic", Some(self.topic.show())),
            ("cron", Some(self.cron.show())),
            ("time_zone", Some(self.time_zone.show())),
            ("catch_up", Some(self.catch_up.show())),
            ("payload", Some(payload.show())),
            ("headers", Some(headers.into())),
            ("retry", options.retry.as_ref().map(Value::show)),
            ("key", options.key.as_ref().map(Value::show)),
            ("merge_key", options.merge_key.as_ref().map(Value::show)),
            ("priority", priority.map(Json::from)),
            ("ttl", options.ttl.as_ref().map(Value::show)),
            ("max_attempts", options.max_attempts.map(Json::from)),
        ];
        let given = fields
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        given.collect()
    }

    /// Stores the schedule for all managers, if a stored one of this name is at the version `at`: 0 if there must be none. What the
    /// managers' file declares must not be stored. A new one must be within the quota of the caller.
    ///
    /// # Errors
    /// [`PutScheduleError`].
    ///
    /// # Cancel safety
    /// The schedule may be stored. A repeated call is answered with [`SchedulePut::Unchanged`].
    pub async fn put(
        &self,
        broker: &Broker,
        name: &ScheduleName,
        at: Option<u64>,
        quota: Option<&ScheduleQuota>,
    ) -> Result<SchedulePut, PutScheduleError> {
        let topic = broker.topic(&self.topic).await?;
        let definition = Json::from(self.fields()).to_string();
        let size = definition.len();
        let too_large = match size > MAX_DEFINITION {
            true => Some(format!(
                "the schedule has {size} bytes, must be at most {MAX_DEFINITION}"
            )),
            false => self.too_large(topic.settings()),
        };
        if let Some(why) = too_large {
            return Err(PutScheduleError::Payload(why));
        }
        let rule = self.rule();
        let put = broker.put_schedule(name, &definition, &rule, at, quota);
        Ok(put.await?)
    }

    /// Returns why the topic refuses its messages, if their payload is too large.
    pub fn too_large(&self, settings: &TopicSettings) -> Option<String> {
        let (size, most) = (self.message.payload.len(), settings.max_payload);
        (size as u64 > most.get())
            .then(|| format!("has {size} bytes, and the topic allows up to {most}"))
    }

    /// Returns the times after `done` and before `time`: those that are missed if no message is sent between the two. Counts up
    /// to 100 of them.
    pub fn missed(&self, done: UnixMs, time: UnixMs) -> MissedTimes {
        let next = |after: &UnixMs| self.cron.next(&self.time_zone, *after);
        let times = std::iter::successors(next(&done), next);
        let count = times.take_while(|at| *at < time).take(COUNTED).count() as u64;
        let before = UnixMs::new(time.get().saturating_sub(1));
        let newest = match count {
            0 => None,
            _ => self.cron.last(&self.time_zone, done, before),
        };
        MissedTimes {
            count,
            newest: newest.unwrap_or_default(),
        }
    }

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

impl MessageTemplate {
    fn read(from: &mut impl TableReader) -> Self {
        let payload = from.read(Field::new("payload", String::new(), "The payload."), Any);
        let retry = from.table_if_any("retry");
        let options = MessageOptions::read_fields(&mut Only(from));
        let mut headers = Headers::default();
        for (name, value) in from.text_table("headers", "The headers.") {
            if let Err(error) = headers.insert(&name, &value) {
                from.entry_problem("headers", &name, error.to_string());
            }
        }
        Self {
            payload,
            headers,
            options: MessageOptions { retry, ..options },
        }
    }
}

/// Reads the options that a schedule may set. The others have their defaults, and are unknown fields.
struct Only<'r, R>(&'r mut R);

impl<R: Reader> Reader for Only<'_, R> {
    fn read<T: Value>(&mut self, field: Field<T>, limits: impl Limits<T>) -> T {
        match OPTIONS.contains(&field.name) {
            true => self.0.read(field, limits),
            false => field.default,
        }
    }

    fn table<F: Fields>(&mut self, name: &'static str) -> F {
        self.0.table(name)
    }

    fn problem(&mut self, name: &'static str, value: Json, message: String) {
        self.0.problem(name, value, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_read_from_its_definition() {
        let text = r#"{"topic": "reports", "cron": "0  30 2 * * *", "time_zone": "Europe/Berlin", "catch_up": "6h",
            "payload": "{}", "headers": {"content-type": "application/json"}, "key": "k", "merge_key": "m", "priority": -3,
            "ttl": "12h", "max_attempts": 7, "retry": {"kind": "fixed", "delay": "5s"}}"#;
        let read = RecurringMessage::from_definition(text).unwrap();
        let fields = read.fields();
        assert_eq!(fields.len(), 12, "all fields are in the test");
        assert_eq!(fields["cron"], "0 30 2 * * *");
        assert_eq!(RecurringMessage::from_fields(&fields), Ok(read));
        let short = r#"{"topic": "t", "cron": "0 0 3 * * *", "time_zone": null}"#;
        let short = RecurringMessage::from_definition(short).unwrap();
        assert_eq!((short.time_zone, short.catch_up), (TimeZone::UTC, HOUR));
        for (text, says) in [
            ("{}", "topic = null: missing: The topic to send to."),
            (
                r#"{"topic": "t", "cron": "x"}"#,
                "cron = \"x\": expected six fields",
            ),
            (
                r#"{"topic": "t", "cron": "0 0 3 * * *", "delay": "1s"}"#,
                "delay = \"1s\": unknown field",
            ),
            (
                r#"{"topic": "t", "cron": "0 0 3 * * *", "headers": {"a b": "c"}}"#,
                "headers.a b",
            ),
        ] {
            let error = RecurringMessage::from_definition(text).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn the_times_between_two_that_were_sent_are_missed() {
        let missed = |done, time| hourly(0).missed(at(done), at(time));
        assert_eq!(missed("10:00:00", "11:00:00"), MissedTimes::default());
        let three = missed("10:00:00", "14:00:00");
        assert_eq!((three.count, three.newest), (3, at("13:00:00")));
        let mut often = hourly(0);
        often.cron = "* * * * * *".parse().unwrap();
        let many = often.missed(at("10:00:00"), at("14:00:00"));
        assert_eq!((many.count, many.newest), (100, at("13:59:59")));
    }

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
