//! The spans of OpenTelemetry: what sends, pulls, deliveries and settlements record, by the semantic conventions for messaging
//! (version 1.44).
//!
//! A program passes [`Spans`] to its producer or consumer, and its tracer provider samples and exports them. Nothing here is
//! global. Without the feature `otel-api` there is no value of [`Spans`], so the compiler removes all code that uses one.
//! Ordering keys, payloads, and errors of handlers, which may quote a payload, are never recorded.

use std::pin::pin;
use std::time::Duration;

use lisa_core::message::{Headers, MessageId};
use lisa_core::names::words;
use lisa_core::time::UnixMs;
use lisa_core::topic::{Group, Shard, Topic};

#[cfg(feature = "process")]
pub(crate) mod caller;
#[cfg_attr(not(feature = "otel"), path = "spans/no_export.rs")]
#[cfg(feature = "process")]
pub(crate) mod export;
#[cfg_attr(not(feature = "otel-api"), path = "spans/off.rs")]
mod record;
#[cfg(feature = "otel-api")]
mod w3c;

use self::record::Attached;
pub use self::record::{Span, Spans, Trace};

words!(
    /// The relation of the span of a delivery to the trace context that its message carries.
    ProcessContext, "process context", {
        /// The span starts a trace of its own, with a link to that context.
        Links = "links",
        /// The span continues the trace of that context.
        Parent = "parent",
    }
);

/// The options of [`Spans`].
#[derive(Clone, Debug)]
pub struct SpanOptions {
    /// The relation of a delivery to its message. The default is [`ProcessContext::Links`].
    pub process: ProcessContext,
    /// The address of Redis, with its port unless it is a path.
    pub server: Option<(String, Option<u16>)>,
    /// True if the sampler of the provider may read names and attributes. Otherwise, a span that is not recorded is made without
    /// them, which takes half the time. The default is true.
    pub sampler_reads_attributes: bool,
}

impl Default for SpanOptions {
    fn default() -> Self {
        Self {
            process: ProcessContext::Links,
            server: None,
            sampler_reads_attributes: true,
        }
    }
}

/// The headers of a trace context, as in W3C Trace Context.
pub const TRACE_HEADERS: [&str; 2] = ["traceparent", "tracestate"];

/// The topic and the other attributes that all messages of an operation have in common.
#[derive(Clone, Copy, Debug)]
pub struct CommonAttributes<'a> {
    /// The topic.
    pub topic: &'a Topic,
    /// The group, of an operation that is not a send.
    pub group: Option<&'a Group>,
    /// The shard, if the messages are of one.
    pub shard: Option<Shard>,
    /// The name of the consumer in Redis.
    pub client: Option<&'a str>,
}

/// The messages of an operation.
#[derive(Clone, Copy, Debug)]
pub enum Messages<'a> {
    /// The one message of an operation that is always about one.
    One(&'a MessageId),
    /// The number of messages of an operation that may be about several.
    Batch(usize),
}

/// A delivery that a handler or a client gets.
#[derive(Clone, Copy, Debug)]
pub struct Delivered<'a> {
    /// The message.
    pub id: &'a MessageId,
    /// The number of the attempt.
    pub attempt: u32,
    /// The time at which the attempt was due.
    pub due_at: UnixMs,
    /// The time from then until it was delivered.
    pub lateness: Duration,
    /// The headers of the message.
    pub headers: &'a Headers,
}

/// Runs a future as a part of a span: spans that it starts are children of this one.
pub async fn within<F: Future>(span: Option<&Span>, run: F) -> F::Output {
    let mut run = pin!(run);
    std::future::poll_fn(|context| {
        let _attached: Option<Attached> = span.map(Span::attach);
        run.as_mut().poll(context)
    })
    .await
}
