//! NATS with JetStream: a stream on disk.

use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Config;
use bytes::Bytes;
use lisa_consumer::Handler;
use lisa_consumer::sinks::NatsSink;
use lisa_service::brokers::amqp::DEFAULT_CONNECT_TIMEOUT;
use lisa_service::brokers::nats::{DEFAULT_ACK_TIMEOUT, NatsConnection, NatsSinkSettings};
use lisa_service::targets::{Away, TargetSettings};
use lisa_service::template::Template;
use lisa_tests::Nats as Server;

use super::{DUE_AT, SIZE, Target};
use crate::lisa::{TOPIC, payload};

const STREAM: &str = "due";

pub(super) struct Nats {
    server: Server,
    jetstream: Context,
    payload: Bytes,
}

/// Starts a server and makes the stream; `None` where it cannot be fetched.
pub(super) async fn start() -> Option<Nats> {
    let server = Server::start().await?;
    let jetstream = server.jetstream().await;
    let config = Config {
        name: STREAM.to_owned(),
        subjects: vec!["due.>".to_owned()],
        ..Config::default()
    };
    jetstream.create_stream(config).await.expect("a stream");
    Some(Nats {
        server,
        jetstream,
        payload: payload(SIZE).into(),
    })
}

impl Target for Nats {
    const SINK: &str = "nats";

    async fn clear(&self) {
        let stream = self.jetstream.get_stream(STREAM).await.expect("a stream");
        stream.purge().await.expect("an empty stream");
    }

    async fn stored(&self) -> u64 {
        let mut stream = self.jetstream.get_stream(STREAM).await.expect("a stream");
        stream.info().await.expect("a stream").state.messages
    }

    async fn publish(&self, id: String) {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("lisa-id", &*id),
            ("lisa-topic", TOPIC),
            ("lisa-group", "default"),
            ("lisa-attempt", "1"),
            ("lisa-due-at", DUE_AT),
        ] {
            headers.insert(name, value);
        }
        headers.insert(NATS_MESSAGE_ID, format!("{TOPIC}:default:{id}"));
        let sent = self
            .jetstream
            .publish_with_headers("due.bench", headers, self.payload.clone());
        let stored = sent.await.expect("sent").await.expect("an acknowledgment");
        assert!(!stored.duplicate, "{id}");
    }

    fn sink(&self) -> impl Handler {
        NatsSink::new(NatsSinkSettings {
            connection: NatsConnection {
                urls: vec![self.server.url().into()],
                token: None,
                creds_file: None,
                ca_file: None,
                connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            },
            subject: Template::parse("due.{topic}", &["topic"]).expect("a template"),
            ack_timeout: DEFAULT_ACK_TIMEOUT,
            target: TargetSettings::new(Away::Defer),
        })
    }
}
