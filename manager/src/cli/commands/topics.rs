//! `topics`: lists topics, creates one, changes settings of one, and removes one.

use std::io::{self, IsTerminal as _};
use std::str::FromStr;
use std::time::Duration;

use lisa_core::broker::Removal;
use lisa_core::fields::{Description, Value as _};
use lisa_core::time::format_duration;
use lisa_core::topic::{Group, Topic, TopicSettings};
use lisa_service::cli::{Output, Rows, prompt};
use lisa_service::http::auth::Scope;
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::{Instant, sleep};

use super::{be_sure, counted, print};
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::operations::topics::{TopicEntry, TopicList, TopicRemoval};

/// The time to wait for a removal that nothing holds up, and the pause between two looks.
const GONE_WITHIN: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(200);

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

/// Prints the registered topics whose names begin with `prefix`.
pub(crate) async fn list(
    client: &Client,
    prefix: Option<&Topic>,
    output: &Output,
) -> Result<(), CliError> {
    let list = client.get(&["topics"]).query("prefix", prefix);
    let list: TopicList = list.answer().await?;
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
            match topic.removal {
                Some(Removal::Drain) => "draining",
                Some(Removal::Force) => "being removed",
                None if topic.resharding => "resharding",
                None => "",
            }
            .to_owned(),
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
    let put = put(client, topic, Map::new(), settings, "If-None-Match", "*");
    let (status, created) = put.await?;
    let what = match status {
        StatusCode::CREATED => "created",
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
    let put = put(client, topic, before.settings, settings, "If-Match", &tag);
    let (_, changed) = put.await?;
    let what = match changed.epoch == before.epoch {
        true => "already has these settings",
        false => "changed",
    };
    report(&changed, what, output)
}

/// Removes a topic. Waits up to [`GONE_WITHIN`] for a removal by force, or for that of an empty topic.
pub(crate) async fn remove(
    client: &Client,
    topic: &Topic,
    how: Option<Removal>,
    yes: bool,
    output: &Output,
) -> Result<(), CliError> {
    require_managers_file(client)?;
    if how == Some(Removal::Force) && !yes {
        confirm(topic)?;
    }
    let call = client.call(Method::DELETE, &["topics", topic.as_str()], Scope::Operate);
    let begun: TopicRemoval = call.query("how", how).answer().await?;
    let until = Instant::now() + GONE_WITHIN;
    let mut is_gone = false;
    while !is_gone
        && (begun.stored == 0 || begun.removal == Removal::Force)
        && Instant::now() < until
    {
        sleep(LOOK_EVERY).await;
        let there: Result<Value, _> = client.get(&["topics", topic.as_str()]).answer().await;
        is_gone = match there {
            Err(CliError::Refused(refusal)) if refusal.code() == "unknown_topic" => true,
            there => there.map(|_| false)?,
        };
    }
    if !output.is_table() {
        return Ok(output.object(&begun)?);
    }
    let left = counted(begun.stored, "message");
    print(&match (is_gone, begun.removal) {
        (true, _) => format!("{topic} is removed"),
        (false, Removal::Drain) => {
            format!("{topic} is draining: {left} stored; removed once none is left")
        }
        (false, Removal::Force) => {
            format!("{topic} is being removed; this requires a running manager")
        }
    })
}

/// Asks for confirmation before messages are removed.
fn confirm(topic: &Topic) -> Result<(), CliError> {
    if !io::stdin().is_terminal() {
        let text = "--force requires --yes when there is no terminal".to_owned();
        return Err(CliError::Usage(text));
    }
    prompt(format_args!(
        "permanently remove topic {topic} with its messages? [y/N] "
    ));
    be_sure()
}

async fn put(
    client: &Client,
    topic: &Topic,
    mut settings: Map<String, Value>,
    changes: Vec<Setting>,
    condition: &'static str,
    value: &str,
) -> Result<(StatusCode, TopicEntry), CliError> {
    require_managers_file(client)?;
    for change in changes {
        // Another kind of policy has other keys.
        if change.key == "retry.kind" {
            settings.remove("retry");
        }
        change.set(&mut settings);
    }
    let call = client.call(Method::PUT, &["topics", topic.as_str()], Scope::Operate);
    let call = call.header(condition, Some(value));
    let answer = call.json(&settings.into()).answer_with_status().await;
    answer.map_err(|error| match error {
        // The detail names settings, which are not options.
        CliError::Refused(refusal) if refusal.code() == "invalid" => {
            CliError::Usage(refusal.detail().to_owned())
        }
        other => other,
    })
}

/// Requires the managers' configuration of a command line that works on Redis.
fn require_managers_file(client: &Client) -> Result<(), CliError> {
    if let Some(loaded) = client.configuration()
        && loaded.file.is_none()
    {
        let why = "pass --url, or --config with the managers' configuration: it has topic_defaults, and decides about its topics";
        return Err(CliError::Usage(why.to_owned()));
    }
    Ok(())
}

fn report(topic: &TopicEntry, what: &str, output: &Output) -> Result<(), CliError> {
    if !output.is_table() {
        return Ok(output.object(topic)?);
    }
    print(&format!("{} {what}", topic.topic))
}
