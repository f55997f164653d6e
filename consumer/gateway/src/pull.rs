//! The route that hands out deliveries: waits for messages, and answers as soon as there is one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use lisa_core::broker::{BrokerError, Declare, MAX_BATCH, TopicHandle};
use lisa_core::fields;
use lisa_core::fields::Reader;
use lisa_core::topic::{Group, Topic};
use lisa_service::http::batch::names;
use lisa_service::http::body::read_limited;
use lisa_service::http::client::Client;
use lisa_service::http::{GroupPath, Problem, ProblemCode, ends_with_client, read_fields};
use serde::Serialize;
use tokio::time::{Instant, sleep_until};
use utoipa::ToSchema;

use super::answer::{Answer, DeliveryBody, OCTETS};
use super::handed::{Handed, Pulled};
use super::polls::Ticket;
use super::{Gateway, reader};

/// The largest body of a pull.
const MAX_BODY: usize = 4 * 1024;
/// The longest wait of a pull.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// The time limit of a pull that does not wait, for the case that Redis does not answer.
const LOOK_WITHIN: Duration = Duration::from_secs(5);
/// The shortest lease of a pull.
pub(super) const MIN_LEASE: Duration = Duration::from_secs(1);
/// The longest lease of a pull.
const MAX_LEASE: Duration = Duration::from_hours(12);
/// The longest name of a worker, in bytes.
const MAX_NAME: usize = 100;

fields! {
    /// The options of a pull. All fields are optional, and so is the body.
    #[derive(Clone, Debug)]
    pub(super) struct PullOptions, schema = "Pull", check = named {
        /// The maximum number of deliveries.
        max: usize = 1, in 1..=MAX_BATCH;
        /// The maximum number of deliveries of one ordering key, in its order. The messages behind them wait until all are settled.
        max_per_key: usize = 1, in 1..=MAX_BATCH;
        /// The maximum number of ordering keys of the deliveries. One without a key counts as a key of its own. By default, `max`.
        max_keys: Option<usize> = None, in 1..=MAX_BATCH;
        /// The time to wait for the first message. With `settle-and-pull`, it must be zero.
        wait: Duration = Duration::ZERO, in Duration::ZERO..=MAX_WAIT;
        /// The lease (visibility timeout) of each delivery. By default, that of the topic.
        lease: Option<Duration> = None, in MIN_LEASE..=MAX_LEASE;
        /// The name of the worker, 1 to 100 bytes without control characters. The manager lists it among the workers, and the gateway logs it at level `debug`.
        consumer: Option<String> = None;
    }
}

lisa_core::openapi_query!(PullOptions);

fn named(options: &PullOptions, from: &mut impl Reader) {
    let bad = |name: &&String| {
        name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control)
    };
    if let Some(name) = options.consumer.as_ref().filter(bad) {
        let why = format!("must be 1 to {MAX_NAME} bytes without control characters");
        from.problem("consumer", name.as_str().into(), why);
    }
}

fields! {
    /// The new lease. The body is optional.
    #[derive(Clone, Debug)]
    pub(super) struct LeaseOptions, schema = "Extend" {
        /// The lease (visibility timeout) from now on. By default, that of the topic.
        lease: Option<Duration> = None, in MIN_LEASE..=MAX_LEASE;
    }
}

/// The deliveries of a pull.
#[derive(Serialize, ToSchema)]
struct Deliveries<'a> {
    /// The deliveries; empty if no message became ready in time.
    deliveries: Vec<DeliveryBody<'a>>,
}

/// The payload, byte for byte.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "only describes the body")]
struct Payload(Vec<u8>);

/// Pulls messages of a group: each gets a lease and a token, with which it is settled or its lease extended.
///
/// Answers as soon as there is a message, with up to `max` that are ready. With `Accept: application/octet-stream`, returns one
/// message: its payload as the body, and everything else in headers.
#[utoipa::path(
    post, operation_id = "pull_messages", path = "/v1/topics/{topic}/groups/{group}/pull", tag = "deliveries",
    request_body(content = Option<PullOptions>, description = "The options"),
    params(GroupPath),
    responses(
        (status = 200, description = "The deliveries, or the payload of one", content((Deliveries<'static> = "application/json"), (inline(Payload) = "application/octet-stream"))),
        (status = 204, description = "No message became ready in time; only with `Accept: application/octet-stream`"),
        (status = 404, description = "unknown_topic, or not_found: no such group"),
        (status = 422, description = "invalid"),
        (status = 503, description = "unavailable: Redis does not answer, or too many pulls wait"),
    )
)]
pub(super) async fn pull(
    State(gateway): State<Gateway>,
    Path(GroupPath { topic, group }): Path<GroupPath>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let (options, is_raw) = options(&gateway, headers, body).await?;
    // Boxed, or the future would have their size while it waits: a gateway may hold thousands.
    let (topic, group) = Box::pin(find(&gateway, &topic, &group)).await?;
    match take(&gateway, &topic, &group, &options).await? {
        Some(taken) => answer(is_raw, taken),
        None => Ok(nothing(is_raw)),
    }
}

/// The deliveries that a pull took.
pub(super) struct Taken {
    pub(super) pulled: Vec<Pulled>,
    /// Hands them back, unless their client gets them.
    pub(super) handed: Handed,
}

/// Waits for deliveries, and takes them; `None` if no message became ready in time.
///
/// # Errors
/// Redis does not answer, or too many pulls wait.
pub(super) async fn take(
    gateway: &Gateway,
    topic: &TopicHandle,
    group: &Group,
    options: &PullOptions,
) -> Result<Option<Taken>, Problem> {
    // A message must not be taken for a client that is gone, and a half-closed connection may be of one.
    ends_with_client();
    let started = gateway.spans.as_ref().map(|_| SystemTime::now());
    let key = gateway.key()?;
    let client = Client::current();
    let _seat = gateway.admit(client.clone())?;
    let group = gateway.group(topic.name(), group);
    if let Some(name) = &options.consumer {
        group.note_puller(name);
    }
    let has_to_wait = !options.wait.is_zero();
    let time = if has_to_wait {
        options.wait
    } else {
        LOOK_WITHIN
    };
    let deadline = Instant::now() + time;
    loop {
        let shards: BTreeSet<_> = topic.shards().collect();
        if group.polls.readers() < shards.len() {
            reader::start(gateway, &group, topic.shards());
        }
        let looks = (!has_to_wait).then_some(shards);
        // Of each key, one message at most is ready.
        let ready = options.max_keys.unwrap_or(MAX_BATCH).min(options.max);
        let ticket = group.polls.join(client.clone(), ready, looks);
        let Some(mut handed) = wait(gateway, ticket, deadline).await else {
            // Redis did not even say that nothing is ready.
            let is_unanswered = !has_to_wait && Instant::now() >= deadline;
            if is_unanswered || group.polls.is_failing() {
                let detail = "Redis unavailable: the group cannot be read";
                return Err(Problem::new(ProblemCode::Unavailable, detail));
            }
            return Ok(None);
        };
        Box::pin(handed.take_parked(options.max, options.max_per_key)).await?;
        let pulled = Box::pin(handed.prepare(&key, options.lease)).await?;
        if !pulled.is_empty() {
            let (topic, consumer) = (&group.topic, options.consumer.as_deref());
            tracing::debug!(%topic, group = %group.group, consumer, count = pulled.len(), "pulled");
            if let Some(metrics) = &gateway.process().metrics {
                let count = pulled.len() as u64;
                metrics.pulled(group.topic.as_str(), group.group.as_str(), count);
            }
            if let (Some(spans), Some(started)) = (&gateway.spans, started) {
                let delivered = pulled.iter().map(|one| one.delivery.for_spans());
                let delivered: Vec<_> = delivered.collect();
                spans.receive(&handed.common(), &delivered, options.max > 1, started);
            }
            return Ok(Some(Taken { pulled, handed }));
        }
        // All had expired, or were lost.
    }
}

/// Reads the options, and whether the client wants the payload alone. The headers and the body end here: they would hold the
/// buffer of their connection as long as the pull waits.
async fn options(
    gateway: &Gateway,
    headers: HeaderMap,
    body: Body,
) -> Result<(PullOptions, bool), Problem> {
    let body = read_limited(body, MAX_BODY, gateway.bodies()).await?;
    let options: PullOptions = read_fields(&body)?;
    let is_raw = names(&headers, ACCEPT, OCTETS);
    if is_raw && options.max > 1 {
        let why = format!("must be 1 with Accept: {OCTETS}");
        return Err(Problem::new(ProblemCode::Invalid, format!("max: {why}")).error("max", why));
    }
    Ok((options, is_raw))
}

/// Finds a topic and one of its groups.
pub(super) async fn find(
    gateway: &Gateway,
    topic: &str,
    group: &str,
) -> Result<(Arc<TopicHandle>, Group), Problem> {
    let invalid = |field: &'static str, error: &dyn std::fmt::Display| {
        let detail = format!("{field}: {error}");
        Problem::new(ProblemCode::Invalid, detail).error(field, error.to_string())
    };
    let topic: Topic = topic.parse().map_err(|error| invalid("topic", &error))?;
    let group: Group = group.parse().map_err(|error| invalid("group", &error))?;
    let broker = &gateway.process().broker;
    let found = match broker.topic_with(&topic, &group).await {
        Err(error @ (BrokerError::UnknownTopic(_) | BrokerError::Undeclared(_))) => {
            let settings = gateway.create.as_deref();
            match settings.filter(|settings| settings.groups.contains(&group)) {
                Some(settings) => broker.declare(&topic, settings, Declare::Create).await,
                None => Err(error),
            }
        }
        found => found,
    };
    let found = found.map_err(|error| gateway.problem(error))?;
    if found.groups().contains(&group) {
        return Ok((found, group));
    }
    let detail = format!("topic {topic} has no group {group}");
    Err(Problem::new(ProblemCode::NotFound, detail))
}

/// Waits until the pull gets deliveries; `None` if there are none in time, or the gateway shuts down.
async fn wait(gateway: &Gateway, mut ticket: Ticket<Handed>, deadline: Instant) -> Option<Handed> {
    tokio::select! {
        biased;
        handed = &mut ticket.answer => return handed.ok(),
        () = sleep_until(deadline) => {}
        () = gateway.shutdown().draining().cancelled() => {}
    }
    // A reader may have answered in this moment.
    ticket.answer.close();
    ticket.answer.try_recv().ok()
}

fn nothing(is_raw: bool) -> Response {
    if is_raw {
        return StatusCode::NO_CONTENT.into_response();
    }
    let none = Deliveries {
        deliveries: Vec::new(),
    };
    axum::Json(none).into_response()
}

fn answer(is_raw: bool, Taken { pulled, handed }: Taken) -> Result<Response, Problem> {
    if let (true, [one]) = (is_raw, &*pulled) {
        return Answer::octets(one, handed);
    }
    let deliveries = pulled.iter().map(DeliveryBody::new).collect();
    Answer::json(&Deliveries { deliveries }, "application/json", handed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_has_defaults_and_bounds() {
        let read = |body: &str| read_fields::<PullOptions>(body.as_bytes());
        let default = read(" ").unwrap();
        assert_eq!(
            (default.max, default.wait, default.lease),
            (1, Duration::ZERO, None)
        );
        let most =
            read(r#"{"max": 200, "wait": "30s", "lease": "12h", "consumer": "worker-3"}"#).unwrap();
        assert_eq!((most.max, most.wait), (200, MAX_WAIT));
        assert_eq!(most.lease, Some(MAX_LEASE));
        for (body, field) in [
            (r#"{"max": 0}"#, "max"),
            (r#"{"max": 201}"#, "max"),
            (r#"{"max_per_key": 0}"#, "max_per_key"),
            (r#"{"max_per_key": 201}"#, "max_per_key"),
            (r#"{"max_keys": 0}"#, "max_keys"),
            (r#"{"max_keys": 201}"#, "max_keys"),
            (r#"{"wait": "31s"}"#, "wait"),
            (r#"{"lease": "999ms"}"#, "lease"),
            (r#"{"lease": "721m"}"#, "lease"),
            (r#"{"consumer": ""}"#, "consumer"),
            (r#"{"consumer": "a\u001b[2J"}"#, "consumer"),
            (r#"{"timeout": "1s"}"#, "timeout"),
            ("[]", "expected a JSON object"),
        ] {
            let problem = read(body).unwrap_err();
            assert_eq!(problem.code(), ProblemCode::Invalid);
            assert!(problem.detail().contains(field), "{}", problem.detail());
        }
    }
}
