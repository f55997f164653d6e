//! Queues that SQS clients create, change, tag and remove. Those of others stay as they are.

use lisa_tests::sqs::{hex, signed};
use sha2::{Digest, Sha256};

use super::*;

async fn create(api: &Api, name: &str, attributes: Value) -> Answer {
    let body = json!({"QueueName": name, "Attributes": attributes});
    call(api, "CreateQueue", body).await
}

async fn attributes(api: &Api, queue: &str) -> Value {
    let all = of(queue, json!({"AttributeNames": ["All"]}));
    call(api, "GetQueueAttributes", all).await.ok()["Attributes"].clone()
}

async fn set(api: &Api, queue: &str, attributes: Value) -> Answer {
    let body = of(queue, json!({ "Attributes": attributes }));
    call(api, "SetQueueAttributes", body).await
}

fn arn(queue: &str) -> String {
    format!("arn:aws:sqs:us-east-1:000000000000:{queue}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_created_changed_and_removed_by_calls() {
    let site = site("").await;
    let (here, there) = (site.api(0), site.api(1));
    let given = json!({
        "VisibilityTimeout": "7", "DelaySeconds": "5", "ReceiveMessageWaitTimeSeconds": "1",
        "MaximumMessageSize": "2048", "MessageRetentionPeriod": "600", "KmsMasterKeyId": "alias/a",
    });
    // The same, or less.
    for same in [
        given.clone(),
        given.clone(),
        json!({}),
        json!({"DelaySeconds": "5"}),
    ] {
        let url = create(here, "made", same.clone()).await.ok()["QueueUrl"].clone();
        assert!(url.as_str().is_some_and(|url| url.ends_with("/made")));
        create(there, "made", same).await.ok();
    }
    let message = create(there, "made", json!({"DelaySeconds": "6"})).await;
    let message = message.fails("QueueAlreadyExists");
    assert!(
        message.ends_with("value for attribute DelaySeconds"),
        "{message}"
    );
    let read = attributes(there, "made").await;
    for (name, value) in given.as_object().expect("an object") {
        assert_eq!(read[name], *value, "{name}");
    }
    assert_eq!(read["QueueArn"], arn("made"));
    assert!(read["CreatedTimestamp"].is_string() && read["LastModifiedTimestamp"].is_string());
    // It is a topic like any other, with one name.
    let topic = site.manager.get_json("/v1/topics/made").await;
    let settings = &topic["settings"];
    for (name, value) in [
        ("lease", json!("7s")),
        ("max_payload", json!(2048)),
        ("ttl", json!("10m")),
        ("on_expired", json!("drop")),
    ] {
        assert_eq!(settings[name], value, "{name}");
    }
    assert_eq!(settings["retry"]["delay"], "0s");
    assert_eq!(settings["sqs"]["fifo"], false);
    call(here, "GetQueueUrl", json!({"QueueName": "made.fifo"}))
        .await
        .fails("NonExistentQueue");
    // The delay of the queue is that of its messages.
    send(here, "made", json!({"MessageBody": "later"})).await;
    assert_eq!(site.stats("made").await["waiting"], 1);
    set(
        there,
        "made",
        json!({"DelaySeconds": "0", "KmsMasterKeyId": ""}),
    )
    .await
    .ok();
    let read = attributes(there, "made").await;
    assert_eq!(
        (&read["DelaySeconds"], read.get("KmsMasterKeyId")),
        (&json!("0"), None)
    );
    assert_eq!(read["VisibilityTimeout"], "7");
    let wrong = set(here, "made", json!({"VisibilityTimeout": "43201"})).await;
    wrong.fails("InvalidAttributeValue");
    call(here, "DeleteQueue", of("made", json!({}))).await.ok();
    for (api, action) in [
        (here, "GetQueueAttributes"),
        (here, "ReceiveMessage"),
        (here, "DeleteQueue"),
    ] {
        call(api, action, of("made", json!({})))
            .await
            .fails("NonExistentQueue");
    }
    // As soon as it is gone, the name is free, and the messages are gone.
    create(there, "made", json!({})).await.ok();
    let read = attributes(there, "made").await;
    // Nothing is encrypted, and nothing is dropped.
    assert_eq!(read["SqsManagedSseEnabled"], "false");
    assert_eq!(read.get("MessageRetentionPeriod"), Some(&json!("1209600")));
    for attribute in ["FifoQueue", "ContentBasedDeduplication"] {
        let refused = create(here, "standard", json!({ attribute: "false" })).await;
        let message = refused.fails("InvalidAttributeName");
        assert_eq!(message, format!("Unknown Attribute {attribute}."));
    }
    create(here, "standard", json!({})).await.ok();
    // Without `FifoQueue`, `.fifo` is a part of the name like any other.
    for attributes in [json!({}), json!({"FifoQueue": "false"})] {
        let refused = create(here, "other.fifo", attributes).await;
        let message = refused.fails("InvalidParameterValue");
        assert!(
            message.starts_with("Can only include alphanumeric"),
            "{message}"
        );
    }
    let refused = create(here, "other", json!({"FifoQueue": "true"})).await;
    let message = refused.fails("InvalidParameterValue");
    assert!(message.starts_with("The name of a FIFO queue"), "{message}");
    let long = format!("{}.fifo", "x".repeat(76));
    create(here, &long, json!({"FifoQueue": "true"}))
        .await
        .fails("InvalidParameterValue");
    assert_eq!(
        (
            &read["VisibilityTimeout"],
            &read["ApproximateNumberOfMessagesDelayed"]
        ),
        (&json!("30"), &json!("0"))
    );
    let log = site.manager.get_json("/v1/audit").await;
    let actions = log["entries"].as_array().expect("entries").iter();
    let actions = actions.filter(|entry| entry["via"] == "sqs");
    let mut actions: Vec<_> = actions.map(|entry| entry["action"].clone()).collect();
    actions.sort_by_key(ToString::to_string);
    let expected = [
        "change_topic",
        "create_topic",
        "create_topic",
        "create_topic",
        "remove_topic",
    ];
    assert_eq!(actions, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_others_declare_is_not_changed_by_sqs_clients() {
    let site = site("[topics.t]").await;
    let api = site.api(0);
    for (action, more) in [
        (
            "SetQueueAttributes",
            json!({"Attributes": {"DelaySeconds": "1"}}),
        ),
        ("DeleteQueue", json!({})),
        ("TagQueue", json!({"Tags": {"a": "b"}})),
        (
            "AddPermission",
            json!({"Label": "a", "AWSAccountIds": ["111111111111"], "Actions": ["*"]}),
        ),
    ] {
        let message = call(api, action, of("t", more)).await;
        let message = message.fails("UnsupportedOperation");
        assert!(message.contains("not created by CreateQueue"), "{message}");
    }
    // What applies already is no change.
    set(api, "t", json!({"VisibilityTimeout": "30", "Policy": ""}))
        .await
        .ok();
    call(api, "UntagQueue", of("t", json!({"TagKeys": ["a"]})))
        .await
        .ok();
    // A file takes over a topic by declaring it.
    let strict = "consumer.gateway.sqs = true\n[topics.made]";
    let own = Site::start("", strict).await;
    create(own.api(0), "made", json!({})).await.ok();
    call(own.api(0), "DeleteQueue", of("made", json!({})))
        .await
        .fails("UnsupportedOperation");
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_are_kept_within_bounds() {
    let site = site("").await;
    let api = site.api(0);
    let tagged = json!({"QueueName": "q", "tags": {"a": "1", "A": ""}});
    call(api, "CreateQueue", tagged).await.ok();
    let list = async || {
        call(site.api(1), "ListQueueTags", of("q", json!({})))
            .await
            .ok()
    };
    assert_eq!(list().await["Tags"], json!({"a": "1", "A": ""}));
    let tag = json!({"Tags": {"a": "2", "b": "3"}});
    call(api, "TagQueue", of("q", tag)).await.ok();
    let untag = json!({"TagKeys": ["A", "none"]});
    call(api, "UntagQueue", of("q", untag)).await.ok();
    let tags = call(api, "ListQueueTags", of("q", json!({}))).await.ok();
    assert_eq!(tags["Tags"], json!({"a": "2", "b": "3"}));
    let many: Map<String, Value> = (0..49).map(|n| (n.to_string(), json!(""))).collect();
    for (action, more, code, part) in [
        ("TagQueue", json!({"Tags": {}}), "MissingParameter", "Tags"),
        (
            "TagQueue",
            json!({ "Tags": many }),
            "InvalidParameterValue",
            "Too many tags added for queue q.",
        ),
        (
            "TagQueue",
            json!({"Tags": {"a": "x".repeat(257)}}),
            "InvalidParameterValue",
            "256",
        ),
        (
            "UntagQueue",
            json!({"TagKeys": []}),
            "InvalidParameterValue",
            "between 1 and 128",
        ),
    ] {
        let message = call(api, action, of("q", more)).await.fails(code);
        assert!(message.contains(part), "{message}");
    }
    let untag = json!({"TagKeys": ["a", "b"]});
    call(api, "UntagQueue", of("q", untag)).await.ok();
    let none = call(api, "ListQueueTags", of("q", json!({}))).await.ok();
    assert_eq!(none, json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn permissions_edit_the_policy_that_is_kept() {
    let site = site("").await;
    let api = site.api(0);
    create(api, "q", json!({})).await.ok();
    let add = |label: &str, accounts: Value, actions: Value| {
        let more = json!({"Label": label, "AWSAccountIds": accounts, "Actions": actions});
        call(api, "AddPermission", of("q", more))
    };
    let account = json!(["111111111111"]);
    add("one", account.clone(), json!(["*"])).await.ok();
    let both = json!(["111111111111", "222222222222"]);
    add("two", both, json!(["SendMessage", "ReceiveMessage"]))
        .await
        .ok();
    let policy = attributes(api, "q").await["Policy"].clone();
    let policy: Value = serde_json::from_str(policy.as_str().expect("a text")).expect("JSON");
    assert_eq!(policy["Id"], format!("{}/SQSDefaultPolicy", arn("q")));
    let statements = json!([
        {
            "Sid": "one", "Effect": "Allow", "Resource": arn("q"), "Action": "SQS:*",
            "Principal": {"AWS": "arn:aws:iam::111111111111:root"},
        },
        {
            "Sid": "two", "Effect": "Allow", "Resource": arn("q"),
            "Action": ["SQS:SendMessage", "SQS:ReceiveMessage"],
            "Principal": {"AWS": ["arn:aws:iam::111111111111:root", "arn:aws:iam::222222222222:root"]},
        },
    ]);
    assert_eq!(policy["Statement"], statements);
    for (answer, code, part) in [
        (
            add("one", account.clone(), json!(["*"])).await,
            "InvalidParameterValue",
            "Already exists",
        ),
        (
            add("x", account.clone(), json!([])).await,
            "MissingParameter",
            "Actions",
        ),
        (
            add("x", json!([]), json!(["*"])).await,
            "InvalidParameterValue",
            "Value [] for parameter PrincipalId",
        ),
        (
            add("x", json!(["1"]), json!(["*"])).await,
            "InvalidParameterValue",
            "Unable to verify",
        ),
        (
            add("x", account.clone(), json!(["DeleteQueue"])).await,
            "InvalidParameterValue",
            "SQS:DeleteQueue",
        ),
        (
            add("x", account.clone(), json!(vec!["*"; 8])).await,
            "OverLimit",
            "8 Actions",
        ),
        (
            add("a b", account.clone(), json!(["*"])).await,
            "InvalidParameterValue",
            "Label",
        ),
    ] {
        let message = answer.fails(code);
        assert!(message.contains(part), "{message}");
    }
    let remove = |label: &str| call(api, "RemovePermission", of("q", json!({ "Label": label })));
    remove("three").await.fails("InvalidParameterValue");
    remove("one").await.ok();
    remove("two").await.ok();
    assert_eq!(attributes(api, "q").await.get("Policy"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_queue_exists_is_of_the_same_kind_and_knows_its_sources() {
    let site = site("[topics.t]").await;
    let api = site.api(0);
    let policy = |queue: &str, count: u32| {
        let policy = json!({"deadLetterTargetArn": arn(queue), "maxReceiveCount": count});
        json!({"RedrivePolicy": policy.to_string()})
    };
    create(api, "dead", json!({})).await.ok();
    for n in 0..3 {
        create(api, &format!("q{n}"), policy("dead", 5)).await.ok();
    }
    let read = attributes(api, "q0").await["RedrivePolicy"].clone();
    let read: Value = serde_json::from_str(read.as_str().expect("a text")).expect("JSON");
    assert_eq!(
        read,
        json!({"deadLetterTargetArn": arn("dead"), "maxReceiveCount": 5})
    );
    let topic = site.manager.get_json("/v1/topics/q0").await;
    assert_eq!(topic["settings"]["garbage"]["topic"], "dead");
    assert_eq!(topic["settings"]["max_attempts"], 5);
    let fifo = json!({"FifoQueue": "true"});
    create(api, "f.fifo", fifo).await.ok();
    for (queue, target, part) in [
        ("q0", "none", "does not exist"),
        ("q0", "f.fifo", "same type"),
        ("q0", "dead.fifo", "same type"),
        ("f.fifo", "dead", "same type"),
    ] {
        let message = set(api, queue, policy(target, 5)).await;
        let message = message.fails("InvalidParameterValue");
        assert!(message.contains(part), "{message}");
    }
    let list = async |more: Value| {
        let sources = call(api, "ListDeadLetterSourceQueues", of("dead", more)).await;
        let sources = sources.ok();
        let urls = sources["queueUrls"].as_array().expect("a list").iter();
        let names = urls.map(|url| {
            url.as_str()
                .expect("a text")
                .rsplit('/')
                .next()
                .expect("a name")
        });
        let names: Vec<_> = names.map(str::to_owned).collect();
        (names, sources["NextToken"].clone())
    };
    assert_eq!(list(json!({})).await.0, ["q0", "q1", "q2"]);
    let (first, next) = list(json!({"MaxResults": 2})).await;
    assert_eq!(first, ["q0", "q1"]);
    let rest = list(json!({"MaxResults": 2, "NextToken": next})).await;
    assert_eq!(rest, (vec!["q2".to_owned()], Value::Null));
    set(api, "q0", json!({"RedrivePolicy": ""})).await.ok();
    assert_eq!(attributes(api, "q0").await.get("RedrivePolicy"), None);
    assert_eq!(list(json!({})).await.0, ["q1", "q2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_are_created_and_changed_with_the_scope_operate_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("secret");
    let secret = "a secret key of sufficient length";
    std::fs::write(&file, secret).expect("a file");
    let token = |name: &str, scopes: &str, more: &str| {
        let hash = hex(&Sha256::digest(name));
        let file = file.display();
        format!(
            "[[auth.tokens]]\nname = \"{name}\"\nsha256 = \"{hash}\"\nscopes = [{scopes}]\naws_secret_file = \"{file}\"\n{more}\n"
        )
    };
    let more = [
        "consumer.gateway.sqs = true\n".to_owned(),
        token("operator", "\"operate\", \"read\"", "topics = [\"a-*\"]"),
        token("reader", "\"read\", \"send\", \"receive\"", ""),
        token("group", "\"operate\"", "groups = [\"default\"]"),
    ];
    let site = Site::start("", &more.concat()).await;
    let call = async |name: &str, action: &str, body: Value| {
        send_request(signed(site.api(0), name, secret, action, &body)).await
    };
    let queue = |name: &str| json!({ "QueueName": name });
    for (name, wanted) in [("reader", "a-q"), ("group", "a-q"), ("operator", "b-q")] {
        call(name, "CreateQueue", queue(wanted))
            .await
            .fails("AccessDenied");
    }
    call("operator", "CreateQueue", queue("a-q")).await.ok();
    // The queue exists.
    call("reader", "CreateQueue", queue("a-q")).await.ok();
    let same = of("a-q", json!({"Attributes": {"DelaySeconds": "0"}}));
    call("reader", "SetQueueAttributes", same).await.ok();
    for (action, more) in [
        (
            "SetQueueAttributes",
            json!({"Attributes": {"DelaySeconds": "1"}}),
        ),
        ("TagQueue", json!({"Tags": {"a": "b"}})),
        ("DeleteQueue", json!({})),
    ] {
        for name in ["reader", "group"] {
            call(name, action, of("a-q", more.clone()))
                .await
                .fails("AccessDenied");
        }
        call("operator", action, of("a-q", more)).await.ok();
    }
}
