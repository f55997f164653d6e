//! Migrates the messages of a retiring shard to the new shards, a batch at a time.
//!
//! A batch leaves the old shard in one script. It stays in transit there (`in_transit`) until the new shards have
//! migrated it in, each once. The next call deletes it. After a crash, the next manager finds it there.

use std::collections::{BTreeMap, VecDeque};

use futures_util::future::try_join_all;

use crate::broker::reply::{Fields, command, id_in, utf8};
use crate::broker::{Broker, BrokerError, DEFAULT_MAX_READY, MAX_GENERAL_BATCH, TopicHandle};
use crate::keys::ShardKeys;
use crate::message::{MessageId, route_of_key};
use crate::scripts::{Bundle, MergeCounters, MigrateIn, MigrateOut, MigratingBatch};
use crate::time::UnixMs;
use crate::topic::Shard;

/// The number of messages that are listed at a time.
const PAGE: usize = 500;
/// The approximate size in bytes of a page of all messages, which includes their payloads.
const PAGE_BYTES: usize = 256 * 1024;
/// The length of what precedes the id in a member of a backlog: 14 digits of due time, 12 of arrival.
const BACKLOG_PREFIX: usize = 26;
/// The time, in ms, before a new shard reaches the low watermark that it knows at which it gets the next one.
const SOON_MS: u64 = 2000;
/// The fields of `stats` that are not counters.
const NO_COUNTERS: [&str; 5] = ["last_time", "alarm", "seq", "bytes", "ranked"];

/// One manager's knowledge of a retiring shard. It may be lost at any time.
#[derive(Debug, Default)]
pub struct Migration {
    /// The batch that was migrated in, 0 for none.
    done: u64,
    /// The ids of that batch that must go back, separated by spaces.
    refused: String,
    /// The messages to migrate next, if they are still there.
    queue: VecDeque<MessageId>,
    listing: Listing,
    /// True if anything has migrated since the queue was filled.
    progress: bool,
    /// The low watermark that each new shard knows.
    watermarks: BTreeMap<Shard, Option<UnixMs>>,
}

/// The source of the next messages to migrate.
#[derive(Debug, Default)]
enum Listing {
    /// The messages that are due soonest.
    #[default]
    Soonest,
    /// All messages, from a cursor on, and the number to list next. None of the soonest can migrate.
    All(String, usize),
    /// None of all messages can migrate.
    End,
}

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationStep {
    /// The number of messages that were migrated in elsewhere.
    pub count: u64,
    /// The number of messages and deliveries that are left, including those in transit.
    pub left: u64,
    /// True if the next step should follow immediately.
    pub more: bool,
}

impl Broker {
    /// Migrates up to 50 messages out of a retiring shard. Closes the shard first. The resharding finishes once neither
    /// this shard nor any other retiring one has anything left.
    ///
    /// Deliveries in flight stay until they are settled or reclaimed.
    ///
    /// # Errors
    /// [`BrokerError`]; calling again is safe, with this migration or with a new one.
    pub async fn migrate_out(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        migration: &mut Migration,
    ) -> Result<MigrationStep, BrokerError> {
        let keys = topic.keys(shard)?;
        if migration.queue.is_empty() {
            self.list_next(keys, migration).await?;
        }
        let batch = migration.queue.len().min(MAX_GENERAL_BATCH);
        let ids: Vec<MessageId> = migration.queue.drain(..batch).collect();
        let call = MigrateOut {
            done: migration.done,
            refused: &migration.refused,
            ids: &ids,
        };
        let batch = self.general(topic, shard, None, &call).await?;
        migration.done = 0;
        migration.refused.clear();
        let (number, count, left) = (batch.batch, batch.bundles.len(), batch.left);
        let is_empty = left == 0 && count == 0 && batch.watermark.is_none();
        let more = count > 0 || batch.withdrawn > 0 || !ids.is_empty();
        let refused = self
            .migrate_in(topic, shard, batch, &mut migration.watermarks)
            .await?;
        migration.progress |= count > refused.len();
        if count > 0 {
            (migration.done, migration.refused) = (number, refused.join(" "));
        }
        if is_empty {
            self.leave(topic, shard).await?;
        }
        Ok(MigrationStep {
            count: (count - refused.len()) as u64,
            left,
            more,
        })
    }

    /// Fills the queue with the messages that are due soonest. If none of those can migrate, fills it with all messages
    /// in turn, and at their end leaves it empty once.
    async fn list_next(
        &self,
        keys: &ShardKeys,
        migration: &mut Migration,
    ) -> Result<(), BrokerError> {
        let mut listing = std::mem::take(&mut migration.listing);
        if std::mem::take(&mut migration.progress) {
            listing = Listing::Soonest;
        }
        while migration.queue.is_empty() {
            listing = match listing {
                Listing::Soonest => {
                    migration.queue = self.soonest(keys).await?;
                    // Their sizes are not known yet.
                    Listing::All("0".to_owned(), 1)
                }
                Listing::All(cursor, count) => {
                    let (ids, next, bytes) = self.page(keys, &cursor, count).await?;
                    let fitting = ids.len().max(1) * PAGE_BYTES / bytes.max(1);
                    migration.queue = ids;
                    match next.as_str() {
                        "0" => Listing::End,
                        _ => Listing::All(next, fitting.clamp(1, (count * 2).min(PAGE))),
                    }
                }
                Listing::End => return Ok(()),
            };
        }
        migration.listing = listing;
        Ok(())
    }

    /// Lists the messages in backlog, in retry, and waiting, each from the front.
    async fn soonest(&self, keys: &ShardKeys) -> Result<VecDeque<MessageId>, BrokerError> {
        let backlogs = keys
            .groups
            .iter()
            .map(|group| (&group.backlog, BACKLOG_PREFIX));
        let retries = keys.groups.iter().map(|group| (&group.retry, 0));
        let mut ids = VecDeque::new();
        for (set, prefix) in backlogs.chain(retries).chain([(&keys.waiting, 0)]) {
            let range = command("ZRANGE", set).arg(0).arg(PAGE - 1);
            let members: Vec<String> = self.ask(range).await?;
            let listed = members.iter().filter_map(|member| member.get(prefix..));
            ids.extend(listed.filter_map(|member| id_in(member).parse::<MessageId>().ok()));
        }
        Ok(ids)
    }

    /// Lists a page of about `count` of all messages. Also returns the next cursor, and the size of the page in bytes.
    async fn page(
        &self,
        keys: &ShardKeys,
        cursor: &str,
        count: usize,
    ) -> Result<(VecDeque<MessageId>, String, usize), BrokerError> {
        let scan = command("HSCAN", &keys.payload).arg(cursor);
        let scan = scan.arg("COUNT").arg(count);
        let (next, pairs): (String, Fields) = self.ask(scan).await?;
        let bytes = pairs.iter().map(|(id, record)| id.len() + record.len());
        let bytes = bytes.sum();
        let ids = pairs
            .into_iter()
            .filter_map(|(id, _)| utf8(id)?.parse().ok());
        Ok((ids.collect(), next, bytes))
    }

    /// Migrates a batch in to the new shards, and sends the low watermark to those that wait for the next one. Returns
    /// the ids that must go back.
    async fn migrate_in(
        &self,
        topic: &TopicHandle,
        from: Shard,
        batch: MigratingBatch,
        watermarks: &mut BTreeMap<Shard, Option<UnixMs>>,
    ) -> Result<Vec<String>, BrokerError> {
        let MigratingBatch {
            batch,
            arrivals,
            watermark,
            tats,
            bundles,
            ..
        } = batch;
        let mut parts: BTreeMap<Shard, Vec<Bundle>> = BTreeMap::new();
        for bundle in bundles {
            let route = match bundle.key.as_str() {
                "" => bundle.id.route(),
                key => route_of_key(key),
            };
            parts
                .entry(topic.shard_of_route(route))
                .or_default()
                .push(bundle);
        }
        // Shards that reach their low watermark soon, or know of none yet, wait for the next one.
        let soon = UnixMs::new(self.now_at(topic, from).get() + SOON_MS);
        for shard in topic.shards().filter(|shard| !topic.is_retiring(*shard)) {
            let before = watermarks.get(&shard).copied();
            let waits = before.is_none_or(|before| before.is_some_and(|time| time < soon));
            if waits && before != Some(watermark) {
                parts.entry(shard).or_default();
            }
        }
        let limit = topic.settings().durability_timeout;
        let waiting = self
            .with_durability(topic.settings().durability, limit)
            .await?;
        let calls = parts.iter().map(|(&shard, bundles)| {
            let (waiting, old, tats) = (&waiting, topic.old(), &tats);
            async move {
                let call = MigrateIn {
                    default_max_ready: topic.settings().per_shard(DEFAULT_MAX_READY),
                    old,
                    from,
                    batch: if bundles.is_empty() { 0 } else { batch },
                    arrivals,
                    watermark,
                    tats,
                    bundles,
                };
                waiting.general(topic, shard, None, &call).await
            }
        });
        let refused = try_join_all(calls).await?;
        watermarks.extend(parts.into_keys().map(|shard| (shard, watermark)));
        Ok(refused.concat())
    }

    /// Merges the counters of a shard that has nothing else left into its successor. Finishes the resharding if it is
    /// the last one.
    async fn leave(&self, topic: &TopicHandle, shard: Shard) -> Result<(), BrokerError> {
        let fields = self.fields(&topic.keys(shard)?.stats).await?;
        let is_counter = |name: &str| {
            !NO_COUNTERS.contains(&name)
                && !name.starts_with("tat:")
                && !name.starts_with("merged_from_")
        };
        let counters: Vec<(String, i64)> = fields
            .into_iter()
            .filter(|(name, _)| is_counter(name))
            .filter_map(|(name, count)| Some((name, count.parse().ok()?)))
            .collect();
        let call = MergeCounters {
            from: shard,
            counters: &counters,
        };
        let unknown = |_| BrokerError::UnknownTopic(topic.name().clone());
        self.run(topic.keys(topic.successor(shard))?, &call)
            .await?
            .map_err(unknown)?;
        self.finish_reshard(topic).await?;
        Ok(())
    }
}
