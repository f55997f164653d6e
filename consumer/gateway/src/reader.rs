//! Reads a shard for the pulls that wait, and gives each pull what it wants.
//!
//! A reader has a connection of its own. It runs while pulls wait, and [`LINGER`] longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lisa_consumer_core::internals::{Reading, Source, read};
use lisa_core::outage::Outage;
use lisa_core::topic::Shard;
use tokio::time::sleep;

use super::handed::Handed;
use super::polls::{Polls, ReaderEntry};
use super::{Gateway, GroupPolls};

/// The time that a reader without pulls keeps its connection.
const LINGER: Duration = Duration::from_secs(30);

/// Starts a reader for each shard of the topic that has none.
pub(super) fn start(
    gateway: &Gateway,
    group: &Arc<GroupPolls>,
    shards: impl Iterator<Item = Shard>,
) {
    for shard in shards {
        if let Some(entry) = group.polls.begin_reading(shard) {
            gateway.spawn(run(gateway.clone(), group.clone(), shard, entry));
        }
    }
}

async fn run(gateway: Gateway, group: Arc<GroupPolls>, shard: Shard, entry: ReaderEntry<Handed>) {
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
        start(&gateway, &group, topic.shards());
        let Some(unwanted) = polls.unwanted() else {
            continue;
        };
        let (is_crowded, joins) = (polls.is_crowded(shards), polls.joins());
        let block = polls.block(shard, is_crowded, topic.settings().lease);
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
                if is_crowded {
                    drop(taken);
                    let rest = polls.rest(&process.resting, joins);
                    let _ = shutdown.draining().run_until_cancelled(rest).await;
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
