//! Queues of SQS clients whose token has a quota of what it may store.

use lisa_tests::sqs::{hex, signed};
use sha2::{Digest, Sha256};

use super::*;

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

#[tokio::test(flavor = "multi_thread")]
async fn queues_are_created_within_the_quota_of_the_token_and_share_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("secret");
    std::fs::write(&file, SECRET).expect("a file");
    let more = format!(
        "consumer.gateway.sqs = true\n[[auth.tokens]]\nname = 'shop'\nsha256 = '{}'\naws_secret_file = '{}'\n\
         scopes = ['send', 'receive', 'read', 'operate']\ntopics = ['shop-*']\nmax_topics = 2\nmax_messages = 5\n",
        hex(&Sha256::digest("shop")),
        file.display()
    );
    let site = Site::start("[topics.bank]", &more).await;
    let call = async |action: &str, body: Value| {
        send_request(signed(site.api(0), "shop", SECRET, action, &body)).await
    };
    let create = async |name: &str| call("CreateQueue", json!({"QueueName": name})).await;
    create("shop-a").await.ok();
    create("shop-b").await.ok();
    create("shop-a").await.ok();
    let refused = create("shop-c").await;
    assert_eq!(refused.status, 403);
    let why = refused.fails("OverLimit");
    assert!(
        why.contains("max_topics is 2, and it reaches 2 topics"),
        "{why}"
    );
    let changed = of("shop-a", json!({"Attributes": {"VisibilityTimeout": "9"}}));
    call("SetQueueAttributes", changed).await.ok();
    let message = of("shop-a", json!({"MessageBody": "hello"}));
    for _ in 0..2 {
        call("SendMessage", message.clone()).await.ok();
    }
    call("SendMessage", message).await.fails("RequestThrottled");
    call("DeleteQueue", of("shop-a", json!({}))).await.ok();
    // The queue counts until it is gone.
    eventually(SOON, async || match create("shop-c").await {
        created if created.status == 200 => Ok(()),
        refused => Err(refused.fails("OverLimit")),
    })
    .await;
}
