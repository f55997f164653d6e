//! Purges and requeues of SQS clients.

use super::*;

/// Deletes a received message.
async fn delete(api: &Api, queue: &str, message: &Value) {
    let body = of(queue, with_handle(message, json!({})));
    call(api, "DeleteMessage", body).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_removes_what_was_sent_before_its_answer_and_nothing_else() {
    let topic = format!("[topics.t]\nshards = 2\nmax_attempts = 1\n{NO_RETRY_DELAY}");
    let site = site(&topic).await;
    let api = site.api(0);
    send(api, "t", json!({"MessageBody": "bad"})).await;
    let bad = receive(api, "t", json!({})).await;
    let release = with_handle(&bad, json!({"VisibilityTimeout": 0}));
    let release = of("t", release);
    call(api, "ChangeMessageVisibility", release).await.ok();
    let held = json!({"MessageBody": "held", "MessageGroupId": "g"});
    send(api, "t.fifo", held).await;
    let held = receive(site.api(1), "t.fifo", json!({"VisibilityTimeout": 3600})).await;
    assert_eq!(held["Body"], "held");
    let parked = json!({"MessageBody": "parked", "MessageGroupId": "g"});
    send(api, "t.fifo", parked).await;
    for n in 0..50 {
        let body = json!({"MessageBody": "x", "DelaySeconds": if n % 2 == 0 { 0 } else { 3600 }});
        send(api, "t", body).await;
    }

    call(api, "PurgeQueue", of("t", json!({}))).await.ok();
    // At once: each of these is a new message, and nobody holds the group any more.
    for n in 0..10 {
        let id = if n % 2 == 0 {
            json!(null)
        } else {
            json!(format!("new:{n}"))
        };
        let body = json!({"MessageBody": format!("{n}"), "MessageDeduplicationId": id});
        send(api, "t", body).await;
    }
    let next = json!({"MessageBody": "next", "MessageGroupId": "g"});
    send(api, "t.fifo", next).await;
    let mut bodies = Vec::new();
    for _ in 0..11 {
        let message = receive(api, "t", json!({})).await;
        bodies.push(message["Body"].as_str().expect("a body").to_owned());
        delete(api, "t", &message).await;
    }
    bodies.sort();
    let mut expected: Vec<_> = (0..10).map(|n| n.to_string()).collect();
    expected.push("next".to_owned());
    assert_eq!(bodies, expected);
    // Its message is gone, so there is nothing left to do.
    delete(site.api(1), "t.fifo", &held).await;

    let arn = "arn:aws:sqs:us-east-1:000000000000:t";
    let task = json!({ "SourceArn": arn });
    call(api, "StartMessageMoveTask", task).await.ok();
    let again = receive(api, "t", json!({})).await;
    assert_eq!(
        (&again["Body"], &again["MessageId"]),
        (&json!("bad"), &bad["MessageId"])
    );
    delete(api, "t", &again).await;
    eventually(SOON, async || match site.stats("t").await {
        stats if stats["stored"] == 0 => Ok(()),
        stats => Err(stats),
    })
    .await;
    assert_eq!(site.stats("t").await["conservation_error"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn purges_and_requeues_are_in_the_audit_log() {
    let site = site("[topics.t]\nmax_attempts = 1").await;
    let api = site.api(0);
    send(api, "t", json!({"MessageBody": "x", "DelaySeconds": 600})).await;
    call(api, "PurgeQueue", of("t", json!({}))).await.ok();
    send(api, "t", json!({"MessageBody": "y"})).await;
    receive(api, "t", json!({"VisibilityTimeout": 0})).await;
    let task = json!({ "SourceArn": "arn:aws:sqs:us-east-1:000000000000:t" });
    call(api, "StartMessageMoveTask", task).await.ok();
    let seen = eventually(SOON, async || {
        let log = site.manager.get_json("/v1/audit").await["entries"].clone();
        let entries = log.as_array().expect("entries").iter();
        let entries = entries.map(|entry| {
            let words = ["via", "action", "topic", "group", "outcome"];
            words
                .map(|name| entry[name].as_str().unwrap_or("-").to_owned())
                .join(" ")
        });
        let entries: Vec<_> = entries.collect();
        if entries.len() == 2 {
            Ok(entries)
        } else {
            Err(log)
        }
    })
    .await;
    // The newest first.
    assert_eq!(
        seen,
        [
            "sqs requeue t default 1 requeued",
            "sqs purge_queue t default 1 removed"
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_that_gets_no_turn_fails_and_succeeds_later() {
    let more = "consumer.gateway.sqs = true\nconsumer.gateway.max_waiting = 1\n";
    let site = Site::start("[topics.t]\n[topics.u]", more).await;
    let api = site.api(0);
    send(api, "t", json!({"MessageBody": "x"})).await;
    let ready = async |count: u64| {
        eventually(SOON, async || match site.stats("t").await {
            stats if stats["groups"][0]["ready"] == count => Ok(()),
            stats => Err(stats),
        })
        .await;
    };
    ready(1).await;
    let other = api.clone();
    let receive = json!({"WaitTimeSeconds": 20});
    let receive =
        tokio::spawn(async move { call(&other, "ReceiveMessage", of("u", receive)).await });
    eventually(SOON, async || waiting(api, 1).await).await;
    let refused = call(api, "PurgeQueue", of("t", json!({}))).await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    ready(1).await;
    send(api, "u", json!({"MessageBody": "x"})).await;
    receive.await.unwrap().ok();
    call(api, "PurgeQueue", of("t", json!({}))).await.ok();
    ready(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_purged_once_a_minute_whichever_gateway_is_asked() {
    let site = site("[topics.t]\n[topics.u]").await;
    let purge = async |gateway: usize, queue: &str| {
        call(site.api(gateway), "PurgeQueue", of(queue, json!({}))).await
    };
    purge(0, "t").await.ok();
    for gateway in [0, 1] {
        let again = purge(gateway, "t").await;
        assert_eq!(again.status, 403);
        assert_eq!(
            again.fails("PurgeQueueInProgress"),
            "Only one PurgeQueue operation on t is allowed every 60 seconds."
        );
    }
    purge(1, "u").await.ok();
    // A queue of the same name that is created again is another one.
    for _ in 0..2 {
        let create = json!({"QueueName": "made"});
        call(site.api(0), "CreateQueue", create).await.ok();
        purge(0, "made").await.ok();
        call(site.api(0), "DeleteQueue", of("made", json!({})))
            .await
            .ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_of_a_fifo_queue_forgets_deduplication_ids() {
    let site = site("[topics.t]\nshards = 2\n[topics.u]").await;
    let api = site.api(0);
    let body = |text: &str, id: &str| {
        let group = format!("g{id}");
        json!({"MessageBody": text, "MessageGroupId": group, "MessageDeduplicationId": id})
    };
    for queue in ["t.fifo", "u"] {
        for id in ["1", "2"] {
            send(api, queue, body("deleted", id)).await;
            let message = receive(api, queue, json!({})).await;
            delete(api, queue, &message).await;
        }
        for id in ["3", "4"] {
            send(api, queue, body("purged", id)).await;
        }
        call(api, "PurgeQueue", of(queue, json!({}))).await.ok();
    }
    for id in ["1", "2", "3", "4"] {
        send(api, "u", body("new", id)).await;
        send(api, "t.fifo", body("new", id)).await;
        let message = receive(site.api(1), "t.fifo", json!({})).await;
        assert_eq!(message["Body"], "new");
        delete(api, "t.fifo", &message).await;
    }
    // That of a standard queue remembers them.
    site.assert_drained("u").await;
    site.assert_drained("t").await;
}
