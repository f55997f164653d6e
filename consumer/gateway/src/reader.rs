//! Reads a shard for the pulls that wait, and gives each pull what it wants.
//!
//! A reader runs while pulls wait, and [`LINGER`] longer. To wait for messages, it needs a connection of its own, which counts toward the
//! share of the client whose pull has waited longest. Without one, it reads at intervals and does not block.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lisa_consumer_core::internals::{BLOCK, Reading, Source, read, rest_pause};
use lisa_core::outage::Outage;
use lisa_core::topic::Shard;
use lisa_service::http::client::Client;
use tokio::time::{Instant, sleep, sleep_until};

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
    let mut connection = gateway.shared.readers.begin(Client::Unknown);
    let mut resting = gateway.shared.resting.begin(Client::Unknown);
    let (process, shutdown) = (gateway.process(), gateway.shutdown());
    let (broker, polls): (_, &Polls<Handed>) = (&process.broker, &group.polls);
    let mut outage = Outage::new("read messages").of(&group.topic, Some(&group.group), shard);
    let mut source = Source::default();
    let mut entry = Some(entry);
    let (mut is_busy, mut turns_until) = (false, None);
    let mut shards = broker
        .known(&group.topic)
        .map_or(1, |topic| topic.shards().len());
    while let Some(own) = entry.take() {
        let taken = tokio::select! {
            taken = polls.take(shards, is_busy) => taken,
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
        if polls.readers() < shards {
            start(&gateway, &group, topic.shards());
        }
        let Some(unwanted) = polls.unwanted() else {
            continue;
        };
        if connection.held() == 0
            && let Some(client) = polls.client()
            && client != connection.client()
        {
            connection = gateway.shared.readers.begin(client.clone());
            resting = gateway.shared.resting.begin(client);
        }
        // The shard that ended the last read may need the permits again.
        let is_in_turn = turns_until.is_some_and(|until| Instant::now() < until);
        let is_crowded = polls.is_crowded(shards) || is_in_turn && shards > 1;
        let joins = polls.joins();
        let mut block = polls.block(shard, is_crowded, topic.settings().lease);
        let has_none = !block.is_zero() && connection.held() == 0 && connection.try_add(1).is_err();
        if has_none {
            gateway.shared.lacks_readers.store(true, Ordering::Relaxed);
            block = Duration::ZERO;
        }
        if block.is_zero()
            && let reads = &gateway.shared.empty_reads
            && let Some(from) = reads.allowed_from(&connection.client(), Instant::now())
        {
            drop(taken);
            let _ = shutdown
                .draining()
                .run_until_cancelled(sleep_until(from))
                .await;
            continue;
        }
        let shared = polls.reads.begin(block);
        let (is_cut, is_ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let unwanted = async {
            tokio::select! {
                () = unwanted => {}
                () = shared.ended() => is_ended.store(true, Ordering::Relaxed),
                () = shutdown.draining().cancelled() => return,
            }
            is_cut.store(true, Ordering::Relaxed);
        };
        let reading = Reading {
            broker,
            topic: &topic,
            shard,
            group: &group.group,
            consumer: &process.name,
        };
        let stop = shutdown.now();
        let found = read(&reading, &mut source, taken.count, block, unwanted, stop).await;
        drop(shared);
        if is_ended.into_inner() {
            turns_until = Some(Instant::now() + BLOCK);
        }
        is_busy = found.as_ref().is_ok_and(|reads| !reads.is_empty());
        match found {
            Ok(reads) if reads.is_empty() => {
                outage.recovered();
                if block.is_zero() {
                    let reads = &gateway.shared.empty_reads;
                    reads.count(connection.client(), Instant::now());
                }
                // A read that was cut off may not have reached Redis.
                if !is_cut.load(Ordering::Relaxed) {
                    polls.looked(shard, joins, false);
                }
                if is_crowded || has_none {
                    drop(taken);
                    source = Source::default();
                    connection.clear();
                    let pause = rest_pause(resting.held_by_client() + 1);
                    // Cannot fail: there are as many units as a semaphore can have.
                    let _ = resting.try_add(1);
                    let rest = async {
                        match has_none {
                            true => polls.rest_without_connection(pause, shard).await,
                            false => polls.rest(pause, joins).await,
                        }
                    };
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
