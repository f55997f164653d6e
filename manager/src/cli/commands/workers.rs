//! `workers`: lists managers and consumers.

use lisa_core::broker::NO_MANAGER;
use lisa_core::time::format_age;
use lisa_service::cli::{Format, Output, Rows};

use super::complete;
use crate::cli::error::CliError;
use crate::cli::relay::Relay;
use crate::operations::workers::{GroupConsumers, WorkersAndManagers};

/// Prints the running managers, and the consumers that each group has seen. Fails if the list lacks a topic.
pub(crate) async fn workers(relay: &Relay, output: &Output) -> Result<(), CliError> {
    let found = relay.workers().await?;
    let WorkersAndManagers { managers, list } = &found;
    let ended = complete(&list.missing);
    let mut rows = Rows::new([
        "ROLE",
        "TOPIC",
        "GROUP",
        "NAME",
        "IN FLIGHT",
        "VERSION",
        "PID",
        "UP SINCE",
        "LAST SEEN",
    ]);
    let process = |name: &str| list.workers.iter().find(|worker| worker.name == name);
    let mut row = |role: &str, of: [&str; 2], name: &str, in_flight: String| {
        let [version, pid, since, seen] = process(name).map_or_else(Default::default, |worker| {
            let seen = format!("{} ago", format_age(worker.idle_ms));
            let (version, since) = (worker.version.clone(), worker.started_at.clone());
            [version, worker.pid.to_string(), since, seen]
        });
        let [topic, group] = of.map(str::to_owned);
        let (role, name) = (role.to_owned(), name.to_owned());
        rows.add_row([
            role, topic, group, name, in_flight, version, pid, since, seen,
        ]);
    };
    for manager in managers {
        row("manager", ["", ""], manager, String::new());
    }
    for GroupConsumers {
        topic,
        group,
        consumers,
    } in &list.groups
    {
        let of = [topic.as_str(), group.as_str()];
        if consumers.is_empty() {
            row("consumer", of, "none", String::new());
        }
        for consumer in consumers {
            let in_flight = match consumer.concurrency {
                Some(concurrency) => format!("{} of {concurrency}", consumer.in_flight),
                None => consumer.in_flight.to_string(),
            };
            let role = process(&consumer.name).map_or("consumer", |worker| &worker.role);
            row(role, of, &consumer.name, in_flight);
            for puller in &consumer.pullers {
                row("puller", of, puller, String::new());
            }
        }
    }
    if managers.is_empty() && output.format != Format::Json {
        eprintln!("{NO_MANAGER}");
    }
    output.list(&found, None, &rows)?;
    ended
}
