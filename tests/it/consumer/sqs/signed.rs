//! SQS clients sign their requests if the gateway has tokens.

use lisa_tests::sqs::{hex, signed};
use sha2::{Digest, Sha256};

use super::*;

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

#[tokio::test(flavor = "multi_thread")]
async fn with_tokens_a_request_must_be_signed_and_have_the_scope() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("secret");
    std::fs::write(&file, format!("{SECRET}\n")).expect("a file");
    let token = |name: &str, scopes: &str, more: &str| {
        let hash = hex(&Sha256::digest(name));
        format!(
            "[[auth.tokens]]\nname = \"{name}\"\nsha256 = \"{hash}\"\nscopes = [{scopes}]\n{more}\n"
        )
    };
    let secret = format!("aws_secret_file = \"{}\"", file.display());
    let more = [
        "consumer.gateway.sqs = true\n".to_owned(),
        token("sender", "\"send\"", &secret),
        token("worker", "\"receive\"", &secret),
        token("operator", "\"operate\", \"read\"", &secret),
        token("bearer", "\"send\", \"receive\"", ""),
    ];
    let site = Site::start("[topics.t]", &more.concat()).await;
    let api = site.api(0);
    let call = async |name: &str, action: &str, body: Value| {
        send_request(signed(api, name, SECRET, action, &body)).await
    };
    let message = of("t", json!({"MessageBody": "hello"}));
    call("sender", "SendMessage", message.clone()).await.ok();
    let received = call(
        "worker",
        "ReceiveMessage",
        of("t", json!({"WaitTimeSeconds": 20})),
    )
    .await
    .ok();
    let handle = with_handle(&received["Messages"][0], json!({}));
    call("worker", "DeleteMessage", of("t", handle)).await.ok();
    for (name, action, scope) in [
        ("worker", "SendMessage", "send"),
        ("sender", "ReceiveMessage", "receive"),
        ("sender", "ListQueues", "read"),
        ("worker", "PurgeQueue", "operate"),
    ] {
        let refused = call(name, action, message.clone()).await;
        assert_eq!(refused.status, 403);
        let text = refused.fails("AccessDenied");
        assert!(text.contains(&format!("`{scope}`")), "{text}");
    }
    let queues = call("operator", "ListQueues", json!({})).await.ok();
    assert_eq!(queues["QueueUrls"].as_array().map(Vec::len), Some(1));
    call("worker", "GetQueueUrl", json!({"QueueName": "t"}))
        .await
        .ok();
    for name in ["bearer", "nobody"] {
        call(name, "SendMessage", message.clone())
            .await
            .fails("InvalidClientTokenId");
    }
    let wrong = signed(api, "sender", "another secret key", "SendMessage", &message);
    send_request(wrong).await.fails("SignatureDoesNotMatch");
    let altered = signed(api, "sender", SECRET, "SendMessage", &message).body("{}");
    send_request(altered).await.fails("SignatureDoesNotMatch");
    // The bearer token of another route is no signature.
    let target = ("x-amz-target", "AmazonSQS.SendMessage");
    let unsigned = || {
        api.request(Method::POST, "/")
            .header("content-type", JSON)
            .header(target.0, target.1)
    };
    send_request(unsigned().body("{}"))
        .await
        .fails("MissingAuthenticationToken");
    let bearer = unsigned()
        .header("authorization", "Bearer bearer")
        .body("{}");
    send_request(bearer).await.fails("IncompleteSignature");
    assert_eq!(site.stats("t").await["counters"]["accepted"], 1);
    send_request(signed(api, "sender", SECRET, "Invented", &json!({})))
        .await
        .fails("InvalidAction");
    let metrics = api.get("/metrics").await.body;
    for line in [
        r#"lisa_sqs_requests_total{action="SendMessage",code="ok"} 1"#,
        r#"lisa_sqs_requests_total{action="PurgeQueue",code="AccessDenied"} 1"#,
        r#"lisa_sqs_requests_total{action="other",code="InvalidAction"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_key_that_changes_in_its_file_needs_no_restart() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("secret");
    std::fs::write(&file, SECRET).expect("a file");
    let hash = hex(&Sha256::digest("worker"));
    let more = format!(
        "consumer.gateway.sqs = true\n[[auth.tokens]]\nname = \"worker\"\nsha256 = \"{hash}\"\nscopes = [\"receive\"]\n\
         aws_secret_file = \"{}\"\n",
        file.display()
    );
    let site = Site::start("[topics.t]", &more).await;
    let call = async |secret: &str| {
        let body = json!({"QueueName": "t"});
        let request = signed(site.api(0), "worker", secret, "GetQueueUrl", &body);
        send_request(request).await
    };
    let renewed = SECRET.to_ascii_lowercase();
    call(SECRET).await.ok();
    call(&renewed).await.fails("SignatureDoesNotMatch");
    std::fs::write(&file, &renewed).expect("a file");
    eventually(SOON, async || match call(&renewed).await.status {
        200 => Ok(()),
        status => Err(status),
    })
    .await;
    call(SECRET).await.fails("SignatureDoesNotMatch");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limited_token_reaches_only_its_queues() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("secret");
    std::fs::write(&file, SECRET).expect("a file");
    let token = |name: &str, more: &str| {
        let hash = hex(&Sha256::digest(name));
        format!(
            "[[auth.tokens]]\nname = '{name}'\nsha256 = '{hash}'\naws_secret_file = '{}'\n\
             scopes = ['send', 'receive', 'read', 'operate']\n{more}\n",
            file.display()
        )
    };
    let more = [
        "consumer.gateway.sqs = true\n".to_owned(),
        token("shop", "topics = ['shop-*']"),
        token("other", "groups = ['other']"),
        token("late", "expires = 2020-01-01T00:00:00Z"),
    ];
    let site = Site::start("[topics.shop-a]\n[topics.bank]", &more.concat()).await;
    let api = site.api(0);
    let call = async |name: &str, action: &str, body: Value| {
        send_request(signed(api, name, SECRET, action, &body)).await
    };
    let message = |queue| of(queue, json!({"MessageBody": "hello"}));
    call("shop", "SendMessage", message("shop-a")).await.ok();
    // A topic that does not exist gets the same answer.
    for queue in ["bank", "bank.fifo", "bank-2"] {
        for action in [
            "SendMessage",
            "ReceiveMessage",
            "GetQueueAttributes",
            "PurgeQueue",
        ] {
            let refused = call("shop", action, message(queue)).await;
            assert_eq!(refused.status, 403, "{action} {queue}");
            refused.fails("AccessDenied");
        }
        for action in ["GetQueueUrl", "CreateQueue"] {
            let refused = call("shop", action, json!({"QueueName": queue})).await;
            assert_eq!(refused.status, 403, "{action} {queue}");
        }
    }
    let queues = call("shop", "ListQueues", json!({})).await.ok();
    let urls = queues["QueueUrls"].as_array().expect("a list");
    assert_eq!(urls.len(), 1, "{urls:?}");
    assert!(urls[0].as_str().is_some_and(|url| url.ends_with("/shop-a")));
    call("other", "SendMessage", message("bank")).await.ok();
    for action in ["ReceiveMessage", "PurgeQueue"] {
        let text = call("other", action, of("bank", json!({}))).await;
        let text = text.fails("AccessDenied");
        assert!(text.contains("limited to some groups"), "{text}");
    }
    let expired = call("late", "ListQueues", json!({})).await;
    expired.fails("InvalidClientTokenId");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_beyond_the_quota_of_a_token_are_throttled() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("secret");
    std::fs::write(&file, SECRET).expect("a file");
    let more = format!(
        "consumer.gateway.sqs = true\n[[auth.tokens]]\nname = 'shop'\nsha256 = '{}'\naws_secret_file = '{}'\n\
         scopes = ['send']\nsends_per_second = 1\n",
        hex(&Sha256::digest("shop")),
        file.display()
    );
    let site = Site::start("[topics.t]", &more).await;
    let call = async |action: &str, body: Value| {
        send_request(signed(site.api(0), "shop", SECRET, action, &body)).await
    };
    let entries = (0..10).map(|n| json!({"Id": n.to_string(), "MessageBody": "hello"}));
    let batch = of("t", json!({"Entries": entries.collect::<Vec<_>>()}));
    let results = call("SendMessageBatch", batch).await.ok();
    let count = |what: &str| results[what].as_array().map_or(0, Vec::len);
    assert_eq!((count("Successful"), count("Failed")), (1, 9), "{results}");
    assert_eq!(results["Failed"][0]["Code"], "RequestThrottled");
    let message = of("t", json!({"MessageBody": "hello"}));
    eventually(SOON, async || {
        match call("SendMessage", message.clone()).await {
            throttled if throttled.status != 200 => Ok(throttled.fails("RequestThrottled")),
            other => Err(other.status),
        }
    })
    .await;
}
