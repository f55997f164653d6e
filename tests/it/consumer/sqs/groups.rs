//! Several messages of a message group in one receive.

use super::*;

/// Receives up to ten messages, and returns them.
async fn receive_all(api: &Api, queue: &str, wait: u64) -> Vec<Value> {
    let body = json!({
        "MaxNumberOfMessages": 10, "WaitTimeSeconds": wait, "VisibilityTimeout": 60, "AttributeNames": ["All"],
    });
    let received = call(api, "ReceiveMessage", of(queue, body)).await.ok();
    received["Messages"].as_array().cloned().unwrap_or_default()
}

fn bodies(messages: &[Value]) -> Vec<&str> {
    let bodies = messages.iter().map(|message| message["Body"].as_str());
    bodies.map(|body| body.expect("a body")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receive_has_messages_of_a_group_in_order_and_the_others_wait_for_them() {
    let site = site(&format!("[topics.t]\n{NO_RETRY_DELAY}")).await;
    let api = site.api(0);
    for n in 0..12 {
        let body = json!({"MessageBody": format!("a{n:02}"), "MessageGroupId": "a"});
        send(api, "t.fifo", body).await;
    }
    // All of them are due before the one that comes last.
    let last = json!({"MessageBody": "b", "MessageGroupId": "b"});
    send(api, "t.fifo", last).await;
    let other = receive_all(api, "t.fifo", 20).await;
    let other = match &*bodies(&other) {
        ["b"] => Vec::new(),
        _ => other,
    };
    let mut first = other;
    while bodies(&first).iter().filter(|body| **body != "b").count() == 0 {
        first = receive_all(api, "t.fifo", 20).await;
    }
    first.retain(|message| message["Body"] != "b");
    let expected: Vec<_> = (0..first.len()).map(|n| format!("a{n:02}")).collect();
    assert_eq!(bodies(&first), expected);
    // The second one is to come again now; the others are done, the first one last.
    let again = with_handle(&first[1], json!({"VisibilityTimeout": 0}));
    call(api, "ChangeMessageVisibility", of("t.fifo", again))
        .await
        .ok();
    for done in first.iter().skip(2).chain(&first[..1]) {
        let none = receive_all(site.api(1), "t.fifo", 0).await;
        assert!(!bodies(&none).iter().any(|body| body.starts_with('a')));
        let handle = with_handle(done, json!({}));
        call(api, "DeleteMessage", of("t.fifo", handle)).await.ok();
    }
    let next = receive_all(site.api(1), "t.fifo", 20).await;
    assert_eq!(
        bodies(&next)[..2],
        ["a01", &*format!("a{:02}", first.len())]
    );
    assert_eq!(next[0]["Attributes"]["ApproximateReceiveCount"], "2");
}
