//! Operations of consumers: read, renew the lease, and settle.

use std::time::Duration;

use redis::{Cmd, FromRedisValue, ParsingError, Value, from_redis_value};

use crate::broker::reply::{command, decode, or_empty};
use crate::broker::{Broker, BrokerError, MAX_BATCH, MAX_GENERAL_HOT_BATCH, TopicHandle};
use crate::message::{EntryId, MessageId};
use crate::redis::{ConnectionError, ConnectionErrorKind, Reader, ServerId};
use crate::scripts::{Ack, AckPlain, DropConsumer, Refusal, Settle};
use crate::state::{Attempt, Settled, Settlement, Verdict};
use crate::time::{UnixMs, millis};
use crate::topic::{Group, Shard};

/// The maximum number of deliveries in one settle, which takes several commands for each message, unlike an ack.
const MAX_SETTLE: usize = 40;
/// The delivery counts of marked and unmarked deliveries.
const MARKED: u8 = 2;
const UNMARKED: u8 = 1;

/// A delivery, as read from the stream.
#[derive(Debug)]
pub struct Read {
    /// The message; `None` for an entry without one, which only damage can cause.
    pub id: Option<MessageId>,
    /// The delivery.
    pub attempt: Attempt,
}

/// The identity of a reader's connection on its server.
#[derive(Clone)]
pub struct ReaderId {
    server: ServerId,
    number: u64,
}

/// Begins an `XREADGROUP` for a consumer of a group.
fn read_group(group: &Group, consumer: &str, count: usize) -> Cmd {
    let mut cmd = redis::cmd("XREADGROUP");
    cmd.arg("GROUP").arg(group.as_str()).arg(consumer);
    cmd.arg("COUNT").arg(count);
    cmd
}

impl Broker {
    /// Reads up to `count` messages for a consumer of a group, waiting up to `block`, in whole milliseconds, at least one, for the first.
    /// Recreates a group that is gone from Redis, starting at the first entry.
    ///
    /// A read that blocks for less than 100 ms can take up to 100 ms on an idle server, because Redis ends blocked calls only when it
    /// wakes up. To read without waiting, use [`Broker::read_now`].
    ///
    /// # Errors
    /// [`BrokerError`]; the reader is then closed and must be replaced.
    ///
    /// # Cancel safety
    /// Dropping the future closes the reader, so that no message goes to a read that nobody awaits. A message that was
    /// already on its way is reclaimed after its lease.
    #[expect(
        clippy::too_many_arguments,
        reason = "a shard and group, a consumer, and how to read"
    )]
    pub async fn read(
        &self,
        reader: &mut Reader,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        consumer: &str,
        count: usize,
        block: Duration,
    ) -> Result<Vec<Read>, BrokerError> {
        let ready = &topic.group_keys(shard, group)?.group.ready;
        let mut cmd = read_group(group, consumer, count);
        cmd.arg("BLOCK").arg(millis(block).max(1));
        cmd.arg("STREAMS").arg(ready.as_ref()).arg(">");
        self.reads(topic, reader.read(&cmd, block).await).await
    }

    /// Reads up to `count` messages for a consumer of a group, without waiting, over the main connection of the process. Recreates a
    /// group that is gone from Redis, starting at the first entry.
    ///
    /// # Errors
    /// [`BrokerError`]. If Redis did not answer in time, messages that it has read are reclaimed after their lease.
    ///
    /// # Cancel safety
    /// If the future is dropped, a message that was already on its way is reclaimed after its lease.
    pub async fn read_now(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        consumer: &str,
        count: usize,
    ) -> Result<Vec<Read>, BrokerError> {
        let ready = &topic.group_keys(shard, group)?.group.ready;
        let mut cmd = read_group(group, consumer, count);
        cmd.arg("STREAMS").arg(ready.as_ref()).arg(">");
        let server = self.inner.connection.at(ready);
        let reply = server.call_once(&cmd, self.inner.call_timeout).await;
        self.reads(topic, reply).await
    }

    async fn reads(
        &self,
        topic: &TopicHandle,
        reply: Result<Value, ConnectionError>,
    ) -> Result<Vec<Read>, BrokerError> {
        match reply {
            Ok(reply) => {
                let streams: Vec<(Value, Vec<Read>)> = decode("XREADGROUP", reply)?;
                Ok(streams.into_iter().flat_map(|(_, reads)| reads).collect())
            }
            // After it, the read of a paused Redis 7.0 would still run: the reader is closed.
            Err(error) if error.is_unblocked() => Ok(Vec::new()),
            Err(error) if error.kind == ConnectionErrorKind::NoGroup => {
                self.declare_again(topic).await?;
                Err(error.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reports that a consumer reads a group, so that statistics count it for the next 30 s. Not every server counts a
    /// blocked read.
    ///
    /// # Errors
    /// [`BrokerError`].
    ///
    /// # Cancel safety
    /// Safe: only the time at which the consumer was last seen changes.
    pub async fn announce(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        consumer: &str,
    ) -> Result<(), BrokerError> {
        let ready = &topic.group_keys(shard, group)?.group.ready;
        let mut cmd = read_group(group, consumer, 1);
        // Asks for its pending entries after the last possible entry, of which there are none.
        cmd.arg("STREAMS").arg(ready.as_ref());
        cmd.arg(format!("{}-0", u64::MAX));
        self.call(ready, &cmd).await?;
        Ok(())
    }

    /// Renews the leases of deliveries that a consumer of a group holds, and marks them: a crash is charged to marked
    /// messages only. Returns the deliveries it still holds; the others were reclaimed or settled.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn renew(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        consumer: &str,
        entries: &[EntryId],
    ) -> Result<Vec<EntryId>, BrokerError> {
        self.claim(topic, shard, group, consumer, entries, Some(MARKED))
            .await
    }

    /// Removes the marks that [`Broker::renew`] made, and renews the leases. Returns the deliveries that the consumer
    /// still holds; the others were reclaimed or settled.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn unmark(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        consumer: &str,
        entries: &[EntryId],
    ) -> Result<Vec<EntryId>, BrokerError> {
        self.claim(topic, shard, group, consumer, entries, Some(UNMARKED))
            .await
    }

    /// Renews the leases of deliveries that a consumer of a group holds, and keeps their marks. Returns the deliveries
    /// it still holds; the others were reclaimed or settled.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn keep(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        consumer: &str,
        entries: &[EntryId],
    ) -> Result<Vec<EntryId>, BrokerError> {
        self.claim(topic, shard, group, consumer, entries, None)
            .await
    }

    async fn claim(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        consumer: &str,
        entries: &[EntryId],
        deliveries: Option<u8>,
    ) -> Result<Vec<EntryId>, BrokerError> {
        let keys = topic.group_keys(shard, group)?;
        let mut held = Vec::with_capacity(entries.len());
        for chunk in entries.chunks(MAX_BATCH) {
            let entries: Vec<String> = chunk.iter().map(EntryId::to_string).collect();
            let mut claim = command("XCLAIM", &keys.group.ready)
                .arg(&[group.as_str(), consumer, "0"])
                .arg(entries);
            // An entry never changes its owner, so a consumer claims only its own. JUSTID alone keeps the delivery
            // count, which is the mark.
            if let Some(deliveries) = deliveries {
                claim = claim.arg("RETRYCOUNT").arg(deliveries);
            }
            let claimed: Vec<EntryId> = or_empty(self.ask(claim.arg("JUSTID")).await)?;
            held.extend(claimed);
        }
        Ok(held)
    }

    /// Returns the id of a reader's connection on its server, for [`Broker::unblock`].
    ///
    /// # Errors
    /// [`BrokerError`]; the reader is then closed and must be replaced.
    pub async fn reader_id(&self, reader: &mut Reader) -> Result<ReaderId, BrokerError> {
        let mut cmd = redis::cmd("CLIENT");
        cmd.arg("ID");
        Ok(ReaderId {
            number: decode("CLIENT ID", reader.call(&cmd).await?)?,
            server: reader.server_id(),
        })
    }

    /// Ends the blocked read of another connection, which returns no message and closes its reader. Returns whether it was
    /// blocked. Unlike dropping the read, this loses no message that is on its way.
    ///
    /// # Errors
    /// [`BrokerError`]; a Redis user without this permission must wait until the read ends.
    pub async fn unblock(&self, reader: &ReaderId) -> Result<bool, BrokerError> {
        let mut cmd = redis::cmd("CLIENT");
        // Without ERROR, Redis 7.0 to 8 and Valkey panic if the read waits for the end of a CLIENT PAUSE, as in a failover:
        // https://github.com/valkey-io/valkey/issues/2111
        cmd.arg("UNBLOCK").arg(reader.number).arg("ERROR");
        let server = self.inner.connection.server(&reader.server);
        let reply = server.call(&cmd, self.inner.call_timeout).await?;
        decode("CLIENT UNBLOCK", reply)
    }

    /// Settles deliveries. Returns one outcome per delivery, in order. All must belong to the group on the shard, and no
    /// entry may occur twice.
    ///
    /// # Errors
    /// [`BrokerError`]; some may already be settled. Calling again is safe.
    pub async fn settle(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>, BrokerError> {
        let mut settled = vec![Settled::Stale; settlements.len()];
        // A shard is not dropped from its topic before everything in flight there has ended.
        if !self.topic(topic.name()).await?.has(shard) {
            return Ok(settled);
        }
        let (acks, others): (Vec<usize>, Vec<usize>) =
            (0..settlements.len()).partition(|&index| settlements[index].verdict == Verdict::Ack);
        let items = |chunk: &[usize]| -> Vec<&Settlement> {
            chunk.iter().map(|&index| &settlements[index]).collect()
        };
        for chunk in acks.chunks(MAX_BATCH) {
            let stale = self.ack(topic, shard, group, &items(chunk)).await?;
            for &index in chunk {
                settled[index] = Settled::Acked;
            }
            for &index in stale.iter().filter_map(|&index| chunk.get(index)) {
                settled[index] = Settled::Stale;
            }
        }
        for chunk in others.chunks(MAX_SETTLE) {
            let call = Settle {
                items: &items(chunk),
            };
            let outcomes = self.general(topic, shard, Some(group), &call).await?;
            for (&index, outcome) in chunk.iter().zip(outcomes) {
                settled[index] = outcome;
            }
        }
        if settled.contains(&Settled::Garbage) {
            self.wake_forwarder(topic, shard).await;
        }
        Ok(settled)
    }

    /// Acknowledges deliveries. Returns the indices of stale ones.
    async fn ack(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        items: &[&Settlement],
    ) -> Result<Vec<usize>, BrokerError> {
        let handle = self.topic(topic.name()).await?;
        if !handle.needs_general(shard) {
            let call = AckPlain {
                now: self.virtual_now(),
                group,
                items,
            };
            let keys = handle.group_keys(shard, group)?;
            match self.run(&keys, &call).await? {
                Ok(stale) => return Ok(stale),
                Err(Refusal::Class) => handle.set_needs_general(shard, true),
                // The general script finds the cause and recovers from it.
                Err(_) => {}
            }
        }
        let mut stale = Vec::new();
        for (part, items) in items.chunks(MAX_GENERAL_HOT_BATCH).enumerate() {
            let call = Ack { items };
            let indices = self.general(topic, shard, Some(group), &call).await?;
            stale.extend(
                indices
                    .into_iter()
                    .map(|i| i + part * MAX_GENERAL_HOT_BATCH),
            );
        }
        Ok(stale)
    }

    /// Removes a consumer from a group unless it holds messages. Returns whether it is gone.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn drop_consumer(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        consumer: &str,
    ) -> Result<bool, BrokerError> {
        let keys = topic.group_keys(shard, group)?;
        let dropped = self.run(&keys, &DropConsumer { group, consumer }).await?;
        dropped.map_err(|_| BrokerError::Changing(topic.name().clone()))
    }
}

/// `[entry, [field, value, …]]`; a deleted entry has no fields.
impl FromRedisValue for Read {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let (entry, fields): (EntryId, Value) = from_redis_value(value)?;
        let mut read = Self {
            id: None,
            attempt: Attempt {
                entry,
                number: 1,
                due: UnixMs::new(entry.ms()),
                crashes: 0,
                expires: None,
            },
        };
        if fields == Value::Nil {
            return Ok(read);
        }
        let unexpected = |fields| ParsingError::from(format!("expected fields, got {fields:?}"));
        for (name, value) in fields.into_map_iter().map_err(unexpected)? {
            let Value::BulkString(name) = name else {
                continue;
            };
            match name.as_slice() {
                b"i" => read.id = from_redis_value(value)?,
                b"a" => read.attempt.number = from_redis_value(value)?,
                b"d" => read.attempt.due = from_redis_value(value)?,
                b"c" => read.attempt.crashes = from_redis_value(value)?,
                b"x" => read.attempt.expires = from_redis_value(value)?,
                // A newer version may add fields.
                _ => {}
            }
        }
        Ok(read)
    }
}
