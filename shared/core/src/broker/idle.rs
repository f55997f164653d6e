//! Recognizes topics without messages by reads only, so that the jobs of a manager can pass over them.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use redis::{Pipeline, Value, from_redis_value};

use crate::broker::probe::plain_keys;
use crate::broker::{Broker, TopicHandle};
use crate::keys::GroupView;
use crate::redis::ServerId;

/// The number of topics in one request: Redis answers it within about 0.3 ms.
const BATCH: usize = 40;
/// The time after which a consumer that has not reported is gone, in ms; see `stats.lua`.
const SEEN: u64 = 30_000;
/// The idle time from which on a consumer may be dropped, in ms: half of what the `clean` job waits for.
const LONG_GONE: u64 = 1_800_000;
/// The commands for each shard.
const COMMANDS: usize = 6;

/// The state of a topic that holds no messages, and whose shards and group are there. As long as two marks are equal,
/// [`Broker::stats`] returns the same.
#[derive(Clone, Debug, PartialEq)]
pub struct IdleMark(Vec<ShardMark>);

#[derive(Clone, Debug, PartialEq)]
struct ShardMark {
    epoch: Value,
    /// The class, the groups, and whether the topic or the group is paused.
    flags: Vec<Value>,
    counters: BTreeMap<String, Value>,
    tombstones: u64,
    consumers: usize,
    /// False if a consumer has been gone for long, or the group is retiring or belongs to an instance.
    is_tidy: bool,
}

impl IdleMark {
    /// Returns true if nothing is to be cleaned: no tombstones, consumers that are long gone, or groups to remove.
    pub fn is_tidy(&self) -> bool {
        let is_tidy = |shard: &ShardMark| shard.is_tidy && shard.tombstones == 0;
        self.0.iter().all(is_tidy)
    }
}

/// A topic to look at, by its index, and the keys of its shards.
type Asked<'t> = (usize, Vec<GroupView<'t>>);

impl Broker {
    /// Returns the marks of topics, in their order. `None` for a topic that holds messages, is general or resharding, or
    /// could not be read.
    pub async fn idle_marks(&self, topics: &[Arc<TopicHandle>]) -> Vec<Option<IdleMark>> {
        let mut marks = vec![None; topics.len()];
        let mut servers: Vec<(ServerId, Vec<Asked<'_>>)> = Vec::new();
        for (index, topic) in topics.iter().enumerate() {
            if let Some((owner, keys)) = self.idle_keys(topic) {
                match servers.iter_mut().find(|(server, _)| *server == owner) {
                    Some((_, asked)) => asked.push((index, keys)),
                    None => servers.push((owner, vec![(index, keys)])),
                }
            }
        }
        let each = servers.iter().map(|(id, asked)| self.marks_at(id, asked));
        for (index, mark) in join_all(each).await.into_iter().flatten() {
            if let Some(slot) = marks.get_mut(index) {
                *slot = Some(mark);
            }
        }
        marks
    }

    /// Returns the keys of a topic that may be idle, and their server, if it is the same for all shards.
    fn idle_keys<'t>(&self, topic: &'t TopicHandle) -> Option<(ServerId, Vec<GroupView<'t>>)> {
        if self.virtual_now() != 0 || topic.is_resharding() || topic.retired().is_some() {
            return None;
        }
        let keys: Option<Vec<_>> = topic
            .shards()
            .map(|shard| plain_keys(topic, shard))
            .collect();
        let keys = keys?;
        let owner = |keys: &GroupView<'_>| {
            let connection = &self.inner.connection;
            connection.owner_of(keys.shard.conf.as_str())
        };
        let server = owner(keys.first()?)?;
        let same = keys
            .iter()
            .all(|keys| owner(keys).as_ref() == Some(&server));
        same.then_some((server, keys))
    }

    async fn marks_at(&self, id: &ServerId, asked: &[Asked<'_>]) -> Vec<(usize, IdleMark)> {
        let server = self.inner.connection.server(id);
        let mut marks = Vec::new();
        for asked in asked.chunks(BATCH) {
            let mut pipeline = Pipeline::new();
            for keys in asked.iter().flat_map(|(_, keys)| keys) {
                add(&mut pipeline, keys);
            }
            // A server that does not answer once is not asked again: its topics are counted, which reports the failure.
            let call_timeout = self.inner.call_timeout;
            if !server.is_up() {
                break;
            }
            let Ok(replies) = server.pipeline_each(&pipeline, call_timeout).await else {
                break;
            };
            let mut replies = replies.into_iter();
            for (index, keys) in asked {
                let replies: Vec<Value> = replies.by_ref().take(COMMANDS * keys.len()).collect();
                let shards = replies.chunks(COMMANDS).map(read);
                marks.extend(
                    shards
                        .collect::<Option<_>>()
                        .map(|all| (*index, IdleMark(all))),
                );
            }
        }
        marks
    }
}

/// Adds the commands for one shard.
fn add(pipeline: &mut Pipeline, keys: &GroupView<'_>) {
    let (shard, group) = (keys.shard, keys.group);
    pipeline.cmd("EXISTS");
    for key in [
        &shard.waiting,
        &shard.payload,
        &shard.meta,
        &group.retry,
        &group.attempts,
        &group.backlog,
        &group.parked,
        &group.garbage,
    ] {
        pipeline.arg(key.as_ref());
    }
    pipeline.cmd("XLEN").arg(group.ready.as_ref());
    pipeline.cmd("HMGET").arg(shard.conf.as_ref()).arg("epoch");
    for flag in ["class", "groups", "paused"] {
        pipeline.arg(flag);
    }
    for flag in ["paused", "retiring", "instance"] {
        pipeline.arg(format!("{flag}:{}", group.name));
    }
    pipeline.cmd("HGETALL").arg(shard.stats.as_ref());
    pipeline.cmd("ZCARD").arg(shard.tomb.as_ref());
    pipeline.cmd("XINFO").arg("CONSUMERS");
    pipeline.arg(group.ready.as_ref()).arg(group.name.as_str());
}

/// Reads the replies for one shard; `None` if it holds messages, or a reply is an error.
fn read(replies: &[Value]) -> Option<ShardMark> {
    let [exist, entries, conf, counters, tombstones, consumers] = replies else {
        return None;
    };
    let number = |value: &Value| from_redis_value::<u64>(value.clone()).ok();
    if number(exist)? + number(entries)? > 0 {
        return None;
    }
    let mut flags: Vec<Value> = from_redis_value(conf.clone()).ok()?;
    // Without its epoch, the shard is not declared.
    let epoch = flags.first().filter(|epoch| **epoch != Value::Nil)?.clone();
    let of_group = flags.split_off(flags.len().checked_sub(2)?);
    let is_lasting = of_group.iter().all(|flag| *flag == Value::Nil);
    let mut counters: BTreeMap<String, Value> = from_redis_value(counters.clone()).ok()?;
    for of_mover in ["last_time", "alarm"] {
        counters.remove(of_mover);
    }
    let consumers: Vec<BTreeMap<String, Value>> = from_redis_value(consumers.clone()).ok()?;
    let idle = consumers
        .iter()
        .map(|consumer| number(consumer.get("idle")?));
    let idle = idle.collect::<Option<Vec<u64>>>()?;
    Some(ShardMark {
        epoch,
        flags,
        counters,
        tombstones: number(tombstones)?,
        consumers: idle.iter().filter(|idle| **idle <= SEEN).count(),
        is_tidy: is_lasting && idle.iter().all(|idle| *idle < LONG_GONE),
    })
}
