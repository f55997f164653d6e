//! The cost of a panic: the loop or the part of a job that panicked, and no other topic or shard.
//!
//! The fault is planted in the log: this thread's subscriber panics when a chosen topic logs a chosen message.

use super::{Running, SOON, config, send, wait_for};
use lisa_consumer::{Consumer, Context, delivery_fn};
use lisa_core::message::{MessageId, PreparedMessage};
use lisa_core::state::State;
use lisa_tests::{Server, eventually};
use redis::cmd;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Metadata, Subscriber};

/// Panics in code that logs `message` with a field whose value is `value`.
struct Fault {
    message: &'static str,
    value: &'static str,
}

impl Fault {
    fn plant(self) -> DefaultGuard {
        tracing::subscriber::set_default(self)
    }
}

/// The fields that an event had, of the two that are looked for.
struct Seen<'a>(&'a Fault, bool, bool);

impl Visit for Seen<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.1 |= text.starts_with(self.0.message);
        } else {
            self.2 |= text.trim_matches('"') == self.0.value;
        }
    }
}

impl Subscriber for Fault {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut seen = Seen(self, false, false);
        event.record(&mut seen);
        assert!(!(seen.1 && seen.2), "a planted fault");
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

async fn spoil(server: &Server, key: &str) {
    let mut connection = server.connection().await;
    let () = cmd("DEL")
        .arg(key)
        .query_async(&mut connection)
        .await
        .unwrap();
    let mut set = cmd("SET");
    let set = set.arg(key).arg("x").query_async(&mut connection);
    let () = set.await.unwrap();
}

/// Waits until `/healthz` would name this part, and checks that no task is red.
async fn fails_alone(running: &Running, part: &str) {
    let health = running.runtime.supervisor.health();
    eventually(SOON, async || {
        let tasks = health.tasks();
        let mut failing = tasks.iter().flat_map(|task| &task.failing);
        match failing.any(|failing| failing.name == part && failing.failures > 1) {
            true => Ok(()),
            false => Err(format!("{tasks:#?}")),
        }
    })
    .await;
    assert!(
        health.is_green() && health.is_degraded(),
        "{:#?}",
        health.tasks()
    );
}

fn count(running: &Running, line: &str) -> u64 {
    let text = running.runtime.metrics.encode();
    let mut lines = text.lines().filter_map(|there| there.strip_prefix(line));
    lines
        .next()
        .map_or(0, |count| count.trim().parse().unwrap())
}

#[tokio::test]
async fn a_mover_loop_that_panics_is_restarted_alone_and_other_topics_are_moved() {
    let server = Server::start();
    let keys = [
        ("topics.sick.lease", "30s"),
        ("topics.well.lease", "30s"),
        // Only the loops run.
        ("manager.jobs.sweep", "0 0 0 1 1 *"),
    ];
    let _fault = Fault {
        message: "cannot move",
        value: "sick",
    }
    .plant();
    let running = Running::start(&config(&server, "mover", &keys)).await;
    running.holds(2).await;
    spoil(&server, "mover:v1:{sick:0}:waiting").await;
    fails_alone(&running, "mover sick:0").await;
    let well = running.topic("well").await;
    for delay in [0, 50, 300] {
        send(
            running.broker(),
            &well,
            PreparedMessage {
                when: lisa_tests::relay::ms(delay).into(),
                ..PreparedMessage::new("x")
            },
        )
        .await;
    }
    wait_for(running.broker(), &well, State::Ready, 3, SOON).await;
    assert!(count(&running, r#"lisa_panics_total{task="mover"}"#) > 1);

    // Repaired, it is served as soon as its loop is restarted.
    let mut connection = server.connection().await;
    let mut del = cmd("DEL");
    let del = del.arg("mover:v1:{sick:0}:waiting");
    let () = del.query_async(&mut connection).await.unwrap();
    let sick = running.topic("sick").await;
    let message = PreparedMessage {
        when: lisa_tests::relay::ms(50).into(),
        ..PreparedMessage::new("x")
    };
    send(running.broker(), &sick, message).await;
    wait_for(running.broker(), &sick, State::Ready, 1, SOON).await;
}

#[tokio::test]
async fn a_worker_that_panics_is_restarted_alone_and_other_shards_are_read() {
    let server = Server::start();
    let keys = [("topics.t.shards", "2")];
    let _fault = Fault {
        message: "cannot read",
        value: "0",
    }
    .plant();
    let running = Running::start(&config(&server, "feed", &keys)).await;
    running.holds(2).await;
    spoil(&server, "feed:v1:{t:0}:ready:default").await;
    let handled: Arc<Mutex<Vec<MessageId>>> = Arc::default();
    let ids = handled.clone();
    let handler = delivery_fn(move |delivery, _: Context| {
        ids.lock().unwrap().push(delivery.id.clone());
        async {}
    });
    let consumer = Consumer::builder(running.broker().clone()).topic("t", handler);
    let consumer = consumer.build().unwrap();
    consumer.start(&running.runtime.supervisor, &running.runtime.shutdown);
    fails_alone(&running, "worker t:0/default").await;
    let topic = running.topic("t").await;
    let mut sent = Vec::new();
    while sent.len() < 5 {
        let message = PreparedMessage::new("x");
        if topic.shard_of(&message.id).get() == 1 {
            sent.push(send(running.broker(), &topic, message).await);
        }
    }
    sent.sort_unstable();
    eventually(SOON, async || {
        let mut handled = handled.lock().unwrap().clone();
        handled.sort_unstable();
        if handled == sent {
            Ok(())
        } else {
            Err(format!("{handled:?} of {sent:?}"))
        }
    })
    .await;
    assert!(count(&running, r#"lisa_panics_total{task="worker"}"#) > 1);
}

#[tokio::test]
async fn a_job_that_panics_on_one_topic_serves_the_others_and_names_it() {
    let server = Server::start();
    let keys = [
        ("topics.sick.lease", "30s"),
        ("topics.well.lease", "30s"),
        // Only when the test says so.
        ("manager.jobs.statistics", "0 0 0 1 1 *"),
    ];
    let _fault = Fault {
        message: "messages are unaccounted for",
        value: "sick",
    }
    .plant();
    let running = Running::start(&config(&server, "job", &keys)).await;
    running.holds(2).await;
    let mut connection = server.connection().await;
    let mut spoil = cmd("HINCRBY");
    let spoil = spoil.arg("job:v1:{sick:0}:stats").arg("accepted").arg(5);
    let () = spoil.query_async(&mut connection).await.unwrap();
    let schedule = running.manager.schedule();
    let run = schedule.run_now("statistics").await.unwrap();
    let error = run.error.unwrap_or_default();
    assert!(
        error.starts_with("topic sick: panicked: a planted fault"),
        "{error}"
    );
    assert_eq!(
        count(&running, r#"lisa_panics_total{task="statistics"}"#),
        1
    );
    let text = running.runtime.metrics.encode();
    assert!(
        text.contains(r#"lisa_topic_stored{topic="well"} 0"#),
        "{text}"
    );
}
