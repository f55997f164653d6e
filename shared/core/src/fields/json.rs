//! Reads fields from a JSON object: a line of a batch, stored settings that are checked, a retry policy.

use serde_json::{Map, Value as Json};

use super::{Field, FieldProblem, Fields, Given, Limits, Reader, Value, refusal};
use crate::time::shorten;

/// Reads the fields of an object.
#[derive(Debug)]
pub struct JsonReader<'a> {
    object: &'a Map<String, Json>,
    known: Vec<&'static str>,
    problems: Vec<FieldProblem>,
}

impl<'a> JsonReader<'a> {
    /// Creates a reader.
    pub fn new(object: &'a Map<String, Json>) -> Self {
        Self {
            object,
            known: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Accepts fields that its caller has read.
    pub fn know(&mut self, names: &[&'static str]) {
        self.known.extend(names);
    }

    /// Returns the problems, without those of unknown fields.
    pub fn problems(self) -> Vec<FieldProblem> {
        self.problems
    }

    /// Returns the problems; a field that was not read is one.
    pub fn finish(mut self) -> Vec<FieldProblem> {
        let known = self.known.join(", ");
        for (name, value) in self.object {
            if !self.known.contains(&name.as_str()) {
                self.problems.push(FieldProblem {
                    field: shorten(name),
                    value: shorten(&value.to_string()),
                    message: format!("unknown field, known fields: {known}"),
                });
            }
        }
        self.problems
    }

    fn given(&mut self, name: &'static str) -> Option<&'a Json> {
        self.known.push(name);
        self.object.get(name)
    }
}

impl Reader for JsonReader<'_> {
    fn read<T: Value>(&mut self, field: Field<T>, limits: impl Limits<T>) -> T {
        let Some(given) = self.given(field.name) else {
            return field.default;
        };
        let read = T::read_set(Given::Json(given));
        let problem = match &read {
            Ok(value) => refusal(value, &limits),
            Err(message) => Some(message.clone()),
        };
        if let Some(message) = problem {
            self.problem(field.name, given.clone(), message);
        }
        read.unwrap_or(field.default)
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
