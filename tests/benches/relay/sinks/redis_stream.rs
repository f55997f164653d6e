//! A second Redis, over its unix socket like the first.

use lisa_consumer::Handler;
use lisa_consumer::sinks::RedisStreamSink;
use lisa_core::topic::Namespace;
use lisa_service::brokers::redis_stream::{DEFAULT_TIMEOUT, RedisStreamSinkSettings};
use lisa_service::targets::{Away, TargetSettings};
use lisa_service::template::Template;
use lisa_tests::{Aof, Server};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, cmd};

use super::{DUE_AT, SIZE, Target};
use crate::lab;
use crate::lisa::{TOPIC, payload};

const STREAM: &str = "due:bench";

pub(super) struct RedisStream {
    server: Server,
    connection: MultiplexedConnection,
    payload: Vec<u8>,
}

pub(super) async fn start() -> RedisStream {
    let server = lab::settings(Aof::Off).start();
    RedisStream {
        connection: server.connection().await,
        server,
        payload: payload(SIZE),
    }
}

impl RedisStream {
    async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> T {
        let mut connection = self.connection.clone();
        command.query_async(&mut connection).await.expect("a reply")
    }
}

impl Target for RedisStream {
    const SINK: &str = "redis-stream";

    async fn clear(&self) {
        self.ask(cmd("FLUSHALL").arg("SYNC")).await
    }

    async fn stored(&self) -> u64 {
        self.ask(cmd("XLEN").arg(STREAM)).await
    }

    async fn publish(&self, id: String) {
        let mut command = cmd("XADD");
        command
            .arg(STREAM)
            .arg("*")
            .arg(&[("id", &*id), ("topic", TOPIC), ("group", "default")])
            .arg(&[("attempt", "1"), ("due_at", DUE_AT)])
            .arg(&[("payload", &self.payload)]);
        self.ask::<String>(&command).await;
    }

    fn sink(&self) -> impl Handler {
        let settings = RedisStreamSinkSettings {
            url: self.server.socket_url().parse().expect("a socket"),
            password: None,
            ca_file: None,
            stream: Template::parse("due:{topic}", &["topic"]).expect("a template"),
            max_length: None,
            timeout: DEFAULT_TIMEOUT,
            target: TargetSettings::new(Away::Defer),
        };
        RedisStreamSink::new(settings, Namespace::default())
    }
}
