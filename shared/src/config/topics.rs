//! The settings of topics: each topic's own keys over `[topic_defaults]` over the compiled-in defaults.
//!
//! Reads and merges; the bounds are those of [`TopicSettings::check`], the same that the registry applies.

use std::collections::BTreeMap;

use super::leaf::Size;
use super::problem::quoted_key;
use super::slip;
use super::table::Table;
use crate::retry::{RetryPolicy, default};
use crate::topic::{GarbageSettings, Topic, TopicSettings};

/// Reads `[topic_defaults]` and `[topics]`.
pub(super) fn read(root: &mut Table<'_>) -> (TopicSettings, BTreeMap<Topic, TopicSettings>) {
    let defaults = settings(root.table("topic_defaults"));
    let mut topics = BTreeMap::new();
    for (name, table) in root.entries("topics") {
        // Opened for each topic anew: a table counts the keys that were read through it.
        let table = table.inherit(&root.table("topic_defaults"));
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

/// Looks whether a configuration that declares topics declares the one that `topic` of a table names. A slip of one that is
/// declared is a problem; any other may well be declared elsewhere, and is a warning.
pub(super) fn look_for(
    table: &Table<'_>,
    topic: &Topic,
    declared: &BTreeMap<Topic, TopicSettings>,
) {
    if declared.is_empty() || declared.contains_key(topic) {
        return;
    }
    match slip::meant(topic.as_str(), declared.keys().map(Topic::as_str)) {
        Some(meant) => table.problem(
            "topic",
            format!("no topic of this name is declared here, did you mean {meant}? If not, declare it: [topics.{}]", quoted_key(topic.as_str())),
        ),
        None => table.warning(
            "topic",
            "no topic of this name is declared here; it must be declared elsewhere",
        ),
    }
}

fn settings(mut table: Table<'_>) -> TopicSettings {
    let TopicSettings {
        groups,
        shards,
        lease,
        handler_timeout,
        max_attempts,
        retry: _,
        max_delay,
        max_payload,
        dedup_window,
        garbage,
        merge,
        merge_by,
        max_wait,
        on_garbage,
        max_ready,
        max_messages,
        max_bytes,
        ttl,
        on_expired,
        rate,
        burst,
        max_lateness,
        on_late,
        key_index,
        durability,
        durability_timeout,
        instance_ttl,
    } = TopicSettings::default();
    let settings = TopicSettings {
        groups: table.or("groups", groups),
        shards: table.or("shards", shards),
        lease: table.or("lease", lease),
        handler_timeout: table.or("handler_timeout", handler_timeout),
        max_attempts: table.or("max_attempts", max_attempts),
        retry: retry(table.table("retry")),
        max_delay: table.or("max_delay", max_delay),
        max_payload: table.or("max_payload", Size(max_payload)).0,
        dedup_window: table.or("dedup_window", dedup_window),
        garbage: garbage_settings(table.table("garbage"), &garbage),
        merge: table.or("merge", merge),
        merge_by: table.or("merge_by", merge_by),
        max_wait: table.or("max_wait", max_wait),
        on_garbage: table.or("on_garbage", on_garbage),
        max_ready: table.or("max_ready", max_ready),
        max_messages: table.or("max_messages", max_messages),
        max_bytes: table
            .or("max_bytes", max_bytes.map(Size))
            .map(|Size(bytes)| bytes),
        ttl: table.or("ttl", ttl),
        on_expired: table.or("on_expired", on_expired),
        rate: table.or("rate", rate),
        burst: table.or("burst", burst),
        max_lateness: table.or("max_lateness", max_lateness),
        on_late: table.or("on_late", on_late),
        key_index: table.or("key_index", key_index),
        durability: table.or("durability", durability),
        durability_timeout: table.or("durability_timeout", durability_timeout),
        instance_ttl: table.or("instance_ttl", instance_ttl),
    };
    if let Err(problems) = settings.check() {
        for problem in problems {
            let message = format!("allowed is {}", problem.allowed);
            table.problem_with(problem.key, message, &problem.value);
        }
    }
    table.finish();
    settings
}

fn garbage_settings(mut table: Table<'_>, defaults: &GarbageSettings) -> GarbageSettings {
    let settings = GarbageSettings {
        max_age: table.or("max_age", defaults.max_age),
    };
    table.finish();
    settings
}

/// Reads a retry policy; each field has a default of its kind.
pub(super) fn retry(mut table: Table<'_>) -> RetryPolicy {
    let kind: String = table.or("kind", "exponential".into());
    let policy = match kind.as_str() {
        "fixed" => RetryPolicy::Fixed {
            delay: table.or("delay", default::delay()),
            jitter: table.or("jitter", default::jitter()),
        },
        "list" => RetryPolicy::List {
            delays: table.or("delays", default::delays()),
            jitter: table.or("jitter", default::jitter()),
        },
        other => {
            if other != "exponential" {
                table.problem("kind", "allowed is exponential, fixed or list");
                // Which other keys belong here is unknown now; they are not worth more problems.
                return RetryPolicy::default();
            }
            RetryPolicy::Exponential {
                base: table.or("base", default::base()),
                factor: table.or("factor", default::factor()),
                max: table.or("max", default::max()),
                jitter: table.or("jitter", default::jitter()),
            }
        }
    };
    table.finish();
    policy
}
