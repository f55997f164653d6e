//! Serves clients of Amazon SQS: its JSON protocol over the topics of the relay.
//!
//! A queue is a topic, read through one group. A receipt handle is the token of a delivery. Every request is `POST`, and names
//! its action in the header `X-Amz-Target`. The older protocol, which answers in XML, is not served: its requests get an error
//! in XML that says so.

mod attributes;
mod message_id;
mod move_tasks;
mod protocol;
mod purge;
mod queue_attributes;
mod queues;
mod receive;
mod running;
mod send;
mod settle;
mod sigv4;

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
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
use lisa_service::http::{Problem, Reads, SQS_ROUTES, check_coding, unknown_route};
use serde::de::DeserializeOwned;

use super::Gateway;
use protocol::{Kind, MEDIA_TYPE, SqsError};
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
const ACTIONS: [(&str, Option<Scope>, usize); 16] = [
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
    ("GetQueueAttributes", Some(Scope::Read), MAX_BODY),
    ("PurgeQueue", Some(Scope::Operate), MAX_BODY),
    ("StartMessageMoveTask", Some(Scope::Operate), MAX_BODY),
    ("CancelMessageMoveTask", Some(Scope::Operate), MAX_BODY),
    ("ListMessageMoveTasks", Some(Scope::Read), MAX_BODY),
    ("GetQueueUrl", None, MAX_BODY),
    ("CreateQueue", None, MAX_BODY),
    ("SetQueueAttributes", None, MAX_BODY),
];

/// Returns the names of the actions that a gateway serves.
pub fn actions() -> impl Iterator<Item = &'static str> {
    ACTIONS.iter().map(|(name, ..)| *name)
}

/// The actions that Lisa does not have.
const UNSUPPORTED: [&str; 7] = [
    "AddPermission",
    "DeleteQueue",
    "ListDeadLetterSourceQueues",
    "ListQueueTags",
    "RemovePermission",
    "TagQueue",
    "UntagQueue",
];

/// The options with which a gateway serves clients of Amazon SQS.
#[derive(Debug)]
pub struct SqsOptions {
    /// Sends their messages.
    pub producer: Producer,
    /// The group of each topic from which they receive.
    pub group: Group,
    /// The settings of topics that `CreateQueue` declares; `None` if it declares none.
    pub create: Option<TopicSettings>,
    /// True to ignore attributes and tags of queues that have no counterpart, with one line in the log; false to refuse them.
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
    if is_account || request.headers().contains_key(ACTION) {
        return handle(state, request).await;
    }
    unknown_route(request.method(), path).into_response()
}

async fn handle(State(service): State<Arc<Service>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let target = parts.headers.get(ACTION);
    let target = target.filter(|_| parts.method == Method::POST);
    let mut response = match target.map(|target| target.to_str().unwrap_or_default()) {
        Some(target) => {
            let action = target.strip_prefix(TARGET).unwrap_or_default().to_owned();
            let answer = async {
                let (call, body, admitted) = admit(&service, parts, body, &action).await?;
                let client = admitted.client();
                let response = admitted.scope(dispatch(&call, &action, body)).await?;
                match &*action {
                    // Its memory counts as that of a pull.
                    "ReceiveMessage" => Ok(response),
                    _ => Ok(service.counts.unread().try_hold(client, response).await?),
                }
            };
            let answer = answer.await;
            if let Some(metrics) = &service.gateway.process().metrics {
                let code = answer.as_ref().err().map_or("ok", SqsError::code);
                metrics.sqs_request(known(&action), code);
            }
            answer.unwrap_or_else(IntoResponse::into_response)
        }
        None if parts.method == Method::POST || parts.uri.query().is_some() => {
            SqsError::unsupported(
                "This endpoint serves the JSON protocol of SQS only: POST with the header X-Amz-Target, signed in a header \
                 if at all. SDKs from before November 2023 speak another protocol; use a newer one.",
            )
            .into_xml()
        }
        // As SQS answers a browser.
        None => {
            let body = "<UnknownOperationException/>\n";
            (StatusCode::NOT_FOUND, [(CONTENT_TYPE, "text/xml")], body).into_response()
        }
    };
    let id = HeaderValue::try_from(MessageId::generate().as_str()).expect("visible ASCII");
    let name = HeaderName::from_static("x-amzn-requestid");
    response.headers_mut().insert(name, id);
    response
}

/// The body of a request, with its share of the memory for bodies.
struct Body {
    bytes: Bytes,
    _reserved: Reservation,
}

/// Reads a request, and checks that its client may make it. The headers end here: they would hold the buffer of their connection
/// as long as a receive waits.
async fn admit<'a>(
    service: &'a Arc<Service>,
    parts: Parts,
    body: axum::body::Body,
    action: &str,
) -> Result<(Call<'a>, Body, Admitted), SqsError> {
    let headers = &parts.headers;
    let is_json = headers
        .get(CONTENT_TYPE)
        .and_then(|given| given.to_str().ok()?.split(';').next())
        .is_some_and(|given| given.trim().eq_ignore_ascii_case(MEDIA_TYPE));
    if !is_json {
        let message = format!("The header Content-Type must be {MEDIA_TYPE}.");
        return Err(SqsError::new(Kind::SerializationException, message));
    }
    check_coding(headers)
        .map_err(|problem| SqsError::new(Kind::SerializationException, problem.detail()))?;
    if headers.get(HOST).is_some_and(|host| host.len() > MAX_HOST) {
        let message = format!("The header Host must be at most {MAX_HOST} bytes long.");
        return Err(SqsError::new(Kind::SerializationException, message));
    }
    let authorization = Authorization::read(headers);
    let (token, authorization) = match service.tokens.is_empty() {
        // Unsigned requests, and those with any signature, are as good.
        true => (None, authorization.ok().flatten()),
        false => {
            let authorization = authorization?.ok_or_else(|| {
                let message = "The request must be signed (Signature Version 4), in the header Authorization.";
                SqsError::new(Kind::MissingAuthenticationToken, message)
            })?;
            let now = service.gateway.process().broker.now();
            let token = authorization.token(&service.tokens, headers, SERVICE, now)?;
            (Some(token), Some(authorization))
        }
    };
    let known = ACTIONS.iter().find(|(name, ..)| *name == action);
    let max_body = known.map_or(MAX_BODY, |(_, _, max_body)| *max_body);
    let read = read_reserved(body, max_body, &service.bodies);
    let read = match service.tokens.is_empty() {
        true => Token::admitted(None).scope(read).await,
        false => read.await,
    };
    let (bytes, mut reserved) = read.map_err(Problem::from)?;
    if let (Some(token), Some(authorization)) = (token, &authorization) {
        let (method, uri) = (parts.method.as_str(), &parts.uri);
        let hash = hash_of(&bytes).await;
        authorization.verify(token, method, uri, headers, &hash)?;
        tracing::Span::current().record("token", token.name());
        if let Some((_, Some(scope), _)) = known
            && !token.has(*scope)
        {
            let message = format!("The token lacks the scope `{scope}`, which {action} requires.");
            return Err(SqsError::new(Kind::AccessDenied, message));
        }
        let (group, reach) = (&service.options.group, token.reach());
        let is_reached = match known {
            // A purge removes waiting messages of all groups.
            Some(("PurgeQueue", ..)) => reach.groups.is_none(),
            Some((_, Some(Scope::Receive | Scope::Operate), _)) => reach.has_group(group),
            _ => true,
        };
        if !is_reached {
            let message =
                format!("The token is limited to some groups, and {action} requires others.");
            return Err(SqsError::new(Kind::AccessDenied, message));
        }
    }
    let admitted = Token::admitted(token);
    reserved.admit(admitted.client()).map_err(Problem::from)?;
    let call = Call::new(service, &parts, authorization.as_ref(), token);
    let body = Body {
        bytes,
        _reserved: reserved,
    };
    Ok((call, body, admitted))
}

/// Returns the action as a label of metrics: strangers must not invent labels.
fn known(action: &str) -> &'static str {
    let mut names = actions().chain(UNSUPPORTED);
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
        "CreateQueue" => queues::create(call, read(given)?).await,
        "GetQueueAttributes" => queues::attributes(call, read(given)?).await,
        "SetQueueAttributes" => queues::set_attributes(call, read(given)?).await,
        "PurgeQueue" => purge::purge(call, read(given)?).await,
        "StartMessageMoveTask" => move_tasks::start(call, read(given)?).await,
        "CancelMessageMoveTask" => move_tasks::cancel(call, read(given)?).await,
        "ListMessageMoveTasks" => move_tasks::list(call, read(given)?).await,
        _ if UNSUPPORTED.contains(&action) => {
            let message =
                format!("{action} is not supported: topics and tokens are configured in Lisa.");
            Err(SqsError::unsupported(message))
        }
        _ => {
            let message = format!("The action {action} is not valid for this endpoint.");
            Err(SqsError::new(Kind::InvalidAction, message))
        }
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
        read::<queues::Create>(body).map(drop),
        read::<queues::GetAttributes>(body).map(drop),
        read::<queues::SetAttributes>(body).map(drop),
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
pub(super) fn parse_signature(headers: &axum::http::HeaderMap) -> Result<(), String> {
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
            trace: header("x-amzn-trace-id").map(str::to_owned),
        }
    }

    /// Returns the ARN of a queue.
    fn arn(&self, queue: &str) -> String {
        format!("arn:aws:sqs:{}:{ACCOUNT}:{queue}", self.region)
    }

    fn gateway(&self) -> &Gateway {
        &self.service.gateway
    }

    fn options(&self) -> &SqsOptions {
        &self.service.options
    }
}
