//! Reads a shard for the pulls that wait, and gives each pull what it wants.
//!
//! It runs while pulls wait, and [`LINGER`] longer. To wait for messages, it needs a connection of its own: a part of the share of the client
//! whose pull has started it. Without one, it looks from time to time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lisa_consumer_core::internals::{Reading, Source, read, rest_of};
use lisa_core::outage::Outage;
use lisa_core::topic::Shard;
use lisa_service::http::client::Client;
use tokio::time::sleep;

use super::handed::Handed;
use super::polls::{Polls, ReaderEntry};
use super::{Gateway, GroupPolls};

/// The time that a reader without pulls keeps its connection.
const LINGER: Duration = Duration::from_secs(30);

/// Starts a reader for each shard of the topic that has none, at the expense of a client.
pub(super) fn start(
    gateway: &Gateway,
    group: &Arc<GroupPolls>,
    shards: impl Iterator<Item = Shard>,
    client: &Client,
) {
    for shard in shards {
        if let Some(entry) = group.polls.begin_reading(shard) {
            let run = run(gateway.clone(), group.clone(), shard, entry, client.clone());
            gateway.spawn(run);
        }
    }
}

async fn run(
    gateway: Gateway,
    group: Arc<GroupPolls>,
    shard: Shard,
    entry: ReaderEntry<Handed>,
    client: Client,
) {
    let mut connection = gateway.shared.readers.begin(client.clone());
    let mut resting = gateway.shared.resting.begin(client.clone());
    let (process, shutdown) = (gateway.process(), gateway.shutdown());
    let (broker, polls): (_, &Polls<Handed>) = (&process.broker, &group.polls);
    let mut outage = Outage::new("read messages").of(&group.topic, Some(&group.group), shard);
    let mut source = Source::default();
    let mut entry = Some(entry);
    let mut shards = broker
        .known(&group.topic)
        .map_or(1, |topic| topic.shards().len());
    while let Some(own) = entry.take() {
        let taken = tokio::select! {
            taken = polls.take(shards) => taken,
            () = sleep(LINGER) => {
                entry = own.end_if_idle();
                continue;
            }
            () = shutdown.draining().cancelled() => break,
        };
        let topic = broker.known(&group.topic);
        let Some(topic) = topic.filter(|topic| topic.has(shard)) else {
            // The topic was resharded.
            polls.looked(shard, polls.joins(), false);
            break;
        };
        entry = Some(own);
        shards = topic.shards().len();
        start(&gateway, &group, topic.shards(), &client);
        let Some(unwanted) = polls.unwanted() else {
            continue;
        };
        let (mut takes_turns, joins) = (polls.is_crowded(shards), polls.joins());
        let mut block = polls.block(shard, takes_turns, topic.settings().lease);
        if !block.is_zero() && connection.held() == 0 && connection.try_add(1).is_err() {
            (takes_turns, block) = (true, Duration::ZERO);
        }
        let is_cut = AtomicBool::new(false);
        let unwanted = async {
            tokio::select! {
                // A read that does not block must reach Redis, so pulls that do not wait must not cut it off.
                () = unwanted, if !block.is_zero() => is_cut.store(true, Ordering::Relaxed),
                () = shutdown.draining().cancelled() => {}
            }
        };
        let reading = Reading {
            broker,
            topic: &topic,
            shard,
            group: &group.group,
            consumer: &process.name,
        };
        let stop = shutdown.now();
        match read(&reading, &mut source, taken.count, block, unwanted, stop).await {
            Ok(reads) if reads.is_empty() => {
                outage.recovered();
                // A read that was cut off may not have reached Redis.
                if !is_cut.load(Ordering::Relaxed) {
                    polls.looked(shard, joins, false);
                }
                if takes_turns {
                    drop(taken);
                    let pause = rest_of(resting.held_by_client() + 1);
                    // As many as there are permits.
                    let _ = resting.try_add(1);
                    let rest = polls.rest(pause, joins);
                    let _ = shutdown.draining().run_until_cancelled(rest).await;
                    resting.clear();
                }
            }
            Ok(reads) => {
                outage.recovered();
                let items = reads.into_iter();
                // An entry without a message cannot be settled; the manager drops it after its lease.
                let items = items.filter_map(|read| Some((read.id?, read.attempt)));
                // The settings may have changed while the read waited.
                let topic = broker.known(&group.topic).unwrap_or(topic);
                let all = Handed::new(&gateway, &group, topic, shard, items.collect());
                give(polls, all);
            }
            Err(error) => {
                source = Source::default();
                connection.clear();
                polls.looked(shard, joins, true);
                drop(taken);
                let pause = outage.failed(&error);
                let _ = shutdown.draining().run_until_cancelled(sleep(pause)).await;
            }
        }
    }
    // Refused while it holds deliveries.
    if let Some(topic) = broker.known(&group.topic) {
        let dropped = broker.drop_consumer(&topic, shard, &group.group, &process.name);
        if let Some(Err(error)) = shutdown.now().run_until_cancelled(dropped).await {
            tracing::debug!(%error, "cannot drop the consumer; the manager will");
        }
    }
}

/// Distributes deliveries to the waiting pulls, the oldest first. What nobody wants is handed back.
fn give(polls: &Polls<Handed>, mut all: Handed) {
    while !all.is_empty()
        && let Some(waiting) = polls.next()
    {
        let part = all.split(waiting.max);
        if let Err(part) = waiting.answer.send(part) {
            // Its client has just left.
            all.merge(part);
        }
    }
}
