//! `workers`: lists managers and consumers.

use lisa_core::broker::NO_MANAGER;
use lisa_service::cli::{Format, Output, Rows, remark};

use super::complete;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::operations::workers::{GroupConsumers, WorkersAndManagers};

/// Prints the running managers, and the consumers that each group has seen. Fails if the list lacks a topic.
pub(crate) async fn workers(client: &Client, output: &Output) -> Result<(), CliError> {
    let found: WorkersAndManagers = client.get(&["workers"]).answer().await?;
    let WorkersAndManagers { managers, list } = &found;
    let ended = complete(&list.missing);
    let mut rows = Rows::new([
        "ROLE",
        "TOPIC",
        "GROUP",
        "NAME",
        "IN FLIGHT",
        "CONCURRENCY",
        "VERSION",
        "PID",
        "UP SINCE",
        "IDLE",
    ])
    .numbers(["IN FLIGHT", "CONCURRENCY", "PID"])
    .ages(["IDLE"]);
    let process = |name: &str| list.workers.iter().find(|worker| worker.name == name);
    let mut row = |role: &str, of: [&str; 2], name: &str, load: [String; 2]| {
        let [version, pid, since, idle] = process(name).map_or_else(Default::default, |worker| {
            let (version, since) = (worker.version.clone(), worker.started_at.clone());
            [
                version,
                worker.pid.to_string(),
                since,
                worker.idle_ms.to_string(),
            ]
        });
        let [topic, group] = of.map(str::to_owned);
        let (role, name) = (role.to_owned(), name.to_owned());
        let [in_flight, concurrency] = load;
        rows.add_row([
            role,
            topic,
            group,
            name,
            in_flight,
            concurrency,
            version,
            pid,
            since,
            idle,
        ]);
    };
    for manager in managers {
        row("manager", ["", ""], manager, Default::default());
    }
    for GroupConsumers {
        topic,
        group,
        consumers,
    } in &list.groups
    {
        let of = [topic.as_str(), group.as_str()];
        if consumers.is_empty() {
            // A group that no process reads. `none` could be a name.
            let name = if output.is_table() { "none" } else { "" };
            row("consumer", of, name, Default::default());
        }
        for consumer in consumers {
            let concurrency = consumer.concurrency.map(|most| most.to_string());
            let load = [
                consumer.in_flight.to_string(),
                concurrency.unwrap_or_default(),
            ];
            let role = process(&consumer.name).map_or("consumer", |worker| &worker.role);
            row(role, of, &consumer.name, load);
            for puller in &consumer.pullers {
                row("puller", of, puller, Default::default());
            }
        }
    }
    if managers.is_empty() && output.format != Format::Json {
        remark(NO_MANAGER);
    }
    output.list(&found, None, &rows)?;
    ended
}
