//! Reads fields from a JSON object: a line of a batch, stored settings that are checked, a retry policy.

use std::fmt::Display;

use serde_json::{Map, Value as Json};

use super::{
    Any, Field, FieldProblem, Fields, Given, Limits, Reader, TableReader, Value, read_within,
};
use crate::misspelling::meant_option;
use crate::time::shorten;

/// The most unknown fields that are reported: an object may have any number of them.
const MAX_UNKNOWN: usize = 8;

/// Reads the fields of an object.
#[derive(Debug)]
pub struct JsonReader<'a> {
    object: &'a Map<String, Json>,
    /// The values of fields that the object lacks.
    defaults: Option<&'a Map<String, Json>>,
    null_is_missing: bool,
    known: Vec<&'static str>,
    problems: Vec<FieldProblem>,
}

impl<'a> JsonReader<'a> {
    /// Creates a reader.
    pub fn new(object: &'a Map<String, Json>) -> Self {
        Self {
            object,
            defaults: None,
            null_is_missing: false,
            known: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Reads a field that is `null` as missing. An unknown one is still a problem.
    #[must_use]
    pub fn null_is_missing(mut self) -> Self {
        self.null_is_missing = true;
        self
    }

    /// Reads fields that the object lacks from another one, in tables below as well. Unknown fields of the other are ignored.
    #[must_use]
    pub fn over(mut self, defaults: &'a Map<String, Json>) -> Self {
        self.defaults = Some(defaults);
        self
    }

    /// Accepts fields that its caller has read.
    pub fn know(&mut self, names: &[&'static str]) {
        self.known.extend(names);
    }

    /// Returns the problems, without those of unknown fields.
    pub fn problems(self) -> Vec<FieldProblem> {
        self.problems
    }

    /// Returns the problems; a field that was not read is one. Of those, only the first 8 are reported.
    pub fn finish(mut self) -> Vec<FieldProblem> {
        let given = self
            .object
            .iter()
            .map(|(name, value)| (name.as_str(), value));
        self.problems.extend(unknown(given, &self.known));
        self.problems
    }

    fn given(&mut self, name: &'static str) -> Option<&'a Json> {
        self.known.push(name);
        let given = self.object.get(name).or_else(|| self.defaults?.get(name));
        given.filter(|given| !(self.null_is_missing && given.is_null()))
    }
}

/// Returns the problems of the first 8 fields that are not known.
pub(super) fn unknown<'g, V: Display>(
    given: impl Iterator<Item = (&'g str, V)>,
    known: &[&'static str],
) -> Vec<FieldProblem> {
    let names = known.join(", ");
    let unknown = given.filter(|(name, _)| !known.contains(name));
    let problem = |(name, value): (&str, V)| FieldProblem {
        field: shorten(name),
        value: shorten(&value.to_string()),
        message: match meant_option(name, known) {
            Some(meant) => format!("unknown field, did you mean {meant}? Known fields: {names}"),
            None => format!("unknown field, known fields: {names}"),
        },
    };
    unknown.take(MAX_UNKNOWN).map(problem).collect()
}

impl Reader for JsonReader<'_> {
    fn read<T: Value>(&mut self, field: Field<T>, limits: impl Limits<T>) -> T {
        let Some(given) = self.given(field.name) else {
            return field.default;
        };
        read_within(Given::Json(given), &limits).unwrap_or_else(|message| {
            self.problem(field.name, given.clone(), message);
            field.default
        })
    }

    fn table<F: Fields>(&mut self, name: &'static str) -> F {
        let empty = Map::new();
        let object = match self.given(name) {
            Some(Json::Object(object)) => object,
            Some(other) => {
                let message = format!("expected an object, found {}", Given::Json(other).kind());
                self.problem(name, other.clone(), message);
                &empty
            }
            None => &empty,
        };
        let mut below = JsonReader::new(object);
        below.null_is_missing = self.null_is_missing;
        let is_null = self.object.get(name).is_some_and(Json::is_null);
        let defaults = self.defaults.filter(|_| !is_null);
        below.defaults = defaults.and_then(|all| all.get(name)?.as_object());
        let read = F::read_fields(&mut below);
        self.problems
            .extend(below.finish().into_iter().map(|problem| FieldProblem {
                field: format!("{name}.{}", problem.field),
                ..problem
            }));
        read
    }

    fn problem(&mut self, name: &'static str, value: Json, message: String) {
        self.problems.push(FieldProblem {
            field: name.to_owned(),
            value: shorten(&value.to_string()),
            message,
        });
    }
}

impl TableReader for JsonReader<'_> {
    fn required_field<T: Value>(&mut self, name: &'static str, meaning: &'static str) -> Option<T> {
        let Some(given) = self.given(name) else {
            let message = format!("missing: {meaning}");
            self.problem(name, Json::Null, message);
            return None;
        };
        let read = read_within(Given::Json(given), &Any);
        read.map_err(|message| self.problem(name, given.clone(), message))
            .ok()
    }

    fn table_if_any<F: Fields>(&mut self, name: &'static str) -> Option<F> {
        self.given(name)?;
        Some(self.table(name))
    }

    fn text_table(&mut self, name: &'static str, _: &'static str) -> Vec<(String, String)> {
        let object = match self.given(name) {
            Some(Json::Object(object)) => object,
            Some(other) => {
                let message = format!("expected an object, found {}", Given::Json(other).kind());
                self.problem(name, other.clone(), message);
                return Vec::new();
            }
            None => return Vec::new(),
        };
        let mut texts = Vec::new();
        for (key, value) in object {
            match Given::Json(value).text() {
                Ok(text) => texts.push((key.clone(), text.to_owned())),
                Err(message) => self.entry_problem(name, key, message),
            }
        }
        texts
    }

    fn entry_problem(&mut self, table: &'static str, name: &str, message: String) {
        self.problems.push(FieldProblem {
            field: format!("{table}.{}", shorten(name)),
            value: String::new(),
            message,
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::message::MessageOptions;
    use crate::retry::RetryPolicy;
    use crate::topic::TopicSettings;

    #[test]
    fn of_many_unknown_fields_only_the_first_are_reported() {
        let names = (0..1000).map(|n| (format!("field{n}"), json!(n)));
        let object: Map<_, _> = names.collect();
        let mut reader = JsonReader::new(&object);
        MessageOptions::read_fields(&mut reader);
        assert_eq!(reader.finish().len(), MAX_UNKNOWN);
    }

    #[test]
    fn an_unknown_field_is_answered_with_the_one_that_was_probably_meant() {
        for (unknown, message) in [
            ("dealy", "unknown field, did you mean delay? Known fields: "),
            ("due_at", "unknown field, did you mean deliver_at? "),
            ("colour", "unknown field, known fields: "),
        ] {
            let object = json!({unknown: "1s"});
            let mut reader = JsonReader::new(object.as_object().unwrap());
            MessageOptions::read_fields(&mut reader);
            let found = reader.finish();
            assert!(found[0].message.starts_with(message), "{found:?}");
            assert!(found[0].message.contains(", priority"), "{found:?}");
        }
    }

    #[test]
    fn missing_fields_are_those_of_the_defaults_in_tables_as_well() {
        let defaults = json!({
            "lease": "1m", "ttl": "5s", "max_attempts": 3,
            "retry": {"kind": "exponential", "base": "3s", "factor": 3.0, "max": "1m", "jitter": 0.5},
        });
        let defaults = defaults.as_object().unwrap();
        let read = |object: Json| {
            let object = object.as_object().unwrap();
            let mut reader = JsonReader::new(object).null_is_missing().over(defaults);
            let read = TopicSettings::read_fields(&mut reader);
            (read, reader.finish())
        };
        let (settings, problems) =
            read(json!({"lease": "2m", "ttl": null, "retry": {"kind": "fixed"}}));
        assert_eq!(problems, []);
        let minutes = settings.lease.as_secs() / 60;
        assert_eq!((minutes, settings.ttl, settings.max_attempts), (2, None, 3));
        let RetryPolicy::Fixed { delay, jitter } = settings.retry else {
            panic!("{:?}", settings.retry);
        };
        assert_eq!((delay.as_secs(), jitter), (10, 0.5));
        let (settings, problems) = read(json!({"retry": null}));
        assert_eq!((settings.retry, problems), (RetryPolicy::default(), vec![]));
        let (settings, problems) = read(json!({"retry": {"base": null}}));
        let RetryPolicy::Exponential { base, factor, .. } = settings.retry else {
            panic!("{:?}", settings.retry);
        };
        assert_eq!((base.as_secs(), factor, problems), (1, 3.0, vec![]));
        let (_, problems) = read(json!({"retry": {"bsae": "1s"}}));
        assert_eq!(problems[0].field, "retry.bsae");
    }

    #[test]
    fn null_is_missing_only_if_the_reader_says_so() {
        let object = json!({"priority": null, "delay": null});
        let object = object.as_object().unwrap();
        let mut reader = JsonReader::new(object).null_is_missing();
        let options = MessageOptions::read_fields(&mut reader);
        assert_eq!(options, MessageOptions::default());
        assert_eq!(reader.finish(), []);
        let mut reader = JsonReader::new(object);
        MessageOptions::read_fields(&mut reader);
        assert_eq!(reader.finish()[0].field, "priority");
    }
}
