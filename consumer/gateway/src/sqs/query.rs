//! The older protocol of SQS: parameters as a form, in the body or in the URL. A request becomes the JSON that the same request
//! has in the newer protocol, so that everything else is common to both. [`super::xml`] has the answers.

use std::collections::BTreeMap;

use axum::http::Uri;
use lisa_core::time::shorten;
use serde_json::{Map, Value};

use super::protocol::{Kind, SqsError};

/// The most parameters of a request. A batch of ten messages, each with ten attributes, has 460.
const MAX_PARAMETERS: usize = 1024;
/// The most parts of the name of a parameter, such as `SendMessageBatchRequestEntry.1.MessageAttribute.2.Value.StringValue`.
const MAX_PARTS: usize = 6;
/// The longest name of a parameter.
const MAX_NAME: usize = 256;

/// Lists, whose items are numbered: the name of the parameter, and the member of the JSON.
const LISTS: [(&str, &str); 9] = [
    ("AWSAccountId", "AWSAccountIds"),
    ("ActionName", "Actions"),
    ("AttributeName", "AttributeNames"),
    ("ChangeMessageVisibilityBatchRequestEntry", "Entries"),
    ("DeleteMessageBatchRequestEntry", "Entries"),
    ("MessageAttributeName", "MessageAttributeNames"),
    ("MessageSystemAttributeName", "MessageSystemAttributeNames"),
    ("SendMessageBatchRequestEntry", "Entries"),
    ("TagKey", "TagKeys"),
];

/// Maps, whose entries are numbered and have a name and a `Value`: the name of the parameter, the member of the JSON, and the part
/// with the name.
const MAPS: [(&str, &str, &str); 4] = [
    ("Attribute", "Attributes", "Name"),
    ("MessageAttribute", "MessageAttributes", "Name"),
    ("MessageSystemAttribute", "MessageSystemAttributes", "Name"),
    ("Tag", "Tags", "Key"),
];

/// The parameters that are numbers.
const NUMBERS: [&str; 6] = [
    "DelaySeconds",
    "MaxNumberOfMessages",
    "MaxNumberOfMessagesPerSecond",
    "MaxResults",
    "VisibilityTimeout",
    "WaitTimeSeconds",
];

/// The parameters by the parts of their names.
enum Node {
    Text(String),
    Table(BTreeMap<String, Node>),
}

type Table = BTreeMap<String, Node>;

/// The action of a request, and its parameters.
pub(super) struct Form {
    pub(super) action: String,
    table: Table,
}

fn malformed(why: &str) -> SqsError {
    SqsError::new(Kind::MalformedQueryString, format!("{why}."))
}

/// Splits a form into its parameters. Counts them first.
///
/// # Errors
/// There are too many, or they are not encoded correctly.
pub(super) fn pairs(form: &[u8]) -> Result<Vec<(String, String)>, SqsError> {
    let separators = form.iter().filter(|byte| **byte == b'&').count();
    if separators >= MAX_PARAMETERS {
        let why = format!("A request has at most {MAX_PARAMETERS} parameters");
        return Err(malformed(&why));
    }
    // They would become longer as JSON.
    if form.iter().any(u8::is_ascii_control) {
        return Err(malformed("Control characters must be encoded"));
    }
    let form = str::from_utf8(form).map_err(|_| malformed("The parameters are not UTF-8"))?;
    let pairs = form.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((decode(name)?, decode(value)?))
    });
    let pairs: Option<Vec<_>> = pairs.collect();
    pairs.ok_or_else(|| malformed("The parameters are not encoded correctly"))
}

fn decode(text: &str) -> Option<String> {
    match text.contains('+') {
        true => lisa_core::percent::decode(&text.replace('+', " ")),
        false => lisa_core::percent::decode(text),
    }
}

impl Form {
    /// Reads the parameters in the URL and in the body.
    pub(super) fn read(uri: &Uri, body: &[u8]) -> Result<Self, SqsError> {
        let mut table = Table::new();
        let query = uri.query().unwrap_or_default();
        for (name, value) in pairs(query.as_bytes())?.into_iter().chain(pairs(body)?) {
            let parts: Vec<&str> = name.split('.').collect();
            if name.len() > MAX_NAME || parts.len() > MAX_PARTS {
                let why = format!("The parameter {} is unknown", shorten(&name));
                return Err(malformed(&why));
            }
            insert(&mut table, &parts, value);
        }
        match table.remove("Action") {
            Some(Node::Text(action)) => Ok(Self { action, table }),
            _ => {
                let message = "The request must contain the parameter Action.";
                Err(SqsError::new(Kind::MissingAction, message))
            }
        }
    }

    /// Returns the parameters as a request of the newer protocol has them.
    pub(super) fn into_json(self) -> Result<Value, SqsError> {
        object(self.table)
    }
}

/// Adds a parameter. Of two with the same name, the first one counts.
fn insert(table: &mut Table, parts: &[&str], value: String) {
    let Some((first, rest)) = parts.split_first() else {
        return;
    };
    if rest.is_empty() {
        table
            .entry((*first).to_owned())
            .or_insert(Node::Text(value));
        return;
    }
    let below = table.entry((*first).to_owned());
    if let Node::Table(below) = below.or_insert_with(|| Node::Table(Table::new())) {
        insert(below, rest, value);
    }
}

/// Returns the items of a list, in the order of their numbers. SDKs send an empty list as an empty text.
fn items(node: Node) -> Vec<Node> {
    let table = match node {
        Node::Table(table) => table,
        Node::Text(text) if text.is_empty() => return Vec::new(),
        one => return vec![one],
    };
    let items = table.into_iter();
    let items = items.filter_map(|(number, node)| Some((number.parse().ok()?, node)));
    let items: BTreeMap<u32, Node> = items.collect();
    items.into_values().collect()
}

fn object(table: Table) -> Result<Value, SqsError> {
    let mut object = Map::new();
    for (name, node) in table {
        if let Some((_, member)) = LISTS.iter().find(|(list, _)| *list == name) {
            let items = items(node).into_iter().map(item);
            let items: Result<Vec<_>, _> = items.collect();
            object.insert((*member).to_owned(), items?.into());
        } else if let Some((_, member, key)) = MAPS.iter().find(|(map, ..)| *map == name) {
            let mut entries = Map::new();
            for node in items(node) {
                let Node::Table(mut entry) = node else {
                    continue;
                };
                let name = match entry.remove(*key) {
                    Some(Node::Text(name)) => name,
                    _ => String::new(),
                };
                let value = entry.remove("Value");
                let value = value.map_or_else(|| Ok("".into()), item)?;
                entries.insert(name, value);
            }
            object.insert((*member).to_owned(), entries.into());
        } else if let Node::Text(text) = node {
            // An SDK sends an empty list under the name of its member.
            let mut members = LISTS.iter().map(|(_, member)| *member);
            if text.is_empty() && members.any(|member| member == name) {
                continue;
            }
            let value = match NUMBERS.contains(&name.as_str()) {
                true => number(&name, &text)?,
                false => text.into(),
            };
            object.insert(name, value);
        }
    }
    Ok(object.into())
}

fn item(node: Node) -> Result<Value, SqsError> {
    match node {
        Node::Text(text) => Ok(text.into()),
        Node::Table(table) => object(table),
    }
}

fn number(name: &str, text: &str) -> Result<Value, SqsError> {
    let number: Result<i64, _> = text.trim().parse();
    let number = number.map_err(|_| SqsError::parameter(name, shorten(text), "Must be an integer"));
    number.map(Value::from)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(query: &str, body: &str) -> Result<(String, Value), String> {
        let uri: Uri = format!("/?{query}").parse().unwrap();
        let form = Form::read(&uri, body.as_bytes()).map_err(|error| error.message)?;
        let action = form.action.clone();
        Ok((action, form.into_json().map_err(|error| error.message)?))
    }

    #[test]
    fn a_form_becomes_the_json_of_the_same_request() {
        let body = "Action=SendMessageBatch&QueueUrl=http%3A%2F%2Fx%2F1%2Fq\
            &SendMessageBatchRequestEntry.1.Id=a&SendMessageBatchRequestEntry.1.MessageBody=x+y%26z\
            &SendMessageBatchRequestEntry.1.DelaySeconds=5\
            &SendMessageBatchRequestEntry.1.MessageAttribute.1.Name=k\
            &SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.DataType=String\
            &SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.StringValue=v\
            &SendMessageBatchRequestEntry.10.Id=c&SendMessageBatchRequestEntry.2.Id=b&Version=2012-11-05";
        let (action, json) = read("", body).unwrap();
        assert_eq!(action, "SendMessageBatch");
        let first = json!({
            "Id": "a", "MessageBody": "x y&z", "DelaySeconds": 5,
            "MessageAttributes": {"k": {"DataType": "String", "StringValue": "v"}},
        });
        let expected = json!({
            "QueueUrl": "http://x/1/q", "Version": "2012-11-05",
            "Entries": [first, {"Id": "b"}, {"Id": "c"}],
        });
        assert_eq!(json, expected);
        let (action, json) = read(
            "Action=CreateQueue&QueueName=q&Attribute.1.Name=DelaySeconds&Attribute.1.Value=5",
            "Tag.1.Key=a&Tag.1.Value=&AttributeName.1=All",
        )
        .unwrap();
        assert_eq!(action, "CreateQueue");
        let expected = json!({
            "QueueName": "q", "Attributes": {"DelaySeconds": "5"}, "Tags": {"a": ""}, "AttributeNames": ["All"],
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn a_form_is_bounded_and_its_mistakes_are_named() {
        let many = format!("Action=x{}", "&a=b".repeat(MAX_PARAMETERS));
        let deep = format!("Action=x&{}=1", "a.".repeat(MAX_PARTS));
        let long = format!("Action=x&{}=1", "a".repeat(MAX_NAME + 1));
        for (body, part) in [
            (many.as_str(), "1024 parameters"),
            (&deep, "unknown"),
            (&long, "unknown"),
            ("Action=x&a=%zz", "encoded"),
            ("Action=x&a=\u{1}", "must be encoded"),
            ("a=b", "parameter Action"),
            ("", "parameter Action"),
            ("Action=x&DelaySeconds=a", "DelaySeconds"),
        ] {
            let error = read("", body).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        // What is neither a list nor a map is ignored, and so is a second value.
        let lists = "&Entries=&MessageAttributeNames=";
        let (_, json) = read(&format!("Action=x&A.1=b&TagKey=c&D=e&D=f{lists}"), "").unwrap();
        assert_eq!(json, json!({"D": "e", "TagKeys": ["c"]}));
    }
}
