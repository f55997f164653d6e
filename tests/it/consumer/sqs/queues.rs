//! Queues: their names, and the attributes that libraries set on them.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_may_have_any_name_that_sqs_allows() {
    let long = format!("My_Queue-{}", "x".repeat(71));
    let site = site(&format!("[topics.MyQueue]\n[topics._own]\n[topics.{long}]")).await;
    let api = site.api(0);
    for queue in ["MyQueue", "MyQueue.fifo", "_own", &long] {
        let url = call(api, "GetQueueUrl", json!({"QueueName": queue}))
            .await
            .ok();
        let url = url["QueueUrl"].as_str().expect("an address").to_owned();
        assert!(url.ends_with(&format!("/{queue}")), "{url}");
        let body =
            json!({"MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": queue});
        send(api, queue, body).await;
        let message = receive(site.api(1), queue, json!({})).await;
        let body = of(queue, with_handle(&message, json!({})));
        call(api, "DeleteMessage", body).await.ok();
    }
    site.assert_drained(&long).await;
    site.assert_drained("MyQueue").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_has_the_name_of_a_queue_that_begins_as_wanted() {
    let site = site("[topics.orders]\n[topics.other]").await;
    let listed = async |body: Value| {
        let queues = call(site.api(0), "ListQueues", body).await.ok();
        let urls = queues["QueueUrls"].as_array().cloned().unwrap_or_default();
        let names = urls.iter().map(|url| url.as_str().expect("an address"));
        let names = names.map(|url| url.rsplit('/').next().expect("a name").to_owned());
        (names.collect::<Vec<_>>(), queues["NextToken"].clone())
    };
    let prefix = |text: &str| json!({ "QueueNamePrefix": text });
    // A gateway learns of new topics after a while.
    eventually(SOON, async || match listed(prefix("o")).await.0 {
        names if names == ["orders", "other"] => Ok(()),
        names => Err(names.join(" ")),
    })
    .await;
    assert_eq!(listed(prefix("orders.fi")).await.0, ["orders.fifo"]);
    let first = listed(json!({"MaxResults": 1})).await;
    assert_eq!(first.0, ["orders"]);
    let rest = listed(json!({"MaxResults": 1, "NextToken": first.1})).await;
    assert_eq!(rest.0, ["other"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_without_a_counterpart_are_ignored_and_logged_once_or_refused() {
    let site = site("[topics.t]\nmax_attempts = 3").await;
    let attributes = json!({
        "FifoQueue": "True",
        "ContentBasedDeduplication": "TRUE",
        "MessageRetentionPeriod": "1209600",
        "ReceiveMessageWaitTimeSeconds": "20",
        "RedrivePolicy": "{\"deadLetterTargetArn\": \"arn:aws:sqs:r:0:dead.fifo\", \"maxReceiveCount\": 3}",
        "KmsMasterKeyId": "alias/aws/sqs",
    });
    let create =
        |more: Value| json!({"QueueName": "t.fifo", "Attributes": more, "tags": {"team": "shop"}});
    for _ in 0..2 {
        let created = call(site.api(0), "CreateQueue", create(attributes.clone())).await;
        created.ok();
    }
    let set = of("t.fifo", json!({ "Attributes": attributes }));
    call(site.api(0), "SetQueueAttributes", set.clone())
        .await
        .ok();
    // The lines of the log appear in order, but later.
    let log = eventually(SOON, async || {
        let log = site.gateways[0].0.stderr();
        let answers = log.matches(r#""method":"POST","route":"/""#).count();
        if answers >= 3 { Ok(log) } else { Err(log) }
    })
    .await;
    let warnings = log.matches("attributes that have no effect").count();
    assert_eq!(warnings, 1, "{log}");
    let ignored = "KmsMasterKeyId, MessageRetentionPeriod, ReceiveMessageWaitTimeSeconds, RedrivePolicy, tags";
    assert!(log.contains(ignored), "{log}");
    // Messages would be handled in another way than the client expects.
    let other = create(json!({"VisibilityTimeout": "1800"}));
    let other = call(site.api(0), "CreateQueue", other).await;
    let message = other.fails("QueueAlreadyExists");
    assert!(message.contains("VisibilityTimeout"), "{message}");
    let early = create(json!({"DelaySeconds": "60"}));
    call(site.api(0), "CreateQueue", early)
        .await
        .fails("QueueAlreadyExists");
    let wrong = create(json!({"VisibilityTimeout": "x"}));
    let message = call(site.api(0), "CreateQueue", wrong)
        .await
        .fails("InvalidAttributeValue");
    assert_eq!(
        message,
        "Invalid value for the parameter VisibilityTimeout."
    );

    let strict = "consumer.gateway.sqs = true\nconsumer.gateway.sqs_ignore_attributes = false";
    let strict = Site::start("[topics.t]", strict).await;
    let tagged = json!({"QueueName": "t", "tags": {"team": "shop"}});
    call(strict.api(0), "CreateQueue", tagged)
        .await
        .fails("QueueAlreadyExists");
    let message = call(strict.api(0), "SetQueueAttributes", set)
        .await
        .fails("UnsupportedOperation");
    assert!(message.contains("not created by CreateQueue"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_that_redis_does_not_return_in_time_are_refused() {
    let site = site("[topics.t]").await;
    let api = site.api(0);
    let names = json!({"AttributeNames": ["ApproximateNumberOfMessages"]});
    let read = || call(api, "GetQueueAttributes", of("t", names.clone()));
    read().await.ok();
    let _: String = site.redis(&["CLIENT", "PAUSE", "120000"]).await;
    for refused in futures_util::future::join_all((0..6).map(|_| read())).await {
        assert_eq!(refused.status, 503, "{}", refused.body);
        let message = refused.body["message"].as_str().unwrap_or_default();
        assert!(message.contains("Too many counts"), "{message}");
    }
}
