//! Finds a message on a group's stream. A stream has no index, so it is read entry by entry from its front, up to a
//! bound.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::broker::list::listed;
use crate::broker::{Broker, BrokerError, ListedMessage};
use crate::keys::GroupView;
use crate::message::MessageId;
use crate::state::State;
use crate::topic::Group;

/// The maximum number of entries that one lookup, or one page of an ordering key, reads from all streams together.
pub(super) const SCAN_LIMIT: usize = 10_000;
/// The number of entries that one call reads, in less than a millisecond of Redis's time.
const SCAN_PAGE: usize = 500;

/// The number of entries that may still be read, and the deadline for it.
#[derive(Debug)]
pub(super) struct ScanBudget {
    left: AtomicUsize,
    until: Instant,
}

impl ScanBudget {
    /// Creates the budget of one lookup, whose single calls may take as long as `call_timeout`. Reading ends well before
    /// that, so that the rest of the lookup is in time.
    pub(super) fn new(call_timeout: Duration) -> Self {
        Self {
            left: AtomicUsize::new(SCAN_LIMIT),
            until: Instant::now() + call_timeout / 5,
        }
    }

    pub(super) fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    /// Takes up to `most` entries. Returns the number taken.
    fn take(&self, most: usize) -> usize {
        if Instant::now() >= self.until {
            return 0;
        }
        let take = |left: usize| Some(left - left.min(most));
        let before = (self.left).fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        before.unwrap_or_default().min(most)
    }

    fn give_back(&self, unused: usize) {
        self.left.fetch_add(unused, Ordering::Relaxed);
    }
}

/// The number of messages ahead of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ahead {
    Exactly(u64),
    AtLeast(u64),
}

impl fmt::Display for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(count) => write!(f, "{count}"),
            Self::AtLeast(count) => write!(f, "at least {count}"),
        }
    }
}

/// The result of looking for a message on a stream.
#[derive(Clone, Debug)]
pub(super) enum Seen {
    /// The message is there. If it is ready, so many unread messages are ahead of it.
    Found(ListedMessage, u64),
    /// The message is not there.
    Missing,
    /// The message is not among the entries that may be read, and there are more.
    Beyond(Beyond),
}

/// The facts about a message behind the entries that may be read, if it is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beyond {
    /// The minimum number of messages ahead of it; if it is unread, without those in flight.
    pub(super) before: u64,
    /// True if no consumer can have read it.
    pub(super) is_unread: bool,
}

impl Broker {
    /// Looks for a message among the first `limit` entries of a group's stream.
    pub(super) async fn find_on_stream(
        &self,
        keys: GroupView<'_>,
        group: &Group,
        id: &MessageId,
        limit: usize,
        budget: &ScanBudget,
    ) -> Result<Seen, BrokerError> {
        let ready = &keys.group.ready;
        let mut from = "-".to_owned();
        let mut last = None;
        let mut passed = 0;
        loop {
            let count = budget.take(SCAN_PAGE.min(limit - passed));
            if count == 0 {
                break;
            }
            let reads = self.entries(ready, &from, "+", count).await?;
            let is_end = reads.len() < count;
            budget.give_back(count - reads.len());
            last = reads.last().map(|read| read.attempt.entry).or(last);
            let length = reads.len();
            let found =
                (reads.into_iter().enumerate()).find(|(_, read)| read.id.as_ref() == Some(id));
            if let Some((index, read)) = found {
                let entry = read.attempt.entry.to_string();
                let holder = self.pending(ready, group, &entry, &entry, 1).await?.pop();
                let consumer = holder.map(|(_, consumer)| consumer);
                let (state, before) = if consumer.is_some() {
                    (State::InFlight, 0)
                } else {
                    (
                        State::Ready,
                        self.unread(keys, group, passed + index).await?,
                    )
                };
                let found = listed(read, state).map(|listed| ListedMessage { consumer, ..listed });
                return Ok(found.map_or(Seen::Missing, |found| Seen::Found(found, before)));
            }
            if is_end {
                return Ok(Seen::Missing);
            }
            passed += length;
            if let Some(last) = last {
                from = format!("({last}");
            }
        }
        if self.entries(ready, &from, "+", 1).await?.is_empty() {
            return Ok(Seen::Missing);
        }
        let delivered = self.last_delivered(ready, group).await?;
        let is_unread = last.is_some_and(|last| delivered.is_none_or(|entry| last > entry));
        let before = match is_unread {
            true => self.unread(keys, group, passed).await?,
            false => passed as u64,
        };
        Ok(Seen::Beyond(Beyond { before, is_unread }))
    }

    /// Returns the number of unread entries among the `passed` ones before an unread one: all entries in flight are
    /// among them.
    async fn unread(
        &self,
        keys: GroupView<'_>,
        group: &Group,
        passed: usize,
    ) -> Result<u64, BrokerError> {
        let in_flight = self.pending_count(&keys.group.ready, group).await?;
        Ok((passed as u64).saturating_sub(in_flight))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_ends_with_its_entries_or_its_time() {
        let budget = ScanBudget::new(Duration::from_secs(3600));
        assert_eq!(budget.take(SCAN_LIMIT - 1), SCAN_LIMIT - 1);
        assert_eq!((budget.take(500), budget.take(500)), (1, 0));
        budget.give_back(7);
        assert_eq!((budget.left(), budget.take(500)), (7, 7));
        let over = ScanBudget::new(Duration::ZERO);
        assert_eq!(over.take(500), 0);
    }
}
