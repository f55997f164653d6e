//! Tests of the spans against the text of the conventions, with the exporter in memory.

use std::collections::BTreeMap;
use std::time::Duration;

use lisa_core::message::MessageId;
use lisa_core::time::When;
use lisa_core::topic::{Group, Shard, Topic};
use opentelemetry::Value;
use opentelemetry::trace::{SpanId, Tracer as _};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};

use super::*;
use crate::spans::within;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "00f067aa0ba902b7";
const NOW: UnixMs = UnixMs::new(1_700_000_000_000);

struct Here {
    spans: Spans,
    provider: SdkTracerProvider,
    exporter: InMemorySpanExporter,
    topic: Topic,
    group: Group,
}

impl Here {
    fn new(process: ProcessContext) -> Self {
        Self::with(process, true)
    }

    fn with(process: ProcessContext, sampler_reads_attributes: bool) -> Self {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder()
            .with_simple_exporter(exporter.clone())
            .build();
        let options = SpanOptions {
            process,
            server: Some(("redis.example".to_owned(), Some(6379))),
            sampler_reads_attributes,
        };
        Self {
            spans: Spans::new(&provider, options),
            provider,
            exporter,
            topic: "orders".parse().unwrap(),
            group: "billing".parse().unwrap(),
        }
    }

    fn sending(&self) -> CommonAttributes<'_> {
        CommonAttributes {
            topic: &self.topic,
            group: None,
            shard: Some(Shard::new(3)),
            client: None,
        }
    }

    fn receiving(&self) -> CommonAttributes<'_> {
        CommonAttributes {
            group: Some(&self.group),
            client: Some("host-1"),
            ..self.sending()
        }
    }

    /// Returns the spans that have ended since the last call.
    fn ended(&self) -> Vec<SpanData> {
        let ended = self.exporter.get_finished_spans().unwrap();
        self.exporter.reset();
        ended
    }

    fn only(&self) -> SpanData {
        let mut ended = self.ended();
        assert_eq!(ended.len(), 1, "{ended:?}");
        ended.remove(0)
    }
}

fn message(when: When) -> PreparedMessage {
    let mut message = PreparedMessage::new("secret payload");
    message.id = "order-7".parse().unwrap();
    message.options.key = Some("secret key".parse().unwrap());
    message.when = when;
    message
}

fn with_context(when: When) -> PreparedMessage {
    let mut message = message(when);
    let [parent, state] = TRACE_HEADERS;
    let headers = &mut message.record.headers;
    let value = format!("00-{TRACE}-{SPAN}-01");
    headers.insert(parent, &value).unwrap();
    headers.insert(state, "vendor=a").unwrap();
    message
}

fn delivered<'a>(id: &'a MessageId, headers: &'a Headers) -> Delivered<'a> {
    Delivered {
        id,
        attempt: 2,
        due_at: NOW,
        lateness: Duration::from_millis(250),
        headers,
    }
}

fn attributes(span: &SpanData) -> BTreeMap<&str, Value> {
    let all = span.attributes.iter();
    let map: BTreeMap<_, _> = all
        .map(|pair| (pair.key.as_str(), pair.value.clone()))
        .collect();
    assert_eq!(map.len(), span.attributes.len(), "set twice: {span:?}");
    map
}

fn text(value: &str) -> Value {
    Value::from(value.to_owned())
}

fn own_context() -> SpanContext {
    w3c::parse(&format!("00-{TRACE}-{SPAN}-01"), Some("vendor=a")).unwrap()
}

#[test]
fn a_send_gives_the_message_its_own_context() {
    for sampler_reads_attributes in [true, false] {
        let here = Here::with(ProcessContext::Links, sampler_reads_attributes);
        let mut message = message(When::NOW);
        let span = here
            .spans
            .send(&here.sending(), &mut [&mut message], false, NOW);
        span.due(NOW);
        let carried = context_of(&message.record.headers).unwrap();
        drop(span);
        let span = here.only();
        assert_eq!(
            (&*span.name, &span.span_kind),
            ("send orders", &SpanKind::Producer)
        );
        assert_eq!(
            (carried.trace_id(), carried.span_id(), carried.is_sampled()),
            (
                span.span_context.trace_id(),
                span.span_context.span_id(),
                true
            )
        );
        assert!(message.record.headers.get("tracestate").is_none());
        assert_eq!(span.parent_span_id, SpanId::INVALID);
        assert!(span.links.is_empty());
        assert_eq!(
            attributes(&span),
            BTreeMap::from([
                ("messaging.system", text("lisa")),
                ("messaging.operation.name", text("send")),
                ("messaging.operation.type", text("send")),
                ("messaging.destination.name", text("orders")),
                ("messaging.destination.partition.id", text("3")),
                ("messaging.message.id", text("order-7")),
                ("server.address", text("redis.example")),
                ("server.port", Value::I64(6379)),
                ("lisa.delivery_timestamp", Value::I64(1_700_000_000_000)),
            ])
        );
        assert!(!format!("{span:?}").contains("secret"));
    }
}

#[test]
fn a_context_that_the_caller_gave_is_kept_and_linked_to() {
    let here = Here::new(ProcessContext::Links);
    let mut message = with_context(When::After(Duration::from_secs(2)));
    let before = message.record.headers.clone();
    drop(
        here.spans
            .send(&here.sending(), &mut [&mut message], false, NOW),
    );
    assert_eq!(message.record.headers, before);
    let span = here.only();
    assert_eq!(
        (&*span.name, &span.span_kind),
        ("schedule orders", &SpanKind::Client)
    );
    assert_eq!(span.links.len(), 1);
    assert_eq!(span.links[0].span_context, own_context());
    // Not valid, but the caller's.
    let headers = &mut message.record.headers;
    headers.insert("traceparent", "00-1-2-01").unwrap();
    drop(
        here.spans
            .send(&here.sending(), &mut [&mut message], false, NOW),
    );
    assert_eq!(message.record.headers.get("traceparent"), Some("00-1-2-01"));
    assert!(here.only().links.is_empty());
}

#[test]
fn a_send_is_a_child_of_the_current_context_and_carries_its_state() {
    let here = Here::new(ProcessContext::Links);
    let caller = Context::new().with_remote_span_context(own_context());
    let mut message = message(When::NOW);
    let attached = caller.attach();
    drop(
        here.spans
            .send(&here.sending(), &mut [&mut message], false, NOW),
    );
    drop(attached);
    let span = here.only();
    assert_eq!(span.parent_span_id, SpanId::from_hex(SPAN).unwrap());
    assert_eq!(message.record.headers.get("tracestate"), Some("vendor=a"));
}

#[test]
fn a_batch_is_one_span_with_its_count() {
    let here = Here::new(ProcessContext::Links);
    let (mut one, mut other) = (
        message(When::NOW),
        with_context(When::After(Duration::from_secs(1))),
    );
    let span = here
        .spans
        .send(&here.sending(), &mut [&mut one, &mut other], true, NOW);
    span.failed("full");
    drop(span);
    let span = here.only();
    assert_eq!(
        (&*span.name, &span.span_kind),
        ("send orders", &SpanKind::Producer)
    );
    let carried = context_of(&one.record.headers).unwrap();
    assert_eq!(carried.span_id(), span.span_context.span_id());
    assert_eq!(context_of(&other.record.headers), Some(own_context()));
    assert_eq!(span.links.len(), 1);
    let attributes = attributes(&span);
    assert_eq!(attributes["messaging.batch.message_count"], Value::I64(2));
    assert_eq!(attributes["error.type"], text("full"));
    assert!(!attributes.contains_key("messaging.message.id"));
    assert_eq!(span.status, Status::error(""));
    let mut alone = message(When::At(NOW.plus(Duration::from_secs(1))));
    drop(
        here.spans
            .send(&here.sending(), &mut [&mut alone], true, NOW),
    );
    let span = here.only();
    assert_eq!(span.name, "schedule orders");
    assert!(
        span.attributes
            .iter()
            .any(|pair| pair.key.as_str() == "messaging.batch.message_count")
    );
}

#[test]
fn a_delivery_is_a_trace_of_its_own_with_one_link() {
    let here = Here::new(ProcessContext::Links);
    let sent = with_context(When::NOW);
    let delivered = delivered(&sent.id, &sent.record.headers);
    let ambient = Context::new()
        .with_remote_span_context(own_context())
        .attach();
    let span = here.spans.process(&here.receiving(), &delivered);
    drop(ambient);
    let settle = here.spans.settle(
        &here.receiving(),
        "ack",
        Messages::One(&sent.id),
        Some(&span),
    );
    span.end();
    assert!(span.is_sampled(), "also after its end");
    drop((span, settle));
    let ended = here.ended();
    let [process, settle] = &*ended else {
        panic!("{ended:?}");
    };
    assert_eq!(
        (&*process.name, &process.span_kind),
        ("process orders", &SpanKind::Consumer)
    );
    assert_ne!(process.span_context.trace_id().to_string(), TRACE);
    assert_eq!(process.parent_span_id, SpanId::INVALID);
    assert_eq!(process.links.len(), 1);
    assert_eq!(process.links[0].span_context, own_context());
    let of_process = attributes(process);
    for (name, value) in [
        ("messaging.operation.name", text("process")),
        ("messaging.operation.type", text("process")),
        ("messaging.consumer.group.name", text("billing")),
        ("messaging.client.id", text("host-1")),
        ("messaging.message.id", text("order-7")),
        ("lisa.attempt", Value::I64(2)),
        ("lisa.delivery_timestamp", Value::I64(1_700_000_000_000)),
        ("lisa.lateness", Value::F64(0.25)),
    ] {
        assert_eq!(of_process[name], value, "{name}");
    }
    assert_eq!(
        (&*settle.name, &settle.span_kind),
        ("ack orders", &SpanKind::Client)
    );
    assert_eq!(
        attributes(settle)["messaging.operation.type"],
        text("settle")
    );
    assert_eq!(settle.parent_span_id, process.span_context.span_id());
    assert_eq!(
        settle.span_context.trace_id(),
        process.span_context.trace_id()
    );
}

#[test]
fn a_delivery_may_continue_the_trace_of_its_message() {
    let here = Here::new(ProcessContext::Parent);
    let sent = with_context(When::NOW);
    let common = here.receiving();
    drop(
        here.spans
            .process(&common, &delivered(&sent.id, &sent.record.headers)),
    );
    let span = here.only();
    assert_eq!(span.span_context.trace_id().to_string(), TRACE);
    assert_eq!(span.parent_span_id.to_string(), SPAN);
    assert_eq!(span.links.len(), 1, "also then");
    let headers = Headers::default();
    drop(here.spans.process(&common, &delivered(&sent.id, &headers)));
    let span = here.only();
    assert_eq!(span.parent_span_id, SpanId::INVALID);
    assert!(span.links.is_empty());
}

#[test]
fn a_pull_links_to_each_message_and_begins_with_the_request() {
    let here = Here::new(ProcessContext::Links);
    let sent = with_context(When::NOW);
    let none = Headers::default();
    let all = [
        delivered(&sent.id, &sent.record.headers),
        delivered(&sent.id, &none),
        delivered(&sent.id, &sent.record.headers),
    ];
    let began = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    here.spans.receive(&here.receiving(), &all, true, began);
    let span = here.only();
    assert_eq!(
        (&*span.name, &span.span_kind),
        ("receive orders", &SpanKind::Client)
    );
    assert_eq!((span.start_time, span.links.len()), (began, 2));
    assert!(span.end_time > began);
    let of_batch = attributes(&span);
    assert_eq!(of_batch["messaging.batch.message_count"], Value::I64(3));
    assert!(!of_batch.contains_key("lisa.attempt"));
    here.spans
        .receive(&here.receiving(), &all[..1], false, began);
    let span = here.only();
    let of_one = attributes(&span);
    assert_eq!(of_one["messaging.message.id"], text("order-7"));
    assert_eq!(of_one["lisa.attempt"], Value::I64(2));
}

#[tokio::test]
async fn spans_of_a_handler_are_children_of_its_delivery() {
    let here = Here::new(ProcessContext::Links);
    let sent = message(When::NOW);
    let delivered = delivered(&sent.id, &sent.record.headers);
    let span = here.spans.process(&here.receiving(), &delivered);
    let tracer = here.provider.tracer("handler");
    let handler = async {
        tokio::task::yield_now().await;
        drop(tracer.start("query"));
    };
    within(Some(&span), handler).await;
    drop(tracer.start("other"));
    let carried = span.trace().unwrap().headers();
    drop(span);
    let ended = here.ended();
    let [query, other, process] = &*ended else {
        panic!("{ended:?}");
    };
    assert_eq!(query.parent_span_id, process.span_context.span_id());
    assert_eq!(other.parent_span_id, SpanId::INVALID);
    let context = &process.span_context;
    let expected = format!("00-{}-{}-01", context.trace_id(), context.span_id());
    assert_eq!(carried, [("traceparent", expected)]);
}

#[test]
fn a_provider_that_was_shut_down_changes_no_message() {
    let here = Here::new(ProcessContext::Links);
    here.provider.shutdown().unwrap();
    let mut message = message(When::NOW);
    let span = here
        .spans
        .send(&here.sending(), &mut [&mut message], false, NOW);
    assert!(span.trace().is_none() && !span.is_sampled());
    assert!(message.record.headers.is_empty());
}
