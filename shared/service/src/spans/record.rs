//! Makes the spans with the API of OpenTelemetry.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use lisa_core::message::{Headers, PreparedMessage};
use lisa_core::time::UnixMs;
use opentelemetry::global::{BoxedTracer, ObjectSafeTracer};
use opentelemetry::trace::{
    Link, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt, Tracer, TracerProvider,
};
use opentelemetry::{Context, ContextGuard, InstrumentationScope, KeyValue};

use super::{
    CommonAttributes, Delivered, Messages, ProcessContext, SpanOptions, TRACE_HEADERS, w3c,
};

/// The conventions that the spans follow.
const SCHEMA: &str = "https://opentelemetry.io/schemas/1.44.0";

/// The maker of spans. Cheap to clone.
#[derive(Clone)]
pub struct Spans(Arc<Inner>);

struct Inner {
    tracer: BoxedTracer,
    options: SpanOptions,
}

/// A span, which ends when it is dropped, unless it has ended before.
pub struct Span(Context);

/// The trace context of a span.
#[derive(Clone, Debug)]
pub struct Trace(SpanContext);

pub(super) type Attached = ContextGuard;

/// An operation of the conventions.
struct Operation {
    name: &'static str,
    of: &'static str,
    kind: SpanKind,
}

impl Spans {
    /// Creates the maker of spans of a tracer provider: that of the application, such as
    /// `opentelemetry::global::tracer_provider()`.
    pub fn new<P>(provider: &P, options: SpanOptions) -> Self
    where
        P: TracerProvider,
        P::Tracer: ObjectSafeTracer + Send + Sync + 'static,
    {
        let scope = InstrumentationScope::builder("lisa")
            .with_version(env!("CARGO_PKG_VERSION"))
            .with_schema_url(SCHEMA)
            .build();
        let tracer = BoxedTracer::new(Box::new(provider.tracer_with_scope(scope)));
        Self(Arc::new(Inner { tracer, options }))
    }

    /// Starts the span of a send, as a child of the current context. It is `schedule` if all messages are delayed.
    ///
    /// It links to the context of each message that has one, which stays as it is. The other messages get the context of the
    /// span.
    pub fn send(
        &self,
        common: &CommonAttributes<'_>,
        messages: &mut [&mut PreparedMessage],
        is_batch: bool,
        now: UnixMs,
    ) -> Span {
        let has_own =
            |message: &PreparedMessage| message.record.headers.get(TRACE_HEADERS[0]).is_some();
        let creates = messages.iter().any(|message| !has_own(message));
        let contexts = messages
            .iter()
            .filter_map(|message| context_of(&message.record.headers));
        let links = contexts.map(Link::with_context).collect();
        let is_delayed = messages.iter().all(|message| message.when.due(now) > now);
        let operation = Operation {
            name: if is_delayed { "schedule" } else { "send" },
            of: "send",
            kind: if creates {
                SpanKind::Producer
            } else {
                SpanKind::Client
            },
        };
        let ids = match &*messages {
            [one] if !is_batch => Messages::One(&one.id),
            all => Messages::Batch(all.len()),
        };
        let span = self.start(operation, common, ids, links, None, &Context::current());
        if let Some(trace) = span.trace().filter(|_| creates) {
            let headers = trace.headers();
            for message in messages.iter_mut().filter(|message| !has_own(message)) {
                for (name, value) in &headers {
                    // A message that has no room for another header is sent without a context.
                    let _ = message.record.headers.insert(name, value);
                }
            }
        }
        span
    }

    /// Starts the span of a delivery to a handler. It links to the context of the message.
    pub fn process(&self, common: &CommonAttributes<'_>, delivered: &Delivered<'_>) -> Span {
        let origin = context_of(delivered.headers);
        let parent = match (&origin, self.0.options.process) {
            (Some(origin), ProcessContext::Parent) => {
                Context::new().with_remote_span_context(origin.clone())
            }
            _ => Context::new(),
        };
        let links = origin.map(Link::with_context).into_iter().collect();
        let operation = Operation {
            name: "process",
            of: "process",
            kind: SpanKind::Consumer,
        };
        let id = Messages::One(delivered.id);
        let span = self.start(operation, common, id, links, None, &parent);
        span.delivered(delivered);
        span
    }

    /// Records a pull that began at `started`, now that its client gets deliveries. It links to the context of each message.
    pub fn receive(
        &self,
        common: &CommonAttributes<'_>,
        delivered: &[Delivered<'_>],
        is_batch: bool,
        started: SystemTime,
    ) {
        let contexts = delivered
            .iter()
            .filter_map(|delivered| context_of(delivered.headers));
        let links = contexts.map(Link::with_context).collect();
        let operation = Operation {
            name: "receive",
            of: "receive",
            kind: SpanKind::Client,
        };
        let parent = Context::current();
        match delivered {
            [one] if !is_batch => {
                let id = Messages::One(one.id);
                let span = self.start(operation, common, id, links, Some(started), &parent);
                span.delivered(one);
            }
            all => {
                let ids = Messages::Batch(all.len());
                drop(self.start(operation, common, ids, links, Some(started), &parent));
            }
        }
    }

    /// Starts the span of a settlement, such as `ack`, as a child of the span of the delivery, or else of the current context.
    pub fn settle(
        &self,
        common: &CommonAttributes<'_>,
        name: &'static str,
        messages: Messages<'_>,
        parent: Option<&Span>,
    ) -> Span {
        let operation = Operation {
            name,
            of: "settle",
            kind: SpanKind::Client,
        };
        let parent = parent.map_or_else(Context::current, |span| span.0.clone());
        self.start(operation, common, messages, Vec::new(), None, &parent)
    }

    fn start(
        &self,
        operation: Operation,
        common: &CommonAttributes<'_>,
        messages: Messages<'_>,
        links: Vec<Link>,
        started: Option<SystemTime>,
        parent: &Context,
    ) -> Span {
        let mut builder = SpanBuilder {
            span_kind: Some(operation.kind.clone()),
            start_time: started,
            links: (!links.is_empty()).then_some(links),
            ..SpanBuilder::from_name(operation.name)
        };
        let is_early = self.0.options.sampler_reads_attributes;
        if is_early {
            builder.name = operation.span_name(common).into();
            builder.attributes = Some(self.attributes(&operation, common));
        }
        let span = self.0.tracer.build_with_context(builder, parent);
        let span = Span(parent.with_span(span));
        if span.is_recording() {
            if !is_early {
                span.0.span().update_name(operation.span_name(common));
                span.set(self.attributes(&operation, common));
            }
            let group = common.group.map(|group| group.as_str().to_owned());
            span.set(group.map(|group| KeyValue::new("messaging.consumer.group.name", group)));
            let client = common.client.map(str::to_owned);
            span.set(client.map(|client| KeyValue::new("messaging.client.id", client)));
            span.set(Some(match messages {
                Messages::One(id) => KeyValue::new("messaging.message.id", id.as_str().to_owned()),
                Messages::Batch(count) => {
                    KeyValue::new("messaging.batch.message_count", integer(count))
                }
            }));
        }
        span
    }

    /// Returns the attributes that samplers can use.
    fn attributes(&self, operation: &Operation, common: &CommonAttributes<'_>) -> Vec<KeyValue> {
        let mut attributes = Vec::with_capacity(12);
        attributes.extend([
            KeyValue::new("messaging.system", "lisa"),
            KeyValue::new("messaging.operation.name", operation.name),
            KeyValue::new("messaging.operation.type", operation.of),
            KeyValue::new(
                "messaging.destination.name",
                common.topic.as_str().to_owned(),
            ),
        ]);
        if let Some(shard) = common.shard {
            let shard = shard.to_string();
            attributes.push(KeyValue::new("messaging.destination.partition.id", shard));
        }
        if let Some((address, port)) = &self.0.options.server {
            attributes.push(KeyValue::new("server.address", address.clone()));
            attributes.extend(port.map(|port| KeyValue::new("server.port", i64::from(port))));
        }
        attributes
    }
}

impl Operation {
    fn span_name(&self, common: &CommonAttributes<'_>) -> String {
        format!("{} {}", self.name, common.topic)
    }
}

impl fmt::Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spans")
            .field("options", &self.0.options)
            .finish_non_exhaustive()
    }
}

impl Span {
    fn is_recording(&self) -> bool {
        self.0.span().is_recording()
    }

    fn set(&self, attributes: impl IntoIterator<Item = KeyValue>) {
        self.0.span().set_attributes(attributes);
    }

    fn delivered(&self, delivered: &Delivered<'_>) {
        if !self.is_recording() {
            return;
        }
        self.due(delivered.due_at);
        self.set([
            KeyValue::new("lisa.attempt", i64::from(delivered.attempt)),
            KeyValue::new("lisa.lateness", delivered.lateness.as_secs_f64()),
        ]);
    }

    /// Records the time at which the message is or was due.
    pub fn due(&self, at: UnixMs) {
        self.set([KeyValue::new("lisa.delivery_timestamp", integer(at.get()))]);
    }

    /// Records that the operation failed with this kind of error, one of few words. Call it at most once.
    pub fn failed(&self, error: &'static str) {
        self.set([KeyValue::new("error.type", error)]);
        self.0.span().set_status(Status::error(""));
    }

    /// Ends the span now.
    pub fn end(&self) {
        if self.is_recording() {
            self.0.span().end();
        }
    }

    /// Returns true if the trace of this span is recorded.
    pub fn is_sampled(&self) -> bool {
        self.0.span().span_context().is_sampled()
    }

    /// Returns the context of this span; `None` if it has no valid one.
    pub fn trace(&self) -> Option<Trace> {
        let context = self.0.span().span_context().clone();
        context.is_valid().then_some(Trace(context))
    }

    pub(super) fn attach(&self) -> Attached {
        self.0.clone().attach()
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Span").field(&self.trace()).finish()
    }
}

impl Trace {
    /// Returns the headers that carry this context.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let (parent, state) = w3c::write(&self.0);
        let values = [Some(parent), state];
        let headers = TRACE_HEADERS.into_iter().zip(values);
        headers
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}

/// Returns the context that the headers of a message carry.
fn context_of(headers: &Headers) -> Option<SpanContext> {
    let [parent, state] = TRACE_HEADERS;
    w3c::parse(headers.get(parent)?, headers.get(state))
}

/// Converts a number to the only integer type of attributes.
fn integer<N: TryInto<i64>>(number: N) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
