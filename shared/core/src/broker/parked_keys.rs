//! Lists the ordering keys of a group that have parked messages, and what holds them up.

use std::fmt;
use std::str::FromStr;

use crate::broker::shards::unless_gone;
use crate::broker::{Broker, BrokerError, InvalidCursor, ParkedKey, TopicHandle};
use crate::scripts::ParkedKeys;
use crate::topic::{Group, Shard};

/// The maximum number of keys of a page.
pub const MAX_PARKED_KEYS: usize = 50;
/// The number of keys that one call reads, in about 0.4 ms of Redis's time.
const KEYS_AT_ONCE: usize = 20;

/// A page of the ordering keys that have parked messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedKeyPage {
    /// The keys, in byte order within a shard.
    pub keys: Vec<ParkedKey>,
    /// The start of the next page; `None` at the end.
    pub next: Option<ParkedKeyCursor>,
}

/// The start of a page: behind a key of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedKeyCursor {
    shard: Shard,
    /// Empty at the start of the shard.
    after: String,
}

impl fmt::Display for ParkedKeyCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.shard, self.after)
    }
}

impl FromStr for ParkedKeyCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let (shard, after) = text.split_once(':').ok_or(InvalidCursor)?;
        Ok(Self {
            shard: Shard::new(shard.parse().map_err(|_| InvalidCursor)?),
            after: after.to_owned(),
        })
    }
}

impl Broker {
    /// Lists up to `limit` (at most [`MAX_PARKED_KEYS`]) ordering keys of a group that have parked messages, each with the
    /// message that those wait for. Takes a script call for each shard and 20 keys, whatever the number of messages.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn parked_keys(
        &self,
        topic: &TopicHandle,
        group: &Group,
        cursor: Option<ParkedKeyCursor>,
        limit: usize,
    ) -> Result<ParkedKeyPage, BrokerError> {
        let limit = limit.clamp(1, MAX_PARKED_KEYS);
        let ParkedKeyCursor { shard, mut after } = cursor.unwrap_or(ParkedKeyCursor {
            shard: topic.first_shard(),
            after: String::new(),
        });
        let mut keys = Vec::new();
        let mut shards = self.all_shards_from(topic, shard);
        let mut current = shard;
        while let Some((topic, shard)) = shards.next().await? {
            if shard != current {
                after = String::new();
                current = shard;
            }
            loop {
                let most = KEYS_AT_ONCE.min(limit - keys.len());
                let call = ParkedKeys {
                    after: &after,
                    limit: most,
                };
                let found = self.general(&topic, shard, Some(group), &call).await;
                let found = unless_gone(found)?.unwrap_or_default();
                let Some(last) = found.last().filter(|_| found.len() == most) else {
                    keys.extend(found);
                    break;
                };
                last.key.clone_into(&mut after);
                keys.extend(found);
                if keys.len() == limit {
                    let next = Some(ParkedKeyCursor { shard, after });
                    return Ok(ParkedKeyPage { keys, next });
                }
            }
        }
        Ok(ParkedKeyPage { keys, next: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_is_written() {
        for text in ["0:", "7:customer 7", "65535:a:b"] {
            let cursor: ParkedKeyCursor = text.parse().unwrap();
            assert_eq!(cursor.to_string(), text);
        }
        for bad in ["", "7", ":a", "-1:a", "65536:a"] {
            assert_eq!(bad.parse::<ParkedKeyCursor>(), Err(InvalidCursor), "{bad}");
        }
    }
}
