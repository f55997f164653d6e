//! The `kafka` source on the mock cluster of librdkafka, which speaks the real protocol.

use super::{Intake, config};
use crate::brokers::ids;
use crate::scenarios::targets::shows;
use lisa_tests::Kafka;
use rdkafka::Message;
use rdkafka::message::{Header, Headers, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use std::time::Instant;

const FROM: &str = "in";

fn from(kafka: &Kafka, keys: &str) -> String {
    let brokers: Vec<String> = kafka.addresses().split(',').map(str::to_owned).collect();
    format!(
        r#"{{ type = "kafka", brokers = {brokers:?}, topic = "{FROM}", prefetch = 100{keys} }}"#
    )
}

/// Publishes messages to the topic, each with its headers.
async fn publish(kafka: &Kafka, messages: impl IntoIterator<Item = (Vec<(&str, &str)>, String)>) {
    let producer: FutureProducer = kafka.client().create().unwrap();
    let mut sent = Vec::new();
    for (headers, payload) in messages {
        let headers = headers
            .iter()
            .fold(OwnedHeaders::new(), |all, (key, value)| {
                all.insert(Header {
                    key,
                    value: Some(*value),
                })
            });
        let record = FutureRecord::to(FROM)
            .key(&payload)
            .payload(&payload)
            .headers(headers);
        sent.push(producer.send_result(record).map_err(|(e, _)| e).unwrap());
    }
    for sent in sent {
        sent.await.unwrap().map_err(|(error, _)| error).unwrap();
    }
}

async fn publish_ids(kafka: &Kafka, ids: impl Iterator<Item = String>) {
    publish(kafka, ids.map(|id| (Vec::new(), id))).await;
}

#[tokio::test]
async fn a_message_has_its_due_time_options_and_headers() {
    let kafka = Kafka::start(1);
    kafka.create_topic(FROM, 1);
    let before = jiff::Timestamp::now().as_millisecond();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let full = vec![
        ("lisa-id", "order-7"),
        ("x-delay", "3600000"),
        ("Lisa-Key", "customer-7"),
        ("Region", "emea"),
        ("traceparent", trace),
    ];
    let plain = vec![("Lisa-Delay", "1h")];
    publish(&kafka, [(full, "a".to_owned()), (plain, "b".to_owned())]).await;
    let intake = Intake::of(&from(&kafka, "")).await;
    let full = intake.message("order-7").await;
    let due: jiff::Timestamp = full["due_at"].as_str().unwrap().parse().unwrap();
    let now = jiff::Timestamp::now().as_millisecond();
    let delay = due.as_millisecond() - 3_600_000;
    assert!((before..=now).contains(&delay), "{full:#}");
    assert_eq!(full["key"], "customer-7", "{full:#}");
    assert_eq!(full["headers"]["region"], "emea", "{full:#}");
    assert_eq!(full["headers"]["traceparent"], trace, "{full:#}");
    intake.takes("accepted", 2).await;
    let read = kafka.read_all(FROM).await;
    let id = format!(
        "in:in-0-{}-{}",
        read[1].offset(),
        read[1].timestamp().to_millis().unwrap()
    );
    intake.message(&id).await;
}

#[tokio::test]
async fn a_producer_killed_in_the_middle_loses_nothing_and_stores_nothing_twice() {
    let kafka = Kafka::start(3);
    kafka.create_topic(FROM, 4);
    publish_ids(&kafka, ids(3000)).await;
    // A killed member of the group is missed after this time.
    let keys = r#", client = { "session.timeout.ms" = "6000" }"#;
    let mut intake = Intake::of(&from(&kafka, keys)).await;
    intake.takes("accepted", 200).await;
    intake.kill_producer().await;
    let consumer = intake.consumer().await;
    intake.delivered(3000).await;
    println!("{} duplicates", intake.counted("duplicate").await);
    drop(consumer);
}

#[tokio::test]
async fn a_shutdown_commits_what_lisa_has() {
    let kafka = Kafka::start(1);
    kafka.create_topic(FROM, 2);
    publish_ids(&kafka, ids(2000)).await;
    let mut intake = Intake::of(&from(&kafka, "")).await;
    intake.takes("accepted", 1).await;
    let start = Instant::now();
    intake.takes("accepted", 2000).await;
    intake.rate(2000, start);
    intake.producer.stop().await;
    publish_ids(&kafka, (2000..2100).map(|n| format!("m-{n}"))).await;
    intake.producer = intake.here.producer().await;
    intake.takes("accepted", 100).await;
    assert_eq!(intake.counted("duplicate").await, 0, "committed before");
    intake.delivers(2100).await;
}

#[tokio::test]
async fn brokers_that_are_unavailable_are_reported_and_nothing_is_lost() {
    let kafka = Kafka::start(2);
    kafka.create_topic(FROM, 2);
    publish_ids(&kafka, ids(1000)).await;
    let intake = Intake::of(&from(&kafka, "")).await;
    intake.takes("accepted", 100).await;
    kafka.all_down();
    intake.unavailable("no broker is connected").await;
    kafka.all_up();
    publish_ids(&kafka, (1000..1500).map(|n| format!("m-{n}"))).await;
    intake.takes("accepted", 1500).await;
    shows(&intake.producer, "lisa_source_up", 1).await;
    intake.delivers(1500).await;
}

fn with_a_bad_one() -> impl Iterator<Item = (Vec<(&'static str, &'static str)>, String)> {
    (0..50).map(|n| match n {
        25 => (vec![("Lisa-Delay", "soon")], "bad".to_owned()),
        n => (Vec::new(), format!("good {n}")),
    })
}

#[tokio::test]
async fn the_source_stops_at_a_refused_message_until_the_settings_say_otherwise() {
    let kafka = Kafka::start(1);
    kafka.create_topic(FROM, 1);
    publish(&kafka, with_a_bad_one()).await;
    let mut intake = Intake::of(&from(&kafka, "")).await;
    intake.unavailable("blocked at in:0:25: Lisa-Delay").await;
    intake.producer.stop().await;
    let tables = config(&from(&kafka, ", skip_refused = true"), "");
    intake.here = intake.here.with(&tables);
    intake.producer = intake.here.producer().await;
    intake.takes("refused", 1).await;
    intake.delivers(49).await;
}

#[tokio::test]
async fn a_refused_message_is_published_as_a_dead_letter() {
    let kafka = Kafka::start(1);
    kafka.create_topic(FROM, 1);
    kafka.create_topic("dead", 1);
    publish(&kafka, with_a_bad_one()).await;
    let intake = Intake::of(&from(&kafka, r#", dead_letter_topic = "dead""#)).await;
    intake.delivers(49).await;
    let dead = kafka.read_all("dead").await;
    assert_eq!((dead.len(), dead[0].payload()), (1, Some(&b"bad"[..])));
    assert_eq!(dead[0].key(), Some(&b"bad"[..]));
    let headers = dead[0].headers().unwrap();
    let value = |key: &str| {
        let found = headers.iter().find(|header| header.key == key);
        String::from_utf8(found.unwrap().value.unwrap().to_vec()).unwrap()
    };
    assert_eq!(value("Lisa-Delay"), "soon");
    assert!(value("lisa-refused").contains("Lisa-Delay"));
}

#[tokio::test]
async fn a_full_topic_stops_the_source_and_loses_nothing() {
    let kafka = Kafka::start(1);
    kafka.create_topic(FROM, 2);
    publish_ids(&kafka, ids(1000)).await;
    let intake = Intake::start(&from(&kafka, ""), "", "max_messages = 300").await;
    intake.warns("max_messages").await;
    // The warning may come before the last of them are counted.
    intake.takes("accepted", 300).await;
    assert_eq!(intake.counted("accepted").await, 300);
    intake.delivers(1000).await;
}

#[tokio::test]
async fn a_cluster_that_was_never_there_is_reported_and_the_process_stops_in_time() {
    let address = format!("127.0.0.1:{}", lisa_tests::free_port());
    let from = format!(r#"{{ type = "kafka", brokers = ["{address}"], topic = "{FROM}" }}"#);
    let mut intake = Intake::of(&from).await;
    intake.unavailable("no broker is connected").await;
    intake.producer.stop().await;
}
