//! `topics`: lists topics, creates one, and changes settings of one.

use std::str::FromStr;

use lisa_core::fields::{Description, Value as _};
use lisa_core::time::format_duration;
use lisa_core::topic::{Group, Topic, TopicSettings};
use lisa_service::cli::{Output, Rows};
use lisa_service::http::auth::Scope;
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::print;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::operations::topics::{TopicEntry, TopicList};

/// A setting on the command line, such as `retry.base=5s`.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    key: String,
    value: Value,
}

impl FromStr for Setting {
    type Err = &'static str;

    /// Reads a value as JSON, else as text: `3` is a number and `1m` a text. A list is JSON, or texts separated by commas; a list of
    /// one in a table must be JSON. An empty value is `null`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (key, value) = text
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or("expected a setting and its value, such as lease=1m")?;
        let value = match value {
            "" => Value::Null,
            json if json.starts_with(['[', '{']) => json_or_text(json),
            list if is_list(key) || list.contains(',') => list.split(',').collect(),
            value => json_or_text(value),
        };
        let key = key.to_owned();
        Ok(Self { key, value })
    }
}

fn json_or_text(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

fn is_list(key: &str) -> bool {
    let fields = Description::all::<TopicSettings>();
    let mut fields = fields.iter().filter(|field| field.name == key);
    fields.any(|field| field.kind == Vec::<Group>::KIND)
}

impl Setting {
    /// Replaces this setting.
    fn set(self, settings: &mut Map<String, Value>) {
        let mut keys: Vec<&str> = self.key.split('.').collect();
        let last = keys.pop().unwrap_or_default();
        let mut table = settings;
        for key in keys {
            let below = table.entry(key).or_insert(Value::Null);
            if !below.is_object() {
                *below = Map::new().into();
            }
            let Value::Object(below) = below else {
                unreachable!("made an object");
            };
            table = below;
        }
        table.insert(last.to_owned(), self.value);
    }
}

/// Prints the registered topics.
pub(crate) async fn list(client: &Client, output: &Output) -> Result<(), CliError> {
    let list: TopicList = client.get(&["topics"]).answer().await?;
    let mut table = Rows::new([
        "TOPIC",
        "TOPIC STATE",
        "GROUPS",
        "SHARDS",
        "LEASE",
        "MAX ATTEMPTS",
        "MAX DELAY",
    ])
    .marks(["TOPIC STATE"]);
    for topic in &list.topics {
        let settings = &topic.settings;
        let groups: Vec<_> = topic.groups.iter().map(Group::as_str).collect();
        table.add_row([
            topic.topic.to_string(),
            if topic.resharding { "resharding" } else { "" }.to_owned(),
            groups.join(", "),
            settings.shards.to_string(),
            format_duration(settings.lease),
            settings.max_attempts.to_string(),
            format_duration(settings.max_delay),
        ]);
    }
    Ok(output.list(&list, Some("topics"), &table)?)
}

/// Creates a topic.
pub(crate) async fn create(
    client: &Client,
    topic: &Topic,
    settings: Vec<Setting>,
    output: &Output,
) -> Result<(), CliError> {
    let created = put(client, topic, Map::new(), settings, "If-None-Match", "*").await?;
    let what = match created.epoch {
        1 => "created",
        _ => "already exists with these settings",
    };
    report(&created, what, output)
}

/// Changes settings of a topic. Fails if the topic changes meanwhile.
pub(crate) async fn change(
    client: &Client,
    topic: &Topic,
    settings: Vec<Setting>,
    output: &Output,
) -> Result<(), CliError> {
    #[derive(Deserialize)]
    struct View {
        epoch: u64,
        settings: Map<String, Value>,
    }
    let before: View = client.get(&["topics", topic.as_str()]).answer().await?;
    let tag = format!("\"{}\"", before.epoch);
    let changed = put(client, topic, before.settings, settings, "If-Match", &tag).await?;
    let what = match changed.epoch == before.epoch {
        true => "already has these settings",
        false => "changed",
    };
    report(&changed, what, output)
}

async fn put(
    client: &Client,
    topic: &Topic,
    mut settings: Map<String, Value>,
    changes: Vec<Setting>,
    condition: &'static str,
    value: &str,
) -> Result<TopicEntry, CliError> {
    if let Some(loaded) = client.configuration()
        && loaded.file.is_none()
    {
        let why = "pass --url, or --config with the managers' configuration: it has topic_defaults, and decides about its topics";
        return Err(CliError::Usage(why.to_owned()));
    }
    for change in changes {
        // Another kind of policy has other keys.
        if change.key == "retry.kind" {
            settings.remove("retry");
        }
        change.set(&mut settings);
    }
    let call = client.call(Method::PUT, &["topics", topic.as_str()], Scope::Operate);
    let call = call.header(condition, Some(value));
    let answer = call.json(&settings.into()).answer().await;
    answer.map_err(|error| match error {
        // The detail names settings, which are not options.
        CliError::Refused(refusal) if refusal.code() == "invalid" => {
            CliError::Usage(refusal.detail().to_owned())
        }
        other => other,
    })
}

fn report(topic: &TopicEntry, what: &str, output: &Output) -> Result<(), CliError> {
    if !output.is_table() {
        return Ok(output.object(topic)?);
    }
    print(&format!("{} {what}", topic.topic))
}
