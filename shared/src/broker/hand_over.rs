//! How a shard that is being given up hands over what it has, a batch at a time.
//!
//! A batch leaves the old shard in one script, stays under `leaving` there until the new shards have taken it in, each
//! once, and is forgotten with the next call. Whoever goes on after a crash finds it there.

use std::collections::{BTreeMap, VecDeque};

use futures_util::future::try_join_all;
use redis::Value;

use super::admin::{id_in, members};
use super::deliver::{command, text};
use super::{Broker, BrokerError, DEFAULT_MAX_READY, MAX_FULL_BATCH, TopicHandle};
use crate::keys::ShardKeys;
use crate::message::{MessageId, route_of_key};
use crate::scripts::{Adopt, Bundle, HandOver, Leaving, TakeIn, unexpected};
use crate::time::UnixMs;
use crate::topic::Shard;

/// How many messages are listed at a time.
const PAGE: usize = 500;
/// About how many bytes a page of all messages may bring: it brings their payloads, too.
const PAGE_BYTES: usize = 256 * 1024;
/// What comes before the id in a member of a backlog: 14 digits of due time, 12 of arrival.
const BACKLOG_PREFIX: usize = 26;
/// How long before a new shard comes to the horizon that it knows it gets the next one.
const SOON_MS: u64 = 2000;
/// Fields of `stats` that are no counters.
const NO_COUNTERS: [&str; 5] = ["last_time", "alarm", "seq", "bytes", "ranked"];

/// What one manager knows of a shard that is being given up. It may be lost at any time.
#[derive(Debug, Default)]
pub struct Departure {
    /// The batch that was taken in, and those of it that come back.
    done: u64,
    refused: String,
    /// What to hand over next, as far as it is still there.
    queue: VecDeque<MessageId>,
    listing: Listing,
    /// Whether anything left since the queue was filled.
    progress: bool,
    /// The horizon that each new shard knows.
    horizons: BTreeMap<Shard, Option<UnixMs>>,
}

/// Where the next messages to hand over come from.
#[derive(Debug, Default)]
enum Listing {
    /// What is due soonest.
    #[default]
    Soonest,
    /// All messages, from a cursor on, and how many to list next: none of the soonest can go.
    All(String, usize),
    /// None of all can go.
    End,
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandedOver {
    /// How many messages were taken in elsewhere.
    pub count: u64,
    /// How many messages and deliveries are left, those on their way included.
    pub left: u64,
    /// Whether the next step should follow at once.
    pub more: bool,
}

impl Broker {
    /// Hands over up to 50 messages of a shard that is being given up; closes it first. Once nothing is left, and all
    /// other such shards have nothing left either, the topic has been resharded.
    ///
    /// Deliveries in flight stay until they are settled or reclaimed.
    ///
    /// # Errors
    /// [`BrokerError`]; calling again is safe, with this departure or with a new one.
    pub async fn hand_over(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        departure: &mut Departure,
    ) -> Result<HandedOver, BrokerError> {
        let keys = topic.keys(shard)?;
        if departure.queue.is_empty() {
            self.list_next(keys, departure).await?;
        }
        let batch = departure.queue.len().min(MAX_FULL_BATCH);
        let ids: Vec<MessageId> = departure.queue.drain(..batch).collect();
        let call = HandOver {
            done: departure.done,
            refused: &departure.refused,
            ids: &ids,
        };
        let leaving = self.general(topic, shard, None, &call).await?;
        departure.done = 0;
        departure.refused.clear();
        let (batch, count, left) = (leaving.batch, leaving.bundles.len(), leaving.left);
        let is_empty = left == 0 && count == 0 && leaving.horizon.is_none();
        let more = count > 0 || leaving.withdrawn > 0 || !ids.is_empty();
        let refused = self
            .take_in(topic, shard, leaving, &mut departure.horizons)
            .await?;
        departure.progress |= count > refused.len();
        if count > 0 {
            (departure.done, departure.refused) = (batch, refused.join(" "));
        }
        if is_empty {
            self.leave(topic, shard).await?;
        }
        Ok(HandedOver {
            count: (count - refused.len()) as u64,
            left,
            more,
        })
    }

    /// Fills the queue: with what is soonest due; where none of that can go, with all messages in turn; at their end
    /// with none, once.
    async fn list_next(
        &self,
        keys: &ShardKeys,
        departure: &mut Departure,
    ) -> Result<(), BrokerError> {
        let mut listing = std::mem::take(&mut departure.listing);
        if std::mem::take(&mut departure.progress) {
            listing = Listing::Soonest;
        }
        while departure.queue.is_empty() {
            listing = match listing {
                Listing::Soonest => {
                    departure.queue = self.soonest(keys).await?;
                    // Their sizes are not known yet.
                    Listing::All("0".to_owned(), 1)
                }
                Listing::All(cursor, count) => {
                    let (ids, next, bytes) = self.page(keys, &cursor, count).await?;
                    let fitting = ids.len().max(1) * PAGE_BYTES / bytes.max(1);
                    departure.queue = ids;
                    match next.as_str() {
                        "0" => Listing::End,
                        _ => Listing::All(next, fitting.clamp(1, (count * 2).min(PAGE))),
                    }
                }
                Listing::End => return Ok(()),
            };
        }
        departure.listing = listing;
        Ok(())
    }

    /// Lists what is held back, tried again and waiting, each from its front.
    async fn soonest(&self, keys: &ShardKeys) -> Result<VecDeque<MessageId>, BrokerError> {
        let backlogs = keys
            .groups
            .iter()
            .map(|group| (&group.backlog, BACKLOG_PREFIX));
        let retries = keys.groups.iter().map(|group| (&group.retry, 0));
        let mut ids = VecDeque::new();
        for (set, prefix) in backlogs.chain(retries).chain([(&keys.waiting, 0)]) {
            let mut cmd = command("ZRANGE", set);
            cmd.arg(0).arg(PAGE - 1).arg("WITHSCORES");
            let reply = self.call(set, &cmd).await?;
            let listed = members(&reply)?;
            let listed = listed.iter().filter_map(|(member, _)| member.get(prefix..));
            ids.extend(listed.filter_map(|member| id_in(member).parse::<MessageId>().ok()));
        }
        Ok(ids)
    }

    /// Lists a page of about `count` of all messages; gives the next cursor, and how many bytes came along.
    async fn page(
        &self,
        keys: &ShardKeys,
        cursor: &str,
        count: usize,
    ) -> Result<(VecDeque<MessageId>, String, usize), BrokerError> {
        let mut cmd = command("HSCAN", &keys.payload);
        cmd.arg(cursor).arg("COUNT").arg(count);
        let reply = self.call(&keys.payload, &cmd).await?;
        let wrong = || BrokerError::Reply {
            what: "HSCAN",
            error: unexpected("a cursor and messages", &reply),
        };
        let Value::Array(parts) = &reply else {
            return Err(wrong());
        };
        let [next, Value::Array(pairs)] = parts.as_slice() else {
            return Err(wrong());
        };
        let ids = pairs
            .chunks_exact(2)
            .filter_map(|pair| text(&pair[0]).ok()?.parse().ok());
        let bytes = pairs.iter().map(|value| match value {
            Value::BulkString(bytes) => bytes.len(),
            _ => 0,
        });
        let next = text(next).map_err(|_| wrong())?.to_owned();
        Ok((ids.collect(), next, bytes.sum()))
    }

    /// Puts a batch into the shards that follow, and gives those that wait for it the next horizon. Gives the ids that
    /// must go back.
    async fn take_in(
        &self,
        topic: &TopicHandle,
        from: Shard,
        leaving: Leaving,
        horizons: &mut BTreeMap<Shard, Option<UnixMs>>,
    ) -> Result<Vec<String>, BrokerError> {
        let Leaving {
            batch,
            arrivals,
            horizon,
            tats,
            bundles,
            ..
        } = leaving;
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
        // Those that come to the horizon soon, or know of none yet, wait for the next one.
        let soon = UnixMs::new(self.now_at(topic, from).get() + SOON_MS);
        for shard in topic.shards().filter(|shard| !topic.is_leaving(*shard)) {
            let before = horizons.get(&shard).copied();
            let waits = before.is_none_or(|before| before.is_some_and(|time| time < soon));
            if waits && before != Some(horizon) {
                parts.entry(shard).or_default();
            }
        }
        let limit = topic.settings().durability_timeout;
        let waiting = self.that_waits(topic.settings().durability, limit).await?;
        let calls = parts.iter().map(|(&shard, bundles)| {
            let (waiting, old, tats) = (&waiting, topic.old(), &tats);
            async move {
                let call = TakeIn {
                    default_max_ready: topic.settings().per_shard(DEFAULT_MAX_READY),
                    old,
                    from,
                    batch: if bundles.is_empty() { 0 } else { batch },
                    arrivals,
                    horizon,
                    tats,
                    bundles,
                };
                waiting.general(topic, shard, None, &call).await
            }
        });
        let refused = try_join_all(calls).await?;
        horizons.extend(parts.into_keys().map(|shard| (shard, horizon)));
        Ok(refused.concat())
    }

    /// Hands over the counters of a shard that has nothing else left, and ends the resharding if it is the last one.
    async fn leave(&self, topic: &TopicHandle, shard: Shard) -> Result<(), BrokerError> {
        let fields = self.fields(&topic.keys(shard)?.stats).await?;
        let is_counter = |name: &str| {
            !NO_COUNTERS.contains(&name)
                && !name.starts_with("tat:")
                && !name.starts_with("adopted_")
        };
        let counters: Vec<(String, i64)> = fields
            .into_iter()
            .filter(|(name, _)| is_counter(name))
            .filter_map(|(name, count)| Some((name, count.parse().ok()?)))
            .collect();
        let call = Adopt {
            from: shard,
            counters: &counters,
        };
        let unknown = |_| BrokerError::UnknownTopic(topic.name().clone());
        self.run(topic.keys(topic.heir(shard))?, &call)
            .await?
            .map_err(unknown)?;
        self.complete(topic).await?;
        Ok(())
    }
}
