//! The answers of the older protocol of SQS in JSON, for clients that accept it: the same content as in XML.

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;
use serde_json::{Map, Value, json};

use super::protocol::SqsError;
use super::xml;

/// The media type of answers.
pub(super) const MEDIA_TYPE: &str = "application/json";

/// Returns true if `Accept` names JSON, and not XML before it.
pub(super) fn is_accepted(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT).into_iter();
    let texts = values.filter_map(|value| value.to_str().ok());
    let mut types = texts.flat_map(|text| text.split(',')).map(|range| {
        let name = range.split(';').next().unwrap_or_default();
        name.trim().to_ascii_lowercase()
    });
    let first =
        types.find(|name| [MEDIA_TYPE, xml::MEDIA_TYPE, "application/xml"].contains(&&**name));
    first.is_some_and(|name| name == MEDIA_TYPE)
}

/// Returns the answer to an action, whose result is that of the newer protocol.
pub(super) fn render(action: &str, result: &Value, request: &str) -> String {
    let mut response = Map::new();
    if !xml::WITHOUT_RESULT.contains(&action) {
        response.insert(format!("{action}Result"), converted(result));
    }
    let metadata = json!({ "RequestId": request });
    response.insert("ResponseMetadata".to_owned(), metadata);
    json!({ format!("{action}Response"): response }).to_string()
}

/// Turns maps into lists of pairs, and spells members as this form does.
fn converted(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| {
                let value = match (name.as_str(), value) {
                    ("Attributes" | "MessageAttributes", Value::Object(map)) => pairs("Name", map),
                    ("Tags", Value::Object(map)) => pairs("Key", map),
                    _ => converted(value),
                };
                let name = match name.as_str() {
                    "Messages" => "messages",
                    "QueueUrls" => "queueUrls",
                    name => name,
                };
                (name.to_owned(), value)
            });
            members.collect::<Map<_, _>>().into()
        }
        Value::Array(items) => items.iter().map(converted).collect(),
        other => other.clone(),
    }
}

fn pairs(key: &str, map: &Map<String, Value>) -> Value {
    let pairs = map.iter();
    pairs
        .map(|(name, value)| json!({ key: name, "Value": value }))
        .collect()
}

/// Returns an error.
pub(super) fn error(error: &SqsError, request: &str) -> String {
    let (code, message) = (error.code(), error.message_of_query());
    let error = json!({ "Type": error.fault(), "Code": code, "Message": message });
    json!({ "Error": error, "RequestId": request }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_members_that_older_clients_read() {
        let messages = json!({"Messages": [{
            "Body": "x",
            "Attributes": {"SentTimestamp": "1"},
            "MessageAttributes": {"Tags": {"DataType": "String", "StringValue": "v"}},
        }]});
        let text = render("ReceiveMessage", &messages, "r");
        let message = json!({
            "Body": "x",
            "Attributes": [{"Name": "SentTimestamp", "Value": "1"}],
            "MessageAttributes": [{"Name": "Tags", "Value": {"DataType": "String", "StringValue": "v"}}],
        });
        let expected = json!({"ReceiveMessageResponse": {
            "ReceiveMessageResult": {"messages": [message]},
            "ResponseMetadata": {"RequestId": "r"},
        }});
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
        let text = render("DeleteMessage", &json!({}), "r");
        let expected = json!({"DeleteMessageResponse": {"ResponseMetadata": {"RequestId": "r"}}});
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
        let text = error(&SqsError::invalid_action("X"), "r");
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read["Error"]["Code"], "InvalidAction");
        assert_eq!(read["RequestId"], "r");
    }

    #[test]
    fn json_is_an_answer_to_clients_that_name_it_first() {
        for (accept, expected) in [
            ("application/json", true),
            ("text/html, application/JSON;q=0.9, */*", true),
            ("text/xml, application/json", false),
            ("*/*", false),
            ("", false),
        ] {
            let accept = accept.parse().unwrap();
            let headers = HeaderMap::from_iter([(ACCEPT, accept)]);
            assert_eq!(is_accepted(&headers), expected);
        }
        assert!(!is_accepted(&HeaderMap::new()));
    }
}
