//! Reads fields from name–value pairs, such as the query of a request.

use std::borrow::Cow;

use serde_json::Value as Json;

use super::json::unknown;
use super::{Field, FieldProblem, Fields, Given, Limits, Reader, Value, read_within};
use crate::time::shorten;

/// Reads the fields of name–value pairs.
#[derive(Debug)]
pub struct TextReader<'a> {
    given: &'a [(Cow<'a, str>, Cow<'a, str>)],
    known: Vec<&'static str>,
    problems: Vec<FieldProblem>,
}

impl<'a> TextReader<'a> {
    /// Creates a reader.
    pub fn new(given: &'a [(Cow<'a, str>, Cow<'a, str>)]) -> Self {
        Self {
            given,
            known: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Returns the problems, without those of unknown names.
    pub fn problems(self) -> Vec<FieldProblem> {
        self.problems
    }

    /// Returns the problems; a name that was not read is one. Of those, only the first 8 are reported.
    pub fn finish(mut self) -> Vec<FieldProblem> {
        let given = self.given.iter();
        let given = given.map(|(name, text)| (&**name, text));
        self.problems.extend(unknown(given, &self.known));
        self.problems
    }
}

impl Reader for TextReader<'_> {
    fn read<T: Value>(&mut self, field: Field<T>, limits: impl Limits<T>) -> T {
        self.known.push(field.name);
        let mut texts = self.given.iter().filter(|(name, _)| *name == field.name);
        let Some((_, text)) = texts.next() else {
            return field.default;
        };
        let read = match texts.next() {
            None => read_within(Given::Text(text), &limits),
            Some(_) => Err("given more than once".to_owned()),
        };
        read.unwrap_or_else(|message| {
            self.problem(field.name, (&**text).into(), message);
            field.default
        })
    }

    /// Texts have no tables.
    fn table<F: Fields>(&mut self, _: &'static str) -> F {
        F::read_fields(&mut TextReader::new(&[]))
    }

    fn problem(&mut self, name: &'static str, value: Json, message: String) {
        self.problems.push(FieldProblem {
            field: name.to_owned(),
            value: shorten(&value.to_string()),
            message,
        });
    }
}
