//! Clusters that speak the protocol of Kafka over TCP, inside this process: the mock cluster of librdkafka. No Debian
//! package carries a real server.

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::message::OwnedMessage;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, DefaultProducerContext, Producer};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
use std::time::{Duration, Instant};

/// The longest wait for an answer: generous, since CI machines are small and busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster that exists until it is dropped; any process of this machine may connect to it.
///
/// A partition keeps its newest 100,000 messages or 5 MiB only, and a broker that is down keeps its partitions: no other
/// one becomes their leader.
#[expect(missing_debug_implementations, reason = "a producer has none")]
pub struct Kafka {
    /// The cluster belongs to a client, which uses it for nothing else.
    owner: BaseProducer,
    brokers: i32,
}

impl Kafka {
    /// Starts a cluster with this number of brokers, with ids from 1.
    ///
    /// # Panics
    /// Panics if it does not start.
    pub fn start(brokers: i32) -> Self {
        let owner = ClientConfig::new()
            .set("test.mock.num.brokers", brokers.to_string())
            .create()
            .unwrap_or_else(|error| panic!("the cluster did not start: {error}"));
        Self { owner, brokers }
    }

    /// The addresses of its brokers, as `bootstrap.servers` takes them: `127.0.0.1:PORT,127.0.0.1:PORT`.
    pub fn addresses(&self) -> String {
        self.cluster().bootstrap_servers()
    }

    /// Returns the settings of a client of this cluster.
    pub fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.addresses());
        config
    }

    /// Makes a topic with this number of partitions, each on all brokers, at most three. The cluster also makes a topic
    /// that a client asks for, with four partitions.
    pub fn create_topic(&self, name: &str, partitions: i32) {
        let replicas = self.brokers.min(3);
        let made = self.cluster().create_topic(name, partitions, replicas);
        done("create a topic", made);
    }

    /// Takes a broker away: ends its connections and refuses others.
    pub fn down(&self, broker: i32) {
        done("take a broker down", self.cluster().broker_down(broker));
    }

    /// Brings a broker back.
    pub fn up(&self, broker: i32) {
        done("bring a broker up", self.cluster().broker_up(broker));
    }

    /// Takes all brokers away.
    pub fn all_down(&self) {
        self.down(-1);
    }

    /// Brings all brokers back.
    pub fn all_up(&self) {
        self.up(-1);
    }

    /// Answers the next requests of a kind with these errors, one each.
    pub fn request_errors(&self, kind: RDKafkaApiKey, errors: &[RDKafkaRespErr]) {
        self.cluster().request_errors(kind, errors);
    }

    /// Answers metadata requests for a topic with this error.
    pub fn topic_error(&self, topic: &str, error: RDKafkaRespErr) {
        let set = self.cluster().topic_error(topic, error);
        done("set the error of a topic", set);
    }

    /// Delays each answer of all brokers.
    pub fn delay(&self, delay: Duration) {
        let set = self.cluster().broker_round_trip_time(-1, delay);
        done("delay the brokers", set);
    }

    /// Returns all messages of a topic, partition by partition, in their order.
    ///
    /// # Panics
    /// Panics if the cluster does not answer.
    pub async fn read_all(&self, topic: &str) -> Vec<OwnedMessage> {
        let (config, topic) = (self.client(), topic.to_owned());
        let read = tokio::task::spawn_blocking(move || read_all(&config, &topic));
        let read = read.await.expect("the reader does not panic");
        read.unwrap_or_else(|error| panic!("the topic cannot be read: {error}"))
    }

    fn cluster(&self) -> MockCluster<'_, DefaultProducerContext> {
        let cluster = self.owner.client().mock_cluster();
        cluster.expect("its owner was made with it")
    }
}

fn done(what: &str, result: KafkaResult<()>) {
    result.unwrap_or_else(|error| panic!("could not {what}: {error}"));
}

/// Reads each partition from its beginning to the end that it has now.
fn read_all(config: &ClientConfig, topic: &str) -> KafkaResult<Vec<OwnedMessage>> {
    let mut config = config.clone();
    let consumer: BaseConsumer = config.set("group.id", "reader").create()?;
    let metadata = consumer.fetch_metadata(Some(topic), PATIENCE)?;
    let partitions = metadata.topics()[0].partitions().len();
    let mut all = Vec::new();
    for partition in 0..i32::try_from(partitions).unwrap_or(i32::MAX) {
        let (low, high) = consumer.fetch_watermarks(topic, partition, PATIENCE)?;
        let mut from = TopicPartitionList::new();
        from.add_partition_offset(topic, partition, Offset::Offset(low))?;
        consumer.assign(&from)?;
        let mut next = low;
        let deadline = Instant::now() + PATIENCE;
        while next < high {
            assert!(
                Instant::now() < deadline,
                "partition {partition} of {topic} ended at {next} of {high}"
            );
            // A poll may return early without a message.
            let Some(message) = consumer.poll(Duration::from_secs(1)) else {
                continue;
            };
            let message = message?;
            next = message.offset() + 1;
            all.push(message.detach());
        }
    }
    Ok(all)
}
