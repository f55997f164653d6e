//! The values of a send as people and programs write them: in HTTP headers, in lines of JSON.
//!
//! It reads texts and lists what is wrong with them. The topic's own limits are checked by the send.

use std::time::Duration;

use lisa_shared::durability::Durability;
use lisa_shared::http::{Problem, ProblemCode};
use lisa_shared::message::{Headers, MergeKey, MessageId, OrderingKey};
use lisa_shared::retry::RetryPolicy;
use lisa_shared::time::{InvalidTime, UnixMs, When, parse_duration};

use crate::outgoing::{MAX_ATTEMPTS, Outgoing, REPLACES_ITSELF, check_ttl};

/// Gathers the values of one message and every problem with them.
#[derive(Debug)]
pub(crate) struct Fields {
    outgoing: Outgoing,
    headers: Headers,
    problems: Vec<(String, String)>,
}

impl Fields {
    pub(crate) fn new() -> Self {
        Self {
            outgoing: Outgoing::new(""),
            headers: Headers::default(),
            problems: Vec::new(),
        }
    }

    /// Adds a problem with a field.
    pub(crate) fn refuse(&mut self, field: &str, why: impl ToString) {
        self.problems.push((field.to_owned(), why.to_string()));
    }

    /// Sets the due time from a delay or an instant; each comes with the name of its field.
    pub(crate) fn due(&mut self, delay: (&str, Option<&str>), deliver_at: (&str, Option<&str>)) {
        match when(delay, deliver_at) {
            Ok(Some(when)) => self.set(|outgoing| outgoing.at(when)),
            Ok(None) => {}
            Err((field, why)) => self.refuse(field, why),
        }
    }

    pub(crate) fn id(&mut self, field: &str, id: &str) {
        match id.parse::<MessageId>() {
            Ok(id) => self.set(|outgoing| outgoing.id(id)),
            Err(error) => self.refuse(field, error),
        }
    }

    pub(crate) fn max_attempts(&mut self, field: &str, number: u64) {
        match u32::try_from(number) {
            Ok(number) if (1..=MAX_ATTEMPTS).contains(&number) => {
                self.set(|outgoing| outgoing.max_attempts(number));
            }
            _ => self.refuse(field, format!("{number}: allowed is 1 to {MAX_ATTEMPTS}")),
        }
    }

    pub(crate) fn durability(&mut self, field: &str, word: &str) {
        match word.parse::<Durability>() {
            Ok(durability) => self.set(|outgoing| outgoing.durability(durability)),
            Err(error) => self.refuse(field, error),
        }
    }

    pub(crate) fn key(&mut self, field: &str, key: &str) {
        match key.parse::<OrderingKey>() {
            Ok(key) => self.set(|outgoing| outgoing.key(key)),
            Err(error) => self.refuse(field, error),
        }
    }

    pub(crate) fn merge_key(&mut self, field: &str, key: &str) {
        match key.parse::<MergeKey>() {
            Ok(key) => self.set(|outgoing| outgoing.merge(key)),
            Err(error) => self.refuse(field, error),
        }
    }

    pub(crate) fn priority(&mut self, field: &str, number: &str) {
        match number.parse() {
            Ok(number) => self.set(|outgoing| outgoing.priority(number)),
            Err(_) => self.refuse(
                field,
                format!(
                    "allowed is a whole number from {} to {}",
                    i32::MIN,
                    i32::MAX
                ),
            ),
        }
    }

    /// Sets the expiry from a duration or an instant; each comes with the name of its field.
    pub(crate) fn expiry(
        &mut self,
        (ttl_field, life): (&str, Option<&str>),
        (at_field, expires_at): (&str, Option<&str>),
    ) {
        match (life, expires_at) {
            (None, None) => {}
            (Some(_), Some(_)) => {
                self.refuse(at_field, format!("give this or {ttl_field}, not both"));
            }
            (Some(life), None) => match ttl(life) {
                Ok(ttl) => self.set(|outgoing| outgoing.ttl(ttl)),
                Err(why) => self.refuse(ttl_field, why),
            },
            (None, Some(at)) => match at.trim().parse::<UnixMs>() {
                Ok(at) => self.set(|outgoing| outgoing.expires_at(at)),
                Err(error) => self.refuse(at_field, error),
            },
        }
    }

    pub(crate) fn retry(&mut self, field: &str, json: &str) {
        match json.parse::<RetryPolicy>() {
            Ok(policy) => self.set(|outgoing| outgoing.retry(policy)),
            Err(error) => self.refuse(field, error),
        }
    }

    /// Sets the message to be replaced; comes after the id.
    pub(crate) fn replace(&mut self, field: &str, id: &str) {
        match id.parse::<MessageId>() {
            Ok(id) if id == *self.outgoing.message_id() => self.refuse(field, REPLACES_ITSELF),
            Ok(id) => self.set(|outgoing| outgoing.replace(id)),
            Err(error) => self.refuse(field, error),
        }
    }

    pub(crate) fn even_if_cancelled(&mut self, field: &str, word: &str) {
        match word {
            "true" => self.set(Outgoing::even_if_cancelled),
            "false" => {}
            _ => self.refuse(field, "allowed is true or false"),
        }
    }

    pub(crate) fn header(&mut self, field: &str, name: &str, value: &str) {
        if let Err(error) = self.headers.insert(name, value) {
            self.refuse(field, error);
        }
    }

    pub(crate) fn payload(&mut self, payload: impl Into<bytes::Bytes>) {
        self.set(|outgoing| outgoing.payload(payload));
    }

    /// Gives the message, or one problem that lists all that is wrong.
    pub(crate) fn finish(self) -> Result<Outgoing, Problem> {
        if self.problems.is_empty() {
            return Ok(self.outgoing.headers(self.headers));
        }
        let texts = self
            .problems
            .iter()
            .map(|(field, why)| format!("{field}: {why}"));
        let detail = texts.collect::<Vec<_>>().join("; ");
        let problem = Problem::new(ProblemCode::Invalid, detail);
        Err(self
            .problems
            .into_iter()
            .fold(problem, |problem, (field, why)| problem.error(field, why)))
    }

    fn set(&mut self, change: impl FnOnce(Outgoing) -> Outgoing) {
        let outgoing = std::mem::replace(&mut self.outgoing, Outgoing::new(""));
        self.outgoing = change(outgoing);
    }
}

/// Reads a due time from a delay or an instant; `None` without either. Gives the field at fault.
pub(crate) fn when<'a>(
    (delay_field, delay): (&'a str, Option<&str>),
    (at_field, deliver_at): (&'a str, Option<&str>),
) -> Result<Option<When>, (&'a str, String)> {
    match (delay, deliver_at) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err((at_field, format!("give this or {delay_field}, not both"))),
        (Some(delay), None) => parse_duration(delay)
            .map(|delay| Some(When::After(delay)))
            .map_err(|error| (delay_field, error.to_string())),
        (None, Some(at)) => at
            .trim()
            .parse()
            .map(|at| Some(When::At(at)))
            .map_err(|error: InvalidTime| (at_field, error.to_string())),
    }
}

/// Reads how long after its due time a message is worth delivering.
///
/// # Errors
/// What is wrong, and what is allowed.
pub(crate) fn ttl(text: &str) -> Result<Duration, String> {
    let ttl = parse_duration(text).map_err(|error| error.to_string())?;
    check_ttl(ttl)?;
    Ok(ttl)
}
