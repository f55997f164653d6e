//! Looks up one message: its state in each group of its topic, and why it has not run there.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::broker::attempts::{FailedAttempt, attempts_in, error_in};
use crate::broker::scan::{Ahead, Beyond, ScanBudget, Seen};
use crate::broker::shards::unless_gone;
use crate::broker::{Broker, BrokerError, ListedMessage, NO_MANAGER, TopicHandle};
use crate::message::{MessageId, OrderingKey};
use crate::scripts::{self, Lookup, LookupReply, Stored};
use crate::state::{Ended, State};
use crate::time::UnixMs;
use crate::topic::{Group, Shard};

/// The result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The message is stored.
    Stored {
        /// Its state and what is known of it there, in the first group that must still deliver it.
        listed: ListedMessage,
        /// Its encoded record.
        record: Bytes,
        /// Its options, and its state in each group.
        details: Box<Details>,
    },
    /// The message does not exist, or has ended.
    Unknown {
        /// The way it ended, if that is remembered.
        end: Option<Ended>,
    },
}

/// The options of a message, and its state in each group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// The time at which it is or was due; `None` for a plain message that is no longer waiting.
    pub due: Option<UnixMs>,
    /// The time at which it expires.
    pub expires: Option<UnixMs>,
    /// Its priority.
    pub priority: i32,
    /// Its merge key.
    pub merge_key: Option<String>,
    /// Its copies, in the order of the topic's groups.
    pub copies: Vec<GroupCopy>,
}

/// A message in one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupCopy {
    /// The group.
    pub group: Group,
    /// Its state there. `None` if the group is done with it or never got it, or if its state is unknown.
    pub listed: Option<ListedMessage>,
    /// True if the group is done with it or never got it.
    pub is_done: bool,
    /// An explanation of why it has not run, or what it waits for. It counts the messages before this one, up to a
    /// bound; beyond the bound it says "at least".
    pub why: String,
    /// The message that holds its ordering key, if it is parked.
    pub holder: Option<MessageId>,
    /// Its last failed attempts, up to five, newest first.
    pub attempts: Vec<FailedAttempt>,
}

impl GroupCopy {
    /// Returns its state, `done`, or `unknown` if it may be on the stream behind the entries that a lookup reads.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match &self.listed {
            Some(listed) => listed.state.as_str(),
            None if self.is_done => "done",
            None => "unknown",
        }
    }
}

impl Broker {
    /// Looks up one message. Asks the shards in turn if neither the key nor the id determines the shard. Looks again if
    /// the message changes its state while the stream is read.
    ///
    /// Reads at most 10,000 stream entries, for a fifth of the broker's call timeout. A message behind them counts as
    /// ready, and has a time only if its options hold it. If the message is due and not moved, also checks whether a
    /// manager is running.
    ///
    /// The UUID of an id that Lisa generated also finds its message: clients of Amazon SQS know only that.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn lookup(
        &self,
        topic: &TopicHandle,
        id: &MessageId,
        key: Option<&OrderingKey>,
    ) -> Result<Found, BrokerError> {
        let budget = ScanBudget::new(self.inner.call_timeout);
        let mut found = self.lookup_within(topic, id, key, &budget).await?;
        if matches!(found, Found::Unknown { end: None })
            && let Some(id) = MessageId::of_uuid(id.as_str())
        {
            found = self.lookup_within(topic, &id, key, &budget).await?;
        }
        if let Found::Stored { details, .. } = &mut found {
            self.say_if_unmanaged(&mut details.copies).await;
        }
        Ok(found)
    }

    /// Adds [`NO_MANAGER`] to copies that are due and not moved, if no manager is running. A failed check adds nothing.
    async fn say_if_unmanaged(&self, copies: &mut [GroupCopy]) {
        let now = self.now();
        let is_overdue = |copy: &&mut GroupCopy| {
            copy.listed.as_ref().is_some_and(|listed| {
                matches!(listed.state, State::Waiting | State::Retry)
                    && listed.due_at.is_none_or(|due| due <= now)
            })
        };
        let overdue: Vec<&mut GroupCopy> = copies.iter_mut().filter(is_overdue).collect();
        if overdue.is_empty() || !matches!(self.has_manager().await, Ok(false)) {
            return;
        }
        for copy in overdue {
            copy.why += "; ";
            copy.why += NO_MANAGER;
        }
    }

    pub(super) async fn lookup_within(
        &self,
        topic: &TopicHandle,
        id: &MessageId,
        key: Option<&OrderingKey>,
        budget: &ScanBudget,
    ) -> Result<Found, BrokerError> {
        let mut search = self.search(topic, id, key);
        while let Some(shard) = self.next_shard(&mut search).await? {
            let found = self.lookup_on_within(topic, shard, id, budget).await;
            match unless_gone(found)? {
                None => {}
                Some(Found::Unknown { end }) => search.end = search.end.or(end),
                Some(stored) => return Ok(stored),
            }
        }
        Ok(Found::Unknown { end: search.end })
    }

    /// Looks up one message on a shard.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn lookup_on(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        id: &MessageId,
    ) -> Result<Found, BrokerError> {
        let budget = ScanBudget::new(self.inner.call_timeout);
        self.lookup_on_within(topic, shard, id, &budget).await
    }

    async fn lookup_on_within(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        id: &MessageId,
        budget: &ScanBudget,
    ) -> Result<Found, BrokerError> {
        // Groups on whose streams it is behind the entries that may be read, if it is there.
        let mut beyond: BTreeMap<Group, Beyond> = BTreeMap::new();
        for is_last_try in [false, false, true] {
            let reply = self.general(topic, shard, None, &Lookup { id }).await?;
            let stored = match reply {
                LookupReply::Unknown { end } => return Ok(Found::Unknown { end }),
                LookupReply::Stored(stored) => stored,
            };
            let handle = self.topic(topic.name()).await?;
            let keys = handle.keys(shard)?;
            let groups = || keys.groups.iter().map(|group| keys.view(group));
            let placed = stored.copies.iter().filter(|copy| copy.state.is_some());
            let placed = placed.count();
            // Of the groups that have it in no other state, so many have it on the stream; the others are done with it.
            let on_streams = stored.owed.saturating_sub(placed);
            let share = budget.left() / (stored.copies.len() - placed).max(1);
            let mut seen = Vec::with_capacity(stored.copies.len());
            // A message that was not found may have moved in the meantime.
            let mut is_sure = true;
            for (copy, view) in stored.copies.iter().zip(groups()) {
                let group = &view.group.name;
                seen.push(match beyond.get(group) {
                    _ if copy.state.is_some() || on_streams == 0 => None,
                    Some(beyond) => Some(Seen::Beyond(*beyond)),
                    None => {
                        let seen = self.find_on_stream(view, group, id, share, budget).await?;
                        if let Seen::Beyond(found) = &seen {
                            beyond.insert(group.clone(), *found);
                            is_sure = false;
                        }
                        Some(seen)
                    }
                });
            }
            let located = seen.iter().flatten();
            let located = located.filter(|seen| !matches!(seen, Seen::Missing));
            let located = located.count();
            is_sure &= located >= on_streams;
            let copies: Vec<GroupCopy> = (stored.copies.iter().zip(seen).zip(groups()))
                .map(|((copy, seen), view)| {
                    let known = Known {
                        seen,
                        is_there: located == on_streams,
                        is_elsewhere: located >= on_streams,
                    };
                    copy_of(id, &stored, copy, known, &view.group.name)
                })
                .collect();
            let listed = copies.iter().find_map(|copy| copy.listed.clone());
            let listed = listed.or_else(|| waiting_for_a_group(id, &stored));
            if !is_last_try && (listed.is_none() || !is_sure) {
                continue;
            }
            let owing = copies.iter().position(|copy| !copy.is_done);
            let listed = listed.or_else(|| {
                let copy = stored.copies.get(owing?)?;
                Some(listed_of(id, copy, stored.due))
            });
            let Some(listed) = listed else {
                break;
            };
            let key = stored.key.parse().ok();
            let text = |text: String| Some(text).filter(|text| !text.is_empty());
            return Ok(Found::Stored {
                listed: ListedMessage { key, ..listed },
                record: stored.record.into(),
                details: Box::new(Details {
                    due: stored.due,
                    expires: stored.expires,
                    priority: stored.priority,
                    merge_key: text(stored.merge_key),
                    copies,
                }),
            });
        }
        Ok(Found::Unknown { end: None })
    }
}

/// Lists a message that no group has yet because its topic has none.
fn waiting_for_a_group(id: &MessageId, stored: &Stored) -> Option<ListedMessage> {
    let due = stored.due.filter(|_| stored.copies.is_empty())?;
    let state = State::Waiting;
    Some(ListedMessage::new(id.clone(), state, Some(due), 1))
}

const DONE: &str = "done, or never due for this group";
const MISSING: &str = "not found on the stream; if this persists, run `lisa-manager doctor`";

/// The facts about a copy that the script's reply does not have.
struct Known {
    /// The result of looking on the stream; `None` if that was not needed.
    seen: Option<Seen>,
    /// True if it is on the stream of each group where it was not ruled out.
    is_there: bool,
    /// True if all of its stream entries were found, so that it is on no stream where it was not.
    is_elsewhere: bool,
}

/// Combines what the script and the stream say about a group's copy.
fn copy_of(
    id: &MessageId,
    stored: &Stored,
    copy: &scripts::CopyReply,
    known: Known,
    group: &Group,
) -> GroupCopy {
    let of_script = || listed_of(id, copy, stored.due);
    let (listed, is_done, why) = match known.seen {
        None if copy.state.is_none() => (None, true, DONE.to_owned()),
        None => {
            let listed = of_script();
            let why = why(stored, copy, &listed, Ahead::Exactly(copy.before));
            (Some(listed), false, why)
        }
        Some(Seen::Found(found, before)) => {
            let error = of_script().error;
            let listed = ListedMessage { error, ..found };
            let why = why(stored, copy, &listed, Ahead::Exactly(before));
            (Some(listed), false, why)
        }
        Some(Seen::Missing) if known.is_elsewhere => (None, true, DONE.to_owned()),
        Some(Seen::Missing) => (None, false, MISSING.to_owned()),
        Some(Seen::Beyond(Beyond { before, is_unread })) => {
            let ahead = Ahead::AtLeast(before);
            let listed = of_script();
            match (known.is_there, is_unread) {
                (true, true) => {
                    let why = why(stored, copy, &listed, ahead);
                    (Some(listed), false, why)
                }
                (true, false) => {
                    let why = format!("on the stream, ready or in flight; {ahead} before it");
                    (Some(listed), false, why)
                }
                (false, _) => {
                    let why = format!("done, or on the stream with {ahead} before it");
                    (None, false, why)
                }
            }
        }
    };
    let attempts = if is_done {
        Vec::new()
    } else {
        attempts_in(&copy.text)
    };
    let is_parked = copy.state == Some(State::Parked);
    let holder = is_parked.then(|| copy.holder.parse().ok()).flatten();
    GroupCopy {
        group: group.clone(),
        listed,
        is_done,
        why,
        holder,
        attempts,
    }
}

fn listed_of(id: &MessageId, copy: &scripts::CopyReply, due: Option<UnixMs>) -> ListedMessage {
    let (id, time) = (id.clone(), copy.time.or(due));
    let state = copy.state.unwrap_or(State::Ready);
    if state == State::Garbage {
        return ListedMessage::in_garbage(id, time, &copy.text);
    }
    let error = Some(error_in(&copy.text).to_owned());
    ListedMessage {
        error: error.filter(|error| !error.is_empty()),
        ..ListedMessage::new(id, state, time, copy.attempts + 1)
    }
}

/// Explains what a copy waits for. `before` counts the messages ahead of it in the backlog or, unread, on the stream.
fn why(
    stored: &Stored,
    copy: &scripts::CopyReply,
    listed: &ListedMessage,
    before: Ahead,
) -> String {
    let paused = if stored.paused {
        "; the topic is paused"
    } else if copy.paused {
        "; the group is paused"
    } else {
        ""
    };
    let time = listed.due_at.map_or(String::new(), |time| time.to_string());
    match listed.state {
        State::Waiting if listed.due_at.is_none_or(|due| due <= stored.now) => {
            format!("due, not yet moved{paused}")
        }
        State::Waiting => format!("not due before {time}{paused}"),
        State::Parked if copy.is_blocked => format!(
            "blocked by {} of the same ordering key, which is in garbage: requeue or purge it",
            copy.holder
        ),
        State::Parked => format!("behind {} of the same ordering key", copy.holder),
        State::Backlog if !paused.is_empty() => format!("held back{paused}"),
        State::Backlog => match copy.free_at {
            Some(at) => {
                format!("the rate lets the next one through at {at}; {before} before it")
            }
            None if copy.window_is_full => format!(
                "the window is full: {} ready or in flight; {before} before it",
                copy.stream
            ),
            None => format!("eligible, not yet moved; {before} before it"),
        },
        State::Ready => format!("ready, no consumer has read it yet; {before} before it"),
        State::InFlight => {
            let consumer = listed.consumer.as_deref().unwrap_or("a consumer");
            format!("{consumer} runs attempt {}", listed.attempt)
        }
        State::Retry => format!("attempt {} is due at {time}{paused}", listed.attempt),
        State::Garbage => match listed.reason {
            Some(reason) => format!(
                "in garbage after {}: {reason}: {}",
                match listed.attempt {
                    1 => "1 attempt".to_owned(),
                    attempts => format!("{attempts} attempts"),
                },
                listed.error.as_deref().unwrap_or_default()
            ),
            None => "in garbage".to_owned(),
        },
    }
}
