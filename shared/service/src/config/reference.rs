//! The reference of all keys of the configuration: for the book, and as a JSON Schema for editors.
//!
//! Reads a configuration in which each key occurs, and collects the descriptions of the readers.

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use super::findings::{Findings, Variant};
use super::layers::{Layers, LoadOptions, Secrets, SinkSecrets};
use super::problem::{Path, Step};
use super::resolve;
use super::sinks::SinkType;
use super::sources::SourceType;
use super::table::{NONE, table_schema};
use lisa_core::fields::Description;

/// Opens each table, except those of sinks and sources.
const TABLES: [(&str, &str); 7] = [
    ("LISA_TOPICS__A__RETRY__KIND", "exponential"),
    ("LISA_TOPICS__B__RETRY__KIND", "fixed"),
    ("LISA_TOPICS__C__RETRY__KIND", "list"),
    ("LISA_SCHEDULES__A__HEADERS__A", "b"),
    ("LISA_AUTH__TOKENS", "[{}]"),
    ("LISA_CONSUMER__GATEWAY__MAX_WAITING", "1"),
    ("LISA_MANAGER__KEDA__LISTEN", "127.0.0.1:1"),
];

/// Opens each table, and each variant of the tables that have a type.
fn every_table() -> Vec<(String, String)> {
    let rows = |table: &str, types: Vec<&str>| {
        let rows = types.iter().map(|kind| json!({ table: { "type": kind } }));
        Json::from_iter(rows).to_string()
    };
    let sinks = rows(
        "sink",
        SinkType::ALL.iter().map(|kind| kind.as_str()).collect(),
    );
    let sources = rows(
        "from",
        SourceType::ALL.iter().map(|kind| kind.as_str()).collect(),
    );
    let variants = [
        ("LISA_CONSUMER__SUBSCRIPTIONS", sinks.as_str()),
        ("LISA_PRODUCER__SOURCES", &sources),
    ];
    let all = TABLES.into_iter().chain(variants);
    all.map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// A key of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The table that it is in, e.g. `topics.<name>.retry` or `auth.tokens[]`; empty for the outermost one.
    pub table: String,
    /// The variant of the table, e.g. `("type", "http")`: only then it has this key.
    pub variant: Option<Variant>,
    /// Its name, type, default, bounds and meaning.
    pub description: Description,
}

/// Returns all keys, in the order in which they are read. A key that several variants of a table have occurs once for each.
/// `topic_defaults` has the keys of `topics.<name>`, and `schedules.<name>.retry` those of `topics.<name>.retry`.
pub fn keys() -> Vec<Key> {
    let options = LoadOptions {
        env: every_table(),
        sink_secrets: SinkSecrets::Unused,
        source_secrets: SinkSecrets::Unused,
        aws_secrets: SinkSecrets::Unused,
        listener_files: SinkSecrets::Unused,
        ..LoadOptions::default()
    };
    let layers = Layers::merge(options).expect("the tables are well-formed");
    let unused = SinkSecrets::Unused;
    let secrets = Secrets {
        sinks: unused,
        sources: unused,
        tokens: unused,
        listeners: unused,
    };
    let findings = Findings::new(Arc::new(layers), secrets).describing();
    // Its problems are the missing values, which do not matter here.
    let _ = resolve::resolve(&findings);
    let mut keys: Vec<Key> = Vec::new();
    for described in findings.descriptions() {
        let key = Key {
            table: general(&described.path),
            variant: described.variant,
            description: described.description,
        };
        let is_twice = |other: &Key| {
            (&other.table, other.variant) == (&key.table, key.variant)
                && other.description.name == key.description.name
                && other.description.meaning == key.description.meaning
        };
        if !key.table.starts_with("topic_defaults") && !keys.iter().any(is_twice) {
            keys.push(key);
        }
    }
    keys
}

/// Returns the path of a table, without the names and the numbers that are the user's own.
fn general(path: &Path) -> String {
    let named = ["topics", "schedules"];
    let is_named = |first: &Step| matches!(first, Step::Key(key) if named.contains(&key.as_str()));
    let mut general = String::new();
    for (index, step) in path.0.iter().enumerate() {
        let text = match step {
            Step::Item(_) => "[]",
            Step::Key(_) if index == 1 && is_named(&path.0[0]) => ".<name>",
            Step::Key(key) if index == 0 => key,
            Step::Key(key) => {
                general.push('.');
                key
            }
        };
        general.push_str(text);
    }
    general
}

/// Returns the JSON Schema of a configuration file, for completion and checks in editors.
pub fn schema() -> Json {
    let mut root = table_schema();
    for key in keys() {
        let mut schema = key.description.schema;
        if key.description.default.as_ref() == Some(&NONE.into()) {
            schema = json!({ "anyOf": [schema, { "const": NONE }] });
        }
        if let Some(default) = key.description.default {
            schema["default"] = default;
        }
        schema["description"] = key.description.meaning.into();
        let mut table = open(&mut root, &key.table);
        if let Some(variant) = key.variant {
            table = open_variant(table, variant);
        }
        let name = key.description.name;
        if key.description.required {
            let required = table.entry("required").or_insert_with(|| json!([]));
            required.as_array_mut().expect("a list").push(name.into());
        }
        table["properties"][name] = schema;
    }
    let topic = root["properties"]["topics"]["additionalProperties"].clone();
    open(&mut root, "schedules.<name>")["properties"]["retry"] =
        topic["properties"]["retry"].clone();
    root["properties"]["topic_defaults"] = topic;
    root["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    root["title"] = "Configuration of Lisa".into();
    root
}

/// Opens the schema of a variant of a table. The first call makes one for each value of the key on which it depends.
fn open_variant(table: &mut Map<String, Json>, (key, value): Variant) -> &mut Map<String, Json> {
    if !table.contains_key("oneOf") {
        // Each variant knows its own keys.
        table.remove("additionalProperties");
        let values = table["properties"][key]["enum"].as_array();
        let values = values.expect("a variant is one of some words").iter();
        let variants = values.map(|value| {
            let mut schema = table_schema();
            schema["properties"][key] = json!({ "const": value });
            schema
        });
        let variants: Vec<_> = variants.collect();
        table.insert("oneOf".to_owned(), variants.into());
    }
    let variants = table["oneOf"].as_array_mut().expect("a list").iter_mut();
    let mut variants =
        variants.map(|schema| schema.as_object_mut().expect("a schema is an object"));
    let found = variants.find(|schema| schema["properties"][key]["const"] == value);
    found.expect("each value has its schema")
}

/// Opens the schema of a table, below the schemas of the tables that it is in.
fn open<'s>(root: &'s mut Json, table: &str) -> &'s mut Map<String, Json> {
    let mut schema = root;
    for step in table.split('.').filter(|step| !step.is_empty()) {
        schema = match (step, step.strip_suffix("[]")) {
            ("<name>", _) => {
                if schema["additionalProperties"] == json!(false) {
                    schema["additionalProperties"] = table_schema();
                }
                &mut schema["additionalProperties"]
            }
            (_, Some(list)) => {
                let list = below(
                    schema,
                    list,
                    || json!({ "type": "array", "items": table_schema() }),
                );
                &mut list["items"]
            }
            (table, None) => below(schema, table, table_schema),
        };
    }
    schema.as_object_mut().expect("a schema is an object")
}

fn below<'s>(schema: &'s mut Json, name: &str, new: impl FnOnce() -> Json) -> &'s mut Json {
    let properties = schema["properties"]
        .as_object_mut()
        .expect("a table has properties");
    properties.entry(name).or_insert_with(new)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_key_is_described_once_for_each_meaning() {
        let keys = keys();
        let names: BTreeSet<_> = keys
            .iter()
            .map(|key| format!("{}.{}", key.table, key.description.name))
            .collect();
        let meanings: BTreeSet<_> = keys
            .iter()
            .map(|key| {
                let Description { name, meaning, .. } = &key.description;
                (&key.table, key.variant, name, meaning)
            })
            .collect();
        assert_eq!(meanings.len(), keys.len());
        for name in [
            ".namespace",
            "redis.tls.ca_file",
            "manager.jobs.clean",
            "topics.<name>.lease",
            "topics.<name>.garbage.max_age",
            "topics.<name>.retry.delays",
            "schedules.<name>.headers",
            "auth.tokens[].sha256",
            "consumer.subscriptions[].sink.command",
        ] {
            assert!(names.contains(name), "{name} is missing in {names:?}");
        }
        assert!(
            keys.iter()
                .all(|key| key.description.meaning.ends_with('.'))
        );
    }

    #[test]
    fn each_variant_of_a_table_has_its_own_keys() {
        let schema = schema();
        let sink = "/properties/consumer/properties/subscriptions/items/properties/sink";
        let sink = schema.pointer(sink).unwrap();
        assert_eq!(sink["required"], json!(["type"]));
        let variants = sink["oneOf"].as_array().unwrap();
        let of = |kind: &str| {
            let mut all = variants.iter();
            all.find(|variant| variant["properties"]["type"]["const"] == kind)
                .unwrap()
        };
        assert_eq!(variants.len(), 7);
        assert_eq!(of("http")["required"], json!(["url"]));
        assert_eq!(of("http")["properties"]["away"]["default"], "retry");
        assert_eq!(of("nats")["properties"]["away"]["default"], "defer");
        assert_eq!(of("stdout")["properties"].as_object().unwrap().len(), 1);
        assert_eq!(of("amqp")["additionalProperties"], json!(false));
    }

    #[test]
    fn the_schema_has_the_tables_with_their_keys() {
        let schema = schema();
        for (pointer, expected) in [
            (
                "/properties/topics/additionalProperties/properties/shards/maximum",
                json!(1024),
            ),
            (
                "/properties/topic_defaults/properties/lease/default",
                json!("30s"),
            ),
            (
                "/properties/auth/properties/tokens/items/required/0",
                json!("name"),
            ),
            ("/properties/redis/additionalProperties", json!(false)),
        ] {
            assert_eq!(schema.pointer(pointer), Some(&expected), "{pointer}");
        }
    }
}
