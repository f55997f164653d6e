//! `workers`: which managers and consumers are there.

use lisa_shared::broker::Broker;
use lisa_shared::time::format_age;
use serde_json::json;

use super::{print, print_json, table};
use crate::cli::{CliError, Output};
use crate::view::consumers_of;

/// Lists the managers that are there, and the consumers that each group has seen.
pub(crate) async fn workers(broker: &Broker, output: Output) -> Result<(), CliError> {
    let managers = broker.managers().await?;
    let mut groups = Vec::new();
    for topic in broker.refresh().await? {
        for group in topic.groups() {
            let consumers = consumers_of(broker, &topic, group).await?;
            groups.push((topic.clone(), group.clone(), consumers));
        }
    }
    if output == Output::Json {
        let groups = groups.iter().map(|(topic, group, consumers)| {
            json!({ "topic": topic.name(), "group": group, "consumers": consumers })
        });
        let groups: Vec<_> = groups.collect();
        return print_json(&json!({ "managers": managers, "groups": groups }));
    }
    let mut rows = table(["ROLE", "TOPIC", "GROUP", "NAME", "IN FLIGHT", "LAST SEEN"]);
    for manager in &managers {
        rows.add_row(["manager", "", "", manager.as_str(), "", ""]);
    }
    for (topic, group, consumers) in &groups {
        let (topic, group) = (topic.name().as_str(), group.as_str());
        if consumers.is_empty() {
            rows.add_row(["consumer", topic, group, "none", "", ""]);
        }
        for consumer in consumers {
            let seen = format!("{} ago", format_age(consumer.idle_ms));
            let in_flight = consumer.in_flight.to_string();
            rows.add_row(["consumer", topic, group, &consumer.name, &in_flight, &seen]);
        }
    }
    if managers.is_empty() {
        eprintln!("no manager is there: nothing that is due is moved");
    }
    print(&rows.to_string())
}
