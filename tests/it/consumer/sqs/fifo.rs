//! FIFO queues that SQS clients create, and the bounds of batches.

use super::*;

async fn create(api: &Api, name: &str, attributes: Value) {
    let body = json!({"QueueName": name, "Attributes": attributes});
    call(api, "CreateQueue", body).await.ok();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_a_fifo_queue_needs_a_group_and_a_deduplication_id() {
    let site = site("").await;
    let api = site.api(0);
    create(api, "q.fifo", json!({"FifoQueue": "true"})).await;
    call(api, "GetQueueUrl", json!({"QueueName": "q"}))
        .await
        .fails("NonExistentQueue");
    let grouped = json!({"MessageBody": "x", "MessageGroupId": "g"});
    let entry = json!({"Id": "a", "MessageBody": "x", "MessageGroupId": "g"});
    let identified = json!({
        "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "1", "DelaySeconds": 5,
    });
    for (action, body, part) in [
        ("SendMessage", grouped.clone(), "ContentBasedDeduplication"),
        (
            "SendMessageBatch",
            json!({"Entries": [entry]}),
            "ContentBasedDeduplication",
        ),
        ("SendMessage", identified, "not valid for this queue type"),
    ] {
        let message = call(api, action, of("q.fifo", body)).await;
        let message = message.fails("InvalidParameterValue");
        assert!(message.contains(part), "{message}");
    }
    let content = of(
        "q.fifo",
        json!({"Attributes": {"ContentBasedDeduplication": "true"}}),
    );
    call(api, "SetQueueAttributes", content).await.ok();
    let first = send(api, "q.fifo", grouped.clone()).await;
    // The hash of the body is the deduplication id.
    let same = json!({
        "MessageBody": "y", "MessageGroupId": "h",
        "MessageDeduplicationId": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881",
    });
    assert_eq!(
        send(api, "q.fifo", same).await["MessageId"],
        first["MessageId"]
    );
    let message = receive(api, "q.fifo", json!({})).await;
    let attributes = &message["Attributes"];
    assert_eq!(
        attributes["MessageDeduplicationId"],
        "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    );
    assert_eq!(attributes["SenderId"], "anonymous");
    assert_eq!(attributes["SequenceNumber"], first["SequenceNumber"]);
    // The delay of the queue is that of each message.
    let delay = of("q.fifo", json!({"Attributes": {"DelaySeconds": "900"}}));
    call(api, "SetQueueAttributes", delay).await.ok();
    for more in [json!({"DelaySeconds": 0}), json!({})] {
        let mut body = json!({"MessageBody": more.to_string(), "MessageGroupId": "d"});
        body.as_object_mut()
            .expect("an object")
            .extend(more.as_object().expect("an object").clone());
        send(api, "q.fifo", body).await;
    }
    assert_eq!(site.stats("q").await["waiting"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn sequence_numbers_grow_in_a_group_and_only_fifo_queues_have_them() {
    let site = site("[topics.t]\nshards = 4").await;
    let number = |sent: &Value| -> u64 {
        let number = sent["SequenceNumber"].as_str().expect("a number");
        assert_eq!(number.len(), 20);
        number.parse().expect("a number")
    };
    let mut last = 0;
    for n in 0..6 {
        let body = json!({"MessageBody": n.to_string(), "MessageGroupId": "g"});
        let sent = send(site.api(n % 2), "t.fifo", body).await;
        let sequence = number(&sent);
        assert!(sequence > last, "{sent}");
        last = sequence;
    }
    let entries = (0..5).map(
        |n| json!({"Id": n.to_string(), "MessageBody": format!("b{n}"), "MessageGroupId": "g"}),
    );
    let entries = json!({"Entries": entries.collect::<Vec<_>>()});
    let batch = call(site.api(0), "SendMessageBatch", of("t.fifo", entries))
        .await
        .ok();
    for sent in batch["Successful"].as_array().expect("a list") {
        assert!(number(sent) > last, "{sent}");
        last = number(sent);
    }
    let plain = send(site.api(0), "t", json!({"MessageBody": "x"})).await;
    assert_eq!(plain.get("SequenceNumber"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_deduplicate_on_their_own_if_the_queue_says_so() {
    let site = site("").await;
    let api = site.api(0);
    create(
        api,
        "q.fifo",
        json!({"FifoQueue": "true", "DeduplicationScope": "messageGroup"}),
    )
    .await;
    let body = |group: &str| json!({"MessageBody": "x", "MessageGroupId": group, "MessageDeduplicationId": "1"});
    let first = send(api, "q.fifo", body("a")).await;
    assert_eq!(
        send(api, "q.fifo", body("a")).await["MessageId"],
        first["MessageId"]
    );
    assert_ne!(
        send(api, "q.fifo", body("b")).await["MessageId"],
        first["MessageId"]
    );
    let message = receive(api, "q.fifo", json!({})).await;
    assert_eq!(message["Attributes"]["MessageDeduplicationId"], "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_and_batches_have_the_sizes_of_sqs() {
    const MIB: usize = 1024 * 1024;
    let site = site("[topics.large]\nmax_payload = \"2MiB\"").await;
    let api = site.api(0);
    create(api, "q", json!({})).await;
    let body = |size: usize| "x".repeat(size);
    send(api, "q", json!({"MessageBody": body(MIB)})).await;
    let attributes = json!({"k": text("v")});
    let counted = json!({"MessageBody": body(MIB - 7), "MessageAttributes": attributes});
    let message = call(api, "SendMessage", of("q", counted)).await;
    let message = message.fails("InvalidParameterValue");
    assert!(
        message.ends_with("shorter than 1048576 bytes."),
        "{message}"
    );
    assert!(
        message.starts_with("One or more parameters are invalid. Reason: "),
        "{message}"
    );
    let batch = |sizes: [usize; 2]| {
        let [a, b] = sizes.map(body);
        json!({"Entries": [{"Id": "a", "MessageBody": a}, {"Id": "b", "MessageBody": b}]})
    };
    call(api, "SendMessageBatch", of("q", batch([MIB - 1, 1])))
        .await
        .ok();
    let message = call(api, "SendMessageBatch", of("q", batch([MIB, 1]))).await;
    let message = message.fails("BatchRequestTooLong");
    assert!(message.contains("You have sent 1048577 bytes"), "{message}");
    // An entry that is too large fails alone, with another text than a single message.
    create(api, "small", json!({"MaximumMessageSize": "2048"})).await;
    let sent = call(api, "SendMessageBatch", of("small", batch([2048, 2049])));
    let sent = sent.await.ok();
    assert_eq!(sent["Successful"][0]["Id"], "a", "{sent}");
    let failed = &sent["Failed"][0];
    assert_eq!(
        (&failed["Id"], &failed["Code"], &failed["Message"]),
        (
            &json!("b"),
            &json!("InvalidParameterValue"),
            &json!(
                "One or more parameters cannot be validated. Reason: Message must be shorter than 2048 bytes."
            )
        )
    );
    // A topic may have larger ones.
    call(api, "SendMessageBatch", of("large", batch([MIB, MIB])))
        .await
        .ok();
    call(api, "SendMessageBatch", of("large", batch([2 * MIB, 1])))
        .await
        .fails("BatchRequestTooLong");
    for (id, code) in [("a b", "InvalidBatchEntryId"), ("", "InvalidBatchEntryId")] {
        let entries = json!({"Entries": [{"Id": id, "MessageBody": "x"}]});
        call(api, "SendMessageBatch", of("q", entries))
            .await
            .fails(code);
    }
    let attempt = json!({"ReceiveRequestAttemptId": "a b"});
    call(api, "ReceiveMessage", of("q", attempt))
        .await
        .fails("InvalidParameterValue");
}
