//! The promise of a receipt: it waits for replicas and disks, and a level that was not reached is never called a
//! success.

use super::{HOUR, SOON, Service, broker, declare};
use lisa_core::topic::TopicSettings;
use lisa_producer::{Durability, NewMessage, Producer, SendError, SendOutcome};
use lisa_tests::{Aof, Binary, Server, Stopwatch, eventually};
use redis::cmd;
use serde_json::{Value, json};
use std::time::Duration;

/// A replica of a cluster node would be attached by other commands.
fn single() -> lisa_tests::server::ServerBuilder {
    Server::builder().cluster(false)
}

async fn replica_of(master: &Server) -> Server {
    let address = format!("127.0.0.1 {}", master.port());
    let replica = single().config("replicaof", &address).start();
    eventually(SOON, async || {
        let mut info = cmd("INFO");
        info.arg("replication");
        let info = info.query_async(&mut master.connection().await).await;
        let info: String = info.expect("an INFO reply");
        if info.contains("state=online") {
            Ok(())
        } else {
            Err(info)
        }
    })
    .await;
    // It is online before it has loaded the data that it got.
    let mut both = redis::pipe();
    both.cmd("SET").arg("probe").arg(1).ignore();
    both.cmd("WAIT").arg(1).arg(20_000);
    let has = both.query_async(&mut master.connection().await).await;
    let has: Vec<u32> = has.expect("answered");
    assert_eq!(has, [1]);
    replica
}

async fn holds(server: &Server, id: &str) -> bool {
    let mut ask = cmd("HEXISTS");
    ask.arg("lisa:v1:{t:0}:payload").arg(id);
    let held = ask.query_async(&mut server.connection().await).await;
    held.expect("answered")
}

async fn producer_on(server: &Server, settings: TopicSettings) -> Producer {
    let broker = broker(&server.socket_url(), "lisa", SOON).await;
    declare(&broker, &settings).await;
    Producer::new(broker)
}

fn quick() -> TopicSettings {
    TopicSettings {
        durability_timeout: Duration::from_secs(1),
        ..TopicSettings::default()
    }
}

fn asking(durability: Durability, id: &str) -> NewMessage {
    NewMessage::new("x")
        .durability(durability)
        .id(id)
        .delay(HOUR)
}

/// Returns whether the servers of this run know `WAITAOF`.
async fn knows_waitaof(server: &Server) -> bool {
    let mut ask = cmd("COMMAND");
    ask.arg("INFO").arg("WAITAOF");
    let known = ask.query_async(&mut server.connection().await).await;
    let known: Vec<redis::Value> = known.expect("answered");
    known[0] != redis::Value::Nil
}

#[tokio::test]
async fn a_receipt_of_replicas_comes_when_they_have_it_and_else_it_is_indeterminate() {
    let master = single().start();
    let producer = producer_on(&master, quick()).await;
    let one = |id| producer.send_message("t", asking(Durability::Replicas(1), id));

    let Err(SendError::Indeterminate { id, why, stored }) = one("a").await else {
        panic!("there is no replica");
    };
    assert_eq!((id.as_str(), stored), ("a", true));
    assert!(
        why.contains("0 of 1 replicas confirmed it within 1s"),
        "{why}"
    );
    assert!(holds(&master, "a").await, "stored all the same");

    let replica = replica_of(&master).await;
    let again = one("a").await.expect("a replica has it");
    let expected = (SendOutcome::Duplicate, Durability::Replicas(1));
    assert_eq!((again.outcome, again.durability), expected);
    for id in ["b", "c", "d"] {
        let receipt = one(id).await.expect("a replica has it");
        assert_eq!(receipt.outcome, SendOutcome::Waiting);
        // No call_timeout here: that is what the receipt says.
        assert!(holds(&replica, id).await, "{id}");
    }
    let two = producer.send_message("t", asking(Durability::Replicas(2), "e"));
    let two = two.await.expect_err("there is one replica");
    assert!(
        two.is_retryable() && two.to_string().contains("1 of 2"),
        "{two}"
    );
    let none = producer.send_message("t", asking(Durability::Memory, "f"));
    assert_eq!(none.await.expect("stored").durability, Durability::Memory);
}

/// Parts of a large batch continue without their caller, and a refused message is not reported as stored.
#[tokio::test]
async fn each_message_of_a_batch_that_fell_short_hears_what_became_of_it() {
    const ROOM: usize = 180;
    let master = single().start();
    let settings = TopicSettings {
        max_messages: Some(ROOM as u64),
        durability: Durability::Replicas(1),
        ..quick()
    };
    let producer = producer_on(&master, settings).await;
    let batch = (0..200).map(|n| {
        NewMessage::new("x")
            .id(format!("m{n}"))
            .key("k")
            .delay(HOUR)
    });
    let watch = Stopwatch::start();
    let results = producer.send_batch("t", batch.collect()).await;
    let took = watch.elapsed();
    let results = results.expect("the topic is known");
    for (n, result) in results.iter().enumerate() {
        let id = format!("m{n}");
        match result {
            Err(SendError::Indeterminate { stored: true, .. }) if n < ROOM => {}
            Err(SendError::Full) if n >= ROOM => {}
            other => panic!("{id}: {other:?}"),
        }
        assert_eq!(holds(&master, &id).await, n < ROOM, "{id}");
    }
    // One of the four parts waits. Before it, the script waits that finds that the topic uses features now.
    let call_timeout = quick().durability_timeout;
    watch.assert_took(took, call_timeout * 2, call_timeout * 2);
}

#[tokio::test]
async fn over_http_an_answer_says_that_it_is_stored_only_where_it_is() {
    let master = single().start();
    let lines =
        "[topics.t]\nmax_messages = 2\ndurability = 'replicas:1'\ndurability_timeout = '50ms'\n";
    let service = Service::start(&master.socket_url(), "lisa", lines).await;
    let settings = TopicSettings {
        max_messages: Some(2),
        durability: Durability::Replicas(1),
        durability_timeout: Duration::from_millis(50),
        ..TopicSettings::default()
    };
    declare(&service.broker, &settings).await;
    let hour = ("Lisa-Delay", "1h");
    let sent = service.api.send("t", "x", &[hour, ("Lisa-Id", "a")]).await;
    let problem = sent.expect(503).json();
    assert_eq!(problem["code"], "indeterminate", "{problem}");
    assert_eq!(
        (&problem["id"], &problem["stored"]),
        (&json!("a"), &json!(true))
    );
    let batch = [
        json!({ "payload": 1, "id": "b" }),
        json!({ "payload": 1, "id": "c" }),
    ];
    let results = service.api.batch("t", &batch).await;
    let told = |n: usize| {
        let error = &results[n]["error"];
        (error["code"].clone(), error["stored"].clone())
    };
    assert_eq!(
        told(0),
        (json!("indeterminate"), json!(true)),
        "{results:?}"
    );
    assert_eq!(told(1), (json!("full"), Value::Null), "{results:?}");
    let none = [hour, ("Lisa-Id", "d"), ("Lisa-Durability", "memory")];
    let full = service.api.send("t", "x", &none).await.expect(429).json();
    assert_eq!(full["stored"], Value::Null);
    let described = service.api.get_json("/openapi.json").await;
    let field = &described["components"]["schemas"]["Problem"]["properties"]["stored"];
    assert_eq!(field["type"], "boolean", "{field}");
}

#[tokio::test]
async fn a_duplicate_waits_as_its_original_did() {
    let master = single().start();
    let producer = producer_on(&master, quick()).await;
    producer
        .send_message("t", asking(Durability::Memory, "a"))
        .await
        .expect("stored");
    for _ in 0..2 {
        let again = producer.send_message("t", asking(Durability::Replicas(1), "a"));
        let again = again.await.expect_err("nobody else has it");
        assert!(again.to_string().contains("0 of 1"), "{again}");
    }
}

#[tokio::test]
async fn the_topic_says_what_is_waited_for_and_a_batch_may_mix() {
    let master = single().start();
    let settings = TopicSettings {
        durability: Durability::Replicas(1),
        ..quick()
    };
    let producer = producer_on(&master, settings).await;
    let _replica = replica_of(&master).await;
    let receipt = producer.send("t", "x").await.expect("a replica has it");
    assert_eq!(receipt.durability, Durability::Replicas(1));
    let wanted = [1, 2, 0].map(|replicas| match replicas {
        0 => Durability::Memory,
        count => Durability::Replicas(count),
    });
    let batch = wanted.iter().enumerate();
    let batch = batch.map(|(n, durability)| asking(*durability, &format!("m{n}")));
    let results = producer.send_batch("t", batch.collect()).await;
    let results = results.expect("the topic is known");
    let reached: Vec<_> = results
        .into_iter()
        .map(|result| result.ok().map(|receipt| receipt.durability))
        .collect();
    assert_eq!(reached, [Some(wanted[0]), None, Some(wanted[2])]);
}

#[tokio::test]
async fn the_disk_is_waited_for_where_the_server_can_tell_and_else_it_says_so() {
    let server = single().aof(Aof::EverySec).start();
    let producer = producer_on(&server, TopicSettings::default()).await;
    let sent = producer
        .send_message("t", asking(Durability::Aof, "a"))
        .await;
    if knows_waitaof(&server).await {
        assert_eq!(sent.expect("on disk").durability, Durability::Aof);
        return;
    }
    match sent {
        Err(SendError::Invalid(invalid)) => {
            assert_eq!(invalid.field, "durability");
            assert!(invalid.detail.contains("WAITAOF"), "{}", invalid.detail);
        }
        other => panic!("the server cannot: {other:?}"),
    }
    assert!(!holds(&server, "a").await, "nothing is stored");
}

/// A topic or a message may ask for what the producer's own file does not name.
#[tokio::test]
async fn nothing_is_stored_for_a_user_who_may_not_wait() {
    let server = single().start();
    let _ = producer_on(&server, quick()).await;
    let mut set = cmd("ACL");
    set.arg("SETUSER").arg("app").arg(&["on", ">x", "~*", "&*"]);
    set.arg(&["+@all", "-wait"]);
    let set = set.query_async(&mut server.connection().await).await;
    let () = set.expect("a user");
    let url = format!("redis://app:x@127.0.0.1:{}", server.port());
    let producer = Producer::new(broker(&url, "lisa", SOON).await);
    let sent = producer.send_message("t", asking(Durability::Replicas(1), "a"));
    let Err(SendError::Refused(error)) = sent.await else {
        panic!("it may not run WAIT");
    };
    assert!(error.to_string().contains("'wait'"), "{error}");
    assert!(!holds(&server, "a").await);
    let plain = producer.send_message("t", asking(Durability::Memory, "b"));
    plain.await.expect("others may send");
}

#[tokio::test]
async fn a_role_whose_topic_asks_for_what_the_server_lacks_does_not_start() {
    let server = single().aof(Aof::Off).start();
    for (binary, role) in [(Binary::Producer, "producer"), (Binary::Manager, "manager")] {
        let run = binary
            .with(["run", "--redis-url", &server.url()])
            .config(&format!(
                "[{role}]\nlisten = '127.0.0.1:0'\n[topics.t]\ndurability = 'aof'\n"
            ));
        let ended = run.run(SOON).await;
        assert_eq!(ended.code, Some(78), "{ended:?}");
        assert!(ended.stderr.contains("durability aof"), "{ended:?}");
    }
}
