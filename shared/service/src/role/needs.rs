//! The needs of a role: the commands and settings of Redis that are checked before it starts.

use std::collections::BTreeSet;

use crate::config::{Config, SinkConfig, SubscriptionConfig};
use lisa_core::durability::Durability;
use lisa_core::permissions;
use lisa_core::redis::preflight::Needs;
use lisa_core::topic::Topic;

/// Returns what the roles of a process need with this configuration; `role` names them, such as `manager+producer`.
pub(super) fn of(role: &str, config: &Config) -> Needs {
    // Applies to a manager, too: its file determines the durability that producers use.
    let durabilities: BTreeSet<Durability> = config
        .topics
        .values()
        .map(|topic| topic.durability)
        .collect();
    let aof = durabilities.contains(&Durability::Aof);
    let has = |name| role.split('+').any(|role| role == name);
    let subscriptions = config.consumer.subscriptions.iter();
    let callback_topics: BTreeSet<&Topic> = subscriptions
        .filter(|_| has("consumer"))
        .flat_map(SubscriptionConfig::callback_topics)
        .collect();
    let mut roles = role.to_owned();
    if !callback_topics.is_empty() {
        roles.push('+');
        roles.push_str(permissions::CALLBACKS);
    }
    let mut sinks = config.consumer.subscriptions.iter().map(|row| &row.sink);
    let is_later = sinks.any(SinkConfig::can_be_later);
    if has("consumer") && (is_later || config.consumer.gateway.is_some()) {
        roles.push('+');
        roles.push_str(permissions::GATEWAY);
    }
    let gateway = config.consumer.gateway.as_ref();
    let has_sqs = has("consumer") && gateway.is_some_and(|gateway| gateway.sqs.is_some());
    if has_sqs {
        roles.push('+');
        roles.push_str(permissions::SQS);
    }
    let sends_to = |topic: &Topic| has("producer") || has_sqs || callback_topics.contains(topic);
    let of_sends: BTreeSet<Durability> = config
        .topics
        .iter()
        .filter(|(topic, _)| sends_to(topic))
        .map(|(_, settings)| settings.durability)
        .collect();
    Needs {
        commands: aof.then(|| "waitaof".to_owned()).into_iter().collect(),
        permissions: permissions::of_roles(&roles, &config.namespace)
            .into_iter()
            .chain(of_sends.into_iter().filter_map(permissions::of_durability))
            .collect(),
        niceties: permissions::of_endpoint(config.redis.url.endpoint())
            .into_iter()
            .collect(),
        append_only: aof,
        allow_eviction: config.redis.allow_eviction,
    }
}
