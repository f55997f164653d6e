//! Receipt handles whose visibility timeout has ended.

use super::*;

/// A handle whose timeout is over still deletes, unless somebody has received the message since.
#[tokio::test(flavor = "multi_thread")]
async fn an_old_handle_deletes_what_nobody_has() {
    let site = site(&format!("[topics.t]\n{NO_RETRY_DELAY}")).await;
    let api = site.api(0);
    send(api, "t", json!({"MessageBody": "x"})).await;
    let first = receive(
        api,
        "t",
        json!({"VisibilityTimeout": 0, "WaitTimeSeconds": 20}),
    )
    .await;
    let second = receive(
        api,
        "t",
        json!({"VisibilityTimeout": 60, "WaitTimeSeconds": 20}),
    )
    .await;
    let old = with_handle(&first, json!({}));
    let refused = call(api, "DeleteMessage", of("t", old.clone())).await;
    refused.fails("ReceiptHandleIsInvalid");
    let release = with_handle(&second, json!({"VisibilityTimeout": 0}));
    call(api, "ChangeMessageVisibility", of("t", release))
        .await
        .ok();
    call(site.api(1), "DeleteMessage", of("t", old)).await.ok();
    site.assert_drained("t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_handle_hides_what_nobody_has() {
    let site = site(&format!("[topics.t]\n{NO_RETRY_DELAY}")).await;
    let api = site.api(0);
    let change = async |message: &Value, seconds: u64| {
        let body = with_handle(message, json!({"VisibilityTimeout": seconds}));
        call(site.api(1), "ChangeMessageVisibility", of("t", body)).await
    };
    send(api, "t", json!({"MessageBody": "x"})).await;
    let first = receive(api, "t", json!({"VisibilityTimeout": 0})).await;
    change(&first, 600).await.ok();
    let stats = site.stats("t").await;
    assert_eq!(stats["groups"][0]["retry"], 1, "{stats}");
    change(&first, 0).await.ok();
    let second = receive(api, "t", json!({"VisibilityTimeout": 600})).await;
    assert_eq!(second["MessageId"], first["MessageId"]);
    for seconds in [0, 5] {
        let refused = change(&first, seconds).await;
        refused.fails("MessageNotInflight");
    }
    let body = of("t", with_handle(&second, json!({})));
    call(api, "DeleteMessage", body).await.ok();
    let message = change(&first, 5).await.fails("InvalidParameterValue");
    assert!(message.contains("does not exist"), "{message}");
    // Another message may have that id by now.
    let identified = json!({"MessageBody": "x", "MessageDeduplicationId": "1"});
    send(api, "t", identified).await;
    let own = receive(api, "t", json!({"VisibilityTimeout": 0})).await;
    change(&own, 5).await.fails("MessageNotInflight");
    let last = receive(api, "t", json!({})).await;
    let body = of("t", with_handle(&last, json!({})));
    call(api, "DeleteMessage", body).await.ok();
    site.assert_drained("t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_handle_of_a_fifo_queue_does_nothing() {
    let site = site("").await;
    let api = site.api(0);
    let create = json!({"QueueName": "q.fifo", "Attributes": {"FifoQueue": "true"}});
    call(api, "CreateQueue", create).await.ok();
    let body = json!({"MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "1"});
    send(api, "q.fifo", body).await;
    let first = receive(api, "q.fifo", json!({"VisibilityTimeout": 1})).await;
    let second = receive(site.api(1), "q.fifo", json!({"WaitTimeSeconds": 20})).await;
    assert_eq!(second["MessageId"], first["MessageId"]);
    let old = with_handle(&first, json!({}));
    let refused = call(api, "DeleteMessage", of("q.fifo", old.clone())).await;
    let message = refused.fails("InvalidParameterValue");
    assert!(
        message.ends_with("Reason: The receipt handle has expired."),
        "{message}"
    );
    let change = with_handle(&first, json!({"VisibilityTimeout": 5}));
    let change = call(api, "ChangeMessageVisibility", of("q.fifo", change)).await;
    change.fails("MessageNotInflight");
    let body = of("q.fifo", with_handle(&second, json!({})));
    call(api, "DeleteMessage", body).await.ok();
    // It is gone.
    call(api, "DeleteMessage", of("q.fifo", old)).await.ok();
    site.assert_drained("q").await;
}
