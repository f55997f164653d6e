//! The producer as a library.

use super::{HOUR, SOON, broker, declare, producer};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use lisa_core::broker::{Broker, Declare};
use lisa_core::message::{MessageId, OrderingKey, PreparedMessage};
use lisa_core::topic::{Shard, Size, TopicSettings};
use lisa_producer::{
    CancelOutcome, End, GetOutcome, MessageRef, NewMessage, Producer, ProducerOptions,
    RescheduleOutcome, RetryPolicy, SendError, SendOutcome, State, UnixMs,
};
use lisa_tests::{FaultProxy, Mode, Server, Stopwatch, eventually};
use std::time::{Duration, Instant};

/// Returns how often a server was asked to run a script by its hash.
async fn script_calls(server: &Server) -> u64 {
    script_stat(server, "calls=").await
}

/// A number in the server's counts of scripts that it runs by their hashes.
async fn script_stat(server: &Server, name: &str) -> u64 {
    let mut info = redis::cmd("INFO");
    info.arg("commandstats");
    let info = info.query_async(&mut server.connection().await).await;
    let info: String = info.expect("statistics");
    let row = info
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
    let mut fields = row.unwrap_or_default().split(',');
    let number = fields.find_map(|field| field.strip_prefix(name)?.parse().ok());
    number.unwrap_or(0)
}

async fn accepted(broker: &Broker) -> i64 {
    let topic = broker.topic(&"t".parse().expect("a topic")).await;
    let stats = broker.stats(&topic.expect("declared")).await;
    let stats = stats.expect("counted");
    assert_eq!(stats.conservation_error, 0);
    stats.counters["accepted"]
}

#[tokio::test]
async fn a_thousand_sends_at_once_take_at_most_twenty_calls() {
    let server = Server::start();
    let broker = broker(&server.socket_url(), "lisa", SOON).await;
    declare(&broker, &TopicSettings::default()).await;
    let producer = Producer::new(broker.clone());
    producer
        .send("t", "warm up: the script is loaded")
        .await
        .unwrap();
    let before = script_calls(&server).await;
    let sends = (0..1000).map(|n| producer.send("t", &n).delay(HOUR).into_future());
    for receipt in join_all(sends).await {
        assert_eq!(receipt.unwrap().outcome, SendOutcome::Waiting);
    }
    let calls = script_calls(&server).await - before;
    assert!((1..=20).contains(&calls), "{calls} calls");
    assert_eq!(accepted(&broker).await, 1001);
}

#[tokio::test]
async fn a_lone_send_waits_for_nobody() {
    let (producer, broker, topic) = producer("lone", TopicSettings::default()).await;
    let (mut alone, mut direct) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        let started = Instant::now();
        producer.send_bytes("t", "x").delay(HOUR).await.unwrap();
        alone.push(started.elapsed());
        let started = Instant::now();
        let message = [PreparedMessage::new("x")];
        broker.send(&topic, Shard::new(0), &message).await.unwrap();
        direct.push(started.elapsed());
    }
    let median = |times: &mut Vec<Duration>| {
        times.sort_unstable();
        times[times.len() / 2]
    };
    let (alone, direct) = (median(&mut alone), median(&mut direct));
    assert!(
        alone < direct * 2 + Duration::from_millis(1),
        "{alone:?} against {direct:?}"
    );
}

#[tokio::test]
async fn an_id_sent_many_times_at_once_is_stored_once() {
    let (producer, broker, _) = producer("same", TopicSettings::default()).await;
    let sends = (0..50).map(|n| producer.send("t", &n).delay(HOUR).id("one").into_future());
    let receipts: Vec<_> = join_all(sends)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let stored = receipts
        .iter()
        .filter(|r| r.outcome == SendOutcome::Waiting)
        .count();
    assert_eq!(stored, 1);
    assert!(
        receipts
            .iter()
            .all(|r| r.id.as_str() == "one" && r.due == receipts[0].due)
    );
    assert_eq!(accepted(&broker).await, 1);
}

#[tokio::test]
async fn a_caller_that_goes_away_does_not_take_its_neighbours_along() {
    let (producer, broker, _) = producer("gone", TopicSettings::default()).await;
    let mut gone = producer.send("t", "gone").id("gone").into_future();
    assert!(futures_util::poll!(&mut gone).is_pending());
    let stays = producer.send("t", "stays").into_future();
    drop(gone);
    stays.await.unwrap();
    producer.flush().await;
    assert_eq!(accepted(&broker).await, 2);
}

#[tokio::test]
async fn each_result_of_a_batch_stands_at_the_place_of_its_message() {
    let settings = TopicSettings {
        shards: 3,
        max_payload: Size::new(10),
        ..TopicSettings::default()
    };
    let (producer, broker, _) = producer("places", settings).await;
    let message = |n: usize| {
        let message = NewMessage::new(format!("{n}"))
            .delay(HOUR)
            .id(format!("m{n}"));
        match n % 13 {
            0 => message.max_attempts(0),
            1 => NewMessage::new("more than ten bytes"),
            2 => message.id("twin"),
            _ => message,
        }
    };
    let results = producer
        .send_batch("t", (0..1300).map(message).collect())
        .await
        .unwrap();
    assert_eq!(results.len(), 1300);
    let mut twins = Vec::new();
    for (n, result) in results.iter().enumerate() {
        match (n % 13, result) {
            (0, Err(SendError::Invalid(invalid))) if invalid.field == "max_attempts" => {}
            (1, Err(SendError::TooLarge { limit: 10, .. })) => {}
            (2, Ok(receipt)) if receipt.id.as_str() == "twin" => twins.push(receipt.outcome),
            (3.., Ok(receipt)) if receipt.id.as_str() == format!("m{n}") => {
                assert_eq!(receipt.outcome, SendOutcome::Waiting);
            }
            wrong => panic!("{n}: {wrong:?}"),
        }
    }
    assert_eq!(twins[0], SendOutcome::Waiting);
    assert!(
        twins[1..]
            .iter()
            .all(|outcome| *outcome == SendOutcome::Duplicate)
    );
    assert_eq!(accepted(&broker).await, 1001);
}

#[tokio::test]
async fn a_topic_that_nobody_declared_is_an_error_unless_it_may_be_made() {
    let server = Server::shared();
    let broker = broker(&server.socket_url(), &server.namespace("unknown"), SOON).await;
    let strict = Producer::new(broker.clone());
    let error = strict.send("t", "x").await.unwrap_err();
    assert!(matches!(&error, SendError::UnknownTopic(topic) if topic.as_str() == "t"));
    assert!(!error.is_retryable());
    assert!(matches!(
        strict.send(".t", "x").await,
        Err(SendError::Invalid(_))
    ));
    let options = ProducerOptions {
        auto_create: Some(TopicSettings::default()),
        ..ProducerOptions::default()
    };
    let lenient = Producer::with_options(broker, options);
    let unseen = lenient.get("t", "x").await;
    assert!(
        matches!(unseen, Err(SendError::UnknownTopic(_))),
        "a look makes no topic"
    );
    lenient.send("t", "x").await.unwrap();
    strict.send("t", "x").await.unwrap();
}

#[tokio::test]
async fn a_topic_that_the_process_declares_soon_is_unavailable_and_not_unknown() {
    let server = Server::shared();
    let broker = broker(&server.socket_url(), &server.namespace("soon"), SOON).await;
    let topic = "t".parse().unwrap();
    broker.expect_topics([&topic]);
    let producer = Producer::new(broker.clone());
    let sent = producer.send("t", "x").await.unwrap_err();
    let seen = producer.get("t", "x").await.unwrap_err();
    for error in [sent, seen] {
        assert!(matches!(&error, SendError::Unavailable(_)), "{error}");
    }
    let other = producer.send("other", "x").await.unwrap_err();
    assert!(matches!(other, SendError::UnknownTopic(_)), "{other}");
    declare(&broker, &TopicSettings::default()).await;
    producer.send("t", "x").await.unwrap();
}

#[tokio::test]
async fn a_message_can_be_seen_rescheduled_and_cancelled() {
    let (producer, _, _) = producer("verbs", TopicSettings::default()).await;
    let receipt = producer
        .send("t", &vec![1, 2])
        .delay(HOUR)
        .max_attempts(3)
        .header("Tenant", "a")
        .await
        .unwrap();
    let seen = producer.get("t", &receipt.id).await.unwrap();
    let GetOutcome::Stored(seen) = seen else {
        panic!("{seen:?}");
    };
    let listed = &seen.listed;
    assert_eq!((listed.state, listed.due_at), (State::Waiting, receipt.due));
    assert_eq!(seen.payload.text(), Some("[1,2]"));
    assert_eq!(seen.headers.get("tenant"), Some("a"));
    assert_eq!(seen.max_attempts, 3);
    let later = receipt.due.unwrap().plus(HOUR);
    let moved = producer.reschedule("t", &receipt.id, later).await.unwrap();
    assert_eq!(moved, RescheduleOutcome::Rescheduled { due: later });
    let far = producer.reschedule("t", &receipt.id, 10_000 * HOUR).await;
    assert!(matches!(far, Err(SendError::Invalid(invalid)) if invalid.field == "due"));
    let cancelled = producer.cancel("t", &receipt.id).await.unwrap();
    let CancelOutcome::Cancelled {
        record: Some(record),
        ..
    } = cancelled
    else {
        panic!("{cancelled:?}");
    };
    assert_eq!(
        (record.headers, record.payload),
        (seen.headers, seen.payload.0)
    );
    let again = producer.cancel("t", &receipt.id).await.unwrap();
    let repeated = CancelOutcome::Cancelled {
        record: None,
        in_garbage: Vec::new(),
    };
    assert_eq!(again, repeated);
    let past = producer.send("t", "x").at(UnixMs::new(1)).await.unwrap();
    assert_eq!(past.outcome, SendOutcome::Ready);
    assert_eq!(
        producer.cancel("t", &past.id).await.unwrap(),
        CancelOutcome::InFlight
    );
}

#[tokio::test]
async fn a_message_keeps_its_own_retry_policy() {
    let (producer, _, _) = producer("policy", TopicSettings::default()).await;
    let policy = RetryPolicy::List {
        delays: vec![Duration::from_secs(5), HOUR],
        jitter: 0.5,
    };
    let send = producer.send("t", "x").delay(HOUR).retry(policy.clone());
    let receipt = send.await.unwrap();
    match producer.get("t", &receipt.id).await.unwrap() {
        GetOutcome::Stored(seen) => assert_eq!(seen.retry, Some(policy)),
        unknown => panic!("{unknown:?}"),
    }
    let endless = RetryPolicy::List {
        delays: vec![],
        jitter: 0.0,
    };
    let error = producer.send("t", "x").retry(endless).await.unwrap_err();
    assert!(
        matches!(&error, SendError::Invalid(invalid) if invalid.field == "retry"),
        "{error}"
    );
}

#[tokio::test]
async fn a_message_that_its_key_put_elsewhere_is_found_with_the_key_and_without() {
    let settings = TopicSettings {
        shards: 8,
        ..TopicSettings::default()
    };
    let (producer, broker, topic) = producer("elsewhere", settings).await;
    let id: MessageId = "order-7".parse().unwrap();
    let key_of = |shard: Shard| {
        let mut keys = (0..).map(|n| format!("customer-{n}").parse::<OrderingKey>().unwrap());
        keys.find(|key| topic.shards_of(&id, Some(key)) == [shard])
            .unwrap()
    };
    let elsewhere = topic.shards().find(|shard| *shard != topic.shard_of(&id));
    let elsewhere = elsewhere.unwrap();
    let (key, wrong) = (key_of(elsewhere), key_of(topic.shard_of(&id)));
    let mut message = PreparedMessage::new("x");
    message.id = id.clone();
    message.when = HOUR.into();
    message.record.caller_id = true;
    broker.send(&topic, elsewhere, &[message]).await.unwrap();

    let (keyed, astray) = (
        MessageRef::new(&id).key(&key),
        MessageRef::new(&id).key(&wrong),
    );
    for found in [keyed.clone(), MessageRef::new(&id)] {
        let seen = producer.get("t", found.clone()).await.unwrap();
        assert!(matches!(seen, GetOutcome::Stored(_)), "{seen:?}");
        let moved = producer.reschedule("t", found, 2 * HOUR).await.unwrap();
        assert!(matches!(moved, RescheduleOutcome::Rescheduled { .. }));
    }
    let unknown = producer.get("t", astray.clone()).await.unwrap();
    assert_eq!(unknown, GetOutcome::Unknown { end: None });
    let unknown = producer.deliver_now("t", astray.clone()).await.unwrap();
    assert_eq!(unknown, RescheduleOutcome::Unknown { end: None });
    let unknown = producer.cancel("t", astray).await.unwrap();
    assert_eq!(unknown, CancelOutcome::Unknown { end: None });
    let bad = producer.cancel("t", MessageRef::new(&id).key("")).await;
    assert!(matches!(bad, Err(SendError::Invalid(invalid)) if invalid.field == "key"));

    let RescheduleOutcome::Rescheduled { due } = producer.deliver_now("t", keyed).await.unwrap()
    else {
        panic!("it is there");
    };
    assert!(due < broker.now().plus(HOUR), "{due}");
    let cancelled = producer.cancel("t", &id).await.unwrap();
    assert!(matches!(cancelled, CancelOutcome::Cancelled { .. }));
    let ended = producer.get("t", &id).await.unwrap();
    let end = Some(End::Cancelled.into());
    assert_eq!(ended, GetOutcome::Unknown { end });
}

#[tokio::test]
async fn sends_that_queue_behind_an_outage_are_not_kept_waiting_in_turn() {
    let mut server = Server::start();
    let call_timeout = Duration::from_secs(1);
    let broker = broker(&server.socket_url(), "lisa", call_timeout).await;
    declare(&broker, &TopicSettings::default()).await;
    let producer = Producer::new(broker);
    server.stop();
    let watch = Stopwatch::start();
    let sends = (0..5000).map(|n| producer.send("t", &n).into_future());
    let errors = join_all(sends).await.into_iter().map(Result::unwrap_err);
    let errors: Vec<SendError> = errors.collect();
    assert!(errors.iter().all(SendError::is_retryable));
    // The calls that were under way when the server went may have reached it; no later one has.
    let known = |error: &&SendError| matches!(error, SendError::Unavailable(_));
    assert!(errors.iter().filter(known).count() >= 4000);
    // Ten batches in turn would take ten times the call_timeout.
    watch.assert_within(call_timeout, call_timeout * 2);
}

#[tokio::test]
async fn no_more_than_64_mib_wait_for_redis_and_the_rest_is_refused_at_once() {
    const LARGE: usize = 256 * 1024;
    let mut server = Server::start();
    // A call that waited for Redis this long would fail with an error other than Busy.
    let call_timeout = Duration::from_secs(60);
    let broker = broker(&server.socket_url(), "lisa", call_timeout).await;
    declare(&broker, &TopicSettings::default()).await;
    let producer = Producer::new(broker);
    server.pause();
    let payload = bytes::Bytes::from(vec![0; LARGE]);
    let send = |_| producer.send_bytes("t", payload.clone()).into_future();
    let mut sends: futures_util::stream::FuturesUnordered<_> = (0..300).map(send).collect();
    let fit = 64 * 1024 * 1024 / LARGE;
    while sends.len() >= fit {
        let error = sends.next().await.unwrap().unwrap_err();
        assert!(matches!(error, SendError::Busy { .. }), "{error}");
        assert!(error.is_retryable());
    }
    server.resume();
    let sent: Vec<_> = sends.collect().await;
    assert!(
        sent.iter().all(Result::is_ok),
        "{:?}",
        sent.iter().find(|sent| sent.is_err())
    );
    producer.send_bytes("t", payload).await.unwrap();
}

#[tokio::test]
async fn a_send_without_an_answer_is_indeterminate_and_its_repeat_a_duplicate() {
    let server = Server::start();
    let proxy = FaultProxy::start(server.port()).await;
    let call_timeout = Duration::from_millis(500);
    let broker = broker(&server.url_through(&proxy), "lisa", call_timeout).await;
    declare(&broker, &TopicSettings::default()).await;
    let producer = Producer::new(broker);
    // Without this, the lost reply would be that the script is not loaded.
    producer.send("t", "warm up").await.unwrap();
    proxy.set(Mode::SwallowReplies).await;
    let message = NewMessage::new("x").delay(HOUR);
    let id = message.message_id().clone();
    let error = producer.send_message("t", message).await.unwrap_err();
    assert!(
        matches!(&error, SendError::Indeterminate { id: named, stored: false, .. } if *named == id),
        "{error}"
    );
    proxy.set(Mode::Pass).await;
    let repeated = eventually(SOON, async || {
        producer.send("t", "x").id(&id).delay(HOUR).await
    });
    assert_eq!(repeated.await.outcome, SendOutcome::Duplicate);
}

#[tokio::test]
async fn a_send_whose_reply_is_lost_does_not_undo_a_cancel_that_came_since() {
    let server = Server::start();
    let proxy = FaultProxy::start(server.port()).await;
    let sender = broker(&server.url_through(&proxy), "lisa", SOON).await;
    let beside = broker(&server.socket_url(), "lisa", SOON).await;
    declare(&beside, &TopicSettings::default()).await;
    let (producer, beside) = (Producer::new(sender), Producer::new(beside));
    let mut redis = server.connection().await;
    let pause = redis::cmd("CLIENT")
        .arg("PAUSE")
        .arg(600_000)
        .arg("WRITE")
        .to_owned();
    let unpause = redis::cmd("CLIENT").arg("UNPAUSE").to_owned();
    let clients = redis::cmd("CLIENT").arg("LIST").to_owned();
    for key in [None, Some("k")] {
        let id: MessageId = format!("of-{}", key.unwrap_or("none")).parse().unwrap();
        let send = || {
            let message = NewMessage::new("x").id(&id).delay(HOUR).even_if_cancelled();
            let message = match key {
                Some(key) => message.key(key),
                None => message,
            };
            producer.send_message("t", message)
        };
        let named = || match key {
            Some(key) => MessageRef::new(&id).key(key),
            None => MessageRef::new(&id),
        };
        let cancel = async || {
            let cancelled = beside.cancel("t", named()).await.unwrap();
            assert!(
                matches!(cancelled, CancelOutcome::Cancelled { .. }),
                "{cancelled:?}"
            );
        };
        assert_eq!(send().await.unwrap().outcome, SendOutcome::Waiting);
        cancel().await;
        // Held up on its way, so that only the reply of the script is lost.
        let () = pause.query_async(&mut redis).await.unwrap();
        let repeated = async {
            let sent = send().await.unwrap();
            (sent.outcome, sent.ended)
        };
        let meanwhile = async {
            eventually(SOON, async || {
                let clients: String = clients.query_async(&mut redis.clone()).await.unwrap();
                let held = |line: &str| line.contains(" flags=b ") && line.contains("cmd=evalsha");
                clients.lines().any(held).then_some(()).ok_or(clients)
            })
            .await;
            proxy.set(Mode::SwallowReplies).await;
            let () = unpause.query_async(&mut redis.clone()).await.unwrap();
            eventually(SOON, async || {
                match beside.get("t", named()).await.unwrap() {
                    GetOutcome::Stored(_) => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await;
            cancel().await;
            proxy.set(Mode::Pass).await;
        };
        let (repeated, ()) = tokio::join!(repeated, meanwhile);
        assert_eq!(repeated, (SendOutcome::Duplicate, Some(End::Cancelled)));
    }
}

#[tokio::test]
async fn a_known_id_costs_redis_no_more_if_its_message_is_large() {
    const KNOWN: usize = 100;
    let server = Server::start();
    let broker = broker(&server.socket_url(), "lisa", SOON).await;
    declare(&broker, &TopicSettings::default()).await;
    let producer = Producer::new(broker.clone());
    let payload = |size| Bytes::from(vec![b'x'; size]);
    for keyed in [false, true] {
        let mut cost = [u64::MAX; 2];
        for (cost, size) in cost.iter_mut().zip([1, 200_000]) {
            let name = |n| format!("{keyed}-{size}-{n}");
            let message = |n, size| {
                let message = NewMessage::new(payload(size)).id(name(n)).delay(HOUR);
                if keyed { message.key("k") } else { message }
            };
            join_all((0..KNOWN).map(|n| producer.send_message("t", message(n, size)))).await;
            // The minimum of several: any delay of the machine adds to it.
            for _ in 0..5 {
                let before = script_stat(&server, "usec=").await;
                let sends = (0..KNOWN).map(|n| producer.send_message("t", message(n, 1)));
                for sent in join_all(sends).await {
                    assert_eq!(sent.unwrap().outcome, SendOutcome::Duplicate);
                }
                *cost = (*cost).min(script_stat(&server, "usec=").await - before);
            }
        }
        let [small, large] = cost;
        assert!(
            large < 5 * small,
            "{large} µs, and {small} µs of small ones"
        );
    }
    assert_eq!(accepted(&broker).await, 4 * KNOWN as i64);
}

#[tokio::test]
async fn a_full_redis_refuses_at_once_and_nothing_is_stored() {
    let server = Server::start();
    let broker = broker(&server.socket_url(), "lisa", SOON).await;
    declare(&broker, &TopicSettings::default()).await;
    let producer = Producer::new(broker.clone());
    producer.send("t", "before").await.unwrap();
    let limit = |limit: &'static str| {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("maxmemory").arg(limit);
        set
    };
    let mut connection = server.connection().await;
    let () = limit("1").query_async(&mut connection).await.unwrap();
    let error = producer.send("t", "x").await.unwrap_err();
    assert!(matches!(error, SendError::RedisFull), "{error}");
    let () = limit("0").query_async(&mut connection).await.unwrap();
    producer.send("t", "after").await.unwrap();
    assert_eq!(accepted(&broker).await, 2);
}

#[tokio::test]
async fn a_sending_producer_follows_the_settings_of_its_topic() {
    let server = Server::shared();
    let namespace = server.namespace("follow");
    let ours = broker(&server.socket_url(), &namespace, SOON).await;
    let theirs = broker(&server.socket_url(), &namespace, SOON).await;
    declare(&ours, &TopicSettings::default()).await;
    let smaller = TopicSettings {
        max_payload: Size::new(1),
        ..TopicSettings::default()
    };
    let topic = "t".parse().unwrap();
    theirs
        .declare(&topic, &smaller, Declare::Update)
        .await
        .unwrap();
    let producer = Producer::new(ours);
    eventually(SOON, async || match producer.send_bytes("t", "xx").await {
        Err(SendError::TooLarge { limit: 1, .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}
