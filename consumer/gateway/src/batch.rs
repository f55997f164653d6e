//! The routes that settle many deliveries, or extend their leases: one result for each, in the same order.
//!
//! Lines that have arrived are settled together, without waiting for further ones. A JSON array is read whole.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{FutureExt, stream};
use lisa_consumer_core::Outcome;
use lisa_consumer_core::internals::Claims;
use lisa_core::broker::MAX_BATCH;
use lisa_service::http::batch::Format;
use lisa_service::http::body::{Lines, Reservation, read_admitting, without_bom};
use lisa_service::http::client::Client;
use lisa_service::http::json::{FEW, elements, first_element, object};
use lisa_service::http::share::Share;
use lisa_service::http::{Problem, ProblemCode, read_fields};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::Gateway;
use super::handed::no_room;
use super::pull::LeaseOptions;
use super::settle::{DeferOptions, Ended, RejectOptions, RetryOptions, extend_one, settle_all};

/// The longest item.
const MAX_ITEM: usize = 16 * 1024;
/// The largest batch that is a JSON array.
const MAX_ARRAY: usize = 4 * 1024 * 1024;
/// The most items of such a batch.
const MAX_ITEMS: usize = 1000;
/// The memory for the results of arrays that are not written yet, in bytes.
pub(super) const ROOM: usize = 64 * 1024 * 1024;
/// The part of it that one client can hold.
pub(super) const ROOM_OF_ONE: usize = ROOM / 2;
/// The memory that the result of an item counts as, in bytes: about that of the longest failure.
const RESULT: usize = 1024;
/// The results of an array that do not count: they fit into the buffers of its connection.
const FREE_RESULTS: usize = 50;
/// The most items that are under way for one client: Redis takes about 10 ms for them.
pub(super) const ITEMS_OF_ONE: usize = 2000;
/// The most items that are under way for all clients.
pub(super) const ITEMS_OF_ALL: usize = 64_000;
/// The longest wait of items for those of the same client.
const WAIT: Duration = Duration::from_secs(10);
/// The most lines that are answered before one has the token of a delivery.
const MAX_STRANGE: usize = 100;

/// A delivery with its outcome: exactly one of `ack`, `retry`, `defer` and `reject`. The value of the last three is the body
/// of the route of that name.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SettleItem<'a> {
    /// The token of the delivery.
    token: String,
    /// Acknowledge it: `true`.
    #[schema(required = false)]
    ack: Option<bool>,
    /// Report a failed attempt.
    #[serde(borrow)]
    #[schema(value_type = super::settle::RetryOptions, required = false)]
    retry: Option<&'a RawValue>,
    /// Deliver it again later, without counting an attempt.
    #[serde(borrow)]
    #[schema(value_type = super::settle::DeferOptions, required = false)]
    defer: Option<&'a RawValue>,
    /// Move the message to garbage (dead letters).
    #[serde(borrow)]
    #[schema(value_type = super::settle::RejectOptions, required = false)]
    reject: Option<&'a RawValue>,
}

/// A delivery with its new lease.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct ExtendItem<'a> {
    /// The token of the delivery.
    token: String,
    /// The lease from now on, `1s` to `12h`. By default, that of the topic.
    #[serde(borrow)]
    #[schema(value_type = String, required = false)]
    lease: Option<&'a RawValue>,
}

/// The result of an item of a batch.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = SettleResult)]
pub(super) enum ItemResult {
    Ended(Ended),
    Failed(SettleFailure),
}

/// An item of a batch that was refused or failed.
#[derive(Serialize, ToSchema)]
pub(super) struct SettleFailure {
    error: Problem,
}

/// Settles many deliveries, as a JSON array or as lines (NDJSON), and returns one result for each, in the same order.
///
/// Some may fail; their result is `{"error": problem}`. An array has at most 1,000 items and 4 MiB. The number of lines is not
/// limited. Deliveries of one group that arrive together are settled in one call. If a batch names a delivery twice, the first
/// outcome counts.
#[utoipa::path(
    post, operation_id = "settle_deliveries", path = "/v1/deliveries:settle", tag = "deliveries",
    request_body(content((Vec<SettleItem<'static>> = "application/json"), (String = "application/x-ndjson")), description = "An array of outcomes, or one outcome per line"),
    responses(
        (status = 200, description = "One result for each delivery, in the format of the request, unless Accept names only the other format", content((Vec<ItemResult> = "application/json"), (String = "application/x-ndjson"))),
        (status = 413, description = "too_large: the array exceeds its limits; nothing was settled"),
        (status = 422, description = "invalid: not an array; nothing was settled"),
        (status = 503, description = "unavailable: nothing was settled"),
    )
)]
pub(super) async fn settle_batch(
    State(gateway): State<Gateway>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    Batch::answer(gateway, Verb::Settle, &headers, body).await
}

/// Extends many leases, as a JSON array or as lines (NDJSON), and returns one result for each, in the same order.
///
/// Each delivery gets a new lease that starts now.
///
/// The limits are those of `POST /v1/deliveries:settle`.
#[utoipa::path(
    post, operation_id = "extend_deliveries", path = "/v1/deliveries:extend", tag = "deliveries",
    request_body(content((Vec<ExtendItem<'static>> = "application/json"), (String = "application/x-ndjson")), description = "An array of leases, or one lease per line"),
    responses(
        (status = 200, description = "One result for each delivery, in the format of the request, unless Accept names only the other format", content((Vec<ItemResult> = "application/json"), (String = "application/x-ndjson"))),
        (status = 413, description = "too_large: the array exceeds its limits; nothing was extended"),
        (status = 422, description = "invalid: not an array; nothing was extended"),
        (status = 503, description = "unavailable: nothing was extended"),
    )
)]
pub(super) async fn extend_batch(
    State(gateway): State<Gateway>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    Batch::answer(gateway, Verb::Extend, &headers, body).await
}

#[derive(Clone, Copy)]
pub(super) enum Verb {
    Settle,
    Extend,
}

/// The items of a JSON array, their memory, and that of their results.
pub(super) struct Items {
    items: Vec<Result<Bytes, Problem>>,
    _memory: Reservation,
    room: Share,
}

/// A batch that is read as lines.
struct Batch {
    gateway: Gateway,
    verb: Verb,
    lines: Lines,
    format: Format,
    /// True once the response has a result.
    begun: bool,
    /// The number of lines so far, until one has the token of a delivery.
    strange: usize,
}

impl Batch {
    async fn answer(
        gateway: Gateway,
        verb: Verb,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<Response, Problem> {
        // Without it, no token can be verified.
        gateway.key()?;
        let format = Format::of_request(headers);
        let answer = format.accepted(headers);
        let results = match format {
            Format::Lines => {
                let lines = Lines::new(body, MAX_ITEM, gateway.bodies());
                let batch = Self {
                    gateway,
                    verb,
                    lines,
                    format: answer,
                    begun: false,
                    strange: 0,
                };
                batch.stream()
            }
            Format::Array => {
                let items = verb.read_array(&gateway, body).await?;
                let (results, room) = verb.run_all(&gateway, items, answer).await;
                Body::from(room.hold(results.into()))
            }
        };
        Ok(([(CONTENT_TYPE, answer.media_type())], results).into_response())
    }

    /// Settles lines while the client reads results.
    fn stream(self) -> Body {
        Body::from_stream(stream::unfold(Some(self), |batch| async move {
            let mut batch = batch?;
            match batch.step().await {
                Some(text) => Some((Ok::<_, Infallible>(text), Some(batch))),
                None => Some((Ok(end(batch.format, batch.begun).to_owned()), None)),
            }
        }))
    }

    /// Runs the lines that have arrived. Returns `None` at the end of the body, and for a client without a token after some
    /// lines.
    async fn step(&mut self) -> Option<String> {
        if self.strange > MAX_STRANGE {
            return None;
        }
        let mut items = vec![self.lines.next().await?.map_err(Problem::from)];
        while items.len() < MAX_BATCH
            && let Some(Some(line)) = self.lines.next().now_or_never()
        {
            items.push(line.map_err(Problem::from));
        }
        if self.lines.are_of_stranger() {
            let admits = |item: &Bytes| self.verb.admits(&self.gateway, item);
            match items.iter().flatten().any(admits) {
                true => {
                    if let Err(error) = self.lines.admit() {
                        items.push(Err(error.into()));
                    }
                }
                false => self.strange += items.len(),
            }
            if self.strange > MAX_STRANGE {
                let detail = "no line has a valid token of a delivery; further lines are not read";
                let problem = Problem::new(ProblemCode::InvalidDeliveryToken, detail);
                items.push(Err(problem));
            }
        }
        let client = self.lines.client();
        let results = self.verb.run(&self.gateway, client, &items).await;
        let has_effect = |result: &ItemResult| matches!(result, ItemResult::Ended(_));
        if results.iter().any(has_effect) {
            self.lines.took_effect();
        }
        Some(write(self.format, &mut self.begun, &results))
    }
}

impl Verb {
    /// Returns true if an item has the token of a delivery of this relay.
    fn admits(self, gateway: &Gateway, item: &[u8]) -> bool {
        let token = match self {
            Self::Settle => object(item, FEW).map(|item: SettleItem<'_>| item.token),
            Self::Extend => object(item, FEW).map(|item: ExtendItem<'_>| item.token),
        };
        token.is_ok_and(|token| gateway.open(&token).is_ok())
    }

    /// Reads the items of a JSON array.
    ///
    /// # Errors
    /// The body is not such an array, or exceeds its limits, or there is no memory for its results.
    pub(super) async fn read_array(self, gateway: &Gateway, body: Body) -> Result<Items, Problem> {
        let admits = |begun: &[u8]| {
            let first = first_element(begun);
            first.is_some_and(|item| self.admits(gateway, item.as_bytes()))
        };
        let limits = gateway.bodies();
        let body = read_admitting(body, MAX_ARRAY, 2 * MAX_ITEM, limits, admits);
        let (body, reserved) = body.await?;
        let items = split(&without_bom(body))?;
        if reserved.is_of_stranger() && items.len() > MAX_STRANGE {
            let detail = "the first item has no valid token of a delivery; nothing was done";
            return Err(Problem::new(ProblemCode::InvalidDeliveryToken, detail));
        }
        let mut room = gateway.results();
        let size = items.len().saturating_sub(FREE_RESULTS) * RESULT;
        room.try_add(size).map_err(no_room)?;
        Ok(Items {
            items,
            _memory: reserved,
            room,
        })
    }

    /// Runs the items of an array. Returns the text of their results, and its memory.
    pub(super) async fn run_all(
        self,
        gateway: &Gateway,
        items: Items,
        format: Format,
    ) -> (String, Share) {
        let Items {
            items,
            _memory,
            room,
        } = items;
        let (mut text, mut begun) = (String::new(), false);
        for items in items.chunks(MAX_BATCH) {
            let results = self.run(gateway, room.client(), items).await;
            text += &write(format, &mut begun, &results);
        }
        (text + end(format, begun), room)
    }

    /// Runs items of a client, and returns a result for each.
    async fn run(
        self,
        gateway: &Gateway,
        client: Client,
        items: &[Result<Bytes, Problem>],
    ) -> Vec<ItemResult> {
        let mut share = gateway.shared.under_way.begin(client);
        let shared = share.add_within(items.len(), WAIT).await;
        let items = items
            .iter()
            .map(|item| item.as_ref().map_err(Problem::clone));
        let results = match self {
            _ if shared.is_err() => items
                .map(|item| Err(item.err().unwrap_or_else(busy)))
                .collect(),
            Self::Settle => {
                let items = items.map(|item| item.and_then(|item| settlement(gateway, item)));
                settle_all(gateway, items.collect()).await
            }
            Self::Extend => {
                join_all(items.map(async |item| {
                    let (claims, options) = extension(gateway, item?)?;
                    extend_one(gateway, &claims, options.lease).await
                }))
                .await
            }
        };
        let result = |result: Result<Ended, Problem>| match result {
            Ok(ended) => ItemResult::Ended(ended),
            Err(error) => ItemResult::Failed(SettleFailure {
                error: error.brief(),
            }),
        };
        results.into_iter().map(result).collect()
    }
}

fn busy() -> Problem {
    let detail =
        "too many settlements and extensions of this client are under way; nothing was done";
    Problem::new(ProblemCode::Unavailable, detail)
}

/// Reads the delivery of an item, and its outcome.
fn settlement(gateway: &Gateway, item: &[u8]) -> Result<(Claims, Outcome), Problem> {
    let item: SettleItem<'_> = object(item, FEW).map_err(invalid)?;
    // Clients without a token do not get long errors.
    Ok((gateway.open(&item.token)?, item.outcome()?))
}

/// Reads the delivery of an item, and its new lease.
fn extension(gateway: &Gateway, item: &[u8]) -> Result<(Claims, LeaseOptions), Problem> {
    let item: ExtendItem<'_> = object(item, FEW).map_err(invalid)?;
    Ok((gateway.open(&item.token)?, item.options()?))
}

/// Parses an array of outcomes and leases, as far as that is possible without the key of its tokens.
#[cfg(feature = "fuzzing")]
pub(super) fn parse(array: Bytes) -> Result<(), Problem> {
    for item in split(&without_bom(array))?.into_iter().flatten() {
        let settle = object::<SettleItem<'_>>(&item, FEW).map_err(invalid);
        settle
            .and_then(|item| item.outcome())
            .map_or_else(drop, drop);
        let extend = object::<ExtendItem<'_>>(&item, FEW).map_err(invalid);
        extend
            .and_then(|item| item.options())
            .map_or_else(drop, drop);
    }
    Ok(())
}

fn invalid(error: serde_json::Error) -> Problem {
    Problem::new(ProblemCode::Invalid, format!("item is not valid: {error}"))
}

impl SettleItem<'_> {
    fn outcome(&self) -> Result<Outcome, Problem> {
        match (self.ack, self.retry, self.defer, self.reject) {
            (Some(true), None, None, None) => Ok(Outcome::Ack),
            (None, Some(retry), None, None) => {
                read_fields::<RetryOptions>(retry.get().as_bytes()).map(Into::into)
            }
            (None, None, Some(defer), None) => {
                read_fields::<DeferOptions>(defer.get().as_bytes()).map(Into::into)
            }
            (None, None, None, Some(reject)) => {
                read_fields::<RejectOptions>(reject.get().as_bytes()).map(Into::into)
            }
            _ => {
                let detail = "exactly one of \"ack\": true, retry, defer and reject is required";
                Err(Problem::new(ProblemCode::Invalid, detail))
            }
        }
    }
}

impl ExtendItem<'_> {
    fn options(&self) -> Result<LeaseOptions, Problem> {
        let lease = self.lease.map_or("null", RawValue::get);
        read_fields(format!(r#"{{"lease":{lease}}}"#).as_bytes())
    }
}

/// Splits a JSON array into the texts of its elements. A longer element fails alone.
fn split(array: &Bytes) -> Result<Vec<Result<Bytes, Problem>>, Problem> {
    let texts = elements(array, MAX_ITEMS)?;
    let element = |(index, item): (usize, &str)| match item.len() <= MAX_ITEM {
        true => Ok(array.slice_ref(item.as_bytes())),
        false => {
            let detail = format!("item {index} is longer than {MAX_ITEM} bytes");
            Err(Problem::new(ProblemCode::TooLarge, detail))
        }
    };
    Ok(texts.into_iter().enumerate().map(element).collect())
}

/// Writes results in the format of the response.
fn write(format: Format, begun: &mut bool, results: &[ItemResult]) -> String {
    let mut text = String::new();
    for result in results {
        let json = serde_json::to_string(result).expect("texts and numbers always serialize");
        let (before, after) = match format {
            Format::Lines => ("", "\n"),
            Format::Array if *begun => (",", ""),
            Format::Array => ("[", ""),
        };
        *begun = true;
        text.extend([before, &json, after]);
    }
    text
}

/// Returns the end of the response.
fn end(format: Format, begun: bool) -> &'static str {
    match format {
        Format::Lines => "",
        Format::Array if begun => "]",
        Format::Array => "[]",
    }
}
