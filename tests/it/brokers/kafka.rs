//! The `kafka` sink on the mock cluster of librdkafka, which speaks the real protocol.

use super::{RETRY, Scene, all_received, ids};
use crate::scenarios::Deployment;
use crate::scenarios::deployment::TOPIC;
use lisa_tests::Kafka;
use rdkafka::Message;
use rdkafka::message::{Headers, OwnedMessage};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

fn sink(kafka: &Kafka, keys: &str) -> String {
    let brokers: Vec<String> = kafka.addresses().split(',').map(str::to_owned).collect();
    format!(r#"{{ type = "kafka", brokers = {brokers:?}, topic = "out"{keys} }}"#)
}

fn header(message: &OwnedMessage, name: &str) -> String {
    let headers = message.headers().expect("headers");
    let value = headers
        .iter()
        .find(|header| header.key == name)
        .and_then(|header| header.value);
    String::from_utf8(value.unwrap_or_default().to_vec()).unwrap()
}

async fn stored(kafka: &Kafka) -> Vec<String> {
    kafka
        .read_all("out")
        .await
        .iter()
        .map(|message| header(message, "lisa-id"))
        .collect()
}

#[tokio::test]
async fn a_record_carries_the_payload_headers_and_metadata() {
    let kafka = Kafka::start(1);
    kafka.create_topic("out", 3);
    let scene = Scene::start(&sink(&kafka, r#", key = "{header:customer}""#)).await;
    let options = [
        ("Lisa-Id", "order-7"),
        ("Lisa-Header-Customer", "7"),
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
    ];
    scene
        .relay
        .api
        .send(TOPIC, "seven", &options)
        .await
        .expect(202);
    scene.no_attempt_lost(1).await;
    let read = kafka.read_all("out").await;
    assert_eq!((read.len(), read[0].payload()), (1, Some(&b"seven"[..])));
    assert_eq!(read[0].key(), Some(&b"7"[..]));
    for (name, value) in [
        ("lisa-id", "order-7"),
        ("lisa-topic", "orders"),
        ("lisa-attempt", "1"),
        ("customer", "7"),
    ] {
        assert_eq!(header(&read[0], name), value, "{name}");
    }
    assert!(header(&read[0], "traceparent").starts_with("00-0af7"));
}

#[tokio::test]
async fn a_broker_that_fails_in_the_middle_loses_nothing() {
    let kafka = Kafka::start(3);
    kafka.create_topic("out", 12);
    let scene = Scene::start(&sink(&kafka, "")).await;
    scene.send(ids(5000)).await;
    scene.acked(500).await;
    kafka.down(2);
    scene.acked(1000).await;
    kafka.up(2);
    scene.nothing_lost(5000).await;
    all_received(ids(5000), &stored(&kafka).await);
}

#[tokio::test]
async fn a_cluster_that_is_unavailable_costs_no_attempt() {
    let kafka = Kafka::start(3);
    kafka.create_topic("out", 4);
    let scene = Scene::start(&sink(&kafka, r#", delivery_timeout = "3s""#)).await;
    scene.send(ids(1000)).await;
    scene.acked(100).await;
    kafka.all_down();
    scene.send((1000..1500).map(|n| format!("m-{n}"))).await;
    scene.unavailable("no broker was connected").await;
    kafka.all_up();
    scene.no_attempt_lost(1500).await;
    all_received(ids(1500), &stored(&kafka).await);
}

#[tokio::test]
async fn a_cluster_that_was_never_there_costs_no_attempt() {
    let address = format!("127.0.0.1:{}", lisa_tests::free_port());
    let sink = format!(r#"{{ type = "kafka", brokers = ["{address}"], delivery_timeout = "1s" }}"#);
    let scene = Scene::start(&sink).await;
    scene.send(ids(20)).await;
    scene.unavailable("no broker was connected").await;
    scene.no_attempt().await;
    scene.here.conserved().await;
}

#[tokio::test]
async fn a_partition_without_a_leader_costs_attempts_and_loses_nothing() {
    let kafka = Kafka::start(1);
    kafka.create_topic("out", 1);
    kafka.topic_error(
        "out",
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE,
    );
    let scene = Scene::start(&sink(&kafka, r#", delivery_timeout = "2s""#)).await;
    scene.send(ids(20)).await;
    scene.retried().await;
    kafka.topic_error("out", RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR);
    scene.nothing_lost(20).await;
    all_received(ids(20), &stored(&kafka).await);
}

#[tokio::test]
async fn a_refused_record_ends_in_garbage() {
    let kafka = Kafka::start(1);
    kafka.create_topic("out", 1);
    let too_large = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    kafka.request_errors(RDKafkaApiKey::Produce, &[too_large]);
    let scene = Scene::with(&format!("max_attempts = 3\n{RETRY}"), &sink(&kafka, "")).await;
    scene.send(["large".to_owned()]).await;
    let stats = scene.in_garbage(1).await;
    assert_eq!(Deployment::counter(&stats, "retried"), 0, "{stats:#}");
    scene.send(ids(10)).await;
    scene.acked(10).await;
    all_received(ids(10), &stored(&kafka).await);
    scene.here.conserved().await;
}

#[tokio::test]
async fn a_producer_that_has_failed_for_good_is_replaced() {
    let kafka = Kafka::start(1);
    kafka.create_topic("out", 1);
    let scene = Scene::start(&sink(&kafka, "")).await;
    let out_of_order = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
    kafka.request_errors(RDKafkaApiKey::Produce, &[out_of_order]);
    scene.send(ids(500)).await;
    scene.nothing_lost(500).await;
    all_received(ids(500), &stored(&kafka).await);
}
