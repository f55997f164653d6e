//! Kafka: the mock cluster of librdkafka with one broker, in a process of its own, so that its threads do not count as
//! those of the client.

use std::io::Read;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lisa_consumer::Handler;
use lisa_consumer::sinks::KafkaSink;
use lisa_service::brokers::kafka::{DEFAULT_DELIVERY_TIMEOUT, KafkaConnection, KafkaSinkSettings};
use lisa_service::targets::{Away, TargetSettings};
use lisa_service::template::Template;
use lisa_tests::Kafka as Cluster;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord, Producer};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::{DUE_AT, DUE_AT_MS, SIZE, Target};
use crate::lisa::{TOPIC, payload};

/// The first argument of this program if it is to serve as the cluster.
pub(crate) const SERVE_KAFKA: &str = "--serve-kafka";
const DUE: &str = "due-bench";
const PARTITIONS: i32 = 4;
/// The longest wait for an answer about the topic.
const PATIENCE: Duration = Duration::from_secs(30);

/// Serves as the cluster until stdin ends, and prints its addresses.
pub(crate) fn serve() {
    let cluster = Cluster::start(1);
    cluster.create_topic(DUE, PARTITIONS);
    println!("{}", cluster.addresses());
    // It ends with the process that measures.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

pub(super) struct Kafka {
    /// It ends when this is dropped.
    _cluster: Child,
    addresses: String,
    producer: FutureProducer,
    payload: Vec<u8>,
    /// The number of records when the topic was cleared, since nothing removes them.
    cleared: AtomicU64,
}

pub(super) async fn start() -> Kafka {
    let program = std::env::current_exe().expect("the path of this program");
    let mut cluster = Command::new(program)
        .arg(SERVE_KAFKA)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("this program starts");
    let stdout = cluster.stdout.take().expect("a pipe");
    let line = BufReader::new(stdout).lines().next_line().await;
    let addresses = line.expect("a line").expect("the addresses of the cluster");
    let producer = ClientConfig::new()
        .set("bootstrap.servers", &addresses)
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .create()
        .expect("a producer");
    Kafka {
        _cluster: cluster,
        addresses,
        producer,
        payload: payload(SIZE),
        cleared: AtomicU64::new(0),
    }
}

impl Kafka {
    async fn records(&self) -> u64 {
        let producer = self.producer.clone();
        let ends = tokio::task::spawn_blocking(move || {
            let end = |partition| {
                let marks = producer.client().fetch_watermarks(DUE, partition, PATIENCE);
                u64::try_from(marks.expect("an answer").1).expect("an offset")
            };
            (0..PARTITIONS).map(end).sum()
        });
        ends.await.expect("no panic")
    }
}

impl Target for Kafka {
    const SINK: &str = "kafka";

    async fn clear(&self) {
        self.cleared.store(self.records().await, Ordering::Relaxed);
    }

    async fn stored(&self) -> u64 {
        self.records().await - self.cleared.load(Ordering::Relaxed)
    }

    async fn publish(&self, id: String) {
        let mut headers = OwnedHeaders::new();
        for (key, value) in [
            ("lisa-id", &*id),
            ("lisa-topic", TOPIC),
            ("lisa-group", "default"),
            ("lisa-attempt", "1"),
            ("lisa-due-at", DUE_AT),
        ] {
            let value = Some(value);
            headers = headers.insert(Header { key, value });
        }
        let record = FutureRecord::to(DUE)
            .key(&id)
            .payload(&self.payload)
            .timestamp(DUE_AT_MS.cast_signed())
            .headers(headers);
        let sent = self.producer.send(record, DEFAULT_DELIVERY_TIMEOUT).await;
        sent.expect("a stored record");
    }

    fn sink(&self) -> impl Handler {
        let sink = KafkaSink::new(KafkaSinkSettings {
            connection: KafkaConnection {
                brokers: vec![self.addresses.clone()],
                username: None,
                password: None,
                client: Vec::new(),
            },
            topic: Template::parse("due-{topic}", &["topic"]).expect("a template"),
            key: Template::parse("{id}", &["id"]).expect("a template"),
            delivery_timeout: DEFAULT_DELIVERY_TIMEOUT,
            target: TargetSettings::new(Away::Defer),
        });
        sink.expect("settings that the client allows")
    }
}
