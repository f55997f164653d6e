//! `top`: shows the groups with the oldest messages first, again and again.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use lisa_core::time::{UnixMs, format_age, millis};
use lisa_core::topic::Topic;
use lisa_service::cli::{Output, Rows};
use tokio::time::Instant;

use super::topic_stats;
use crate::cli::args::TopArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::operations::newest_counts::NewestCounts;
use crate::operations::rates::Rates;
use crate::operations::snapshot::SnapshotList;
use crate::operations::topics::{Missing, StatsList};

/// Moves the cursor to the top left corner and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Prints the groups once, or every interval until a signal or a closed pipe ends it. On a terminal it overwrites the
/// previous picture.
pub(crate) async fn top(client: &Client, args: &TopArgs, output: &Output) -> Result<(), CliError> {
    if !output.is_table() {
        let why = "top prints only tables: use stats --snapshot with --output";
        return Err(CliError::Usage(why.to_owned()));
    }
    // Between the last two counts, whatever the interval.
    let mut rates = Rates::new(Duration::ZERO, Duration::MAX);
    let mut first = true;
    loop {
        let asked = Instant::now();
        let counts = newest_counts(client, args.topic.as_ref()).await?;
        rates.note_all(&counts);
        let picture = picture(&counts, &rates, args.limit.into());
        let is_terminal = io::stdout().is_terminal();
        let lead = match (is_terminal && !args.once, first) {
            (true, _) => CLEAR,
            (false, true) => "",
            (false, false) => "\n",
        };
        let mut out = io::stdout().lock();
        let written = write!(out, "{lead}{picture}").and_then(|()| out.flush());
        drop(out);
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        if args.once {
            return Ok(());
        }
        first = false;
        tokio::time::sleep_until(asked + args.interval).await;
    }
}

/// Reads the newest counts of the managers. Counts the messages instead if there are no such counts, if no manager is
/// running, or for a single topic.
async fn newest_counts(client: &Client, topic: Option<&Topic>) -> Result<NewestCounts, CliError> {
    let snapshot: SnapshotList = client.get(&["stats", "snapshot"]).answer().await?;
    let mut list = match topic {
        Some(topic) => StatsList {
            topics: vec![topic_stats(client, topic).await?],
            managers: None,
            missing: Missing::default(),
        },
        None if snapshot.managers == 0 || snapshot.topics.is_empty() => {
            client.get(&["stats"]).answer().await?
        }
        None => return Ok(snapshot.into()),
    };
    list.managers = Some(snapshot.managers);
    let now: UnixMs = snapshot.read_at.parse().unwrap_or_default();
    let topics = list.topics.iter();
    Ok(NewestCounts {
        as_of: topics.map(|stats| (stats.topic.clone(), now)).collect(),
        list,
        age: Duration::ZERO,
    })
}

fn picture(counts: &NewestCounts, rates: &Rates, limit: usize) -> String {
    let stats = &counts.list;
    let mut rows = Vec::new();
    for topic in &stats.topics {
        let rate = rates.of(&topic.topic);
        let [sent, acked] = [rate.map(|rate| rate.sent), rate.map(|rate| rate.acked)]
            .map(|rate| rate.map_or_else(String::new, |rate| format!("{rate:.1}")));
        for group in &topic.groups {
            let counts = [
                topic.waiting,
                group.backlog + group.parked,
                group.ready,
                group.in_flight,
                group.retry,
                group.garbage,
                group.consumers,
            ];
            let paused = topic.paused || group.paused;
            let mut row = vec![
                topic.topic.to_string(),
                format!("{}{}", group.group, if paused { " (paused)" } else { "" }),
            ];
            row.extend(counts.map(|count| count.to_string()));
            row.push(format_age(group.oldest_due_age_ms));
            row.extend([sent.clone(), acked.clone()]);
            rows.push((group.oldest_due_age_ms, row));
        }
    }
    // A stable sort: groups without due messages stay in the order of their names.
    rows.sort_by_key(|(age, _)| std::cmp::Reverse(*age));
    let groups = rows.len();
    let mut table = Rows::new([
        "TOPIC",
        "GROUP",
        "WAITING",
        "HELD BACK",
        "READY",
        "IN FLIGHT",
        "RETRY",
        "GARBAGE",
        "CONSUMERS",
        "OLDEST DUE",
        "SENT/S",
        "ACKED/S",
    ]);
    for (_, row) in rows.into_iter().take(limit) {
        table.add_row(row);
    }
    let managers = stats
        .managers
        .map_or("unknown".to_owned(), |count| count.to_string());
    let mut text = format!(
        "managers: {managers}   topics: {}   groups: {groups}   counted: {} ago\n{table}\n",
        stats.topics.len(),
        format_age(millis(counts.age)),
    );
    if groups > limit {
        text.push_str(&format!("{} more groups: raise --limit\n", groups - limit));
    }
    for sentence in stats.missing.sentences() {
        text.push_str(&format!("{sentence}\n"));
    }
    text
}
