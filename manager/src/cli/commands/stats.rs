//! `stats`: prints the message counts of all topics, counted now or as the managers last counted them.

use lisa_core::broker::{NO_MANAGER, TopicStats};
use lisa_core::time::format_age;
use lisa_service::cli::{Format, Output, Rows, remark};

use super::{complete, groups};
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::operations::snapshot::SnapshotList;
use crate::operations::topics::{Missing, StatsList};

/// Prints the message counts of all topics.
pub(crate) async fn stats(client: &Client, output: &Output) -> Result<(), CliError> {
    let stats: StatsList = client.get(&["stats"]).answer().await?;
    let ended = complete(&stats.missing);
    if output.format != Format::Json && stats.managers == Some(0) {
        remark(NO_MANAGER);
    }
    output.list(&stats, Some("topics"), &counts(&stats.topics))?;
    ended
}

/// Prints the newest counts of all topics that the managers have written, and the age of the oldest.
pub(crate) async fn snapshot(client: &Client, output: &Output) -> Result<(), CliError> {
    let snapshot: SnapshotList = client.get(&["stats", "snapshot"]).answer().await?;
    let ended = complete(&Missing {
        damaged: snapshot.damaged.clone(),
        ..Missing::default()
    });
    if output.format != Format::Json && snapshot.managers == 0 {
        remark(NO_MANAGER);
    }
    let age = format_age(snapshot.age_ms);
    let rows = counts(snapshot.topics.iter().map(|topic| &topic.stats));
    output.list(&snapshot, Some("topics"), &rows)?;
    output.note(&format!("counted up to {age} ago"))?;
    ended
}

fn counts<'a>(topics: impl IntoIterator<Item = &'a TopicStats>) -> Rows {
    let mut table = Rows::new([
        "TOPIC",
        "TOPIC STATE",
        "CLASS",
        "GROUP",
        "GROUP STATE",
        "WAITING",
        "BACKLOG",
        "PARKED",
        "READY",
        "IN FLIGHT",
        "RETRY",
        "GARBAGE",
        "CONSUMERS",
        "OLDEST READY",
        "OVERDUE",
        "UNACCOUNTED",
    ])
    .marks(["TOPIC STATE", "GROUP STATE"])
    .ages(["OLDEST READY", "OVERDUE"]);
    for topic in topics {
        let paused = topic.paused.then_some("paused");
        let resharding = topic.migrating.map(|_| "resharding");
        let state: Vec<_> = paused.into_iter().chain(resharding).collect();
        let state = state.join(", ");
        for group in &topic.groups {
            let counts = [
                topic.waiting,
                group.backlog,
                group.parked,
                group.ready,
                group.in_flight,
                group.retry,
                group.garbage,
                group.consumers,
            ];
            let mut marks = groups::marks(group);
            marks.extend(group.unconfigured.then_some("not configured"));
            let mut row = vec![
                topic.topic.to_string(),
                state.clone(),
                topic.class.to_string(),
                group.group.to_string(),
                marks.join(", "),
            ];
            row.extend(counts.map(|count| count.to_string()));
            row.push(group.oldest_ready_age_ms.to_string());
            row.push(group.oldest_due_age_ms.to_string());
            row.push(topic.conservation_error.to_string());
            table.add_row(row);
        }
        if topic.groups.is_empty() {
            let mut row = vec![
                topic.topic.to_string(),
                state.clone(),
                topic.class.to_string(),
                String::new(),
                String::new(),
                topic.waiting.to_string(),
            ];
            row.resize(14, String::new());
            row.push(topic.overdue_ms.to_string());
            row.push(topic.conservation_error.to_string());
            table.add_row(row);
        }
    }
    table
}
