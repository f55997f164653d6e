//! Lists the ordering keys of a group that have parked messages, and what holds them up.

use crate::broker::shards::unless_gone;
use crate::broker::{Broker, BrokerError, Cursor, ParkedKey, TopicHandle};
use crate::scripts::ParkedKeys;
use crate::topic::Group;

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

/// The start of a page: behind a key of a shard, or behind the empty text at its start.
pub type ParkedKeyCursor = Cursor<String>;

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
        let ParkedKeyCursor {
            position: mut after,
            shard,
        } = cursor.unwrap_or(ParkedKeyCursor {
            position: String::new(),
            shard: topic.first_shard(),
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
                    let position = after;
                    let next = Some(ParkedKeyCursor { position, shard });
                    return Ok(ParkedKeyPage { keys, next });
                }
            }
        }
        Ok(ParkedKeyPage { keys, next: None })
    }
}
