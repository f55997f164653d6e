//! The newest failed attempts of a topic, which `scripts/lib/attempts.lua` appends to a bounded stream of each shard.

use redis::{FromRedisValue, ParsingError, Value, from_redis_value};
use serde::Serialize;

use crate::broker::attempts::FailedAttempt;
use crate::broker::reply::{Fields, command};
use crate::broker::shards::of_each;
use crate::broker::{Broker, BrokerError, Cursor, EntryPosition, TopicHandle};
use crate::fields::optional_text;
use crate::message::{EntryId, MessageId};
use crate::names::words;
use crate::time::UnixMs;
use crate::topic::{Group, Shard};

/// The number of failures that each shard keeps, at least. Redis drops entries in whole nodes of the stream.
pub const FAILURES_KEPT: usize = 1000;
/// The least number of failures in one read, if those of a group are selected.
const AT_ONCE: usize = 100;

words!(
    /// The consequence of a failed attempt.
    AfterFailure, "consequence", {
        /// The message waits for its next attempt.
        Retry = "retry",
        /// The message went to garbage (dead letters).
        Garbage = "garbage",
        /// The message was dropped, because it would have expired before its next attempt.
        Expired = "expired",
    }
);

/// A failed attempt of a message, and its consequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Failure {
    /// The message.
    pub id: MessageId,
    /// The group.
    pub group: Group,
    /// The number of the attempt. One that a crash ended is not charged, so the next one may have the same number.
    pub attempt: u32,
    /// The attempt.
    #[serde(flatten)]
    pub failed: FailedAttempt,
    /// The consequence.
    pub then: AfterFailure,
    /// The time of the next attempt; absent if there is none.
    #[serde(serialize_with = "optional_text::serialize")]
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub next_attempt_at: Option<UnixMs>,
}

impl Failure {
    /// Reads the fields of an entry; `None` if it is not of this version.
    fn read(fields: Fields) -> Option<Self> {
        let (mut id, mut group, mut attempt, mut failed, mut then, mut time) =
            (None, None, None, None, None, None);
        for (name, value) in fields {
            let text = String::from_utf8_lossy(&value);
            match name.as_slice() {
                b"i" => id = text.parse().ok(),
                b"g" => group = text.parse().ok(),
                b"n" => attempt = text.parse().ok(),
                b"r" => failed = FailedAttempt::read(&text),
                b"o" => then = text.parse().ok(),
                b"t" => time = text.parse().ok().map(UnixMs::new),
                _ => {}
            }
        }
        let then = then?;
        Some(Self {
            id: id?,
            group: group?,
            attempt: attempt?,
            failed: failed?,
            then,
            next_attempt_at: time.filter(|_| then == AfterFailure::Retry),
        })
    }
}

/// An entry of the failures of a shard; without a failure if another version wrote it.
pub(super) struct FailureEntry(pub(super) EntryId, pub(super) Option<Failure>);

impl FromRedisValue for FailureEntry {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let (entry, fields): (EntryId, Fields) = from_redis_value(value)?;
        Ok(Self(entry, Failure::read(fields)))
    }
}

/// The position of a failure among those of a topic: by time, then by shard.
pub type FailureCursor = Cursor<EntryPosition>;

/// A choice of failures: those of a group, and those from a time on.
#[derive(Clone, Copy, Debug, Default)]
pub struct FailureFilter<'a> {
    /// The group; all groups without one.
    pub group: Option<&'a Group>,
    /// The time of the oldest failure.
    pub since: Option<UnixMs>,
}

impl Broker {
    /// Returns up to `limit` (at most [`FAILURES_KEPT`]) kept failures of a topic, newest first: those before a position, or
    /// the newest. Also returns the start of the next page, if there are more.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn failures(
        &self,
        topic: &TopicHandle,
        filter: FailureFilter<'_>,
        before: Option<FailureCursor>,
        limit: usize,
    ) -> Result<(Vec<Failure>, Option<FailureCursor>), BrokerError> {
        let most = limit.clamp(1, FAILURES_KEPT) + 1;
        // Those of other groups are left out. A small page must not read them a few at a time.
        let wanted = match filter.group {
            Some(_) => most.max(AT_ONCE),
            None => most,
        };
        // Read in rounds: a page of each shard would be too much for a topic of many shards.
        let at_once = (2 * wanted).div_ceil(topic.shards().len()).min(wanted);
        let mut reads: Vec<_> = topic
            .shards()
            .map(|shard| ShardRead::new(shard, before))
            .collect();
        let mut all = Vec::new();
        loop {
            let round = reads
                .into_iter()
                .map(|read| self.read_on(topic, filter, read, at_once));
            let round = of_each(round.collect()).await?;
            let (read, found): (Vec<_>, Vec<_>) = round.into_iter().unzip();
            all.extend(found.into_iter().flatten());
            all.sort_unstable_by_key(|(cursor, _)| std::cmp::Reverse(*cursor));
            all.truncate(most);
            let oldest = all.last().filter(|_| all.len() == most);
            let oldest = oldest.map(|(cursor, _)| *cursor);
            reads = read
                .into_iter()
                .filter(|read| {
                    !read.is_over && oldest.is_none_or(|oldest| read.reached > Some(oldest))
                })
                .collect();
            if reads.is_empty() {
                break;
            }
        }
        let more = all.len() == most;
        all.truncate(most - 1);
        let next = all.last().filter(|_| more).map(|(cursor, _)| *cursor);
        let failures = all.into_iter().map(|(_, failure)| failure).collect();
        Ok((failures, next))
    }

    /// Reads the next failures of a shard, and leaves out those of other groups.
    async fn read_on(
        &self,
        topic: &TopicHandle,
        filter: FailureFilter<'_>,
        mut read: ShardRead,
        at_once: usize,
    ) -> Result<(ShardRead, Vec<(FailureCursor, Failure)>), BrokerError> {
        let shard = read.shard;
        let since = filter.since.unwrap_or_default().get().to_string();
        let command = command("XREVRANGE", &topic.keys(shard)?.failures)
            .arg(&[read.end.as_str(), since.as_str(), "COUNT"])
            .arg(at_once);
        let entries = self.ask(command).await;
        let entries: Vec<FailureEntry> =
            entries.map_err(|error: BrokerError| error.of_failures(topic.name(), shard))?;
        read.is_over = entries.len() < at_once;
        if let Some(FailureEntry(entry, _)) = entries.last() {
            read.end = format!("({entry}");
            read.reached = Some(FailureCursor {
                position: EntryPosition(*entry),
                shard,
            });
        }
        let found = entries
            .into_iter()
            .filter_map(|FailureEntry(entry, failure)| {
                let of_group =
                    |failure: &Failure| filter.group.is_none_or(|group| failure.group == *group);
                let position = EntryPosition(entry);
                Some((FailureCursor { position, shard }, failure.filter(of_group)?))
            });
        let found = found.collect();
        Ok((read, found))
    }
}

/// The progress of a read of a shard's failures, newest first.
struct ShardRead {
    shard: Shard,
    /// The end of the next range, as `XREVRANGE` takes it.
    end: String,
    /// The last failure that was read.
    reached: Option<FailureCursor>,
    is_over: bool,
}

impl ShardRead {
    fn new(shard: Shard, before: Option<FailureCursor>) -> Self {
        let end = before.map_or_else(
            || "+".to_owned(),
            |before| {
                let open = if shard < before.shard { "" } else { "(" };
                format!("{open}{}", before.position)
            },
        );
        Self {
            shard,
            end,
            reached: None,
            is_over: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::FailedOutcome;

    fn fields(changed: &[(&str, &str)]) -> Fields {
        let mut fields = vec![
            ("i", "m"),
            ("g", "billing"),
            ("n", "2"),
            ("r", "20 failed\tw-1\tno: tab\there"),
            ("o", "retry"),
            ("t", "90"),
            ("new", "x"),
        ];
        fields.extend(changed);
        let bytes = |text: &str| text.as_bytes().to_vec();
        fields
            .iter()
            .map(|(name, value)| (bytes(name), bytes(value)))
            .collect()
    }

    #[test]
    fn an_entry_is_read_unless_another_version_wrote_it() {
        let expected = Failure {
            id: "m".parse().unwrap(),
            group: "billing".parse().unwrap(),
            attempt: 2,
            failed: FailedAttempt {
                at: UnixMs::new(20),
                outcome: FailedOutcome::Failed,
                consumer: Some("w-1".to_owned()),
                error: "no: tab\there".to_owned(),
            },
            then: AfterFailure::Retry,
            next_attempt_at: Some(UnixMs::new(90)),
        };
        assert_eq!(Failure::read(fields(&[])), Some(expected.clone()));
        let in_garbage = Failure {
            then: AfterFailure::Garbage,
            next_attempt_at: None,
            ..expected
        };
        assert_eq!(Failure::read(fields(&[("o", "garbage")])), Some(in_garbage));
        assert_eq!(Failure::read(fields(&[("o", "frozen")])), None);
        assert_eq!(Failure::read(Vec::new()), None);
    }
}
