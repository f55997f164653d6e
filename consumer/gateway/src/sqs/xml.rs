//! The answers of the older protocol of SQS, in XML. [`super::query`] has the requests.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::protocol::SqsError;

/// The media type of answers.
pub(super) const MEDIA_TYPE: &str = "text/xml";
const NAMESPACE: &str = "http://queue.amazonaws.com/doc/2012-11-05/";

/// The actions whose answers have no result.
pub(super) const WITHOUT_RESULT: [&str; 9] = [
    "AddPermission",
    "ChangeMessageVisibility",
    "DeleteMessage",
    "DeleteQueue",
    "PurgeQueue",
    "RemovePermission",
    "SetQueueAttributes",
    "TagQueue",
    "UntagQueue",
];

/// Returns the answer to an action, whose result is that of the newer protocol. The name of the action must be known.
pub(super) fn render(action: &str, result: &Value, request: &str) -> String {
    let mut text = format!("<?xml version=\"1.0\"?>\n<{action}Response xmlns=\"{NAMESPACE}\">");
    if !WITHOUT_RESULT.contains(&action) {
        let mut inner = String::new();
        if let Value::Object(members) = result {
            write_members(&mut inner, action, members);
        }
        match inner.is_empty() {
            true => put(&mut text, format_args!("<{action}Result/>")),
            false => put(
                &mut text,
                format_args!("<{action}Result>{inner}</{action}Result>"),
            ),
        }
    }
    put(
        &mut text,
        format_args!(
            "<ResponseMetadata><RequestId>{request}</RequestId></ResponseMetadata></{action}Response>\n"
        ),
    );
    text
}

fn put(text: &mut String, part: std::fmt::Arguments<'_>) {
    text.write_fmt(part).expect("a string takes all");
}

fn write_members(text: &mut String, action: &str, members: &Map<String, Value>) {
    for (name, value) in members {
        match (name.as_str(), value) {
            ("Attributes", Value::Object(pairs)) => write_pairs(text, "Attribute", "Name", pairs),
            ("Tags", Value::Object(pairs)) => write_pairs(text, "Tag", "Key", pairs),
            ("MessageAttributes", Value::Object(attributes)) => {
                for (name, value) in attributes {
                    text.push_str("<MessageAttribute>");
                    write_text(text, "Name", name);
                    write_table(text, action, "Value", value);
                    text.push_str("</MessageAttribute>");
                }
            }
            (_, Value::Array(items)) => {
                let tag = match name.as_str() {
                    "QueueUrls" | "queueUrls" => "QueueUrl",
                    "Messages" => "Message",
                    "Failed" => "BatchResultErrorEntry",
                    // Successful, and the results of a list.
                    _ => &format!("{action}ResultEntry"),
                };
                for item in items {
                    write_table(text, action, tag, item);
                }
            }
            _ => write_table(text, action, name, value),
        }
    }
}

fn write_pairs(text: &mut String, tag: &str, key: &str, pairs: &Map<String, Value>) {
    for (name, value) in pairs {
        put(text, format_args!("<{tag}>"));
        write_text(text, key, name);
        write_text(text, "Value", value.as_str().unwrap_or_default());
        put(text, format_args!("</{tag}>"));
    }
}

fn write_table(text: &mut String, action: &str, tag: &str, value: &Value) {
    match value {
        Value::Object(members) => {
            put(text, format_args!("<{tag}>"));
            write_members(text, action, members);
            put(text, format_args!("</{tag}>"));
        }
        Value::String(value) => write_text(text, tag, value),
        other => write_text(text, tag, &other.to_string()),
    }
}

fn write_text(text: &mut String, tag: &str, value: &str) {
    put(text, format_args!("<{tag}>"));
    escape(text, value);
    put(text, format_args!("</{tag}>"));
}

/// Escapes a text. A carriage return would otherwise be read as the end of a line.
fn escape(text: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '&' => text.push_str("&amp;"),
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '"' => text.push_str("&quot;"),
            '\r' => text.push_str("&#xD;"),
            c => text.push(c),
        }
    }
}

/// Returns an error.
pub(super) fn error(error: &SqsError, request: &str) -> String {
    let mut text = format!("<?xml version=\"1.0\"?>\n<ErrorResponse xmlns=\"{NAMESPACE}\"><Error>");
    write_text(&mut text, "Type", error.fault());
    write_text(&mut text, "Code", error.code());
    write_text(&mut text, "Message", error.message_of_query());
    put(
        &mut text,
        format_args!("<Detail/></Error><RequestId>{request}</RequestId></ErrorResponse>\n"),
    );
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_has_the_elements_that_older_clients_read() {
        let messages = json!({"Messages": [{
            "Body": "a<b>&\"\r\n",
            "Attributes": {"SentTimestamp": "1"},
            "MessageAttributes": {"k": {"DataType": "String", "StringValue": "v"}},
        }]});
        let text = render("ReceiveMessage", &messages, "r");
        let expected = "<ReceiveMessageResult><Message><Attribute><Name>SentTimestamp</Name><Value>1</Value></Attribute>\
            <Body>a&lt;b&gt;&amp;&quot;&#xD;\n</Body><MessageAttribute><Name>k</Name><Value><DataType>String</DataType>\
            <StringValue>v</StringValue></Value></MessageAttribute></Message></ReceiveMessageResult>";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("<RequestId>r</RequestId>"), "{text}");
        let batch = json!({
            "Successful": [{"Id": "a"}],
            "Failed": [{"Id": "b", "SenderFault": true}],
        });
        let text = render("DeleteMessageBatch", &batch, "r");
        for part in [
            "<DeleteMessageBatchResultEntry><Id>a</Id></DeleteMessageBatchResultEntry>",
            "<BatchResultErrorEntry><Id>b</Id><SenderFault>true</SenderFault></BatchResultErrorEntry>",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let lists = json!({"QueueUrls": ["x", "y"], "Tags": {"a": ""}});
        let text = render("ListQueues", &lists, "r");
        for part in [
            "<QueueUrl>x</QueueUrl><QueueUrl>y</QueueUrl>",
            "<Tag><Key>a</Key><Value></Value></Tag>",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(render("ReceiveMessage", &json!({}), "r").contains("<ReceiveMessageResult/>"));
        assert!(!render("DeleteMessage", &json!({}), "r").contains("Result"));
    }

    #[test]
    fn an_error_has_the_code_and_the_words_of_the_older_protocol() {
        let body = error(&SqsError::no_queue(), "r");
        let expected = "<Type>Sender</Type><Code>AWS.SimpleQueueService.NonExistentQueue</Code>\
            <Message>The specified queue does not exist for this wsdl version.</Message>";
        assert!(body.contains(expected), "{body}");
    }
}
