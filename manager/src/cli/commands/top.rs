//! `top`: shows the groups with the oldest messages first, again and again.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use lisa_core::broker::{Broker, TopicStats};
use lisa_core::time::format_age;
use lisa_core::topic::Topic;
use lisa_service::cli::Rows;
use tokio::time::Instant;

use super::ALL_WITHIN;
use crate::cli::args::TopArgs;
use crate::cli::error::CliError;
use crate::operations::topics::{StatsList, stats_of_all};

/// Moves the cursor to the top left corner and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[J";

/// The counters that rates are made of.
#[derive(Clone, Copy, Default)]
struct Counters {
    accepted: i64,
    acked: i64,
}

impl Counters {
    fn of(stats: &TopicStats) -> Self {
        let count = |name| stats.counters.get(name).copied().unwrap_or(0);
        Self {
            accepted: count("accepted"),
            acked: count("acked"),
        }
    }
}

/// Prints the groups once, or every interval until a signal or a closed pipe ends it. On a terminal it overwrites the
/// previous picture.
pub(crate) async fn top(broker: &Broker, args: &TopArgs) -> Result<(), CliError> {
    let mut before: Option<(Instant, BTreeMap<Topic, Counters>)> = None;
    let mut first = true;
    loop {
        let asked = Instant::now();
        let mut stats = match &args.topic {
            Some(topic) => {
                let topic = broker.topic(topic).await?;
                StatsList {
                    topics: vec![broker.stats(&topic).await?],
                    managers: Some(broker.managers().await?.len()),
                    missing: Default::default(),
                }
            }
            None => stats_of_all(broker, ALL_WITHIN).await?,
        };
        let counters = stats.topics.iter();
        let counters = counters.map(|stats| (stats.topic.clone(), Counters::of(stats)));
        let counters: BTreeMap<_, _> = counters.collect();
        let picture = picture(&mut stats, before.as_ref(), asked, args.limit);
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
        (before, first) = (Some((asked, counters)), false);
        tokio::time::sleep_until(asked + args.interval).await;
    }
}

fn picture(
    stats: &mut StatsList,
    before: Option<&(Instant, BTreeMap<Topic, Counters>)>,
    now: Instant,
    limit: usize,
) -> String {
    let mut rows = Vec::new();
    for topic in &stats.topics {
        let rates = before.and_then(|(then, counters)| {
            let counters = counters.get(&topic.topic)?;
            let (time, now) = (now - *then, Counters::of(topic));
            Some([
                rate(now.accepted - counters.accepted, time),
                rate(now.acked - counters.acked, time),
            ])
        });
        let [sent, acked] = rates.unwrap_or_default();
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
        "managers: {managers}   topics: {}   groups: {groups}\n{table}\n",
        stats.topics.len()
    );
    if groups > limit {
        text.push_str(&format!("{} more: --limit\n", groups - limit));
    }
    for sentence in stats.missing.sentences() {
        text.push_str(&format!("{sentence}\n"));
    }
    text
}

/// Formats a rate per second. A counter that went back was reset.
fn rate(count: i64, time: Duration) -> String {
    let count = u32::try_from(count.max(0)).unwrap_or(u32::MAX);
    format!("{:.1}", f64::from(count) / time.as_secs_f64().max(0.001))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_per_second_and_never_negative() {
        assert_eq!(rate(30, Duration::from_secs(2)), "15.0");
        assert_eq!(rate(-5, Duration::from_secs(2)), "0.0");
    }
}
