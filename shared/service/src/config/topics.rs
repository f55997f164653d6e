//! The settings of topics: each topic's own keys over `[topic_defaults]` over the compiled-in defaults.
//!
//! Only merges: [`TopicSettings`] declares the keys.

use std::collections::BTreeMap;

use super::problem::quoted_key;
use super::table::Table;
use lisa_core::fields::Fields as _;
use lisa_core::misspelling;
use lisa_core::topic::{Topic, TopicSettings};

/// Reads `[topic_defaults]` and `[topics]`.
pub(super) fn read(root: &mut Table<'_>) -> (TopicSettings, BTreeMap<Topic, TopicSettings>) {
    let defaults = settings(root.open("topic_defaults"));
    let mut topics = BTreeMap::new();
    for (name, table) in root.entries("topics") {
        // Opened again for each topic, because a table records the keys that were read through it.
        let table = table.inherit(&root.open("topic_defaults"));
        match name.parse::<Topic>() {
            Ok(topic) => {
                topics.insert(topic, settings(table));
            }
            Err(error) => {
                table.name_problem(&error.to_string());
                settings(table);
            }
        }
    }
    (defaults, topics)
}

/// Checks that the topic that a key of a table names is declared, if the configuration declares any. A misspelling of a
/// declared topic is a problem. Any other name may be declared elsewhere, and causes a warning.
pub(super) fn look_for(
    table: &Table<'_>,
    key: &str,
    topic: &Topic,
    declared: &BTreeMap<Topic, TopicSettings>,
) {
    if declared.is_empty() || declared.contains_key(topic) {
        return;
    }
    match misspelling::meant(topic.as_str(), declared.keys().map(Topic::as_str)) {
        Some(meant) => table.reject(
            key,
            format!("this topic is not declared here, did you mean {meant}? If not, declare it: [topics.{}]", quoted_key(topic.as_str())),
        ),
        None => table.warning(
            key,
            "this topic is not declared here; it must be declared elsewhere",
        ),
    }
}

fn settings(mut table: Table<'_>) -> TopicSettings {
    let settings = TopicSettings::read_fields(&mut table);
    table.finish();
    settings
}
