//! send: stores messages, puts due ones straight on the stream, and recognizes duplicates.

use lisa_core::broker::{Broker, Verdict};
use lisa_core::message::{NewId, PreparedMessage};
use lisa_core::redis::{Connection, ConnectionSettings};
use lisa_core::state::{Accepted, End, SendOutcome};
use lisa_core::time::{UnixMs, When};
use lisa_core::topic::Shard;
use lisa_tests::relay::{START, id, message, ms, nameless};
use lisa_tests::{Fate, Relay, RequestProxy, Server};
use redis::{Value, cmd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

fn accepted(id: &str, outcome: SendOutcome, due: u64) -> Accepted {
    Accepted {
        id: lisa_tests::relay::id(id),
        outcome,
        due: Some(UnixMs::new(due)),
        ended: None,
        blocked: None,
    }
}

#[tokio::test]
async fn a_send_for_later_waits_until_its_due_time() {
    let relay = Relay::start("send").await;
    let sent = relay.send(&[message("a", ms(1))]).await;
    assert_eq!(sent, [accepted("a", SendOutcome::Waiting, START + 1)]);
    assert_eq!(
        relay.zset("waiting").await,
        [("a".into(), START + 1)].into()
    );
    assert_eq!(relay.entries().await, []);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_send_that_is_due_goes_straight_to_the_stream() {
    let relay = Relay::start("send").await;
    let past = When::At(relay.at(-5000));
    let sent = relay
        .send(&[
            message("a", When::NOW),
            message("b", past),
            message("c", relay.now()),
        ])
        .await;
    let ready = |id| accepted(id, SendOutcome::Ready, START);
    assert_eq!(sent, [ready("a"), ready("b"), ready("c")]);
    let entry = |id: &str| (id.to_owned(), 1, START);
    assert_eq!(relay.entries().await, [entry("a"), entry("b"), entry("c")]);
    assert_eq!(relay.zset("waiting").await, [].into());
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_repeated_send_changes_nothing_but_the_count_of_duplicates() {
    let relay = Relay::start("send").await;
    let messages = [message("a", ms(70)), nameless("b", When::NOW)];
    relay.send(&messages).await;
    let before = relay.snapshot().await;
    relay.step(10);
    let repeated = relay.send(&messages).await;
    let ready = Accepted {
        due: None,
        ..accepted("b", SendOutcome::Duplicate, START)
    };
    assert_eq!(
        repeated,
        [accepted("a", SendOutcome::Duplicate, START + 70), ready]
    );
    let after = relay.snapshot().await;
    let changes = format!(
        "+ {stats}  duplicates = 2\n- {stats}  last_time = {START}\n+ {stats}  last_time = {}\n",
        START + 10,
        stats = "v1:{t:0}:stats",
    );
    assert_eq!(before.diff(&after), changes);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_callers_id_stays_a_duplicate_after_its_message_was_acked() {
    let relay = Relay::start("send").await;
    let read = relay.hold("a").await;
    relay.settle(&read, lisa_core::broker::Verdict::Ack).await;
    let again = relay.send(&[message("a", When::NOW)]).await;
    let expected = Accepted {
        due: None,
        ended: Some(End::Acked),
        ..accepted("a", SendOutcome::Duplicate, START)
    };
    assert_eq!(again, [expected]);
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_batch_of_200_is_stored_whole_and_in_order() {
    let relay = Relay::start("send").await;
    let batch: Vec<_> = (0..200)
        .map(|n| message(&format!("m{n:03}"), ms(n % 2)))
        .collect();
    let sent = relay.send(&batch).await;
    let ready = sent
        .iter()
        .filter(|sent| sent.outcome == SendOutcome::Ready);
    assert_eq!((sent.len(), ready.count()), (200, 100));
    let entries: Vec<_> = relay
        .entries()
        .await
        .into_iter()
        .map(|(id, ..)| id)
        .collect();
    assert!(entries.len() == 100 && entries.is_sorted());
    assert_eq!(relay.zset("waiting").await.len(), 100);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn what_is_due_waits_while_the_topic_is_paused() {
    let relay = Relay::start("send").await;
    relay.broker().pause(relay.topic(), true).await.unwrap();
    let sent = relay.send(&[message("a", When::NOW)]).await;
    assert_eq!(sent, [accepted("a", SendOutcome::Waiting, START)]);
    assert_eq!(relay.zset("waiting").await, [("a".into(), START)].into());
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_wiped_topic_is_declared_again_by_a_send() {
    let relay = Relay::start("send").await;
    let key = relay.key("conf");
    let () = relay.command(cmd("DEL").arg(key)).await;
    relay.send(&[message("a", When::NOW)]).await;
    assert_eq!(relay.hash("conf").await["class"], "plain");
    assert_eq!(relay.entries().await.len(), 1);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_send_works_after_the_scripts_were_flushed() {
    let relay = Relay::start("send").await;
    for id in ["a", "b"] {
        relay.send(&[message(id, When::NOW)]).await;
        let () = relay.command(cmd("SCRIPT").arg("FLUSH")).await;
    }
    assert_eq!(relay.entries().await.len(), 2);
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_cancelled_id_is_sent_again_on_request_and_only_once() {
    for keyed in [false, true] {
        let relay = Relay::start("send").await;
        let sent = |again: bool| {
            let mut message = message("a", ms(5));
            message.options.key = keyed.then(|| "k".parse().unwrap());
            message.options.even_if_cancelled = again;
            message
        };
        let outcome = async |again: bool| {
            let sent = relay.send(&[sent(again)]).await.remove(0);
            (sent.outcome, sent.ended)
        };
        let duplicate = |ended| (SendOutcome::Duplicate, ended);
        outcome(false).await;
        let cancelled = relay.broker().cancel(relay.topic(), &id("a"), None).await;
        cancelled.unwrap();
        assert_eq!(outcome(false).await, duplicate(Some(End::Cancelled)));
        assert_eq!(outcome(true).await, (SendOutcome::Waiting, None));
        assert_eq!(outcome(true).await, duplicate(None));
        assert_eq!(relay.zset("tomb").await.len(), 0, "it has not ended");
        relay.step(5);
        relay.move_due(200).await;
        let read = relay.read_one().await;
        relay.settle(&read, Verdict::Ack).await;
        assert_eq!(outcome(true).await, duplicate(Some(End::Acked)));
        relay.assert_drained().await;
    }
}

/// The ids of new messages are not looked up, so a request that was repeated must no longer count as new when it arrives.
#[tokio::test]
async fn a_send_of_new_messages_that_arrives_after_its_repeat_changes_nothing() {
    let relay = Relay::start("send").await;
    let is_first = AtomicBool::new(true);
    let proxy = RequestProxy::start(Server::shared().port(), move |request| {
        let is_send = request.command() == "EVALSHA" && request.word(2) == "8";
        match is_send && is_first.swap(false, Ordering::Relaxed) {
            true => Fate::HoldRequest,
            false => Fate::Pass,
        }
    })
    .await;
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let mut settings = ConnectionSettings::new(url.parse().unwrap());
    settings.response_timeout = ms(500);
    let connection = Connection::new(settings, &CancellationToken::new()).unwrap();
    let namespace = relay.broker().namespace().clone();
    let broker = Broker::new(connection, namespace, Duration::from_secs(60), None);
    let topic = broker.topic(relay.topic().name()).await.unwrap();

    let new = PreparedMessage {
        new_id: NewId::generated(),
        ..nameless("a", ms(3_600_000))
    };
    let sent = broker.send(&topic, Shard::new(0), &[new]).await.unwrap();
    assert_eq!(sent[0].outcome, SendOutcome::Waiting);
    let before = relay.snapshot().await;

    let late = proxy.holds().expect("the first request");
    assert_ne!(late.word(15), "0", "it is sent as new: {late:?}");
    let mut command = cmd(&late.command());
    for word in &late.words[1..] {
        command.arg(word);
    }
    let reply: Vec<Value> = relay.command(&command).await;
    assert_eq!(
        reply[3],
        Value::Int(1),
        "the first is a duplicate: {reply:?}"
    );
    let written = before.diff(&relay.snapshot().await);
    assert!(
        written.contains("duplicates") && !written.contains("accepted"),
        "{written}"
    );
    relay.assert_conserved().await;
}

#[tokio::test]
async fn messages_are_new_once() {
    let relay = Relay::start("send").await;
    let new = PreparedMessage {
        new_id: NewId::generated(),
        ..nameless("a", ms(70))
    };
    let batch = [new];
    assert_eq!(relay.send(&batch).await[0].outcome, SendOutcome::Waiting);
    assert_eq!(relay.send(&batch).await[0].outcome, SendOutcome::Duplicate);
    let both = PreparedMessage {
        new_id: NewId::generated(),
        ..nameless("b", ms(70))
    };
    let clone = both.clone();
    assert_eq!(relay.send(&[both]).await[0].outcome, SendOutcome::Waiting);
    assert_eq!(
        relay.send(&[clone]).await[0].outcome,
        SendOutcome::Duplicate
    );
    relay.assert_conserved().await;
}
