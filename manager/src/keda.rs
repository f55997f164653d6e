//! The external scaler for KEDA: a gRPC service that says how many messages a group has for its consumers, now and when a new
//! consumer has started.
//!
//! It only reads the counts of the topic that a call names. A call has at most 16 KiB, and takes at most 5 s. All calls within a
//! second share one count of a topic.

mod counts;
mod messages;
mod trigger;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request as HttpRequest;
use axum::extract::State;
use axum::response::Response as HttpResponse;
use axum::routing::post;
use futures_util::{Stream, StreamExt, stream};
use lisa_core::topic::Group;
use lisa_service::config::KedaConfig;
use lisa_service::http::auth::{Denied, Scope, Token, TokenSet, UNREAD};
use lisa_service::http::{Problem, ProblemCode, admit_connection};
use lisa_service::metrics::Metrics;
use lisa_service::role::{Runtime, StartError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::server::Grpc;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use counts::Counts;
use messages::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec,
    MetricValue, ScaledObjectRef,
};
use trigger::{Metadata, Trigger};

use crate::operations::choose_group;

/// The maximum size of a request, in bytes.
const MAX_REQUEST: usize = 16 * 1024;
/// The time limit of a call, and of the first answer of a stream.
const CALL_WITHIN: Duration = Duration::from_secs(5);
/// The number of concurrent streams. KEDA opens one for each `ScaledObject`.
const STREAMS: usize = 256;
/// The interval at which a stream looks for messages.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The shortest mean time between two looks, whatever the number of streams.
const LOOK_TOGETHER: Duration = Duration::from_millis(20);
/// The error if a trigger has no token.
const NO_TOKEN: &str = "metadata.token: missing; set tokenFromEnv to an environment variable of the consumers with a token that \
                        has the scope `read`";

/// Serves the scaler.
///
/// # Errors
/// As [`Runtime::listen`].
pub(crate) async fn listen(
    runtime: &Runtime,
    config: KedaConfig,
) -> Result<SocketAddr, StartError> {
    let scaler = Scaler {
        counts: Arc::new(Counts::new(
            &runtime.broker,
            Arc::new(runtime.config.clone()),
        )),
        tokens: runtime.tokens.clone(),
        metrics: runtime.metrics.clone(),
        streams: Arc::new(Semaphore::new(STREAMS)),
        draining: runtime.shutdown.draining().clone(),
    };
    let path = |method| format!("/externalscaler.ExternalScaler/{method}");
    let router = Router::new()
        .route(&path("IsActive"), post(is_active))
        .route(&path("StreamIsActive"), post(stream_is_active))
        .route(&path("GetMetricSpec"), post(get_metric_spec))
        .route(&path("GetMetrics"), post(get_metrics))
        // Among others, `StreamMetricSpec`: the target of a trigger changes only with the trigger.
        .fallback(async || Status::unimplemented("unknown method").into_http::<Body>())
        .with_state(scaler);
    runtime.listen_http2("keda", config.listen, router).await
}

async fn is_active(State(scaler): State<Scaler>, request: HttpRequest) -> HttpResponse {
    let metrics = scaler.metrics.clone();
    let call = |of: ScaledObjectRef| async move {
        let result = scaler.demand(&of).await? > 0;
        Ok(IsActiveResponse { result })
    };
    unary("IsActive", &metrics, request, call).await
}

async fn get_metric_spec(State(scaler): State<Scaler>, request: HttpRequest) -> HttpResponse {
    let metrics = scaler.metrics.clone();
    let call = |of: ScaledObjectRef| async move {
        let (trigger, _) = scaler.admit(&of)?;
        let target = trigger.messages_per_replica;
        Ok(GetMetricSpecResponse {
            metric_specs: vec![MetricSpec {
                metric_name: trigger.metric_name(),
                target_size: signed(target),
                target_size_float: target as f64,
            }],
        })
    };
    unary("GetMetricSpec", &metrics, request, call).await
}

async fn get_metrics(State(scaler): State<Scaler>, request: HttpRequest) -> HttpResponse {
    let metrics = scaler.metrics.clone();
    let call = |request: GetMetricsRequest| async move {
        let of = request.scaled_object_ref.unwrap_or_default();
        let demand = scaler.demand(&of).await?;
        Ok(GetMetricsResponse {
            metric_values: vec![MetricValue {
                metric_name: request.metric_name,
                metric_value: signed(demand),
                metric_value_float: demand as f64,
            }],
        })
    };
    unary("GetMetrics", &metrics, request, call).await
}

async fn stream_is_active(State(scaler): State<Scaler>, request: HttpRequest) -> HttpResponse {
    let metrics = scaler.metrics.clone();
    let open = service_fn(|request: Request<ScaledObjectRef>| {
        let scaler = scaler.clone();
        async move { scaler.watch(request.into_inner()).await.map(Response::new) }
    });
    let codec = ProstCodec::<IsActiveResponse, ScaledObjectRef>::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(MAX_REQUEST);
    let answer = timeout(CALL_WITHIN, grpc.server_streaming(open, request)).await;
    respond("StreamIsActive", &metrics, answer.ok())
}

/// Answers a call with one message.
async fn unary<Q, A, F>(
    method: &str,
    metrics: &Metrics,
    request: HttpRequest,
    call: impl FnOnce(Q) -> F + Send,
) -> HttpResponse
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + 'static,
    F: Future<Output = Result<A, Status>> + Send,
{
    let mut call = Some(call);
    let service = service_fn(|request: Request<Q>| {
        let answer = call.take().map(|call| call(request.into_inner()));
        async move {
            match answer {
                Some(answer) => answer.await.map(Response::new),
                None => Err(Status::internal("a call has one message")),
            }
        }
    });
    let mut grpc = Grpc::new(ProstCodec::<A, Q>::default()).max_decoding_message_size(MAX_REQUEST);
    let answer = timeout(CALL_WITHIN, grpc.unary(service, request)).await;
    respond(method, metrics, answer.ok())
}

/// Counts an answer by its code, and returns it. Without one, the call has timed out.
fn respond(
    method: &str,
    metrics: &Metrics,
    answer: Option<axum::http::Response<tonic::body::Body>>,
) -> HttpResponse {
    let late = || Status::deadline_exceeded("the call took too long").into_http();
    let response = answer.unwrap_or_else(late);
    // The status of a success follows the messages.
    let status = Status::from_header_map(response.headers());
    let code = status.map_or(Code::Ok, |status| status.code());
    metrics.scaler_call(method, &format!("{code:?}"));
    response.map(Body::new)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The scaler. Cheap to clone.
#[derive(Clone)]
struct Scaler {
    counts: Arc<Counts>,
    tokens: TokenSet,
    metrics: Metrics,
    streams: Arc<Semaphore>,
    draining: CancellationToken,
}

/// The answers that a stream pushes.
type Answers = Pin<Box<dyn Stream<Item = Result<IsActiveResponse, Status>> + Send>>;

impl Scaler {
    /// Reads the trigger of a call, if its token may read. Also returns the token; `None` if no tokens are configured.
    fn admit(&self, of: &ScaledObjectRef) -> Result<(Trigger, Option<Arc<Token>>), Status> {
        let metadata = Metadata(&of.scaler_metadata);
        let token = match (self.tokens.is_empty(), metadata.token()) {
            (true, _) => None,
            (false, None) => return Err(Status::unauthenticated(NO_TOKEN)),
            (false, Some(token)) => {
                let checked = self.tokens.check(token, Scope::Read);
                Some(checked.map_err(|denied| match denied {
                    Denied::Unread => Status::unavailable(UNREAD),
                    Denied::Unknown => Status::unauthenticated("metadata.token: unknown token"),
                    Denied::Expired => Status::unauthenticated("metadata.token: the token has expired"),
                    Denied::Scope(_) | Denied::Reach(_) => Status::permission_denied(
                        "metadata.token: the token lacks the scope `read`, which the scaler requires",
                    ),
                })?)
            }
        };
        admit_connection();
        let trigger = metadata.trigger();
        let trigger = trigger.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let reach = token.as_deref().map(Token::reach);
        if reach.is_some_and(|reach| !reach.has_topic(&trigger.topic)) {
            let why = "metadata.topic: the token does not reach this topic";
            return Err(Status::permission_denied(why));
        }
        Ok((trigger, token))
    }

    /// Returns the number of messages for which the group of a trigger needs consumers.
    async fn demand(&self, of: &ScaledObjectRef) -> Result<u64, Status> {
        let (trigger, token) = self.admit(of)?;
        let count = async {
            let topic = self.counts.topic(&trigger.topic).await.map_err(status)?;
            let group = trigger.group.as_ref().map(Group::as_str);
            let group = choose_group::choose(&topic, group)
                .map_err(|error| Status::invalid_argument(format!("metadata.group: {error}")))?;
            let demand = self.counts.of(&topic, trigger.start).await;
            Ok(demand.map_err(status)?.of(group))
        };
        Token::admitted(token.as_deref()).scope(count).await
    }

    /// Opens a stream, which pushes an answer first and whenever it changes.
    async fn watch(&self, of: ScaledObjectRef) -> Result<Answers, Status> {
        let is_active = self.demand(&of).await? > 0;
        let full = |_| Status::resource_exhausted("too many streams; use the type `external`");
        let permit = self.streams.clone().try_acquire_owned().map_err(full)?;
        let watch = Watch {
            scaler: self.clone(),
            of,
            last: is_active,
            _permit: permit,
        };
        let answers = stream::unfold(watch, Watch::next);
        let first = stream::once(async move { Ok(IsActiveResponse { result: is_active }) });
        Ok(Box::pin(first.chain(answers)))
    }
}

/// A stream.
struct Watch {
    scaler: Scaler,
    of: ScaledObjectRef,
    /// The last answer.
    last: bool,
    _permit: OwnedSemaphorePermit,
}

impl Watch {
    /// Waits for another answer. Returns `None` when the shutdown begins, so that KEDA calls another manager.
    async fn next(mut self) -> Option<(Result<IsActiveResponse, Status>, Self)> {
        loop {
            let open = STREAMS - self.scaler.streams.available_permits();
            let pause = LOOK_EVERY.max(LOOK_TOGETHER * u32::try_from(open).unwrap_or(u32::MAX));
            let draining = self.scaler.draining.clone();
            draining.run_until_cancelled(sleep(pause)).await?;
            match self.scaler.demand(&self.of).await.map(|demand| demand > 0) {
                Ok(result) if result != self.last => {
                    self.last = result;
                    return Some((Ok(IsActiveResponse { result }), self));
                }
                Ok(_) => {}
                // Redis may answer the next time.
                Err(status) if status.code() == Code::Unavailable => {}
                Err(status) => return Some((Err(status), self)),
            }
        }
    }
}

/// Returns the status of a failed read.
fn status(problem: Problem) -> Status {
    match problem.code() {
        ProblemCode::UnknownTopic => {
            Status::not_found(format!("metadata.topic: {}", problem.detail()))
        }
        _ => Status::unavailable(problem.detail().to_owned()),
    }
}
