//! `tail`: prints what happens on a topic, one line of JSON for each event.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use lisa_core::broker::{
    AfterFailure, Broker, BrokerError, Event, ShardTail, TailOptions, TailStart, TopicHandle,
    unless_gone,
};
use lisa_core::time::{UnixMs, millis};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::cli::args::TailArgs;
use crate::cli::error::CliError;
use crate::operations::choose_group;

/// The time that a read waits for events.
const BLOCK: Duration = Duration::from_secs(1);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);
/// The interval between two looks at the shards and groups of the topic.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A read of the events of one shard.
type Turn = BoxFuture<'static, (ShardTail, Result<Vec<Event>, BrokerError>)>;

fn turn(mut tail: ShardTail, topic: Arc<TopicHandle>, pause: Duration) -> Turn {
    async move {
        sleep(pause).await;
        let events = tail.next(&topic, BLOCK).await;
        (tail, events)
    }
    .boxed()
}

/// Prints events until a signal or a closed pipe ends it. A shard whose server is unavailable is read again.
pub(crate) async fn tail(broker: &Broker, args: &TailArgs) -> Result<(), CliError> {
    let mut topic = broker.topic(&args.topic).await?;
    if let Some(group) = &args.group {
        let found = choose_group::choose(&topic, Some(group.as_str()));
        found.map_err(|error| CliError::Failed(error.to_string()))?;
    }
    let mut options = TailOptions {
        group: args.group.clone(),
        ready: !args.failures,
        start: args.since.map_or(TailStart::Now, |age| {
            let since = broker.now().get().saturating_sub(millis(age));
            TailStart::Since(UnixMs::new(since))
        }),
    };
    let mut known: BTreeSet<_> = topic.shards().collect();
    let shards = known
        .iter()
        .map(|shard| broker.tail(*shard, options.clone()));
    let begun = join_all(shards.map(|tail| turn(tail, topic.clone(), Duration::ZERO))).await;
    options.start = TailStart::Beginning;

    // The kept failures of all shards, by time.
    let mut kept = Vec::new();
    let mut turns = FuturesUnordered::new();
    for (tail, events) in begun {
        kept.extend(unless_gone(events)?.unwrap_or_default());
        turns.push(turn(tail, topic.clone(), Duration::ZERO));
    }
    kept.sort_by_key(|event| match event {
        Event::Failed(failure) => failure.failed.at,
        _ => UnixMs::default(),
    });
    let mut is_open = print(&kept)?;
    let (mut looked, mut failing) = (Instant::now(), BTreeSet::new());
    while is_open {
        if let Some((tail, events)) = turns.next().await {
            let shard = tail.shard();
            match events {
                Ok(events) => {
                    if failing.remove(&shard) && failing.is_empty() {
                        eprintln!("can read events again");
                    }
                    is_open = print(&events)?;
                    turns.push(turn(tail, topic.clone(), Duration::ZERO));
                }
                Err(BrokerError::ShardGone { .. }) => drop(failing.remove(&shard)),
                Err(error) if error.is_retryable() => {
                    if failing.is_empty() {
                        eprintln!("cannot read events; retrying: {error}");
                    }
                    failing.insert(shard);
                    turns.push(turn(tail, topic.clone(), PAUSE));
                }
                Err(error) => return Err(error.into()),
            }
        } else {
            sleep(PAUSE).await;
        }
        if looked.elapsed() >= LOOK_EVERY || turns.is_empty() {
            looked = Instant::now();
            match broker.refresh().await {
                Err(error) if !error.is_retryable() => return Err(error.into()),
                // The reads say that Redis is unavailable.
                _ => topic = broker.topic(&args.topic).await?,
            }
            for shard in topic.shards().filter(|shard| known.insert(*shard)) {
                let tail = broker.tail(shard, options.clone());
                turns.push(turn(tail, topic.clone(), Duration::ZERO));
            }
        }
    }
    Ok(())
}

/// Prints a line for each event. Returns false if the pipe is closed.
fn print(events: &[Event]) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    let lines: String = events
        .iter()
        .map(|event| format!("{}\n", line(event)))
        .collect();
    match out.write_all(lines.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

fn line(event: &Event) -> Value {
    let (kind, mut line) = match event {
        Event::Ready { group, id, attempt } => {
            let at = UnixMs::new(attempt.entry.ms());
            let line = json!({
                "at": at.to_string(), "group": group, "id": id, "attempt": attempt.number,
                "due_at": attempt.due.to_string(), "late_ms": millis(at.since(attempt.due)),
            });
            ("ready", line)
        }
        Event::Failed(failure) => match failure.then {
            AfterFailure::Garbage => ("garbage", json!(failure)),
            AfterFailure::Retry | AfterFailure::Expired => ("failed", json!(failure)),
        },
        Event::Missed { group, count } => {
            let mut line = json!({});
            if let Some(group) = group {
                line["group"] = json!(group);
            }
            if let Some(count) = count {
                line["count"] = json!(count);
            }
            ("missed", line)
        }
    };
    line["event"] = json!(kind);
    line
}

#[cfg(test)]
mod tests {
    use lisa_core::message::EntryId;
    use lisa_core::state::Attempt;

    use super::*;

    #[test]
    fn a_line_names_the_event_and_its_fields() {
        let attempt = Attempt {
            entry: EntryId::new(1500, 0),
            number: 2,
            due: UnixMs::new(1000),
            crashes: 0,
            expires: None,
        };
        let ready = Event::Ready {
            group: "billing".parse().unwrap(),
            id: "m".parse().unwrap(),
            attempt,
        };
        let expected = json!({
            "event": "ready", "at": "1970-01-01T00:00:01.500Z", "group": "billing", "id": "m", "attempt": 2,
            "due_at": "1970-01-01T00:00:01.000Z", "late_ms": 500,
        });
        assert_eq!(line(&ready), expected);
        let missed = |group: Option<&str>, count| {
            let group = group.map(|group| group.parse().unwrap());
            line(&Event::Missed { group, count })
        };
        let expected = json!({ "event": "missed", "group": "billing", "count": 3 });
        assert_eq!(missed(Some("billing"), Some(3)), expected);
        assert_eq!(missed(None, None), json!({ "event": "missed" }));
    }
}
