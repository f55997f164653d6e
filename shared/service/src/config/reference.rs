//! The reference of all keys of the configuration: for the book, and as a JSON Schema for editors.
//!
//! Reads a configuration in which each key occurs, and collects the descriptions of the readers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value as Json, json};

use super::layers::{Layers, LoadOptions, SinkSecrets};
use super::problem::{Path, Step};
use super::resolve;
use super::table::{Findings, NONE, Secrets, table_schema};
use lisa_core::fields::Description;

/// Opens each table, and each variant of the tables that have a type.
const EVERY_TABLE: [(&str, &str); 8] = [
    ("LISA_TOPICS__A__RETRY__KIND", "exponential"),
    ("LISA_TOPICS__B__RETRY__KIND", "fixed"),
    ("LISA_TOPICS__C__RETRY__KIND", "list"),
    ("LISA_SCHEDULES__A__HEADERS__A", "b"),
    ("LISA_AUTH__TOKENS", "[{}]"),
    ("LISA_CONSUMER__GATEWAY__MAX_WAITING", "1"),
    (
        "LISA_CONSUMER__SUBSCRIPTIONS",
        r#"[{"sink": {"type": "stdout"}}, {"sink": {"type": "http"}}, {"sink": {"type": "command"}},
            {"sink": {"type": "redis-stream"}}, {"sink": {"type": "amqp"}}, {"sink": {"type": "nats"}},
            {"sink": {"type": "kafka"}}]"#,
    ),
    (
        "LISA_PRODUCER__SOURCES",
        r#"[{"from": {"type": "amqp"}}, {"from": {"type": "nats"}}, {"from": {"type": "kafka"}}]"#,
    ),
];

/// A key of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// The table that it is in, e.g. `topics.<name>.retry` or `auth.tokens[]`; empty for the outermost one.
    pub table: String,
    /// Its name, type, default, bounds and meaning.
    pub description: Description,
    /// True if each such table must have it.
    pub required: bool,
}

/// Returns all keys, in the order in which they are read. A key with a different meaning in each variant of a table occurs
/// once for each meaning. `topic_defaults` has the keys of `topics.<name>`, and `schedules.<name>.retry` those of
/// `topics.<name>.retry`.
pub fn keys() -> Vec<Key> {
    let env = EVERY_TABLE.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let options = LoadOptions {
        env: env.into(),
        sink_secrets: SinkSecrets::Unused,
        source_secrets: SinkSecrets::Unused,
        aws_secrets: SinkSecrets::Unused,
        ..LoadOptions::default()
    };
    let layers = Layers::merge(options).expect("the tables are well-formed");
    let unused = SinkSecrets::Unused;
    let secrets = Secrets {
        sinks: unused,
        sources: unused,
        tokens: unused,
    };
    let findings = Findings::new(layers, secrets).describing();
    // Its problems are the missing values, which do not matter here.
    let _ = resolve::resolve(&findings);
    let described = findings.descriptions();
    let mut tables: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut uses: BTreeMap<(String, &str), usize> = BTreeMap::new();
    for (path, description) in &described {
        let table = general(path);
        tables
            .entry(table.clone())
            .or_default()
            .insert(path.to_string());
        *uses.entry((table, description.name)).or_default() += 1;
    }
    let mut keys: Vec<Key> = Vec::new();
    for (path, description) in described {
        let table = general(&path);
        let is_new = !keys.iter().any(|key| {
            key.table == table
                && key.description.name == description.name
                && key.description.meaning == description.meaning
        });
        if is_new && !table.starts_with("topic_defaults") {
            let everywhere = uses[&(table.clone(), description.name)] == tables[&table].len();
            keys.push(Key {
                required: description.required && everywhere,
                table,
                description,
            });
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
        let table = open(&mut root, &key.table);
        if key.required {
            let required = table.entry("required").or_insert_with(|| json!([]));
            required
                .as_array_mut()
                .expect("a list")
                .push(key.description.name.into());
        }
        let properties = table["properties"].as_object_mut().expect("an object");
        let schema = match properties.remove(key.description.name) {
            Some(other) => either(other, schema),
            None => schema,
        };
        properties.insert(key.description.name.to_owned(), schema);
    }
    let topic = root["properties"]["topics"]["additionalProperties"].clone();
    open(&mut root, "schedules.<name>")["properties"]["retry"] =
        topic["properties"]["retry"].clone();
    root["properties"]["topic_defaults"] = topic;
    root["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    root["title"] = "Configuration of Lisa".into();
    root
}

/// Combines the schemas of a key that occurs in two variants of its table.
fn either(one: Json, other: Json) -> Json {
    let describe = |schema: &Json| {
        schema["description"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let description = format!("{} {}", describe(&one), describe(&other));
    let bare = |mut schema: Json| {
        let parts = schema.as_object_mut().expect("a schema is an object");
        parts.remove("description");
        parts.remove("default");
        match parts.remove("anyOf") {
            Some(Json::Array(variants)) => variants,
            _ => vec![schema],
        }
    };
    let mut variants = bare(one);
    for variant in bare(other) {
        if !variants.contains(&variant) {
            variants.push(variant);
        }
    }
    json!({ "anyOf": variants, "description": description })
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
            .map(|key| (&key.table, key.description.name, &key.description.meaning))
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
    fn only_keys_of_every_variant_are_required() {
        let keys = keys();
        let required: Vec<_> = keys.iter().filter(|key| key.required).collect();
        let of_sinks = required.iter().filter(|key| key.table.ends_with("sink"));
        assert_eq!(
            of_sinks.map(|key| key.description.name).collect::<Vec<_>>(),
            ["type"]
        );
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
            (
                "/properties/consumer/properties/subscriptions/items/properties/sink/properties/timeout/anyOf",
                json!([{ "type": "string" }]),
            ),
        ] {
            assert_eq!(schema.pointer(pointer), Some(&expected), "{pointer}");
        }
    }
}
