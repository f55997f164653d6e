//! Clients of Amazon SQS at a gateway, with raw requests to the real programs. `make clients` runs the SDKs.

mod changes;
mod dead_letters;
mod fifo;
mod groups;
mod late;
mod purge;
mod query;
mod queues;
mod quota;
mod shapes;
mod signed;

use super::gateways::{Site, pull_one, waiting};
use super::*;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use lisa_tests::Api;
use lisa_tests::sqs::JSON;
use reqwest::Method;
use serde_json::{Map, Value, json};

const NO_RETRY_DELAY: &str = "retry = { base = \"1ms\", jitter = 0 }";

/// An answer: the status, the body, and the name of an error.
struct Answer {
    status: u16,
    body: Value,
    error: String,
}

impl Answer {
    fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.body
    }

    /// Checks that it is an error with this code, without the prefix that some have.
    fn fails(self, code: &str) -> String {
        let message = self.body["message"].as_str().unwrap_or_default().to_owned();
        let given = self.error.strip_suffix(";Sender").unwrap_or(&self.error);
        let given = given.rsplit('.').next().unwrap_or_default();
        assert_eq!(given, code, "{} {message}", self.error);
        message
    }
}

async fn send_request(request: reqwest::RequestBuilder) -> Answer {
    let response = request.send().await.expect("an answer");
    let error = response.headers().get("x-amzn-query-error");
    let error = error.map(|value| value.to_str().expect("ASCII").to_owned());
    assert!(response.headers().contains_key("x-amzn-requestid"));
    Answer {
        status: response.status().as_u16(),
        error: error.unwrap_or_default(),
        body: response.json().await.expect("JSON"),
    }
}

async fn call(api: &Api, action: &str, body: Value) -> Answer {
    let request = api.request(Method::POST, "/");
    let request = request.header("content-type", JSON);
    let request = request.header("x-amz-target", format!("AmazonSQS.{action}"));
    send_request(request.body(body.to_string())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_with_a_content_coding_is_refused_as_sqs_does() {
    let site = Site::start("[topics.t]", "consumer.gateway.sqs = true").await;
    let pull = "/v1/topics/t/groups/default/pull";
    let pull = site.api(0).request(Method::POST, pull).body("{}");
    let pull = pull.header("content-encoding", "gzip").send().await;
    assert_eq!(pull.expect("an answer").status(), 415);
    for (coding, is_sent) in [("gzip", false), ("identity", true)] {
        let body = of("t", json!({"MessageBody": "x"}));
        let request = site.api(0).request(Method::POST, "/");
        let request = request.header("content-type", JSON);
        let request = request.header("content-encoding", coding);
        let request = request.header("x-amz-target", "AmazonSQS.SendMessage");
        let answer = send_request(request.body(body.to_string())).await;
        match is_sent {
            true => drop(answer.ok()),
            false => {
                let message = answer.fails("SerializationException");
                assert!(message.contains("Content-Encoding"), "{message}");
            }
        }
    }
}

/// Adds the address of a queue to a body.
fn of(queue: &str, mut body: Value) -> Value {
    body["QueueUrl"] = json!(format!("http://localhost/000000000000/{queue}"));
    body
}

/// Makes a message attribute of the type `String`.
fn text(value: impl Into<Value>) -> Value {
    json!({"DataType": "String", "StringValue": value.into()})
}

async fn send(api: &Api, queue: &str, body: Value) -> Value {
    call(api, "SendMessage", of(queue, body)).await.ok()
}

/// Receives one message.
async fn receive(api: &Api, queue: &str, more: Value) -> Value {
    let mut body =
        json!({"AttributeNames": ["All"], "MessageAttributeNames": ["All"], "WaitTimeSeconds": 20});
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    let begun = Instant::now();
    loop {
        let answer = call(api, "ReceiveMessage", of(queue, body.clone()))
            .await
            .ok();
        match answer["Messages"].as_array() {
            Some(messages) => return messages[0].clone(),
            None => assert!(begun.elapsed() < SOON, "nothing to receive"),
        }
    }
}

fn with_handle(message: &Value, mut body: Value) -> Value {
    body["ReceiptHandle"] = message["ReceiptHandle"].clone();
    body
}

async fn site(topic: &str) -> Site {
    Site::start(topic, "consumer.gateway.sqs = true").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_not_of_the_protocol_says_what_is_wrong() {
    let site = Site::start("[topics.t]", "").await;
    let off = site.api(0).request(Method::POST, "/").body("{}");
    assert_eq!(off.send().await.expect("an answer").status(), 404);
    drop(site);
    let site = self::site("[topics.t]\nmax_payload = \"10B\"").await;
    let api = site.api(0);
    for path in ["/", "/000000000000/t"] {
        let old = api.request(Method::POST, path);
        let old = old.header("content-type", "application/x-www-form-urlencoded");
        let old = old.body("Action=SendMessage&MessageBody=x&Version=2012-11-05");
        let old = old.send().await.expect("an answer");
        // The queue is in the path, or nowhere.
        let (status, code) = match path {
            "/" => (400, "<Code>MissingParameter</Code>"),
            _ => (200, "<MD5OfMessageBody>"),
        };
        assert_eq!(old.status(), status);
        let text = old.text().await.expect("a body");
        assert!(text.contains(code), "{text}");
    }
    let plain = api
        .request(Method::POST, "/")
        .header("x-amz-target", "AmazonSQS.ListQueues");
    send_request(plain.body("{}"))
        .await
        .fails("SerializationException");
    for (action, body, shape, part) in [
        ("Nothing", json!({}), "InvalidAction", "Nothing"),
        (
            "CreateQueue",
            json!({"QueueName": "a b"}),
            "InvalidParameterValue",
            "alphanumeric",
        ),
        (
            "CancelMessageMoveTask",
            json!({"TaskHandle": "x"}),
            "InvalidParameterValue",
            "TaskHandle",
        ),
        (
            "SendMessage",
            json!([]),
            "SerializationException",
            "JSON object",
        ),
        (
            "SendMessage",
            json!({"QueueUrl": 7}),
            "SerializationException",
            "string",
        ),
        (
            "SendMessage",
            json!({"MessageBody": "x"}),
            "MissingParameter",
            "QueueUrl",
        ),
        (
            "SendMessage",
            of("t", json!({})),
            "MissingParameter",
            "MessageBody",
        ),
        (
            "SendMessage",
            of("t", json!({"MessageBody": ""})),
            "MissingParameter",
            "MessageBody",
        ),
        (
            "SendMessage",
            of("t", json!({"MessageBody": "12345678901"})),
            "InvalidParameterValue",
            "shorter than 10 bytes",
        ),
        (
            "SendMessage",
            of("t", json!({"MessageBody": "\u{1}"})),
            "InvalidMessageContents",
            "U+0001",
        ),
        (
            "SendMessage",
            of("t", json!({"MessageBody": "x", "DelaySeconds": -1})),
            "InvalidParameterValue",
            "DelaySeconds",
        ),
        (
            "SendMessage",
            of("t", json!({"MessageBody": "x", "DelaySeconds": 31_536_001})),
            "InvalidParameterValue",
            "365d",
        ),
        (
            "SendMessage",
            of("t.fifo", json!({"MessageBody": "x"})),
            "MissingParameter",
            "MessageGroupId",
        ),
        (
            "SendMessage",
            of(
                "t",
                json!({"MessageBody": "x", "MessageDeduplicationId": "a b"}),
            ),
            "InvalidParameterValue",
            "128",
        ),
        (
            "SendMessage",
            of("other", json!({"MessageBody": "x"})),
            "NonExistentQueue",
            "does not exist.",
        ),
        (
            "SendMessage",
            of("Orders", json!({"MessageBody": "x"})),
            "NonExistentQueue",
            "does not exist.",
        ),
        (
            "ReceiveMessage",
            of("t", json!({"MaxNumberOfMessages": 11})),
            "InvalidParameterValue",
            "between 1 and 10",
        ),
        (
            "ReceiveMessage",
            of("t", json!({"WaitTimeSeconds": 21})),
            "InvalidParameterValue",
            ">= 0 and <= 20",
        ),
        (
            "ReceiveMessage",
            of("t", json!({"VisibilityTimeout": 43_201})),
            "InvalidParameterValue",
            "43200",
        ),
        (
            "DeleteMessage",
            of("t", json!({})),
            "MissingParameter",
            "ReceiptHandle",
        ),
        (
            "DeleteMessage",
            of("t", json!({"ReceiptHandle": "x"})),
            "ReceiptHandleIsInvalid",
            "\"x\" is not a valid receipt handle",
        ),
        (
            "DeleteMessageBatch",
            of("t", json!({})),
            "EmptyBatchRequest",
            "at least one",
        ),
        (
            "ListQueues",
            json!({"MaxResults": 0}),
            "InvalidParameterValue",
            "MaxResults",
        ),
        (
            "CreateQueue",
            json!({"QueueName": "other.fifo"}),
            "InvalidParameterValue",
            "Can only include",
        ),
        (
            "CreateQueue",
            json!({"QueueName": "t", "Attributes": {"VisibilityTimeout": "9"}}),
            "QueueAlreadyExists",
            "value for attribute VisibilityTimeout",
        ),
        (
            "SetQueueAttributes",
            of("t", json!({"Attributes": {"DelaySeconds": "9"}})),
            "UnsupportedOperation",
            "not created by CreateQueue",
        ),
        (
            "SetQueueAttributes",
            of("t", json!({"Attributes": {"X": "9"}})),
            "InvalidAttributeName",
            "X",
        ),
        (
            "GetQueueAttributes",
            of("t", json!({"AttributeNames": ["X"]})),
            "InvalidAttributeName",
            "X",
        ),
        (
            "StartMessageMoveTask",
            json!({"SourceArn": "arn:aws:sqs:us-east-1:000000000000:other"}),
            "ResourceNotFoundException",
            "SourceArn",
        ),
        (
            "StartMessageMoveTask",
            json!({"SourceArn": "arn:aws:sqs:us-east-1:000000000000:t"}),
            "InvalidParameterValue",
            "Dead Letter Queue",
        ),
        (
            "ListMessageMoveTasks",
            json!({"SourceArn": "t"}),
            "InvalidParameterValue",
            "arn:<partition>",
        ),
    ] {
        let message = call(api, action, body.clone()).await.fails(shape);
        assert!(message.contains(part), "{action} {body}: {message}");
    }
    // That of the form.
    assert_eq!(site.stats("t").await["stored"], 1);
    let same = json!({"QueueName": "t.fifo", "Attributes": {"VisibilityTimeout": "30", "FifoQueue": "true"}});
    let url = call(api, "CreateQueue", same).await.ok()["QueueUrl"].clone();
    assert!(
        url.as_str()
            .is_some_and(|url| url.ends_with("/000000000000/t.fifo")),
        "{url}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn any_gateway_settles_a_message_and_an_old_handle_settles_nothing() {
    let site = site(&format!("[topics.other]\n[topics.t]\n{NO_RETRY_DELAY}")).await;
    let (here, there) = (site.api(0), site.api(1));
    let sent = send(here, "t", json!({"MessageBody": "one"})).await;
    let first = receive(here, "t", json!({"VisibilityTimeout": 600})).await;
    assert_eq!(
        (&first["MessageId"], &first["Body"]),
        (&sent["MessageId"], &json!("one"))
    );
    assert_eq!(first["Attributes"]["ApproximateReceiveCount"], "1");
    let change = |message, seconds| {
        of(
            "t",
            with_handle(message, json!({"VisibilityTimeout": seconds})),
        )
    };
    call(there, "ChangeMessageVisibility", change(&first, 900))
        .await
        .ok();
    call(there, "ChangeMessageVisibility", change(&first, 0))
        .await
        .ok();
    let second = receive(there, "t", json!({})).await;
    let elsewhere = of("other", with_handle(&second, json!({})));
    let elsewhere = call(there, "DeleteMessage", elsewhere).await;
    elsewhere.fails("ReceiptHandleIsInvalid");
    assert_eq!(second["Attributes"]["ApproximateReceiveCount"], "2");
    let delete = |message| of("t", with_handle(message, json!({})));
    for (action, code) in [
        ("DeleteMessage", "ReceiptHandleIsInvalid"),
        ("ChangeMessageVisibility", "MessageNotInflight"),
    ] {
        call(here, action, change(&first, 5)).await.fails(code);
    }
    let entries = json!([
        with_handle(&first, json!({"Id": "old"})),
        with_handle(&second, json!({"Id": "new"})),
        {"Id": "bad", "ReceiptHandle": "x"},
        {"Id": "none"},
    ]);
    let batch = of("t", json!({ "Entries": entries }));
    let batch = call(here, "DeleteMessageBatch", batch).await.ok();
    // The message of the old handle is gone now, too.
    let both = json!([{"Id": "old"}, {"Id": "new"}]);
    assert_eq!(batch["Successful"], both);
    let failed = batch["Failed"].as_array().expect("failures").iter();
    let failed: Vec<_> = failed
        .map(|failed| (&failed["Id"], &failed["Code"]))
        .collect();
    let bad = (json!("bad"), json!("ReceiptHandleIsInvalid"));
    let none = (json!("none"), json!("MissingParameter"));
    assert_eq!(failed, [(&bad.0, &bad.1), (&none.0, &none.1)]);
    // Once it is gone, deleting it again is no error, with either handle.
    for message in [&first, &second] {
        call(there, "DeleteMessage", delete(message)).await.ok();
    }
    site.assert_drained("t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_pass_between_sqs_clients_and_others() {
    let site = site("[topics.t]\nkey_index = true").await;
    let api = site.api(0);
    let attributes = json!({
        "Color": {"DataType": "String", "StringValue": "red"},
        "bytes": {"DataType": "Binary", "BinaryValue": "AAH/"},
    });
    let body = json!({
        "MessageBody": "hello", "MessageAttributes": attributes, "MessageGroupId": "customer#7",
        "MessageDeduplicationId": "order/7",
    });
    let sent = send(api, "t.fifo", body.clone()).await;
    assert_eq!(sent["MD5OfMessageBody"], "5d41402abc4b2a76b9719d911017c592");
    // The same deduplication id, and so the same message.
    assert_eq!(
        send(api, "t.fifo", body).await["MessageId"],
        sent["MessageId"]
    );
    let pulled = pull_one(api, "t", "60s").await;
    assert_eq!(pulled["payload"], "hello");
    assert_eq!(pulled["headers"]["sqs-attr-color"], "red");
    assert_eq!(pulled["headers"]["sqs-attr-bytes"], "AAH/");
    let path = format!(
        "/v1/topics/t/messages/{}",
        pulled["id"].as_str().expect("an id")
    );
    assert_eq!(site.manager.get_json(&path).await["key"], "customer#7");
    let handle = json!({"ReceiptHandle": pulled["token"]});
    call(api, "DeleteMessage", of("t", handle)).await.ok();

    site.send(
        "t",
        &[("Lisa-Header-color", "blue"), ("Lisa-Id", "mine")],
        "plain",
    )
    .await;
    let names = json!({"MessageAttributeNames": ["color", "lisa-id"]});
    let message = receive(api, "t", names).await;
    assert_eq!(message["Body"], "plain");
    let attributes = json!({"color": text("blue"), "lisa-id": text("mine")});
    assert_eq!(message["MessageAttributes"], attributes);
    call(
        api,
        "DeleteMessage",
        of("t", with_handle(&message, json!({}))),
    )
    .await
    .ok();

    // The message group of a message from another client is its ordering key.
    for (queue, group) in [("t.fifo", json!("customer 8")), ("t", json!(null))] {
        site.send("t", &[("Lisa-Key", "customer 8")], "keyed").await;
        let message = receive(api, queue, json!({})).await;
        assert_eq!(message["Attributes"]["MessageGroupId"], group, "{message}");
        let handle = with_handle(&message, json!({}));
        call(api, "DeleteMessage", of("t", handle)).await.ok();
    }

    let bytes: &[u8] = &[0xff, 0, 0xfe];
    let request = site.manager.request(Method::POST, "/v1/topics/t/messages");
    let binary = request.body(bytes).send().await.expect("an answer");
    assert_eq!(binary.status(), 202);
    let message = receive(api, "t", json!({"MessageAttributeNames": []})).await;
    assert_eq!(message["Body"], STANDARD.encode(bytes));
    assert_eq!(
        message["MessageAttributes"]["lisa-encoding"]["StringValue"],
        "base64"
    );
    call(
        api,
        "DeleteMessage",
        of("t", with_handle(&message, json!({}))),
    )
    .await
    .ok();
    site.assert_drained("t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn receives_that_do_not_wait_find_what_is_ready_even_at_the_same_time() {
    let topics = (0..10).map(|n| format!("[topics.t{n}]\n"));
    let site = site(&topics.collect::<String>()).await;
    let api = site.api(0);
    for n in 0..10 {
        let queue = format!("t{n}");
        for _ in 0..8 {
            send(api, &queue, json!({"MessageBody": "x"})).await;
        }
        eventually(SOON, async || match site.stats(&queue).await {
            stats if stats["groups"][0]["ready"] == 8 => Ok(()),
            stats => Err(stats),
        })
        .await;
        // Their first read connects, which takes longer than a later one.
        let receives = (0..8).map(|_| call(api, "ReceiveMessage", of(&queue, json!({}))));
        let answers = futures_util::future::join_all(receives).await;
        let empty = answers
            .into_iter()
            .filter(|answer| answer.body.get("Messages").is_none());
        assert_eq!(empty.count(), 0, "{queue}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_fails_only_where_a_message_is_wrong() {
    let site = site("[topics.t]\nmax_payload = \"10B\"").await;
    let entries = json!([
        {"Id": "good", "MessageBody": "x"},
        {"Id": "long", "MessageBody": "12345678901"},
        {"Id": "empty"},
        {"Id": "later", "MessageBody": "y", "DelaySeconds": 3000},
    ]);
    let body = of("t", json!({ "Entries": entries }));
    let answer = call(site.api(0), "SendMessageBatch", body).await.ok();
    let ids = |list: &str| -> Vec<String> {
        let entries = answer[list].as_array().expect("a list").iter();
        let mut ids: Vec<_> = entries
            .map(|entry| entry["Id"].as_str().expect("an id").to_owned())
            .collect();
        ids.sort();
        ids
    };
    assert_eq!(ids("Successful"), ["good", "later"]);
    assert_eq!(ids("Failed"), ["empty", "long"]);
    let entries = json!([
        {"Id": "good", "MessageBody": "x", "MessageGroupId": "g"},
        {"Id": "none", "MessageBody": "y"},
    ]);
    let without_group = of("t.fifo", json!({ "Entries": entries }));
    let refused = call(site.api(0), "SendMessageBatch", without_group).await;
    let message = refused.fails("InvalidParameterValue");
    assert!(message.contains("MessageGroupId"), "{message}");
    let counts =
        json!({"AttributeNames": ["ApproximateNumberOfMessagesDelayed", "MaximumMessageSize"]});
    let counts = call(site.api(1), "GetQueueAttributes", of("t", counts))
        .await
        .ok();
    let expected = json!({"ApproximateNumberOfMessagesDelayed": "1", "MaximumMessageSize": "10"});
    assert_eq!(counts["Attributes"], expected);
}
