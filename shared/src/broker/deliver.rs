//! What consumers ask: read, renew the lease, settle.

use std::time::Duration;

use redis::{Cmd, Value};

use super::registry::flat;
use super::{Broker, BrokerError, MAX_BATCH, MAX_FULL_BATCH, TopicHandle};
use crate::link::{LinkErrorKind, Reader, ServerId};
use crate::message::{EntryId, MessageId};
use crate::scripts::{
    Ack, AckItem, AckPlain, DropConsumer, Refusal, Settle, SettleItem, SettleKind, UnexpectedReply,
    unexpected,
};
use crate::state::{Attempt, Settled};
use crate::time::{UnixMs, When, millis};
use crate::topic::{Group, Shard};

/// A settle is longer than an ack: several commands a message.
const MAX_SETTLE: usize = 50;
/// The delivery counts that tell a marked delivery from the others.
const MARKED: u8 = 2;
const UNMARKED: u8 = 1;

/// What a read gave.
#[derive(Debug)]
pub struct Read {
    /// The message; `None` for an entry that has none, which only damage can make.
    pub id: Option<MessageId>,
    /// The delivery.
    pub attempt: Attempt,
}

/// Names the connection of a reader to its server.
#[derive(Clone)]
pub struct ReaderId {
    server: ServerId,
    number: u64,
}

/// One delivery to settle.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// The delivery.
    pub entry: EntryId,
    /// The message.
    pub id: MessageId,
    /// Whether the id is the caller's own.
    pub caller_id: bool,
    /// The attempt after which the message goes to garbage.
    pub max_attempts: u32,
    /// How it ended.
    pub verdict: Verdict,
}

/// How a delivery ended, as its consumer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Done.
    Ack,
    /// Failed: again then, counted.
    Retry {
        /// When.
        when: When,
        /// What went wrong.
        error: String,
    },
    /// Again then, uncounted.
    Defer {
        /// When.
        when: When,
    },
    /// Given back by its consumer, which ran no handler to its end: again then, uncounted, and as suspect as before.
    HandBack {
        /// When.
        when: When,
    },
    /// Given up.
    Reject {
        /// Why.
        error: String,
    },
    /// Too old to be handled: no handler ran, and no attempt is counted.
    Expired,
    /// Its payload was not there.
    Lost,
}

impl Broker {
    /// Reads up to `count` messages for a consumer of a group, waiting up to `block` for the first.
    /// A group that is gone from Redis is made again, from the first entry on.
    ///
    /// # Errors
    /// [`BrokerError`]; the reader is closed then and must be replaced.
    ///
    /// # Cancel safety
    /// Dropping the future closes the reader, so that no message goes to a read that nobody awaits;
    /// one that was on its way is reclaimed after its lease.
    #[expect(
        clippy::too_many_arguments,
        reason = "a place, a consumer, and how to read"
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
        let keys = topic.group_keys(shard, group)?;
        let mut cmd = redis::cmd("XREADGROUP");
        cmd.arg("GROUP").arg(group.as_str()).arg(consumer);
        cmd.arg("COUNT")
            .arg(count)
            .arg("BLOCK")
            .arg(millis(block).max(1));
        cmd.arg("STREAMS").arg(keys.group.ready.as_ref()).arg(">");
        match reader.read(&cmd, block).await {
            Ok(reply) => parse_read(reply).map_err(|error| BrokerError::Reply {
                what: "XREADGROUP",
                error,
            }),
            Err(error) if error.kind == LinkErrorKind::NoGroup => {
                self.declare_again(topic).await?;
                Err(error.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reports that a consumer reads a group, so that statistics count it for the next 30 s. A read that waits does not say so
    /// to every server.
    ///
    /// # Errors
    /// [`BrokerError`].
    ///
    /// # Cancel safety
    /// Nothing but the time at which the consumer was seen changes.
    pub async fn announce(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        consumer: &str,
    ) -> Result<(), BrokerError> {
        let ready = &topic.group_keys(shard, group)?.group.ready;
        let mut cmd = redis::cmd("XREADGROUP");
        cmd.arg("GROUP").arg(group.as_str()).arg(consumer);
        // What it holds behind the last possible entry, which is nothing.
        cmd.arg("COUNT").arg(1).arg("STREAMS").arg(ready.as_ref());
        cmd.arg(format!("{}-0", u64::MAX));
        self.call(ready, &cmd).await?;
        Ok(())
    }

    /// Renews the lease of deliveries that a consumer of a group holds, and marks them: a crash is charged to marked
    /// messages only. Returns those it still holds; the others were reclaimed or settled.
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

    /// Removes the marks that [`Broker::renew`] made, and renews the leases. Returns those deliveries that the consumer
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

    /// Renews the lease of deliveries that a consumer of a group holds, and leaves their marks as they are. Returns
    /// those it still holds; the others were reclaimed or settled.
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
            let mut cmd = redis::cmd("XCLAIM");
            cmd.arg(keys.group.ready.as_ref())
                .arg(group.as_str())
                .arg(consumer)
                .arg(0);
            for entry in chunk {
                cmd.arg(entry.to_string());
            }
            // An entry never changes hands, so this claims from nobody but itself. JUSTID alone leaves the delivery
            // count, which is the mark, as it is.
            if let Some(deliveries) = deliveries {
                cmd.arg("RETRYCOUNT").arg(deliveries);
            }
            cmd.arg("JUSTID");
            let reply = match self.call(&keys.group.ready, &cmd).await {
                // Without its group nobody holds anything.
                Err(error) if error.kind == LinkErrorKind::NoGroup => continue,
                reply => reply?,
            };
            let wrong = |error| BrokerError::Reply {
                what: "XCLAIM",
                error,
            };
            let Value::Array(ids) = reply else {
                return Err(wrong(unexpected("entry ids", &reply)));
            };
            for id in &ids {
                held.push(entry_id(id).map_err(wrong)?);
            }
        }
        Ok(held)
    }

    /// Gives the number under which its server knows a reader's connection, for [`Broker::unblock`].
    ///
    /// # Errors
    /// [`BrokerError`]; the reader is closed then and must be replaced.
    pub async fn reader_id(&self, reader: &mut Reader) -> Result<ReaderId, BrokerError> {
        let mut cmd = redis::cmd("CLIENT");
        cmd.arg("ID");
        match reader.call(&cmd).await? {
            Value::Int(number) if number > 0 => Ok(ReaderId {
                server: reader.server_id(),
                number: number.unsigned_abs(),
            }),
            other => Err(BrokerError::Reply {
                what: "CLIENT ID",
                error: unexpected("a connection's number", &other),
            }),
        }
    }

    /// Lets a blocked read of another connection end as if its time were over; says whether it was
    /// blocked. Unlike dropping the read, this loses nothing that was on its way.
    ///
    /// # Errors
    /// [`BrokerError`]; a user without this permission must wait for the read.
    pub async fn unblock(&self, reader: &ReaderId) -> Result<bool, BrokerError> {
        let mut cmd = redis::cmd("CLIENT");
        cmd.arg("UNBLOCK").arg(reader.number);
        let server = self.inner.link.server(&reader.server);
        match server.call(&cmd, self.inner.patience).await? {
            Value::Int(unblocked) => Ok(unblocked == 1),
            other => Err(BrokerError::Reply {
                what: "CLIENT UNBLOCK",
                error: unexpected("0 or 1", &other),
            }),
        }
    }

    /// Ends deliveries; one outcome each, in order. All must be of the group on the shard, no entry
    /// twice.
    ///
    /// # Errors
    /// [`BrokerError`]; some of them may be settled then, and calling again is safe.
    pub async fn settle(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>, BrokerError> {
        let mut settled = vec![Settled::Stale; settlements.len()];
        // A shard is given up when nothing is in flight there.
        if !self.topic(topic.name()).await?.has(shard) {
            return Ok(settled);
        }
        let (acks, others): (Vec<usize>, Vec<usize>) =
            (0..settlements.len()).partition(|&index| settlements[index].verdict == Verdict::Ack);
        for chunk in acks.chunks(MAX_BATCH) {
            let items: Vec<AckItem<'_>> = chunk
                .iter()
                .map(|&index| settlements[index].ack_item())
                .collect();
            let stale = self.ack(topic, shard, group, &items).await?;
            for &index in chunk {
                settled[index] = Settled::Acked;
            }
            for &index in stale.iter().filter_map(|&index| chunk.get(index)) {
                settled[index] = Settled::Stale;
            }
        }
        for chunk in others.chunks(MAX_SETTLE) {
            let items: Vec<SettleItem<'_>> = chunk
                .iter()
                .map(|&index| settlements[index].item())
                .collect();
            let call = Settle { items: &items };
            let outcomes = self.general(topic, shard, Some(group), &call).await?;
            for (&index, outcome) in chunk.iter().zip(outcomes) {
                settled[index] = outcome;
            }
        }
        Ok(settled)
    }

    /// Removes handled deliveries; gives the indices of those that were stale.
    async fn ack(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        items: &[AckItem<'_>],
    ) -> Result<Vec<usize>, BrokerError> {
        let handle = self.topic(topic.name()).await?;
        if !handle.is_full(shard) {
            let call = AckPlain {
                now: self.virtual_now(),
                group,
                items,
            };
            let keys = handle.group_keys(shard, group)?;
            match self.run(&keys, &call).await? {
                Ok(stale) => return Ok(stale),
                Err(Refusal::Class) => handle.set_full(shard, true),
                // The general script finds out, and what to do.
                Err(_) => {}
            }
        }
        let mut stale = Vec::new();
        for (part, items) in items.chunks(MAX_FULL_BATCH).enumerate() {
            let call = Ack { items };
            let indices = self.general(topic, shard, Some(group), &call).await?;
            stale.extend(indices.into_iter().map(|i| i + part * MAX_FULL_BATCH));
        }
        Ok(stale)
    }

    /// Forgets a consumer of a group unless it holds messages; says whether it is gone.
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

impl Settlement {
    fn ack_item(&self) -> AckItem<'_> {
        AckItem {
            entry: self.entry,
            id: &self.id,
            caller_id: self.caller_id,
        }
    }

    fn item(&self) -> SettleItem<'_> {
        let kind = match &self.verdict {
            Verdict::Retry { when, error } => SettleKind::Retry { when: *when, error },
            Verdict::Defer { when } => SettleKind::Defer { when: *when },
            Verdict::HandBack { when } => SettleKind::HandBack { when: *when },
            Verdict::Reject { error } => SettleKind::Reject { error },
            Verdict::Expired => SettleKind::Expired,
            Verdict::Ack | Verdict::Lost => SettleKind::Lost,
        };
        SettleItem {
            entry: self.entry,
            id: &self.id,
            kind,
            max_attempts: self.max_attempts,
        }
    }
}

/// Reads `[[key, [[entry, [field, value, …]], …]]]`, or nothing.
fn parse_read(reply: Value) -> Result<Vec<Read>, UnexpectedReply> {
    let mut streams = match flat(reply) {
        Value::Nil => return Ok(Vec::new()),
        Value::Array(streams) => streams,
        other => return Err(unexpected("streams", &other)),
    };
    // RESP3 gives key, entries; RESP2 gives one array of both.
    let entries = match streams.pop() {
        Some(Value::Array(mut pair)) if streams.is_empty() => pair.pop().unwrap_or(Value::Nil),
        Some(entries) => entries,
        None => return Ok(Vec::new()),
    };
    match entries {
        Value::Array(entries) => entries.iter().map(parse_entry).collect(),
        Value::Nil => Ok(Vec::new()),
        other => Err(unexpected("entries", &other)),
    }
}

/// Reads `[entry, [field, value, …]]`.
pub(super) fn parse_entry(value: &Value) -> Result<Read, UnexpectedReply> {
    let Value::Array(parts) = value else {
        return Err(unexpected("an entry", value));
    };
    let [id, fields] = parts.as_slice() else {
        return Err(unexpected("an entry id and fields", value));
    };
    let entry = entry_id(id)?;
    let mut read = Read {
        id: None,
        attempt: Attempt {
            entry,
            number: 1,
            due: UnixMs::new(entry.ms()),
            crashes: 0,
            expires: None,
        },
    };
    // A deleted entry has no fields.
    if let Value::Array(fields) = fields {
        for pair in fields.chunks_exact(2) {
            let (name, text) = (text(&pair[0])?, text(&pair[1])?);
            let wrong = |_| unexpected("a number", &text);
            match name {
                "i" => {
                    read.id = Some(
                        text.parse()
                            .map_err(|_| unexpected("a message id", &text))?,
                    )
                }
                "a" => read.attempt.number = text.parse().map_err(wrong)?,
                "d" => read.attempt.due = UnixMs::new(text.parse().map_err(wrong)?),
                "c" => read.attempt.crashes = text.parse().map_err(wrong)?,
                "x" => read.attempt.expires = Some(UnixMs::new(text.parse().map_err(wrong)?)),
                // A newer version may add fields.
                _ => {}
            }
        }
    }
    Ok(read)
}

pub(super) fn text(value: &Value) -> Result<&str, UnexpectedReply> {
    match value {
        Value::BulkString(bytes) => {
            std::str::from_utf8(bytes).map_err(|_| unexpected("UTF-8", value))
        }
        Value::SimpleString(text) => Ok(text),
        other => Err(unexpected("a string", other)),
    }
}

pub(super) fn entry_id(value: &Value) -> Result<EntryId, UnexpectedReply> {
    text(value)?
        .parse()
        .map_err(|_| unexpected("an entry id", value))
}

/// Makes a command over a key; for reads that need no script.
pub(super) fn command(name: &'static str, key: &crate::keys::Key) -> Cmd {
    let mut cmd = redis::cmd(name);
    cmd.arg(key.as_ref());
    cmd
}
