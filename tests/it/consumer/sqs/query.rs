//! The older protocol: forms, and answers in XML. The same handlers answer both protocols, so each shape is tested once.

use lisa_tests::sqs::{hex, signed_form};
use sha2::{Digest, Sha256};

use super::*;

const FORM: &str = "application/x-www-form-urlencoded";

async fn post(api: &Api, form: &str) -> (u16, String) {
    let request = api.request(Method::POST, "/").header("content-type", FORM);
    read(request.body(form.to_owned())).await
}

async fn read(request: reqwest::RequestBuilder) -> (u16, String) {
    let answer = request.send().await.expect("an answer");
    assert_eq!(answer.headers()["content-type"], "text/xml");
    assert!(answer.headers().contains_key("x-amzn-requestid"));
    let status = answer.status().as_u16();
    (status, answer.text().await.expect("a body"))
}

/// Returns the text of the first element with this name.
fn element<'a>(xml: &'a str, name: &str) -> &'a str {
    let (_, rest) = xml.split_once(&format!("<{name}>")).expect(name);
    rest.split_once('<').expect("an end").0
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_client_sends_receives_and_deletes() {
    let site = site("").await;
    let api = site.api(0);
    let post = async |form: &str| {
        let (status, text) = post(api, form).await;
        assert_eq!(status, 200, "{text}");
        assert!(text.contains("<ResponseMetadata><RequestId>"), "{text}");
        text
    };
    let created = post(
        "Action=CreateQueue&QueueName=q&Attribute.1.Name=VisibilityTimeout&Attribute.1.Value=9&Tag.1.Key=a&Tag.1.Value=b",
    )
    .await;
    let url = element(&created, "QueueUrl").to_owned();
    assert!(url.ends_with("/000000000000/q"), "{url}");
    let tags = post(&format!("Action=ListQueueTags&QueueUrl={url}")).await;
    assert!(
        tags.contains("<Tag><Key>a</Key><Value>b</Value></Tag>"),
        "{tags}"
    );
    let read = post(&format!(
        "Action=GetQueueAttributes&QueueUrl={url}&AttributeName.1=All"
    ))
    .await;
    let part = "<Attribute><Name>VisibilityTimeout</Name><Value>9</Value></Attribute>";
    assert!(read.contains(part), "{read}");
    let sent = post(&format!(
        "Action=SendMessage&QueueUrl={url}&MessageBody=%3Ca%3E%0D%0A%26+b\
         &MessageAttribute.1.Name=k&MessageAttribute.1.Value.DataType=String&MessageAttribute.1.Value.StringValue=v"
    ))
    .await;
    let received = post(&format!(
        "Action=ReceiveMessage&QueueUrl={url}&WaitTimeSeconds=20&MessageAttributeName.1=All&AttributeName.1=SentTimestamp"
    ))
    .await;
    assert_eq!(element(&received, "MessageId"), element(&sent, "MessageId"));
    for part in [
        "<Body>&lt;a&gt;&#xD;\n&amp; b</Body>",
        "<Attribute><Name>SentTimestamp</Name><Value>",
        "<MessageAttribute><Name>k</Name><Value><DataType>String</DataType><StringValue>v</StringValue></Value>",
    ] {
        assert!(received.contains(part), "{received}");
    }
    let handle = element(&received, "ReceiptHandle");
    let deleted = post(&format!(
        "Action=DeleteMessageBatch&QueueUrl={url}&DeleteMessageBatchRequestEntry.1.Id=a\
         &DeleteMessageBatchRequestEntry.1.ReceiptHandle={handle}&DeleteMessageBatchRequestEntry.2.Id=b\
         &DeleteMessageBatchRequestEntry.2.ReceiptHandle=x"
    ))
    .await;
    for part in [
        "<DeleteMessageBatchResultEntry><Id>a</Id></DeleteMessageBatchResultEntry>",
        "<Code>ReceiptHandleIsInvalid</Code>",
        "<SenderFault>true</SenderFault>",
    ] {
        assert!(deleted.contains(part), "{deleted}");
    }
    let empty = post(&format!("Action=ReceiveMessage&QueueUrl={url}")).await;
    assert!(empty.contains("<ReceiveMessageResult/>"), "{empty}");
    let list = post("Action=ListQueues").await;
    assert!(
        list.contains(&format!("<QueueUrl>{url}</QueueUrl>")),
        "{list}"
    );
    let gone = post(&format!("Action=DeleteQueue&QueueUrl={url}")).await;
    assert!(!gone.contains("DeleteQueueResult"), "{gone}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_has_the_code_of_the_older_protocol_and_a_form_is_bounded() {
    let site = site("[topics.t]").await;
    let api = site.api(0);
    let many = format!("Action=ListQueues{}", "&a=b".repeat(1024));
    let large = format!(
        "Action=ListQueues&QueueNamePrefix={}",
        "x".repeat(64 * 1024)
    );
    for (form, code) in [
        (
            "Action=GetQueueUrl&QueueName=no",
            "AWS.SimpleQueueService.NonExistentQueue",
        ),
        ("Action=Nothing", "InvalidAction"),
        ("QueueName=t", "MissingAction"),
        ("Action=SendMessage&QueueUrl=t", "MissingParameter"),
        (
            "Action=SendMessage&QueueUrl=t&MessageBody=x&DelaySeconds=x",
            "InvalidParameterValue",
        ),
        (
            "Action=SendMessage&QueueUrl=t&MessageBody=%ff",
            "MalformedQueryString",
        ),
        (&many, "MalformedQueryString"),
        (&large, "MalformedQueryString"),
    ] {
        let (status, text) = post(api, form).await;
        assert_eq!((status, element(&text, "Code")), (400, code), "{text}");
        assert_eq!(element(&text, "Type"), "Sender");
    }
    let at_queue = api.request(
        Method::GET,
        "/000000000000/t?Action=CreateQueue&QueueName=x",
    );
    let (_, text) = read(at_queue).await;
    assert_eq!(element(&text, "Code"), "InvalidAction");
    let metrics = api.get("/metrics").await.body;
    let line = r#"lisa_sqs_requests_total{action="other",code="MissingAction"} 1"#;
    assert!(metrics.contains(line), "{line}");
    // What XML cannot contain comes in base64.
    site.send("t", &[], "\u{1}").await;
    let form = "Action=ReceiveMessage&QueueUrl=t&WaitTimeSeconds=20";
    let (_, text) = post(api, form).await;
    assert_eq!(element(&text, "Body"), STANDARD.encode("\u{1}"));
    assert!(text.contains("<Name>lisa-encoding</Name>"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_is_signed_and_its_action_needs_its_scope() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("secret");
    let secret = "a secret key of sufficient length";
    std::fs::write(&file, secret).expect("a file");
    let hash = hex(&Sha256::digest("sender"));
    let more = format!(
        "consumer.gateway.sqs = true\n[[auth.tokens]]\nname = \"sender\"\nsha256 = \"{hash}\"\nscopes = [\"send\"]\n\
         aws_secret_file = \"{}\"\n",
        file.display()
    );
    let site = Site::start("[topics.t]", &more).await;
    let api = site.api(0);
    let send = "Action=SendMessage&QueueUrl=t&MessageBody=a+b";
    let (status, text) = read(signed_form(api, "sender", secret, "", send)).await;
    assert_eq!(status, 200, "{text}");
    let query = "Action=SendMessage&QueueUrl=t&MessageBody=a%20b";
    let (status, text) = read(signed_form(api, "sender", secret, query, "")).await;
    assert_eq!(status, 200, "{text}");
    let receive = "Action=ReceiveMessage&QueueUrl=t";
    let (status, text) = read(signed_form(api, "sender", secret, "", receive)).await;
    assert_eq!((status, element(&text, "Code")), (403, "AccessDenied"));
    let other = signed_form(api, "sender", secret, "", send).body(receive);
    let (status, text) = read(other).await;
    assert_eq!(
        (status, element(&text, "Code")),
        (403, "SignatureDoesNotMatch")
    );
    let (status, text) = post(api, send).await;
    assert_eq!(
        (status, element(&text, "Code")),
        (403, "MissingAuthenticationToken")
    );
    assert_eq!(site.stats("t").await["stored"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_accepts_json_gets_it() {
    let site = site("[topics.t]").await;
    let api = site.api(0);
    let get = async |path: &str| {
        let request = api.request(Method::GET, path);
        let request = request.header("accept", "application/json");
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.headers()["content-type"], "application/json");
        let status = answer.status().as_u16();
        let body: Value = answer.json().await.expect("JSON");
        (status, body)
    };
    // The gateway learns of the topic within seconds.
    eventually(SOON, async || {
        let (status, list) = get("/?Action=ListQueues").await;
        assert_eq!(status, 200);
        let list = &list["ListQueuesResponse"];
        assert!(list["ResponseMetadata"]["RequestId"].is_string(), "{list}");
        match list["ListQueuesResult"]["queueUrls"].as_array() {
            Some(urls) if urls.len() == 1 => Ok(()),
            _ => Err(list.clone()),
        }
    })
    .await;
    let (_, sent) = get("/000000000000/t?Action=SendMessage&MessageBody=x").await;
    let path = "/000000000000/t?Action=ReceiveMessage&WaitTimeSeconds=20&AttributeName.1=SenderId";
    let (_, received) = get(path).await;
    let message = &received["ReceiveMessageResponse"]["ReceiveMessageResult"]["messages"][0];
    assert_eq!(
        message["MessageId"],
        sent["SendMessageResponse"]["SendMessageResult"]["MessageId"]
    );
    let sender = json!([{"Name": "SenderId", "Value": "anonymous"}]);
    assert_eq!(message["Attributes"], sender);
    let (_, nothing) = get("/000000000000/t?Action=ReceiveMessage").await;
    assert!(nothing["ReceiveMessageResponse"].is_object(), "{nothing}");
    let handle = message["ReceiptHandle"].as_str().expect("a handle");
    let path = format!("/000000000000/t?Action=DeleteMessage&ReceiptHandle={handle}");
    let (_, deleted) = get(&path).await;
    let members = deleted["DeleteMessageResponse"].as_object();
    assert_eq!(members.map(serde_json::Map::len), Some(1), "{deleted}");
    let (status, refused) = get("/000000000000/t?Action=ListQueues").await;
    assert_eq!(
        (status, &refused["Error"]["Code"]),
        (400, &json!("InvalidAction"))
    );
}
