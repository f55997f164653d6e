//! `workers`: lists managers and consumers.

use lisa_core::broker::{Broker, NO_MANAGER};
use lisa_core::time::format_age;
use serde_json::json;

use super::{ALL_WITHIN, complete, print, print_json, table};
use crate::cli::args::Output;
use crate::cli::error::CliError;
use crate::operations::topics::{GroupConsumers, workers_of_all};

/// Prints the running managers, and the consumers that each group has seen. Fails if the list lacks a topic.
pub(crate) async fn workers(broker: &Broker, output: Output) -> Result<(), CliError> {
    let managers = broker.managers().await?;
    let list = workers_of_all(broker, ALL_WITHIN).await?;
    let ended = complete(&list.missing);
    if output == Output::Json {
        let mut answer =
            serde_json::to_value(&list).map_err(|error| CliError::Failed(error.to_string()))?;
        answer["managers"] = json!(managers);
        return print_json(&answer).and(ended);
    }
    let mut rows = table(["ROLE", "TOPIC", "GROUP", "NAME", "IN FLIGHT", "LAST SEEN"]);
    for manager in &managers {
        rows.add_row(["manager", "", "", manager.as_str(), "", ""]);
    }
    for GroupConsumers {
        topic,
        group,
        consumers,
    } in &list.groups
    {
        let (topic, group) = (topic.as_str(), group.as_str());
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
        eprintln!("{NO_MANAGER}");
    }
    print(&rows.to_string()).and(ended)
}
