//! `tail`: prints what happens on a topic, one line of JSON for each event.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use lisa_core::broker::{
    Broker, BrokerError, Event, ShardTail, TailOptions, TailStart, TopicHandle, unless_gone,
};
use lisa_core::time::{UnixMs, format_duration};
use lisa_service::cli::{escape_lines, json_lines, remark};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::failed;
use crate::cli::args::TailArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::operations::choose_group;
use crate::operations::events::{EventPage, MAX_CURSOR, MAX_WAIT, line};

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

/// Prints events until a signal or a closed pipe ends the process.
pub(crate) async fn tail(client: &Client, args: &TailArgs) -> Result<(), CliError> {
    match client.broker() {
        Some(broker) => read(broker, args).await,
        None => follow(client, args).await,
    }
}

/// Prints a line for each event, read from Redis. Retries a shard whose server is unavailable.
async fn read(broker: &Broker, args: &TailArgs) -> Result<(), CliError> {
    let mut topic = match broker.topic(&args.topic).await {
        Ok(topic) => topic,
        Err(error) => return Err(failed(broker, error).await),
    };
    if let Some(group) = &args.group {
        let found = choose_group::choose(&topic, Some(group.as_str()));
        found.map_err(|error| CliError::Failed(error.to_string()))?;
    }
    let mut options = TailOptions {
        group: args.group.clone(),
        ready: !args.failures,
        start: { args.since }.map_or(TailStart::Now, |since| TailStart::Since(since.0)),
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
    let print_all = |events: &[Event]| print(&events.iter().map(line).collect::<Vec<_>>());
    let mut is_open = print_all(&kept)?;
    let (mut looked, mut failing) = (Instant::now(), BTreeSet::new());
    while is_open {
        if let Some((tail, events)) = turns.next().await {
            let shard = tail.shard();
            match events {
                Ok(events) => {
                    if failing.remove(&shard) && failing.is_empty() {
                        remark("can read events again");
                    }
                    is_open = print_all(&events)?;
                    turns.push(turn(tail, topic.clone(), Duration::ZERO));
                }
                Err(BrokerError::ShardGone { .. }) => drop(failing.remove(&shard)),
                Err(error) if error.is_retryable() => {
                    if failing.is_empty() {
                        remark(format_args!(
                            "cannot read events; retrying: {}",
                            escape_lines(&error.to_string())
                        ));
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

/// Prints a line for each event, read from a manager. Retries while the manager is unavailable.
async fn follow(client: &Client, args: &TailArgs) -> Result<(), CliError> {
    let mut cursor: Option<String> = None;
    let mut is_failing = false;
    loop {
        let call = client.get(&["topics", args.topic.as_str(), "events"]);
        let call = call
            .query("group", args.group.as_ref())
            .query("failures", args.failures.then_some(true))
            .query("since", args.since.filter(|_| cursor.is_none()))
            .query("cursor", cursor.as_ref())
            .query("wait", Some(format_duration(MAX_WAIT)));
        let asked = Instant::now();
        match call.waits(MAX_WAIT).answer::<EventPage>().await {
            Ok(page) if page.next.len() > MAX_CURSOR => {
                let why = format!("the manager returned a cursor of {} bytes", page.next.len());
                return Err(CliError::Failed(why));
            }
            Ok(page) => {
                if std::mem::take(&mut is_failing) {
                    remark("can read events again");
                }
                if !print(&page.events)? {
                    return Ok(());
                }
                // A manager that does not wait must not be asked all the time.
                if page.events.is_empty() && cursor.is_some() && asked.elapsed() < PAUSE {
                    sleep(PAUSE).await;
                }
                cursor = Some(page.next);
            }
            Err(error) if cursor.is_some() && error.is_unavailable() => {
                if !std::mem::replace(&mut is_failing, true) {
                    remark(format_args!(
                        "cannot read events; retrying: {}",
                        escape_lines(&error.to_string())
                    ));
                }
                sleep(PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Prints lines. Returns false if the pipe is closed.
fn print(lines: &[Value]) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out
        .write_all(json_lines(lines).as_bytes())
        .and_then(|()| out.flush())
    {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}
