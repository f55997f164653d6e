//! Recognizes topics without messages by reads only, so that the jobs of a manager can skip them.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use redis::{Pipeline, Value, from_redis_value};

use crate::broker::probe::{by_server, plain_keys};
use crate::broker::{Broker, TopicHandle};
use crate::keys::GroupView;
use crate::redis::ServerId;

/// The number of shards in one request, except for a topic that has more. Redis answers it within about 0.3 ms.
const BATCH: usize = 40;
/// The time after which a consumer that has not reported is gone, in ms; see `stats.lua`.
const SEEN: u64 = 30_000;
/// The idle time after which a consumer may be dropped, in ms: half of the time that the `clean` job waits.
const LONG_GONE: u64 = 1_800_000;
/// The number of commands for each shard.
const COMMANDS: usize = 6;

/// The state of a topic that holds no messages, and whose shards and group exist. As long as two marks are equal,
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
    /// Returns true if there is nothing to clean: no tombstones, no consumers that are long gone, and no groups to remove.
    pub fn is_tidy(&self) -> bool {
        let is_tidy = |shard: &ShardMark| shard.is_tidy && shard.tombstones == 0;
        self.0.iter().all(is_tidy)
    }
}

/// The part of a mark that is read again in addition to the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recheck {
    /// No other part.
    Nothing,
    /// The epoch, and whether the topic or the group is paused.
    Flags,
    /// The number of consumers.
    Consumers,
}

/// A topic to look at, by its index, and the keys of its shards.
type Asked<'t> = (usize, Vec<GroupView<'t>>);

impl Broker {
    /// Returns the marks of topics, in their order, with `None` for a topic that holds messages, is general or resharding, or
    /// could not be read.
    pub async fn idle_marks(&self, topics: &[Arc<TopicHandle>]) -> Vec<Option<IdleMark>> {
        let add = |pipeline: &mut Pipeline, _: usize, keys: &GroupView<'_>| add(pipeline, keys);
        let replies = self.read_shards(topics, |_| COMMANDS, add).await;
        let mark = |replies: Vec<Value>| {
            let shards = replies.chunks(COMMANDS).map(read);
            shards.collect::<Option<_>>().map(IdleMark)
        };
        let marks = replies.into_iter().map(|replies| replies.and_then(mark));
        marks.collect()
    }

    /// Returns true for each topic that still has its mark, as far as the counters and one other part show. Reads a third of
    /// what [`Broker::idle_marks`] reads. Returns false for a topic that could not be read.
    pub async fn still_idle(
        &self,
        topics: &[Arc<TopicHandle>],
        marks: &[(&IdleMark, Recheck)],
    ) -> Vec<bool> {
        let recheck = |index: usize| marks.get(index).map_or(Recheck::Nothing, |it| it.1);
        let add = |pipeline: &mut Pipeline, index: usize, keys: &GroupView<'_>| {
            add_counters(pipeline, keys);
            match recheck(index) {
                Recheck::Nothing => {}
                Recheck::Flags => add_flags(pipeline, keys),
                Recheck::Consumers => add_consumers(pipeline, keys),
            }
        };
        let count = |index| recheck(index).commands();
        let replies = self.read_shards(topics, count, add).await;
        let is_same = |(replies, (mark, recheck)): (Option<Vec<Value>>, &(&IdleMark, Recheck))| {
            let replies = replies.unwrap_or_default();
            let shards = replies.chunks(recheck.commands());
            shards.len() == mark.0.len()
                && shards
                    .zip(&mark.0)
                    .all(|(replies, shard)| shard.still(replies, *recheck) == Some(true))
        };
        replies.into_iter().zip(marks).map(is_same).collect()
    }

    /// Returns true for each topic whose shards and group exist and hold no messages, so nothing in it can become due. Reads half
    /// of what [`Broker::idle_marks`] reads. Returns false for a topic that is general or resharding, or could not be read.
    pub async fn without_messages(&self, topics: &[Arc<TopicHandle>]) -> Vec<bool> {
        let add = |pipeline: &mut Pipeline, _: usize, keys: &GroupView<'_>| {
            add_exists(pipeline, keys);
            add_flags(pipeline, keys);
            add_consumers(pipeline, keys);
        };
        let is_without = |replies: &[Value]| {
            let [exist, conf, consumers] = replies else {
                return None;
            };
            // The third reply is an error if the group does not exist.
            let is_declared = flags(conf).is_some() && idle_times(consumers).is_some();
            Some(is_declared && number(exist)? == 0)
        };
        let replies = self.read_shards(topics, |_| 3, add).await;
        let without = replies.into_iter().map(|replies| {
            let is_empty = |replies: Vec<Value>| {
                let mut shards = replies.chunks(3);
                shards.all(|replies| is_without(replies) == Some(true))
            };
            replies.is_some_and(is_empty)
        });
        without.collect()
    }

    /// Sends `count` reads for each shard of each topic. Returns `None` for a topic that is no candidate or has no replies.
    async fn read_shards(
        &self,
        topics: &[Arc<TopicHandle>],
        count: impl Fn(usize) -> usize + Copy,
        add: impl Fn(&mut Pipeline, usize, &GroupView<'_>) + Copy,
    ) -> Vec<Option<Vec<Value>>> {
        let mut all = vec![None; topics.len()];
        let asked = topics.iter().enumerate().filter_map(|(index, topic)| {
            let (owner, keys) = self.idle_keys(topic)?;
            Some((owner, (index, keys)))
        });
        let servers = by_server(asked);
        let each = servers
            .iter()
            .map(|(id, asked)| self.read_at(id, asked, count, add));
        for (index, replies) in join_all(each).await.into_iter().flatten() {
            if let Some(slot) = all.get_mut(index) {
                *slot = Some(replies);
            }
        }
        all
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

    async fn read_at(
        &self,
        id: &ServerId,
        asked: &[Asked<'_>],
        count: impl Fn(usize) -> usize,
        add: impl Fn(&mut Pipeline, usize, &GroupView<'_>),
    ) -> Vec<(usize, Vec<Value>)> {
        let server = self.inner.connection.server(id);
        let mut all = Vec::new();
        let mut rest = asked;
        while !rest.is_empty() {
            let asked;
            (asked, rest) = rest.split_at(batch(rest.iter().map(|(_, keys)| keys.len())));
            let mut pipeline = Pipeline::new();
            for (index, keys) in asked {
                for keys in keys {
                    add(&mut pipeline, *index, keys);
                }
            }
            // A server that fails to answer once is not asked again: its topics are counted, which reports the failure.
            let call_timeout = self.inner.call_timeout;
            if !server.is_up() {
                break;
            }
            let Ok(replies) = server.pipeline_each(&pipeline, call_timeout).await else {
                break;
            };
            let mut replies = replies.into_iter();
            for (index, keys) in asked {
                let of_topic = replies.by_ref().take(count(*index) * keys.len());
                all.push((*index, of_topic.collect()));
            }
        }
        all
    }
}

impl ShardMark {
    /// Compares the counters and another part with their replies; `None` if a reply is an error.
    fn still(&self, replies: &[Value], recheck: Recheck) -> Option<bool> {
        let (counters, part) = replies.split_first()?;
        let same = match (recheck, part) {
            (Recheck::Nothing, []) => true,
            (Recheck::Flags, [part]) => {
                let (epoch, flags, _) = flags(part)?;
                (&epoch, &flags) == (&self.epoch, &self.flags)
            }
            (Recheck::Consumers, [part]) => present(&idle_times(part)?) == self.consumers,
            _ => return None,
        };
        Some(same && self::counters(counters)? == self.counters)
    }
}

impl Recheck {
    /// Returns the number of commands for each shard, including the one for the counters.
    fn commands(self) -> usize {
        match self {
            Self::Nothing => 1,
            Self::Flags | Self::Consumers => 2,
        }
    }
}

/// Returns the number of topics for one request, given the number of shards of each.
fn batch(shards: impl Iterator<Item = usize>) -> usize {
    let sums = shards.scan(0, |sum, shards| {
        *sum += shards;
        Some(*sum)
    });
    sums.take_while(|sum| *sum <= BATCH).count().max(1)
}

/// Adds the commands for one shard.
fn add(pipeline: &mut Pipeline, keys: &GroupView<'_>) {
    add_exists(pipeline, keys);
    pipeline.cmd("XLEN").arg(keys.group.ready.as_ref());
    add_flags(pipeline, keys);
    add_counters(pipeline, keys);
    pipeline.cmd("ZCARD").arg(keys.shard.tomb.as_ref());
    add_consumers(pipeline, keys);
}

fn add_exists(pipeline: &mut Pipeline, keys: &GroupView<'_>) {
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
}

fn add_flags(pipeline: &mut Pipeline, keys: &GroupView<'_>) {
    let conf = keys.shard.conf.as_ref();
    pipeline.cmd("HMGET").arg(conf).arg("epoch");
    for flag in ["class", "groups", "paused"] {
        pipeline.arg(flag);
    }
    for flag in ["paused", "retiring", "instance"] {
        pipeline.arg(format!("{flag}:{}", keys.group.name));
    }
}

fn add_counters(pipeline: &mut Pipeline, keys: &GroupView<'_>) {
    pipeline.cmd("HGETALL").arg(keys.shard.stats.as_ref());
}

fn add_consumers(pipeline: &mut Pipeline, keys: &GroupView<'_>) {
    pipeline.cmd("XINFO").arg("CONSUMERS");
    pipeline
        .arg(keys.group.ready.as_ref())
        .arg(keys.group.name.as_str());
}

/// Reads the replies for one shard; `None` if it holds messages, or a reply is an error.
fn read(replies: &[Value]) -> Option<ShardMark> {
    let [exist, entries, conf, counters, tombstones, consumers] = replies else {
        return None;
    };
    if number(exist)? + number(entries)? > 0 {
        return None;
    }
    let (epoch, flags, is_lasting) = flags(conf)?;
    let idle = idle_times(consumers)?;
    Some(ShardMark {
        epoch,
        flags,
        counters: self::counters(counters)?,
        tombstones: number(tombstones)?,
        consumers: present(&idle),
        is_tidy: is_lasting && idle.iter().all(|idle| *idle < LONG_GONE),
    })
}

/// Reads the epoch, the flags, and whether the group is lasting: it neither retires nor belongs to an instance.
fn flags(conf: &Value) -> Option<(Value, Vec<Value>, bool)> {
    let mut flags: Vec<Value> = from_redis_value(conf.clone()).ok()?;
    // Without its epoch, the shard is not declared.
    let epoch = flags.first().filter(|epoch| **epoch != Value::Nil)?.clone();
    let of_group = flags.split_off(flags.len().checked_sub(2)?);
    let is_lasting = of_group.iter().all(|flag| *flag == Value::Nil);
    Some((epoch, flags, is_lasting))
}

fn counters(stats: &Value) -> Option<BTreeMap<String, Value>> {
    let mut counters: BTreeMap<String, Value> = from_redis_value(stats.clone()).ok()?;
    for of_mover in ["last_time", "alarm"] {
        counters.remove(of_mover);
    }
    Some(counters)
}

/// Reads how long each consumer has been idle, in ms.
fn idle_times(consumers: &Value) -> Option<Vec<u64>> {
    let consumers: Vec<BTreeMap<String, Value>> = from_redis_value(consumers.clone()).ok()?;
    let idle = consumers
        .iter()
        .map(|consumer| number(consumer.get("idle")?));
    idle.collect()
}

/// Counts the consumers that are present.
fn present(idle: &[u64]) -> usize {
    idle.iter().filter(|idle| **idle <= SEEN).count()
}

fn number(value: &Value) -> Option<u64> {
    from_redis_value(value.clone()).ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_request_reads_a_bounded_number_of_shards_or_one_topic() {
        let batch = |shards: &[usize]| super::batch(shards.iter().copied());
        assert_eq!(batch(&[1; 100]), 40);
        assert_eq!(batch(&[16, 16, 16]), 2);
        assert_eq!(batch(&[1024, 1]), 1);
        assert_eq!(batch(&[1]), 1);
    }
}
