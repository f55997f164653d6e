//! The query of a request, with errors that name the field.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use lisa_core::time::{InvalidTime, parse_duration};
use lisa_service::http::Problem;
use serde::de::DeserializeOwned;

use super::invalid;

/// The fields of a query, as a type that knows them all.
pub(super) struct Fields<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Fields<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let query = Query::from_request_parts(parts, state).await;
        let Query(query) = query.map_err(|error| invalid("query", &error.body_text()))?;
        Ok(Self(query))
    }
}

/// Parses a field.
pub(super) fn value<T: FromStr<Err: Display>>(
    field: &str,
    text: Option<&String>,
) -> Result<Option<T>, Problem> {
    let value = text.map(|text| text.parse()).transpose();
    value.map_err(|error| invalid(field, &error))
}

/// Parses a duration.
pub(super) fn duration(field: &str, text: Option<&String>) -> Result<Option<Duration>, Problem> {
    let duration = text.map(|text| parse_duration(text)).transpose();
    duration.map_err(|error: InvalidTime| invalid(field, &error))
}

/// Checks the number of rows of a page.
pub(super) fn limit(limit: Option<usize>, default: usize, most: usize) -> Result<usize, Problem> {
    let limit = limit.unwrap_or(default);
    if !(1..=most).contains(&limit) {
        return Err(invalid("limit", &format!("must be 1 to {most}")));
    }
    Ok(limit)
}
