//! The form of requests and answers: what clients test for beyond the values.

use super::*;

/// Returns true for an `Id` of an entry of a batch.
fn is_entry_id(id: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    (1..=80).contains(&id.len()) && id.bytes().all(is_allowed)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_id_identifies_an_entry_of_a_batch_and_finds_the_message() {
    let site = site("[topics.t]").await;
    let api = site.api(0);
    let mut sent = Vec::new();
    for (queue, more) in [
        ("t", json!({})),
        ("t.fifo", json!({"MessageGroupId": "a"})),
        (
            "t.fifo",
            json!({"MessageGroupId": "b", "MessageDeduplicationId": "order:7"}),
        ),
        ("t", json!({"MessageDeduplicationId": "order/8"})),
    ] {
        let mut body = json!({"MessageBody": format!("{}", sent.len())});
        body.as_object_mut()
            .expect("an object")
            .extend(more.as_object().expect("an object").clone());
        sent.push(send(api, queue, body).await["MessageId"].clone());
    }
    site.send("t", &[("Lisa-Id", "own:9")], "4").await;
    let mut entries = Vec::new();
    for _ in 0..5 {
        let message = receive(
            site.api(1),
            "t",
            json!({"MessageAttributeNames": ["lisa-id"]}),
        )
        .await;
        let number: usize = message["Body"]
            .as_str()
            .expect("a body")
            .parse()
            .expect("a number");
        let id = message["MessageId"].as_str().expect("an id");
        assert!(is_entry_id(id), "{id}");
        assert_eq!(id.len(), 36, "a UUID");
        if let Some(sent) = sent.get(number) {
            assert_eq!(message["MessageId"], *sent, "{number}");
        }
        let lisa = message["MessageAttributes"]["lisa-id"]["StringValue"]
            .as_str()
            .expect("an id");
        let found = site
            .manager
            .get_json(&format!("/v1/topics/t/messages/{lisa}"))
            .await;
        assert_eq!(found["id"], lisa);
        if number == 0 {
            // A generated id: its UUID is sufficient.
            let found = site
                .manager
                .get_json(&format!("/v1/topics/t/messages/{id}"))
                .await;
            assert_eq!(found["id"], lisa);
        }
        entries.push(with_handle(&message, json!({ "Id": id })));
    }
    let batch = of("t", json!({ "Entries": entries }));
    let batch = call(api, "DeleteMessageBatch", batch).await.ok();
    assert_eq!(
        batch["Successful"].as_array().map(Vec::len),
        Some(5),
        "{batch}"
    );
    site.assert_drained("t").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_without_a_value_is_absent_and_may_be_null() {
    let site = site("[topics.t]").await;
    let api = site.api(0);
    let batch = |body: &str| {
        of(
            "t",
            json!({"Entries": [{
                "Id": "a", "MessageBody": body, "MessageAttributes": null, "DelaySeconds": null,
                "MessageSystemAttributes": null, "MessageGroupId": null,
            }]}),
        )
    };
    let good = call(api, "SendMessageBatch", batch("x")).await.ok();
    assert!(
        good.get("Failed").is_none() && good["Successful"].is_array(),
        "{good}"
    );
    let bad = call(api, "SendMessageBatch", batch("")).await.ok();
    assert!(
        bad.get("Successful").is_none() && bad["Failed"].is_array(),
        "{bad}"
    );
    let handles = json!({"Entries": [{"Id": "a", "ReceiptHandle": "x"}]});
    let bad = call(api, "DeleteMessageBatch", of("t", handles)).await.ok();
    assert!(
        bad.get("Successful").is_none() && bad["Failed"].is_array(),
        "{bad}"
    );
    let message = receive(
        api,
        "t",
        json!({"MessageAttributeNames": null, "AttributeNames": null}),
    )
    .await;
    let entry = with_handle(&message, json!({"Id": "a"}));
    let handles = of("t", json!({"Entries": [entry]}));
    let good = call(api, "DeleteMessageBatch", handles).await.ok();
    assert!(
        good.get("Failed").is_none() && good["Successful"].is_array(),
        "{good}"
    );
    for (action, body) in [
        ("ReceiveMessage", of("t", json!({}))),
        ("ListQueues", json!({"QueueNamePrefix": "nothing"})),
        (
            "GetQueueAttributes",
            of("t", json!({"AttributeNames": null})),
        ),
        (
            "GetQueueAttributes",
            of("t", json!({"AttributeNames": ["Policy"]})),
        ),
        ("SetQueueAttributes", of("t", json!({"Attributes": null}))),
    ] {
        assert_eq!(call(api, action, body).await.ok(), json!({}), "{action}");
    }
    let same = json!({"QueueName": "t", "Attributes": null, "tags": null});
    assert!(call(api, "CreateQueue", same).await.ok()["QueueUrl"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_address_of_a_queue_takes_requests_and_other_requests_get_answers_of_sqs() {
    let site = site("[topics.t]").await;
    let api = site.api(0);
    let body = json!({"MessageBody": "x"}).to_string();
    for path in [
        "/000000000000/t",
        "/123456789012/t",
        "/123456789012/t/",
        "/any/t",
    ] {
        let request = api.request(Method::POST, path);
        let request = request.header("content-type", format!("{JSON}; charset=utf-8"));
        let request = request.header("x-amz-target", "AmazonSQS.SendMessage");
        send_request(request.body(body.clone())).await.ok();
    }
    let slash = json!({"QueueUrl": "http://localhost/123456789012/t/", "MessageBody": "x"});
    call(api, "SendMessage", slash).await.ok();
    assert_eq!(site.stats("t").await["counters"]["accepted"], 5);
    let presigned =
        "/123456789012/t?Action=ReceiveMessage&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=0";
    for (method, path, status, part) in [
        (Method::GET, "/", 404, "<UnknownOperationException/>"),
        (Method::HEAD, "/", 404, ""),
        (
            Method::GET,
            "/123456789012/t",
            404,
            "<UnknownOperationException/>",
        ),
        (
            Method::DELETE,
            "/123456789012/t",
            404,
            "<UnknownOperationException/>",
        ),
        // Without tokens, signatures are not checked.
        (Method::GET, presigned, 200, "<ReceiveMessageResult>"),
        (
            Method::POST,
            "/123456789012/t",
            400,
            "<Code>MissingAction</Code>",
        ),
        (
            Method::GET,
            "/?Action=ListQueues",
            200,
            "<ListQueuesResponse",
        ),
        (
            Method::GET,
            "/?Action=Nothing",
            400,
            "<Code>InvalidAction</Code>",
        ),
        (Method::GET, "/?a=b", 404, "<UnknownOperationException/>"),
    ] {
        let answer = api
            .request(method.clone(), path)
            .send()
            .await
            .expect("an answer");
        assert_eq!(answer.status(), status, "{method} {path}");
        assert_eq!(
            answer.headers()["content-type"],
            "text/xml",
            "{method} {path}"
        );
        let text = answer.text().await.expect("a body");
        assert!(text.contains(part), "{method} {path}: {text}");
    }
    // No address of a queue.
    let answer = api.get("/nothing/here").await.expect(404).json();
    assert_eq!(answer["code"], "unknown_route");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_have_the_types_of_sqs_or_of_all_services() {
    let site = site("[topics.t]").await;
    for (action, body, shape) in [
        (
            "SendMessage",
            of("no", json!({"MessageBody": "x"})),
            "com.amazonaws.sqs#QueueDoesNotExist",
        ),
        (
            "SendMessage",
            of("t", json!({})),
            "com.amazon.coral.service#MissingRequiredParameterException",
        ),
        (
            "ReceiveMessage",
            of("t", json!({"WaitTimeSeconds": 21})),
            "com.amazon.coral.service#InvalidParameterValueException",
        ),
        (
            "Nothing",
            json!({}),
            "com.amazon.coral.service#UnknownOperationException",
        ),
    ] {
        let answer = call(site.api(0), action, body).await;
        assert_eq!(answer.body["__type"], shape);
        assert_eq!(answer.status, 400);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attributes_have_the_characters_of_sqs_and_a_trace_may_be_in_a_header() {
    let site = site("[topics.t]").await;
    let api = site.api(0);
    let trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1";
    let attributes = json!({"attr.1øßä": text("x\t\n")});
    let body = of(
        "t",
        json!({"MessageBody": "x", "MessageAttributes": attributes}),
    );
    let request = api.request(Method::POST, "/").header("content-type", JSON);
    let request = request.header("x-amz-target", "AmazonSQS.SendMessage");
    let request = request.header("x-amzn-trace-id", trace);
    send_request(request.body(body.to_string())).await.ok();
    let message = receive(api, "t", json!({})).await;
    assert_eq!(message["MessageAttributes"], attributes);
    assert_eq!(message["Attributes"]["AWSTraceHeader"], trace);
    for (name, value, part) in [
        ("a", "\u{1}", "U+0001"),
        ("a b", "x", "characters"),
        ("AWS.a", "x", "AWS."),
        (".a", "x", "a period"),
    ] {
        let body = json!({"MessageBody": "x", "MessageAttributes": {name: text(value)}});
        let refused = call(api, "SendMessage", of("t", body)).await;
        let message = refused.fails("InvalidParameterValue");
        assert!(message.contains(part), "{message}");
    }
}
