//! The values of a send as people and programs write them: in HTTP headers, in lines of JSON.
//!
//! It reads texts and lists what is wrong with them. The topic's own limits are checked by the send.

use lisa_shared::http::{Problem, ProblemCode};
use lisa_shared::message::Headers;
use lisa_shared::time::{When, parse_duration};

use crate::outgoing::{MAX_ATTEMPTS, Outgoing};

/// What is said of a feature that has a name already, but no code: silence would lose what the caller asked for.
pub(crate) const NOT_YET: &str = "this version does not support it";

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
        match id.parse::<lisa_shared::message::MessageId>() {
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
            .map_err(|error: lisa_shared::time::InvalidTime| (at_field, error.to_string())),
    }
}
