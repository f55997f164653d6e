//! The relay that tests of other programs can use.

use lisa_consumer::{Context, Outcome, handler_fn};
use lisa_manager::testing::{START, TestRelay};
use lisa_producer::{RetryPolicy, SendOutcome, State, TopicSettings};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

fn settings() -> TopicSettings {
    TopicSettings {
        shards: 3,
        max_attempts: 3,
        retry: RetryPolicy::Fixed {
            delay: Duration::from_secs(60),
            jitter: 0.0,
        },
        ..TopicSettings::default()
    }
}

#[tokio::test]
async fn a_test_sees_what_was_sent_and_lets_the_time_come() {
    let relay = TestRelay::start().await.expect("a relay");
    relay.topic("t", &settings()).await.expect("declared");
    let producer = relay.producer();
    for (hours, id) in [(2, "b"), (1, "a"), (3, "c")] {
        let sent = producer.send("t", id).id(id).delay(HOUR * hours);
        assert_eq!(sent.await.expect("sent").outcome, SendOutcome::Waiting);
    }
    let sent = relay.sent("t").await.expect("listed");
    let seen: Vec<_> = { sent.iter().map(|m| &m.listed) }
        .map(|listed| (listed.id.as_str(), listed.state))
        .collect();
    assert_eq!(seen, ["a", "b", "c"].map(|id| (id, State::Waiting)));
    assert_eq!(sent[0].listed.due_at, Some(START.plus(HOUR)));
    assert_eq!(sent[0].payload.text(), Some("\"a\""));

    let handled = Arc::new(AtomicU32::new(0));
    let handler = || {
        let handled = handled.clone();
        handler_fn(move |_: String, _: Context| {
            handled.fetch_add(1, Ordering::Relaxed);
            async {}
        })
    };
    relay
        .advance(HOUR - Duration::from_millis(1))
        .await
        .expect("advanced");
    let early = relay.deliver("t", "default", handler()).await.expect("ran");
    assert_eq!(early.acked, 0, "a millisecond too early");
    relay
        .advance(Duration::from_millis(1))
        .await
        .expect("advanced");
    let due = relay.deliver("t", "default", handler()).await.expect("ran");
    assert_eq!((due.acked, handled.load(Ordering::Relaxed)), (1, 1));
    relay.advance(HOUR * 2).await.expect("advanced");
    let rest = relay.deliver("t", "default", handler()).await.expect("ran");
    assert_eq!(rest.acked, 2);
    assert!(relay.sent("t").await.expect("listed").is_empty());
    assert_eq!(
        relay.stats("t").await.expect("counted").conservation_error,
        0
    );
}

#[tokio::test]
async fn retries_come_as_time_goes_on_and_end_in_garbage() {
    let relay = TestRelay::start().await.expect("a relay");
    relay.topic("t", &settings()).await.expect("declared");
    relay
        .producer()
        .send("t", &7)
        .id("seven")
        .await
        .expect("sent");
    let broker = relay.broker();
    let handler = handler_fn(move |_: u32, cx: Context| {
        let (broker, attempt) = (broker.clone(), cx.attempt());
        async move {
            let expected = START.plus(Duration::from_secs(60) * (attempt - 1));
            assert_eq!(broker.now(), expected, "attempt {attempt}");
            Outcome::Retry {
                after: None,
                error: "not yet".into(),
            }
        }
    });
    let report = relay.deliver_for(HOUR, "t", "default", handler).await;
    let report = report.expect("ran");
    assert_eq!((report.retried, report.garbage, report.panicked), (2, 1, 0));
    assert_eq!(relay.now(), START.plus(HOUR));
    let left = relay.sent("t").await.expect("listed");
    let listed = &left[0].listed;
    assert_eq!((listed.state, listed.attempt), (State::Garbage, 3));
    assert_eq!(listed.error.as_deref(), Some("not yet"));
}

#[tokio::test]
async fn a_group_that_the_topic_lacks_is_said_to_be_missing() {
    let relay = TestRelay::start().await.expect("a relay");
    relay.topic("t", &settings()).await.expect("declared");
    let handler = handler_fn(|_: u32, _: Context| async {});
    let error = relay.deliver("t", "other", handler).await;
    let error = error.expect_err("there is no such group").to_string();
    assert!(error.contains("no group other"), "{error}");
}
