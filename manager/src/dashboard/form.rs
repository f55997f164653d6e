//! The fields of a query or of a submitted form, checked with errors that name the field.

use std::collections::HashMap;
use std::fmt::Display;
use std::str::FromStr;

use axum::body::Body;
use lisa_core::fields::{self, TextReader};
use lisa_service::http::Problem;
use lisa_service::http::body::{BodyLimits, read_limited};

use super::page::Failure;

/// The largest form with a payload of 1 MiB, each byte of which may take three when encoded.
pub(super) const WITH_PAYLOAD: usize = 3 * 1024 * 1024 + 64 * 1024;
/// The largest form with the definition of a schedule of 64 KiB.
pub(super) const WITH_DEFINITION: usize = 256 * 1024;
/// The largest form without a payload.
pub(super) const PLAIN: usize = 16 * 1024;
/// The most fields of a form. Further ones are ignored.
const MAX_FIELDS: usize = 100;

/// Fields by name; of a repeated one, the last value that is not empty.
#[derive(Debug, Default)]
pub(super) struct Fields(HashMap<String, String>);

impl Fields {
    /// Parses a query or the body of a form.
    pub(super) fn parse(text: &[u8]) -> Self {
        let mut all = HashMap::new();
        for (name, value) in url::form_urlencoded::parse(text).take(MAX_FIELDS) {
            if !value.is_empty() {
                all.insert(name.into_owned(), value.into_owned());
            }
        }
        Self(all)
    }

    /// Reads the body of a form of at most `max_bytes`.
    pub(super) async fn read(
        body: Body,
        max_bytes: usize,
        limits: &BodyLimits,
    ) -> Result<Self, Failure> {
        let body = read_limited(body, max_bytes, limits).await;
        let body = body.map_err(|error| Failure::from(Problem::from(error)))?;
        Ok(Self::parse(&body))
    }

    /// Returns a field that is not empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Reads declared fields. Ignores others.
    pub(super) fn read_as<F: fields::Fields>(&self) -> Result<F, Failure> {
        let given = self.0.iter();
        let given: Vec<_> = given
            .map(|(name, text)| (name.into(), text.into()))
            .collect();
        let mut reader = TextReader::new(&given);
        let read = F::read_fields(&mut reader);
        match reader.problems() {
            problems if problems.is_empty() => Ok(read),
            problems => Err(Problem::from(problems).into()),
        }
    }

    /// Sets a field.
    pub(super) fn set(&mut self, name: &str, text: String) {
        self.0.insert(name.to_owned(), text);
    }

    /// Forgets a field.
    pub(super) fn remove(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Returns a field without the space around it, parsed.
    pub(super) fn value<T: FromStr<Err: Display>>(&self, name: &str) -> Result<Option<T>, Failure> {
        let text = self
            .text(name)
            .map(str::trim)
            .filter(|text| !text.is_empty());
        let value = text.map(str::parse).transpose();
        value.map_err(|error| Failure::invalid(name, &error))
    }

    /// Returns the version of what a form changes: never 0, which would create it.
    pub(super) fn version(&self) -> Result<u64, Failure> {
        let version = self.value::<u64>("version")?;
        let version = version.filter(|version| *version > 0);
        version.ok_or_else(|| Failure::invalid("version", &"missing"))
    }
}
