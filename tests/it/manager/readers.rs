//! Routes that only read: few round trips, a deadline, and no doubtful answer.

use super::{SOON, read};
use futures_util::future::join_all;
use lisa_core::broker::Broker;
use lisa_tests::relay::{self, ms};
use lisa_tests::{Api, Binary, FaultProxy, Mode, Process, Server, eventually, free_port};
use std::time::Duration;

/// A number at which one round trip after the other takes longer than a read may.
const MANY: usize = 40;
const PAUSE: Duration = Duration::from_millis(50);

/// Starts a manager that is a producer, too, on `MANY` topics; `t0` is the first one.
async fn manager(url: &str) -> (Process, Api) {
    let port = free_port();
    let topics: String = (0..MANY).map(|n| format!("[topics.t{n}]\n")).collect();
    let config = format!(
        "namespace = \"readers\"\nredis.url = \"{url}\"\nmanager.listen = \"127.0.0.1:{port}\"\n{topics}"
    );
    let arguments = ["run", "--with-producer"];
    let process = Binary::Manager.with(arguments).config(&config).start();
    let api = Api::new(port);
    eventually(SOON, async || match api.try_get("/readyz").await {
        Some(reply) if reply.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    (process, api)
}

#[tokio::test]
async fn a_read_of_many_topics_or_messages_takes_few_round_trips() {
    let server = Server::start();
    let proxy = FaultProxy::start(server.port()).await;
    let (_process, api) = manager(&server.url_through(&proxy)).await;
    let connection = relay::connection(&server).await;
    let broker = Broker::new(connection, "readers".parse().unwrap(), SOON, None);
    let topic = broker.topic(&"t0".parse().unwrap()).await.unwrap();
    let names = (0..MANY).map(|n| format!("m{n}"));
    let batch: Vec<_> = names.map(|name| relay::message(&name, ms(0))).collect();
    let shard = topic.shard_of(&batch[0].id);
    broker.send(&topic, shard, &batch).await.unwrap();
    read(&broker, &topic, MANY).await;

    proxy.set(Mode::Delay(PAUSE)).await;
    for (path, rows) in [
        ("/v1/stats", "topics"),
        ("/v1/workers", "groups"),
        ("/v1/topics/t0/messages?state=in_flight", "messages"),
    ] {
        // A busy machine may need several tries; one round trip after the other fails each time.
        eventually(SOON, async || {
            let reply = api.get(path).await;
            if reply.status != 200 {
                return Err(format!("{path}: {reply:?}"));
            }
            match reply.json()[rows].as_array().map(Vec::len) {
                Some(MANY) => Ok(()),
                _ => Err(format!("{path}: {reply:?}")),
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_read_of_a_frozen_redis_is_unavailable_and_never_indeterminate() {
    let mut server = Server::start();
    let (_process, api) = manager(&server.url()).await;
    let paths = [
        "/v1/stats",
        "/v1/topics",
        "/v1/topics/t0",
        "/v1/topics/t0/messages",
        "/v1/topics/t0/messages?state=in_flight",
        "/v1/topics/t0/messages?state=ready",
        "/v1/topics/t0/messages/nosuch",
        "/v1/workers",
    ];
    server.pause();
    let replies = join_all(paths.map(|path| api.get(path))).await;
    for (path, reply) in paths.iter().zip(replies) {
        assert_eq!(reply.status, 503, "{path}: {reply:?}");
        assert_eq!(reply.json()["code"], "unavailable", "{path}: {reply:?}");
        assert_eq!(reply.header("retry-after"), "1", "{path}");
    }
    server.resume();
    eventually(SOON, async || match api.get(paths[0]).await {
        reply if reply.status == 200 => Ok(()),
        reply => Err(format!("{reply:?}")),
    })
    .await;
}
