//! Serves clients of Amazon SQS over the topics of the relay.
//!
//! A queue is a topic, read through one group. A receipt handle is the token of a delivery. A request of the JSON protocol is
//! `POST`, and names its action in the header `X-Amz-Target`. A request of the older query protocol has its parameters in a form or
//! in the URL, and gets XML, or JSON if the client accepts that; it is translated into one of the JSON protocol.

mod attributes;
mod changes;
mod late;
mod message_id;
mod move_tasks;
mod pages;
mod policy;
mod protocol;
mod purge;
mod query;
mod query_json;
mod queue_attributes;
mod queues;
mod receive;
mod redrive;
mod running;
mod send;
mod settle;
mod sigv4;
mod tags;
mod xml;

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, post};
use bytes::Bytes;
use lisa_core::message::MessageId;
use lisa_core::sync::Mutex;
use lisa_core::topic::{Group, Topic, TopicSettings};
use lisa_producer::Producer;
use lisa_service::http::auth::{Scope, Token, TokenSet};
use lisa_service::http::body::{BodyLimits, Reservation, read_reserved};
use lisa_service::http::client::Admitted;
use lisa_service::http::json::{FEW, object};
use lisa_service::http::tls::is_secure;
use lisa_service::http::{Problem, Reads, SQS_ROUTES, check_coding, names_action, unknown_route};
use serde::de::DeserializeOwned;

use super::Gateway;
use crate::answer::exact_json;
use protocol::{Kind, MEDIA_TYPE, Protocol, SqsError};
use sigv4::{Authorization, hash_of};

/// The largest body of a request that sends: a batch of messages, with what JSON adds.
const MAX_SENT: usize = 8 * 1024 * 1024;
/// The largest body of any other request.
const MAX_BODY: usize = 64 * 1024;
/// The longest `Host`, which the address of each queue repeats: the longest name of a host, and a port.
const MAX_HOST: usize = 260;
/// The account of all queues.
const ACCOUNT: &str = "000000000000";
/// The region in names of queues, if the request is not signed.
const REGION: &str = "us-east-1";
/// The service in signatures.
const SERVICE: &str = "sqs";

/// The header with the action of a request.
const ACTION: &str = "x-amz-target";
/// The beginning of its value.
const TARGET: &str = "AmazonSQS.";

/// The actions: the name, the scope that it requires, or `None` if any token will do, and the largest body.
const ACTIONS: [(&str, Option<Scope>, usize); 23] = [
    ("SendMessage", Some(Scope::Send), MAX_SENT),
    ("SendMessageBatch", Some(Scope::Send), MAX_SENT),
    ("ReceiveMessage", Some(Scope::Receive), MAX_BODY),
    ("DeleteMessage", Some(Scope::Receive), MAX_BODY),
    ("DeleteMessageBatch", Some(Scope::Receive), MAX_BODY),
    ("ChangeMessageVisibility", Some(Scope::Receive), MAX_BODY),
    (
        "ChangeMessageVisibilityBatch",
        Some(Scope::Receive),
        MAX_BODY,
    ),
    ("ListQueues", Some(Scope::Read), MAX_BODY),
    ("ListQueueTags", Some(Scope::Read), MAX_BODY),
    ("ListDeadLetterSourceQueues", Some(Scope::Read), MAX_BODY),
    ("GetQueueAttributes", Some(Scope::Read), MAX_BODY),
    ("PurgeQueue", Some(Scope::Operate), MAX_BODY),
    ("StartMessageMoveTask", Some(Scope::Operate), MAX_BODY),
    ("CancelMessageMoveTask", Some(Scope::Operate), MAX_BODY),
    ("ListMessageMoveTasks", Some(Scope::Read), MAX_BODY),
    ("DeleteQueue", Some(Scope::Operate), MAX_BODY),
    ("TagQueue", Some(Scope::Operate), MAX_BODY),
    ("UntagQueue", Some(Scope::Operate), MAX_BODY),
    ("AddPermission", Some(Scope::Operate), MAX_BODY),
    ("RemovePermission", Some(Scope::Operate), MAX_BODY),
    ("GetQueueUrl", None, MAX_BODY),
    // These two require `operate` if they change something.
    ("CreateQueue", None, MAX_BODY),
    ("SetQueueAttributes", None, MAX_BODY),
];

/// The actions that concern all groups of a topic.
const OF_ALL_GROUPS: [&str; 6] = [
    "AddPermission",
    "DeleteQueue",
    // Removes waiting messages of all groups.
    "PurgeQueue",
    "RemovePermission",
    "TagQueue",
    "UntagQueue",
];

/// Returns the names of the actions that a gateway serves.
pub fn actions() -> impl Iterator<Item = &'static str> {
    ACTIONS.iter().map(|(name, ..)| *name)
}

/// The options with which a gateway serves clients of Amazon SQS.
#[derive(Debug)]
pub struct SqsOptions {
    /// Sends their messages.
    pub producer: Producer,
    /// The group of each topic from which they receive.
    pub group: Group,
    /// The settings of topics that `CreateQueue` creates, before the attributes of the queue. They have the group.
    pub create: TopicSettings,
    /// The topics of the configuration, which SQS clients cannot change or remove.
    pub declared: BTreeSet<Topic>,
    /// True to keep attributes of queues that have no effect, and to ignore those that cannot be kept, with one line in the log;
    /// false to refuse them.
    pub ignore_attributes: bool,
}

/// The state of the route.
struct Service {
    gateway: Gateway,
    options: Arc<SqsOptions>,
    tokens: TokenSet,
    /// The purges and moves that run.
    running: Mutex<BTreeSet<(running::Verb, Topic)>>,
    /// Bodies whose signatures are not verified yet have memory of their own: others cannot take it.
    bodies: BodyLimits,
    /// The limits of reading the counts of queues.
    counts: Reads,
    /// The topics for which the log names ignored attributes.
    ignoring: Mutex<BTreeSet<Topic>>,
}

/// The client and the address of a request.
struct Call<'a> {
    service: &'a Arc<Service>,
    /// The beginning of the addresses of queues.
    base: String,
    region: String,
    /// The queue in the path of the request.
    queue: Option<String>,
    /// The name of its token, unless no tokens are configured.
    token: Option<String>,
    /// True if it may create, change and remove topics.
    may_operate: bool,
    protocol: Protocol,
    /// The id of the request.
    id: &'a str,
    /// The trace of AWS X-Ray of which the request is a part.
    trace: Option<String>,
}

/// Returns the routes. Old addresses of queues are routes, too, since some clients post there.
pub(super) fn routes(gateway: &Gateway, options: &Arc<SqsOptions>, tokens: &TokenSet) -> Router {
    let service = Service {
        gateway: gateway.clone(),
        options: options.clone(),
        tokens: tokens.clone(),
        bodies: gateway.bodies().apart(),
        counts: Reads::of_statistics(),
        running: Mutex::default(),
        ignoring: Mutex::default(),
    };
    // The dashboard may share the listener, and is at `GET /`.
    let root = post(handle).fallback(handle);
    Router::new()
        .route(SQS_ROUTES[0], root)
        .route(SQS_ROUTES[1], any(handle_queue))
        .route(SQS_ROUTES[2], any(handle_queue))
        .with_state(Arc::new(service))
}

/// Handles a request to the address of a queue. Any other path of this form has no route.
async fn handle_queue(state: State<Arc<Service>>, request: Request) -> Response {
    let path = request.uri().path();
    let account = path.split('/').nth(1).unwrap_or_default();
    let is_account = account.len() == ACCOUNT.len() && account.bytes().all(|b| b.is_ascii_digit());
    let is_request = request.headers().contains_key(ACTION) || names_action(request.uri());
    if is_account || is_request {
        return handle(state, request).await;
    }
    unknown_route(request.method(), path).into_response()
}

async fn handle(State(service): State<Arc<Service>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let id = MessageId::generate();
    let mut response = match Protocol::of(&parts) {
        Some(protocol) => answer(&service, parts, body, protocol, id.as_str()).await,
        // As SQS answers a browser.
        None => {
            let body = "<UnknownOperationException/>\n";
            (
                StatusCode::NOT_FOUND,
                [(CONTENT_TYPE, xml::MEDIA_TYPE)],
                body,
            )
                .into_response()
        }
    };
    let id = HeaderValue::try_from(id.as_str()).expect("visible ASCII");
    let name = HeaderName::from_static("x-amzn-requestid");
    response.headers_mut().insert(name, id);
    response
}

async fn answer(
    service: &Arc<Service>,
    parts: Parts,
    body: axum::body::Body,
    protocol: Protocol,
    id: &str,
) -> Response {
    let target = parts.headers.get(ACTION);
    let target = target.and_then(|target| target.to_str().ok()?.strip_prefix(TARGET));
    // A form names its action, which is known once the form is read.
    let mut action = target.unwrap_or_default().to_owned();
    let answer = async {
        let admitted = admit(service, parts, body, protocol, id, &mut action).await?;
        let (call, body, admitted) = admitted;
        let client = admitted.client();
        let response = admitted.scope(dispatch(&call, &action, body)).await?;
        if action == "ReceiveMessage" {
            // Its memory counts as that of a pull.
            return Ok(response);
        }
        let response = protocol.translate(&action, response, id).await?;
        Ok(service.counts.unread().try_hold(client, response).await?)
    };
    let answer: Result<Response, SqsError> = answer.await;
    if let Some(metrics) = &service.gateway.process().metrics {
        let code = answer.as_ref().err().map_or("ok", SqsError::code);
        metrics.sqs_request(known(&action), code);
    }
    answer.unwrap_or_else(|error| protocol.error(error, id))
}

/// The body of a request, with its share of the memory for bodies.
struct Body {
    bytes: Bytes,
    _reserved: Reservation,
}

/// Reads a request, and checks that its client may make it. The headers end here: they would hold the buffer of their connection
/// as long as a receive waits. Sets the action of a form.
async fn admit<'a>(
    service: &'a Arc<Service>,
    parts: Parts,
    body: axum::body::Body,
    protocol: Protocol,
    id: &'a str,
    action: &mut String,
) -> Result<(Call<'a>, Body, Admitted), SqsError> {
    check_headers(&parts.headers, protocol)?;
    let authorization = Authorization::read(&parts.headers);
    let (token, authorization) = match service.tokens.is_empty() {
        // Unsigned requests, and those with any signature, are as good.
        true => (None, authorization.ok().flatten()),
        false => {
            let authorization = authorization?.ok_or_else(|| {
                let message = "The request must be signed (Signature Version 4), in the header Authorization.";
                SqsError::new(Kind::MissingAuthenticationToken, message)
            })?;
            let now = service.gateway.process().broker.now();
            let token = authorization.token(&service.tokens, &parts.headers, SERVICE, now)?;
            (Some(token), Some(authorization))
        }
    };
    let read = read_reserved(body, max_body(protocol, action), &service.bodies);
    let read = match service.tokens.is_empty() {
        true => Token::admitted(None).scope(read).await,
        false => read.await,
    };
    let (mut bytes, mut reserved) = read.map_err(Problem::from)?;
    if let (Some(token), Some(authorization)) = (token, &authorization) {
        let hash = hash_of(&bytes).await;
        let (method, uri) = (parts.method.as_str(), &parts.uri);
        authorization.verify(token, method, uri, &parts.headers, &hash)?;
        tracing::Span::current().record("token", token.name());
    }
    if protocol.is_query() {
        bytes = read_form(&parts, bytes, action)?;
    }
    if let Some(token) = token {
        check_access(token, action, &service.options.group)?;
    }
    let admitted = Token::admitted(token);
    reserved.admit(admitted.client()).map_err(Problem::from)?;
    let mut call = Call::new(service, &parts, authorization.as_ref(), token);
    (call.protocol, call.id) = (protocol, id);
    let body = Body {
        bytes,
        _reserved: reserved,
    };
    Ok((call, body, admitted))
}

/// Checks what does not depend on the client.
fn check_headers(headers: &HeaderMap, protocol: Protocol) -> Result<(), SqsError> {
    let refused = |message: String| Err(SqsError::new(Kind::SerializationException, message));
    let is_json = headers
        .get(CONTENT_TYPE)
        .and_then(|given| given.to_str().ok()?.split(';').next())
        .is_some_and(|given| given.trim().eq_ignore_ascii_case(MEDIA_TYPE));
    if protocol == Protocol::Json && !is_json {
        return refused(format!("The header Content-Type must be {MEDIA_TYPE}."));
    }
    if let Err(problem) = check_coding(headers) {
        return refused(problem.detail().to_owned());
    }
    if headers.get(HOST).is_some_and(|host| host.len() > MAX_HOST) {
        return refused(format!(
            "The header Host must be at most {MAX_HOST} bytes long."
        ));
    }
    Ok(())
}

/// Returns the largest body of an action. The action of a form is not known before it is read.
fn max_body(protocol: Protocol, action: &str) -> usize {
    let known = ACTIONS.iter().find(|(name, ..)| *name == action);
    match protocol {
        _ if protocol.is_query() && action.is_empty() => MAX_SENT,
        _ => known.map_or(MAX_BODY, |(_, _, max_body)| *max_body),
    }
}

/// Reads a form: sets its action, and returns its parameters as JSON.
fn read_form(parts: &Parts, body: Bytes, action: &mut String) -> Result<Bytes, SqsError> {
    let form = query::Form::read(&parts.uri, &body)?;
    action.clone_from(&form.action);
    let is_of_queue = parts.uri.path() != "/";
    if is_of_queue && ["CreateQueue", "ListQueues"].contains(&action.as_str()) {
        return Err(SqsError::invalid_action(action));
    }
    if body.len() > max_body(Protocol::Query, action) {
        let message = format!("The body must be at most {MAX_BODY} bytes long.");
        return Err(SqsError::new(Kind::MalformedQueryString, message));
    }
    // The JSON takes its memory.
    drop(body);
    Ok(exact_json(&form.into_json()?).into())
}

/// Checks that a token has the scope of an action, and reaches the groups that it concerns.
fn check_access(token: &Token, action: &str, group: &Group) -> Result<(), SqsError> {
    let known = ACTIONS.iter().find(|(name, ..)| *name == action);
    if let Some((_, Some(scope), _)) = known
        && !token.has(*scope)
    {
        return Err(SqsError::lacks_scope(*scope, action));
    }
    let reach = token.reach();
    let is_reached = match known {
        Some((name, ..)) if OF_ALL_GROUPS.contains(name) => reach.groups.is_none(),
        Some((_, Some(Scope::Receive | Scope::Operate), _)) => reach.has_group(group),
        _ => true,
    };
    match is_reached {
        true => Ok(()),
        false => Err(SqsError::lacks_groups(action)),
    }
}

/// Returns the action as a label of metrics: strangers must not invent labels.
fn known(action: &str) -> &'static str {
    let mut names = actions();
    names.find(|name| *name == action).unwrap_or("other")
}

async fn dispatch(call: &Call<'_>, action: &str, body: Body) -> Result<Response, SqsError> {
    let given = &*body.bytes;
    match action {
        "SendMessage" => send::send(call, read(given)?).await,
        "SendMessageBatch" => send::send_batch(call, read(given)?).await,
        "ReceiveMessage" => {
            let request = read(given)?;
            drop(body);
            receive::receive(call, request).await
        }
        "DeleteMessage" => settle::delete(call, read(given)?).await,
        "DeleteMessageBatch" => settle::delete_batch(call, read(given)?).await,
        "ChangeMessageVisibility" => settle::change(call, read(given)?).await,
        "ChangeMessageVisibilityBatch" => settle::change_batch(call, read(given)?).await,
        "GetQueueUrl" => queues::get_url(call, read(given)?).await,
        "ListQueues" => queues::list(call, read(given)?),
        "GetQueueAttributes" => queues::attributes(call, read(given)?).await,
        "CreateQueue" => changes::create(call, read(given)?).await,
        "SetQueueAttributes" => changes::set_attributes(call, read(given)?).await,
        "DeleteQueue" => changes::delete(call, read(given)?).await,
        "TagQueue" => tags::tag(call, read(given)?).await,
        "UntagQueue" => tags::untag(call, read(given)?).await,
        "ListQueueTags" => tags::list(call, read(given)?).await,
        "AddPermission" => policy::add(call, read(given)?).await,
        "RemovePermission" => policy::remove(call, read(given)?).await,
        "ListDeadLetterSourceQueues" => redrive::list_sources(call, read(given)?).await,
        "PurgeQueue" => purge::purge(call, read(given)?).await,
        "StartMessageMoveTask" => move_tasks::start(call, read(given)?).await,
        "CancelMessageMoveTask" => move_tasks::cancel(call, read(given)?).await,
        "ListMessageMoveTasks" => move_tasks::list(call, read(given)?).await,
        _ => Err(SqsError::invalid_action(action)),
    }
}

/// Reads the parameters of a request. Ignores unknown ones, which newer SDKs may send.
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, SqsError> {
    object(body, FEW).map_err(|error| {
        let message = format!("The body is not valid: {error}");
        SqsError::new(Kind::SerializationException, message)
    })
}

/// Parses a body as the parameters of each action. Returns the errors.
#[cfg(feature = "fuzzing")]
pub(super) fn parse(body: &[u8]) -> Vec<String> {
    let results = [
        read::<send::Message>(body).and_then(|message| message.parse()),
        read::<send::SendBatch>(body).and_then(|batch| batch.parse()),
        read::<receive::Receive>(body).map(drop),
        read::<settle::Change>(body).map(drop),
        read::<settle::Many>(body).map(drop),
        read::<queues::GetUrl>(body).map(drop),
        read::<queues::List>(body).map(drop),
        read::<queues::GetAttributes>(body).map(drop),
        read::<changes::Create>(body).map(drop),
        read::<changes::SetAttributes>(body).map(drop),
        read::<tags::Tag>(body).map(drop),
        read::<policy::Add>(body).map(drop),
        query::Form::read(&axum::http::Uri::default(), body)
            .and_then(query::Form::into_json)
            .map(drop),
        read::<purge::Purge>(body).map(drop),
        read::<move_tasks::Start>(body).map(drop),
        read::<move_tasks::List>(body).map(drop),
        read::<move_tasks::Cancel>(body).map(drop),
    ];
    let errors = results.into_iter().filter_map(Result::err);
    errors.map(|error| error.message).collect()
}

/// Reads the signature of a request.
#[cfg(feature = "fuzzing")]
pub(super) fn parse_signature(headers: &HeaderMap) -> Result<(), String> {
    let read = Authorization::read(headers).map(drop);
    read.map_err(|error| error.message)
}

impl<'a> Call<'a> {
    fn new(
        service: &'a Arc<Service>,
        parts: &Parts,
        authorization: Option<&Authorization<'_>>,
        token: Option<&Token>,
    ) -> Self {
        let header = |name| {
            parts
                .headers
                .get(name)
                .and_then(|value: &HeaderValue| value.to_str().ok())
        };
        let host = header(HOST.as_str()).unwrap_or("localhost");
        // A proxy that ends TLS sets the header.
        let is_secure =
            header("x-forwarded-proto") == Some("https") || is_secure(&parts.extensions);
        let scheme = if is_secure { "https" } else { "http" };
        let region = authorization.map_or(REGION, |authorization| authorization.region);
        let path = parts.uri.path().trim_matches('/');
        Self {
            service,
            base: format!("{scheme}://{host}/{ACCOUNT}/"),
            region: region.to_owned(),
            queue: path.split_once('/').map(|(_, queue)| queue.to_owned()),
            token: token.map(|token| token.name().to_owned()),
            may_operate: token
                .is_none_or(|token| token.has(Scope::Operate) && token.reach().groups.is_none()),
            protocol: Protocol::Json,
            id: "",
            trace: header("x-amzn-trace-id").map(str::to_owned),
        }
    }

    fn gateway(&self) -> &Gateway {
        &self.service.gateway
    }

    fn options(&self) -> &SqsOptions {
        &self.service.options
    }

    /// Refuses an action that creates or changes a topic, if the client may not.
    fn require_operate(&self, action: &str) -> Result<(), SqsError> {
        match self.may_operate {
            true => Ok(()),
            false => Err(SqsError::lacks_scope(Scope::Operate, action)),
        }
    }
}
