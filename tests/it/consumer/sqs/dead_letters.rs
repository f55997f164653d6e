//! Dead-letter queues: messages get there after their last attempt, and move tasks bring them back.

use futures_util::future::join_all;

use super::*;

const FORWARD: &str = "[topics.t]\nmax_attempts = 2\nretry = { base = \"1ms\", jitter = 0 }\ngarbage = { topic = \"dead\" }\n[topics.dead]\n[topics.other]";

fn arn(queue: &str) -> String {
    format!("arn:aws:sqs:us-east-1:000000000000:{queue}")
}

/// Sends messages that fail twice, and waits until the dead-letter queue has them. Returns their ids.
async fn fail(site: &Site, bodies: &[&str]) -> Vec<Value> {
    let api = site.api(0);
    let mut ids = Vec::new();
    for body in bodies {
        ids.push(send(api, "t", json!({"MessageBody": body})).await["MessageId"].clone());
        for _ in 0..2 {
            receive(
                api,
                "t",
                json!({"VisibilityTimeout": 0, "WaitTimeSeconds": 20}),
            )
            .await;
        }
    }
    waiting(site, "dead", bodies.len()).await;
    ids
}

/// Waits until a queue has as many messages.
async fn waiting(site: &Site, queue: &str, count: usize) {
    eventually(SOON, async || {
        let names = json!({"AttributeNames": ["ApproximateNumberOfMessages"]});
        let read = call(site.api(1), "GetQueueAttributes", of(queue, names))
            .await
            .ok();
        let found = read["Attributes"]["ApproximateNumberOfMessages"].as_str();
        match found == Some(&count.to_string()) {
            true => Ok(()),
            false => Err(read),
        }
    })
    .await;
}

/// Starts a task, and returns its end.
async fn run(site: &Site, task: Value) -> Value {
    call(site.api(0), "StartMessageMoveTask", task).await.ok();
    eventually(SOON, async || {
        let list = json!({"SourceArn": arn("dead"), "MaxResults": 10});
        let listed = call(site.api(1), "ListMessageMoveTasks", list).await.ok();
        let newest = listed["Results"][0].clone();
        match newest["Status"] == "RUNNING" {
            true => Err(listed),
            false => Ok(newest),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_failed_are_in_the_dead_letter_queue_and_go_back_to_their_queue() {
    let site = site(FORWARD).await;
    let ids = fail(&site, &["a", "b"]).await;
    let names = json!({"AttributeNames": ["All"], "WaitTimeSeconds": 20, "VisibilityTimeout": 0});
    let dead = receive(site.api(0), "dead", names).await;
    assert!(ids.contains(&dead["MessageId"]), "{dead}");
    assert_eq!(dead["Attributes"]["ApproximateReceiveCount"], "3");
    assert_eq!(dead["Attributes"]["DeadLetterQueueSourceArn"], arn("t"));
    waiting(&site, "dead", 2).await;
    let task = run(&site, json!({ "SourceArn": arn("dead") })).await;
    assert_eq!(task["Status"], "COMPLETED", "{task}");
    assert_eq!(task["ApproximateNumberOfMessagesMoved"], 2);
    assert_eq!(task.get("TaskHandle"), None);
    waiting(&site, "dead", 0).await;
    for _ in &ids {
        let back = receive(site.api(1), "t", json!({"WaitTimeSeconds": 20})).await;
        assert!(ids.contains(&back["MessageId"]), "{back}");
        let handle = with_handle(&back, json!({}));
        call(site.api(0), "DeleteMessage", of("t", handle))
            .await
            .ok();
    }
    for topic in ["t", "dead"] {
        assert_eq!(site.stats(topic).await["conservation_error"], 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_goes_to_another_queue_at_its_rate_and_can_be_cancelled() {
    let site = site(FORWARD).await;
    fail(&site, &["a", "b", "c", "d", "e"]).await;
    let slow = json!({"SourceArn": arn("dead"), "DestinationArn": arn("other"), "MaxNumberOfMessagesPerSecond": 1});
    let started = call(site.api(0), "StartMessageMoveTask", slow.clone())
        .await
        .ok();
    let message = call(site.api(1), "StartMessageMoveTask", slow).await;
    let message = message.fails("InvalidParameterValue");
    assert!(message.contains("already a task running"), "{message}");
    waiting(&site, "other", 1).await;
    // Another gateway can cancel it.
    let cancel = json!({"TaskHandle": started["TaskHandle"]});
    call(site.api(1), "CancelMessageMoveTask", cancel.clone())
        .await
        .ok();
    let list = json!({"SourceArn": arn("dead")});
    let listed = eventually(SOON, async || {
        let listed = call(site.api(1), "ListMessageMoveTasks", list.clone())
            .await
            .ok();
        match listed["Results"][0]["Status"] == "CANCELLED" {
            true => Ok(listed),
            false => Err(listed),
        }
    })
    .await;
    let task = &listed["Results"][0];
    assert_eq!(task["DestinationArn"], arn("other"));
    assert_eq!(task["MaxNumberOfMessagesPerSecond"], 1);
    assert_eq!(task["ApproximateNumberOfMessagesToMove"], 5);
    let moved = task["ApproximateNumberOfMessagesMoved"].as_u64().unwrap();
    assert!((1..5).contains(&moved), "{task}");
    waiting(&site, "dead", 5 - moved as usize).await;
    call(site.api(1), "CancelMessageMoveTask", cancel)
        .await
        .fails("UnsupportedOperation");
    // The rest follows.
    let to_other = json!({"SourceArn": arn("dead"), "DestinationArn": arn("other")});
    let task = run(&site, to_other).await;
    assert_eq!(task["Status"], "COMPLETED", "{task}");
    waiting(&site, "other", 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_tasks_that_two_gateways_start_at_the_same_time_only_one_runs() {
    let site = site(FORWARD).await;
    // They take longer than any start.
    fail(&site, &["a"; 20]).await;
    let slow = json!({"SourceArn": arn("dead"), "DestinationArn": arn("other"), "MaxNumberOfMessagesPerSecond": 1});
    let starts =
        [0, 1].map(|gateway| call(site.api(gateway), "StartMessageMoveTask", slow.clone()));
    let mut ended = join_all(starts).await;
    ended.sort_by_key(|answer| answer.status);
    let [one, other] = <[_; 2]>::try_from(ended).ok().expect("two");
    one.ok();
    let message = other.fails("InvalidParameterValue");
    assert!(message.contains("already a task running"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_without_a_source_stays() {
    let site = site(FORWARD).await;
    send(site.api(0), "dead", json!({"MessageBody": "direct"})).await;
    let task = run(&site, json!({ "SourceArn": arn("dead") })).await;
    assert_eq!(task["Status"], "FAILED", "{task}");
    assert_eq!(task["FailureReason"], "CouldNotDetermineMessageSource");
    waiting(&site, "dead", 1).await;
}
