//! Large payloads over a slow network: fetched by bytes, while leases are renewed and other messages are handled.

use super::*;
use lisa_core::broker::Broker;
use lisa_core::redis::{Connection, ConnectionSettings};
use lisa_core::topic::Size;
use lisa_tests::{FaultProxy, Mode};

/// The bytes per second that the slow network passes, and the response timeout of its client. One payload of [`LARGE`]
/// takes a quarter of that time, and one read of several takes many times as much.
const RATE: u32 = 2 * 1024 * 1024;
const TIMEOUT: Duration = Duration::from_secs(1);
const LARGE: usize = 512 * 1024;

/// A topic, and a broker for the same namespace that reaches Redis over a slow network.
struct Slow {
    relay: Relay,
    proxy: FaultProxy,
    broker: Broker,
    _server: Server,
}

impl Slow {
    async fn start() -> Self {
        let server = Server::start();
        let settings = TopicSettings {
            max_payload: Size::new(8 * 1024 * 1024),
            lease: Duration::from_secs(2),
            ..settings()
        };
        let relay = Relay::on(
            &server,
            &relay::connection(&server).await,
            "large",
            settings,
        )
        .await;
        relay.broker().set_virtual_now(UnixMs::new(0));
        let proxy = FaultProxy::start(server.port()).await;
        let connection = ConnectionSettings {
            response_timeout: TIMEOUT,
            ..ConnectionSettings::new(server.url_through(&proxy).parse().unwrap())
        };
        let connection = Connection::new(connection, &CancellationToken::new()).unwrap();
        let namespace = relay.broker().namespace().clone();
        Self {
            broker: Broker::new(connection, namespace, SOON, None),
            relay,
            proxy,
            _server: server,
        }
    }

    async fn send(&self, id: &str, size: usize) {
        let mut sent = message(id, When::NOW);
        sent.record.payload = vec![b'x'; size].into();
        self.relay.send(&[sent]).await;
    }

    async fn consume(&self, handler: impl lisa_consumer::Handler) -> Running {
        self.proxy.set(Mode::Rate(RATE)).await;
        let consumer = Consumer::builder(self.broker.clone()).topic("t", handler);
        Running::start(consumer.concurrency(64).build().unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_payloads_pass_a_slow_network_part_by_part_and_keep_their_leases() {
    const COUNT: usize = 20;
    let slow = Slow::start().await;
    for number in 0..COUNT {
        slow.send(&format!("m{number}"), LARGE).await;
    }
    let running = slow
        .consume(delivery_fn(|delivery: Delivery, _| async move {
            assert_eq!(delivery.payload.len(), LARGE);
        }))
        .await;
    eventually(SOON, async || {
        // A message that waits for its payload is not reclaimed.
        let taken = slow.relay.reclaim().await;
        assert_eq!((taken.retry, taken.garbage), (0, 0));
        match running.consumer.report() {
            report if report.acked == COUNT as u64 => Ok(()),
            report => Err(format!("{report:?}")),
        }
    })
    .await;
    let report = running.stop().await;
    assert_eq!((report.acked, report.stale), (COUNT as u64, 0), "each once");
    slow.relay.assert_drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_does_not_come_even_alone_is_put_off_uncounted_and_the_others_go_on() {
    unless_held_up(TIMEOUT / 4, put_off_a_payload).await;
}

async fn put_off_a_payload() {
    let slow = Slow::start().await;
    let sizes = [10, 4 * 1024 * 1024, 10, LARGE, 10];
    for (number, size) in sizes.into_iter().enumerate() {
        slow.send(&format!("m{number}"), size).await;
    }
    let running = slow.consume(delivery_fn(|_, _| async {})).await;
    running
        .until(|report| (report.acked, report.deferred) == (4, 1))
        .await;
    let retry = slow.relay.zset("retry:default").await;
    let soon = slow.relay.broker().now().get() + 30_000;
    assert!(retry["m1"] > soon, "{retry:?}");
    // As is another of its size.
    slow.send("m5", 4 * 1024 * 1024).await;
    running.until(|report| report.deferred == 2).await;
    running.stop().await;
    // A faster network carries both for the next process.
    slow.proxy.set(Mode::Pass).await;
    let topic = slow.relay.topic();
    for id in ["m1", "m5"] {
        let broker = slow.relay.broker();
        let id = relay::id(id);
        let changed = broker.reschedule(topic, &id, None, When::NOW);
        changed.await.unwrap();
    }
    slow.relay.move_due(10).await;
    let consumer = Consumer::builder(slow.broker.clone()).topic("t", delivery_fn(|_, _| async {}));
    let running = Running::start(consumer.build().unwrap());
    running.until(|report| report.acked == 2).await;
    running.stop().await;
    slow.relay.assert_drained().await;
}
