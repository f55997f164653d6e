//! Reads the ordering keys of stored messages, and their arrival numbers.

use futures_util::future::try_join_all;

use crate::broker::reply::command;
use crate::broker::{Broker, BrokerError, MAX_BATCH, TopicHandle};
use crate::message::{MessageId, OrderingKey};
use crate::topic::Shard;

/// More than the arrival numbers of a shard, which have twelve digits.
const ARRIVALS: u64 = 1_000_000_000_000;

/// The number of values before the ordering key in `meta`; all of them are numbers.
const NUMBERS: usize = 6;

impl Broker {
    /// Returns the ordering keys of stored messages, in order; `None` for one that has none, or is not stored. Takes at most
    /// [`MAX_BATCH`] ids.
    ///
    /// On a shard that is known to have been plain, this first reads its class: a plain shard has no keys.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn ordering_keys(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        ids: &[MessageId],
    ) -> Result<Vec<Option<OrderingKey>>, BrokerError> {
        let key = |packed: Option<Vec<u8>>| match packed {
            Some(packed) => ordering_key(&packed)
                .ok_or_else(|| BrokerError::reply("HMGET", "packed options", &packed)),
            None => Ok(None),
        };
        let packed = self.packed_options(topic, shard, ids).await?;
        packed.into_iter().map(key).collect()
    }

    /// Returns the ordering keys like [`Broker::ordering_keys`], but `None` also for a message whose options are malformed.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn readable_ordering_keys(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        ids: &[MessageId],
    ) -> Result<Vec<Option<OrderingKey>>, BrokerError> {
        let packed = self.packed_options(topic, shard, ids).await?.into_iter();
        Ok(packed
            .map(|packed| ordering_key(&packed?).flatten())
            .collect())
    }

    /// Returns the sequence numbers of stored messages with ordering keys, in order; `None` for one that is not stored. Those of a
    /// key grow in the order in which its messages were sent, also across a change of the number of shards. A message that is
    /// rescheduled gets a new one.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn sequence_numbers(
        &self,
        topic: &TopicHandle,
        messages: &[(&MessageId, &OrderingKey)],
    ) -> Result<Vec<Option<u64>>, BrokerError> {
        let numbers = messages.iter().map(async |(id, key)| {
            for shard in topic.shards_of(id, Some(key)) {
                let meta = &topic.keys(shard)?.meta;
                let packed = command("HGET", meta).arg(id.as_str());
                let packed: Option<Vec<u8>> = self.ask(packed).await?;
                let Some(packed) = packed else { continue };
                let arrival = unpack_arrival(&packed)
                    .ok_or_else(|| BrokerError::reply("HGET", "packed options", &packed))?;
                // The numbers of shards only grow.
                return Ok(Some(u64::from(shard.get()) * ARRIVALS + arrival));
            }
            Ok(None)
        });
        try_join_all(numbers).await
    }

    async fn packed_options(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        ids: &[MessageId],
    ) -> Result<Vec<Option<Vec<u8>>>, BrokerError> {
        debug_assert!(ids.len() <= MAX_BATCH, "keys of {} ids", ids.len());
        let keys = topic.keys(shard)?;
        let none = || vec![None; ids.len()];
        if ids.is_empty() {
            return Ok(none());
        }
        if !topic.needs_general(shard) {
            let class: Option<String> = self.ask(command("HGET", &keys.conf).arg("class")).await?;
            if class.as_deref() == Some("plain") {
                return Ok(none());
            }
            topic.set_needs_general(shard, true);
        }
        let packed: Vec<Option<Vec<u8>>> = self.ask(command("HMGET", &keys.meta).ids(ids)).await?;
        if packed.len() != ids.len() {
            return Err(BrokerError::reply(
                "HMGET",
                "a value for each id",
                &packed.len(),
            ));
        }
        Ok(packed)
    }
}

/// Returns the ordering key in packed options, if there is one; `None` if they are malformed.
fn ordering_key(packed: &[u8]) -> Option<Option<OrderingKey>> {
    match unpack_key(packed)? {
        "" => Some(None),
        key => key.parse().ok().map(Some),
    }
}

/// Unpacks the arrival number, the first value; `None` if it is malformed.
fn unpack_arrival(packed: &[u8]) -> Option<u64> {
    let (kind, rest) = packed.split_first()?;
    let size = match kind {
        0x00..=0x7f => return Some(u64::from(*kind)),
        0xcc => 1,
        0xcd => 2,
        0xce => 4,
        0xcf => 8,
        _ => return None,
    };
    let bytes = rest.get(..size)?.iter();
    Some(bytes.fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Unpacks the ordering key from the MessagePack of `write_meta` in `lib/copies.lua`.
fn unpack_key(mut packed: &[u8]) -> Option<&str> {
    for _ in 0..NUMBERS {
        let (kind, rest) = packed.split_first()?;
        let size = match kind {
            0x00..=0x7f | 0xe0..=0xff => 0,
            0xcc | 0xd0 => 1,
            0xcd | 0xd1 => 2,
            0xca | 0xce | 0xd2 => 4,
            0xcb | 0xcf | 0xd3 => 8,
            _ => return None,
        };
        packed = rest.get(size..)?;
    }
    let (kind, rest) = packed.split_first()?;
    let (length, rest) = match kind {
        0xa0..=0xbf => (usize::from(kind & 0x1f), rest),
        0xd9 => (usize::from(*rest.first()?), rest.get(1..)?),
        0xda => {
            let (length, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        _ => return None,
    };
    std::str::from_utf8(rest.get(..length)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrival_number_of_any_size_is_read() {
        for (packed, number) in [
            (&b"\x07"[..], Some(7)),
            (b"\xcc\x80", Some(128)),
            (b"\xcd\x01\x00", Some(256)),
            (b"\xce\x00\x01\x00\x00", Some(65_536)),
            (b"\xcf\0\0\0\xe8\xd4\xa5\x0f\xff", Some(999_999_999_999)),
            (b"\xcd\x01", None),
            (b"\xa1x", None),
            (b"", None),
        ] {
            assert_eq!(unpack_arrival(packed), number, "{packed:?}");
        }
    }

    #[test]
    fn a_key_of_any_length_is_found_behind_numbers_of_any_size() {
        let numbers =
            b"\x01\xcf\0\0\x01\x8b\xcf\xe5\x68\0\xd0\x80\xff\xcb\0\0\0\0\0\0\0\0\xcd\x01\0";
        for (head, length) in [
            (&b"\xa3"[..], 3),
            (b"\xbf", 31),
            (b"\xd9\x20", 32),
            (b"\xda\x01\0", 256),
            (b"\xa0", 0),
        ] {
            let key = "k".repeat(length);
            let mut packed = [numbers, head, key.as_bytes()].concat();
            packed.extend(b"\xa5merge");
            assert_eq!(unpack_key(&packed), Some(&*key));
            for end in 0..numbers.len() + head.len() + length {
                assert_eq!(unpack_key(&packed[..end]), None, "{end}");
            }
        }
        assert_eq!(unpack_key(b"\x01\x02\x03\x04\x05\xa1x\xa1k"), None);
    }
}
