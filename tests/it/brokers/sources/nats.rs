//! The `nats` source on JetStream.

use super::Intake;
use crate::brokers::{SOON, ids};
use crate::scenarios::targets::shows;
use async_nats::HeaderMap;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::Config;
use futures_util::future::join_all;
use lisa_tests::{Nats, eventually};
use std::time::{Duration, Instant};

const STREAM: &str = "IN";
const CONSUMER: &str = "lisa-in";

fn from(nats: &Nats) -> String {
    format!(
        r#"{{ type = "nats", url = "{}", stream = "{STREAM}", prefetch = 100 }}"#,
        nats.url()
    )
}

/// Makes the stream of the subject `in`, and a consumer that gets messages again after 2 s without acknowledgment.
async fn stream(nats: &Nats) -> Context {
    let jetstream = nats.jetstream().await;
    let config = Config {
        name: STREAM.to_owned(),
        subjects: vec!["in".to_owned()],
        ..Config::default()
    };
    let stream = jetstream.create_stream(config).await.expect("a stream");
    let config = pull::Config {
        durable_name: Some(CONSUMER.to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: Duration::from_secs(2),
        max_ack_pending: -1,
        ..pull::Config::default()
    };
    stream.create_consumer(config).await.expect("a consumer");
    jetstream
}

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.insert(*name, *value);
    }
    headers
}

/// Publishes messages to the stream.
async fn publish(jetstream: &Context, messages: impl IntoIterator<Item = (HeaderMap, String)>) {
    let mut acks = Vec::new();
    for (headers, payload) in messages {
        let sent = jetstream.publish_with_headers("in", headers, payload.into());
        acks.push(sent.await.expect("a publish").into_future());
    }
    for ack in join_all(acks).await {
        ack.expect("an acknowledgment");
    }
}

async fn publish_ids(jetstream: &Context, ids: impl Iterator<Item = String>) {
    let message = |id: String| (headers(&[("Nats-Msg-Id", &id)]), format!("payload of {id}"));
    publish(jetstream, ids.map(message)).await;
}

/// Waits until the consumer has delivered everything, and nothing waits for its acknowledgment.
async fn is_done(nats: &Nats) {
    let jetstream = nats.jetstream().await;
    eventually(SOON, async || {
        let consumer = jetstream.get_consumer_from_stream(CONSUMER, STREAM);
        let mut consumer: PullConsumer = consumer.await.map_err(|error| error.to_string())?;
        let info = consumer.info().await.map_err(|error| error.to_string())?;
        match (info.num_pending, info.num_ack_pending) {
            (0, 0) => Ok(()),
            other => Err(format!("pending, unacknowledged: {other:?}")),
        }
    })
    .await;
}

#[tokio::test]
async fn a_message_has_its_due_time_options_and_headers() {
    let Some(nats) = Nats::start().await else {
        return;
    };
    let jetstream = nats.jetstream().await;
    let config = Config {
        name: STREAM.to_owned(),
        subjects: vec!["in".to_owned()],
        ..Config::default()
    };
    jetstream.create_stream(config).await.expect("a stream");
    let before = jiff::Timestamp::now().as_millisecond();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let full = [
        ("Nats-Msg-Id", "order-7"),
        ("Lisa-Delay", "1h"),
        ("Lisa-Key", "customer-7"),
        ("Region", "emea"),
        ("traceparent", trace),
    ];
    let messages = [headers(&full), headers(&[("x-delay", "3600000")])];
    publish(
        &jetstream,
        messages.map(|headers| (headers, "x".to_owned())),
    )
    .await;
    let intake = Intake::of(&from(&nats)).await;
    intake.takes("accepted", 2).await;
    let full = intake.message("in:order-7").await;
    let due: jiff::Timestamp = full["due_at"].as_str().unwrap().parse().unwrap();
    let now = jiff::Timestamp::now().as_millisecond();
    let delay = due.as_millisecond() - 3_600_000;
    assert!((before..=now).contains(&delay), "{full:#}");
    assert_eq!(full["key"], "customer-7", "{full:#}");
    assert_eq!(full["headers"]["region"], "emea", "{full:#}");
    assert_eq!(full["headers"]["traceparent"], trace, "{full:#}");
    assert_eq!(full["headers"].as_object().unwrap().len(), 2, "{full:#}");
    intake.here.settled(&[("waiting", 2)]).await;
    is_done(&nats).await;
}

#[tokio::test]
async fn a_producer_killed_in_the_middle_loses_nothing_and_stores_nothing_twice() {
    let Some(nats) = Nats::start().await else {
        return;
    };
    let jetstream = stream(&nats).await;
    let mut intake = Intake::of(&from(&nats)).await;
    for part in 0..3 {
        // Without an id the position in the stream is one.
        let message = |n: usize| (HeaderMap::new(), n.to_string());
        publish(&jetstream, (part * 1000..part * 1000 + 1000).map(message)).await;
        intake.takes("accepted", 100).await;
        intake.kill_producer().await;
    }
    is_done(&nats).await;
    println!("{} duplicates", intake.counted("duplicate").await);
    intake.delivers(3000).await;
}

#[tokio::test]
async fn a_server_killed_in_the_middle_loses_nothing_and_nothing_is_stored_twice() {
    let Some(mut nats) = Nats::start().await else {
        return;
    };
    let jetstream = stream(&nats).await;
    publish_ids(&jetstream, ids(5000)).await;
    let intake = Intake::of(&from(&nats)).await;
    intake.takes("accepted", 200).await;
    nats.kill();
    intake.unavailable("").await;
    nats.restart().await;
    intake.takes("accepted", 5000).await;
    is_done(&nats).await;
    shows(&intake.producer, "lisa_source_up", 1).await;
    println!("{} duplicates", intake.counted("duplicate").await);
    intake.delivers(5000).await;
}

#[tokio::test]
async fn what_lisa_refuses_is_terminated() {
    let Some(nats) = Nats::start().await else {
        return;
    };
    let jetstream = stream(&nats).await;
    let mut advisories = jetstream
        .client()
        .subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>")
        .await
        .unwrap();
    let intake = Intake::start(&from(&nats), "", "max_payload = \"1KiB\"").await;
    let bad = [
        (headers(&[("Lisa-Delay", "soon")]), "x".to_owned()),
        (headers(&[("lisa-dealy", "1s")]), "x".to_owned()),
        (HeaderMap::new(), "x".repeat(2000)),
    ];
    publish(&jetstream, bad).await;
    publish_ids(&jetstream, ids(200)).await;
    intake.takes("refused", 3).await;
    intake.delivers(200).await;
    is_done(&nats).await;
    assert_eq!(intake.counted("refused").await, 3);
    for _ in 0..3 {
        use futures_util::StreamExt;
        let advised = tokio::time::timeout(SOON, advisories.next()).await;
        advised.expect("an advisory").expect("a subscription");
    }
}

#[tokio::test]
async fn a_full_topic_stops_the_source_and_loses_nothing() {
    let Some(nats) = Nats::start().await else {
        return;
    };
    let jetstream = stream(&nats).await;
    publish_ids(&jetstream, ids(1000)).await;
    let intake = Intake::start(&from(&nats), "", "max_messages = 300").await;
    intake.warns("max_messages").await;
    // The warning may come before the last of them are counted.
    intake.takes("accepted", 300).await;
    assert_eq!(intake.counted("accepted").await, 300);
    let consumer = jetstream.get_consumer_from_stream(CONSUMER, STREAM).await;
    let mut consumer: PullConsumer = consumer.unwrap();
    let taken = consumer.info().await.unwrap().delivered.consumer_sequence;
    assert!(taken <= 400, "{taken} taken: no more than the prefetch");
    intake.delivers(1000).await;
    is_done(&nats).await;
}

#[tokio::test]
async fn a_stream_that_is_missing_is_reported_until_it_is_made() {
    let Some(nats) = Nats::start().await else {
        return;
    };
    let intake = Intake::of(&from(&nats)).await;
    intake.unavailable("stream not found").await;
    let jetstream = stream(&nats).await;
    publish_ids(&jetstream, ids(10)).await;
    intake.takes("accepted", 10).await;
    shows(&intake.producer, "lisa_source_up", 1).await;
    jetstream.delete_stream(STREAM).await.unwrap();
    intake.unavailable("").await;
    // Begins with sequence 1 again: other messages.
    let jetstream = stream(&nats).await;
    let message = |n: usize| (HeaderMap::new(), n.to_string());
    publish(&jetstream, (0..10).map(message)).await;
    intake.takes("accepted", 20).await;
    intake.delivers(20).await;
}

#[tokio::test]
async fn a_consumer_without_acknowledgments_is_not_used() {
    let Some(nats) = Nats::start().await else {
        return;
    };
    let jetstream = stream(&nats).await;
    let stream = jetstream.get_stream(STREAM).await.unwrap();
    stream.delete_consumer(CONSUMER).await.unwrap();
    let config = pull::Config {
        durable_name: Some(CONSUMER.to_owned()),
        ack_policy: AckPolicy::None,
        ..pull::Config::default()
    };
    stream.create_consumer(config).await.unwrap();
    let intake = Intake::of(&from(&nats)).await;
    intake.unavailable("ack policy is not explicit").await;
}

#[tokio::test]
async fn a_wrong_password_is_reported_without_it() {
    let Some(nats) = Nats::builder().user("lisa", "right-1").start().await else {
        return;
    };
    let url = format!("nats://lisa:secret-7@127.0.0.1:{}", nats.port());
    let from = format!(r#"{{ type = "nats", url = "{url}", stream = "{STREAM}" }}"#);
    let intake = Intake::of(&from).await;
    intake.unavailable("authorization violation").await;
    let log = intake.producer.process.stderr();
    assert!(!log.contains("secret-7"), "{log}");
}

#[tokio::test]
async fn a_shutdown_acknowledges_what_it_took() {
    let Some(nats) = Nats::start().await else {
        return;
    };
    let jetstream = stream(&nats).await;
    publish_ids(&jetstream, ids(5000)).await;
    let mut intake = Intake::of(&from(&nats)).await;
    intake.takes("accepted", 300).await;
    intake.producer.stop().await;
    intake.producer = intake.here.producer().await;
    intake.takes("accepted", 1).await;
    let (start, before) = (Instant::now(), intake.counted("accepted").await);
    is_done(&nats).await;
    intake.rate(intake.counted("accepted").await - before, start);
    intake.delivers(5000).await;
}
