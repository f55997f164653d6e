//! Looks at many idle shards with one request to each server, so that a shard with nothing to do costs no script call.
//!
//! A probe only reads. It recognizes shards that need nothing; for all others, call the script.

use std::sync::Arc;

use futures_util::future::join_all;
use redis::{Pipeline, Value, from_redis_value};
use tokio::sync::oneshot;

use crate::broker::{Broker, TopicHandle};
use crate::keys::GroupView;
use crate::redis::{Server, ServerId};
use crate::time::UnixMs;
use crate::topic::Shard;

/// The number of times that `EXISTS` counts `conf`, so that its reply shows which keys exist.
const CONF_COUNTS: u64 = 3;

/// The state of a shard, if it needs no script call now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The shard has no message that will become due.
    Empty,
    /// The shard waits until its next message is due.
    Waits {
        /// The time of the shard's server.
        now: UnixMs,
        /// The time at which the message is due.
        next_due: UnixMs,
    },
}

/// A request for a probe.
#[derive(Debug)]
pub struct ProbeRequest {
    /// The topic.
    pub topic: Arc<TopicHandle>,
    /// The shard.
    pub shard: Shard,
    /// True if the last probe found messages. Shards without messages share one probe.
    pub has_messages: bool,
    /// Receives the probe. Dropped if the probe cannot judge the shard, or failed: the script has to be called.
    pub answer: oneshot::Sender<Probe>,
}

impl Broker {
    /// Returns true if a probe can judge a shard. It judges only shards that need no general script: any other may have
    /// work at a time that no key shows, such as the opening of a gate.
    pub fn can_probe(&self, topic: &TopicHandle, shard: Shard) -> bool {
        self.virtual_now() == 0 && plain_keys(topic, shard).is_some()
    }

    /// Answers requests for probes, with up to three writes to each server. A server or a shard that fails affects no other.
    pub async fn probe(&self, requests: Vec<ProbeRequest>) {
        let owned = requests.into_iter().filter_map(|request| {
            let keys = plain_keys(&request.topic, request.shard)?;
            let connection = &self.inner.connection;
            Some((connection.owner_of(keys.shard.conf.as_str())?, request))
        });
        let servers = by_server(owned);
        let each = servers.into_iter().map(async |(id, requests)| {
            let server = self.inner.connection.server(&id);
            self.probe_at(&server, requests).await;
        });
        join_all(each).await;
    }

    async fn probe_at(&self, server: &Server<'_>, requests: Vec<ProbeRequest>) {
        let (mut single, empty): (Vec<_>, Vec<_>) =
            requests.into_iter().partition(|it| it.has_messages);
        let together = empty.len() > 1 && !self.inner.connection.is_cluster();
        if together && self.are_empty(server, &empty).await {
            reply_empty(empty);
        } else {
            single.extend(empty);
        }
        if !single.is_empty() {
            self.probe_each(server, single).await;
        }
    }

    /// Returns true if all these shards exist and have no messages that will become due. Sends two commands.
    async fn are_empty(&self, server: &Server<'_>, requests: &[ProbeRequest]) -> bool {
        let mut pipeline = Pipeline::with_capacity(2);
        let keys = || requests.iter().filter_map(ProbeRequest::keys);
        pipeline.cmd("EXISTS");
        for keys in keys() {
            pipeline.arg(keys.shard.conf.as_ref());
        }
        pipeline.cmd("EXISTS");
        for keys in keys() {
            pipeline.arg(keys.shard.waiting.as_ref());
            pipeline.arg(keys.group.retry.as_ref());
        }
        let replies = self.read_each(server, &pipeline).await;
        let counts = replies.iter().flatten().map(as_count);
        counts.eq([Some(requests.len() as u64), Some(0)])
    }

    async fn probe_each(&self, server: &Server<'_>, requests: Vec<ProbeRequest>) {
        let mut pipeline = Pipeline::with_capacity(requests.len());
        for keys in requests.iter().filter_map(ProbeRequest::keys) {
            pipeline.cmd("EXISTS");
            for key in [&keys.shard.conf; CONF_COUNTS as usize] {
                pipeline.arg(key.as_ref());
            }
            for key in [&keys.shard.waiting, &keys.group.retry] {
                pipeline.arg(key.as_ref());
            }
        }
        let Some(counts) = self.read_each(server, &pipeline).await else {
            return;
        };
        let (mut empty, mut filled) = (Vec::new(), Vec::new());
        for (request, count) in requests.into_iter().zip(&counts) {
            match as_count(count) {
                Some(CONF_COUNTS) => empty.push(request),
                Some(count) if count > CONF_COUNTS => filled.push(request),
                // The shard's `conf` is gone, or its slot is on another server.
                _ => {}
            }
        }
        reply_empty(empty);
        if !filled.is_empty() {
            self.probe_filled(server, filled).await;
        }
    }

    /// Probes shards that hold messages.
    async fn probe_filled(&self, server: &Server<'_>, requests: Vec<ProbeRequest>) {
        let mut pipeline = Pipeline::with_capacity(1 + 2 * requests.len());
        pipeline.cmd("TIME");
        for keys in requests.iter().filter_map(ProbeRequest::keys) {
            for key in [&keys.shard.waiting, &keys.group.retry] {
                pipeline.cmd("ZRANGE").arg(key.as_ref()).arg(0).arg(0);
                pipeline.arg("WITHSCORES");
            }
        }
        let Some(replies) = self.read_each(server, &pipeline).await else {
            return;
        };
        let mut replies = replies.into_iter();
        let Some(now) = replies.next().and_then(time) else {
            return;
        };
        for request in requests {
            let (Some(waiting), Some(retry)) = (replies.next(), replies.next()) else {
                return;
            };
            if let (Some(waiting), Some(retry)) = (due(waiting), due(retry)) {
                let next_due = waiting.into_iter().chain(retry).min();
                request.reply(
                    next_due.map_or(Probe::Empty, |next_due| Probe::Waits { now, next_due }),
                );
            }
        }
    }

    /// Sends reads, and returns the reply to each, which may be an error; `None` without an answer.
    async fn read_each(&self, server: &Server<'_>, pipeline: &Pipeline) -> Option<Vec<Value>> {
        let replies = server.pipeline_each(pipeline, self.inner.call_timeout);
        replies.await.ok()
    }
}

impl ProbeRequest {
    fn keys(&self) -> Option<GroupView<'_>> {
        self.topic.keys(self.shard).ok()?.only_group()
    }

    fn reply(self, probe: Probe) {
        // The asker may have been woken in the meantime.
        let _ = self.answer.send(probe);
    }
}

fn reply_empty(requests: Vec<ProbeRequest>) {
    for request in requests {
        request.reply(Probe::Empty);
    }
}

/// Returns the keys of a shard that needs no general script.
pub(super) fn plain_keys(topic: &TopicHandle, shard: Shard) -> Option<GroupView<'_>> {
    let keys = topic.keys(shard).ok()?.only_group()?;
    (!topic.needs_general(shard)).then_some(keys)
}

/// Groups items by their server, in the order in which the servers occur.
pub(super) fn by_server<T>(items: impl Iterator<Item = (ServerId, T)>) -> Vec<(ServerId, Vec<T>)> {
    let mut servers: Vec<(ServerId, Vec<T>)> = Vec::new();
    for (server, item) in items {
        match servers.iter_mut().find(|(known, _)| *known == server) {
            Some((_, items)) => items.push(item),
            None => servers.push((server, vec![item])),
        }
    }
    servers
}

fn as_count(reply: &Value) -> Option<u64> {
    from_redis_value(reply.clone()).ok()
}

/// Reads the reply to `TIME`.
fn time(reply: Value) -> Option<UnixMs> {
    let (seconds, micros): (u64, u64) = from_redis_value(reply).ok()?;
    Some(UnixMs::new(seconds * 1000 + micros / 1000))
}

/// Returns the score of the first member, if there is one; `None` if the reply is unexpected.
fn due(head: Value) -> Option<Option<UnixMs>> {
    let head: Vec<(Value, f64)> = from_redis_value(head).ok()?;
    let score = head.first().map(|(_, score)| *score);
    Some(score.map(|ms| UnixMs::new(ms.max(0.0) as u64)))
}
