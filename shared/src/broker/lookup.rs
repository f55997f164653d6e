//! Where one message is in each group of its topic, and why it has not run there.

use bytes::Bytes;

use super::each_shard::unless_gone;
use super::read::{DeadLetter, Listed};
use super::{Broker, BrokerError, TopicHandle};
use crate::message::{MessageId, OrderingKey};
use crate::scripts::{self, Lookup, LookupReply, Stored};
use crate::state::{End, State};
use crate::time::UnixMs;
use crate::topic::{Group, Shard};

/// Where one message is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is stored.
    Stored {
        /// Its place and what is known of it there; in the first group that still owes it.
        listed: Listed,
        /// Its encoded record.
        record: Bytes,
        /// What its sender asked for, and where it is in each group.
        details: Box<Details>,
    },
    /// No such message, or it ended.
    Unknown {
        /// How it ended, if that is remembered.
        end: Option<End>,
    },
}

/// What the sender of a message asked for, and where it is in each group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// When it is or was due; `None` for a plain message that is past waiting.
    pub due: Option<UnixMs>,
    /// From when on it is not worth delivering.
    pub expires: Option<UnixMs>,
    /// Its priority.
    pub priority: i32,
    /// Its ordering key.
    pub key: Option<String>,
    /// Its merge key.
    pub merge_key: Option<String>,
    /// Its copies, in the order of the topic's groups.
    pub copies: Vec<Copy>,
}

/// A message in one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The group.
    pub group: Group,
    /// Its place there; `None` if the group is done with it, or never got it.
    pub listed: Option<Listed>,
    /// Why it has not run, or what it waits for, in words.
    pub why: String,
}

impl Broker {
    /// Finds one message. If neither its key nor its id tells the shard, the shards are asked in turn. One that changes
    /// its place while the stream is looked through is looked up again; on a stream of more than 100,000 entries one
    /// that is far behind counts as ready.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn lookup(
        &self,
        topic: &TopicHandle,
        id: &MessageId,
        key: Option<&OrderingKey>,
    ) -> Result<Found, BrokerError> {
        let mut search = self.search(topic, id, key);
        while let Some(shard) = self.next_shard(&mut search).await? {
            let found = self.lookup_on(topic, shard, id).await;
            match unless_gone(found)? {
                None => {}
                Some(Found::Unknown { end }) => search.end = search.end.or(end),
                Some(stored) => return Ok(stored),
            }
        }
        Ok(Found::Unknown { end: search.end })
    }

    /// Finds one message on a shard.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn lookup_on(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        id: &MessageId,
    ) -> Result<Found, BrokerError> {
        for last_try in [false, false, true] {
            let reply = self.general(topic, shard, None, &Lookup { id }).await?;
            let stored = match reply {
                LookupReply::Unknown { end } => return Ok(Found::Unknown { end }),
                LookupReply::Stored(stored) => stored,
            };
            let handle = self.topic(topic.name()).await?;
            let keys = handle.keys(shard)?;
            let mut copies = Vec::with_capacity(stored.copies.len());
            for (index, copy) in stored.copies.iter().enumerate().take(keys.groups.len()) {
                let view = keys.group(index);
                let group = &view.group.name;
                let mut listed = self.listed(id, copy, stored.due);
                let mut before = copy.before;
                if copy.state.is_none() {
                    let seen = self.find_on_stream(view, group, id).await?;
                    // A message of one group that is nowhere was on its way: it is looked up again.
                    let lost = last_try && stored.copies.len() == 1;
                    listed = match (seen, listed) {
                        (Some((seen, unread)), found) => {
                            before = unread;
                            Some(Listed {
                                last_error: found.and_then(|found| found.last_error),
                                ..seen
                            })
                        }
                        (None, found) => found.filter(|_| lost),
                    };
                }
                copies.push(Copy {
                    group: group.clone(),
                    why: why(&stored, copy, listed.as_ref(), before),
                    listed,
                });
            }
            let text = |text: String| Some(text).filter(|text| !text.is_empty());
            if let Some(listed) = copies.iter().find_map(|copy| copy.listed.clone()) {
                return Ok(Found::Stored {
                    listed,
                    record: stored.record.into(),
                    details: Box::new(Details {
                        due: stored.due,
                        expires: stored.expires,
                        priority: stored.priority,
                        key: text(stored.key),
                        merge_key: text(stored.merge_key),
                        copies,
                    }),
                });
            }
        }
        Ok(Found::Unknown { end: None })
    }

    fn listed(&self, id: &MessageId, copy: &scripts::Copy, due: Option<UnixMs>) -> Option<Listed> {
        let (dead, last_error) = match copy.state {
            Some(State::Garbage) => (DeadLetter::parse(&copy.text), None),
            _ => (
                None,
                Some(copy.text.clone()).filter(|error| !error.is_empty()),
            ),
        };
        Some(Listed {
            id: id.clone(),
            state: copy.state.unwrap_or(State::Ready),
            time: copy.time.or(due).unwrap_or_else(|| self.now()),
            attempt: dead
                .as_ref()
                .map_or(copy.attempts + 1, |dead| dead.attempts),
            consumer: None,
            last_error,
            dead,
        })
    }
}

/// Says what a copy waits for; `before` are those in front of it in the backlog or, unread, on the stream.
fn why(stored: &Stored, copy: &scripts::Copy, listed: Option<&Listed>, before: u64) -> String {
    let Some(listed) = listed else {
        return "done, or never due for this group".to_owned();
    };
    let paused = if stored.paused {
        "; the topic is paused"
    } else if copy.paused {
        "; the group is paused"
    } else {
        ""
    };
    match listed.state {
        State::Waiting if listed.time <= stored.now => format!("due, not yet moved{paused}"),
        State::Waiting => format!("not due before {}{paused}", listed.time),
        State::Parked if copy.is_blocked => format!(
            "blocked by {} of the same ordering key, which was given up: requeue or purge that",
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
            None => format!("may go on, not yet moved; {before} before it"),
        },
        State::Ready => format!("ready, no consumer has read it yet; {before} before it"),
        State::InFlight => {
            let consumer = listed.consumer.as_deref().unwrap_or("a consumer");
            format!("{consumer} runs attempt {}", listed.attempt)
        }
        State::Retry => format!(
            "attempt {} comes at {}{paused}",
            listed.attempt, listed.time
        ),
        State::Garbage => match &listed.dead {
            Some(dead) => format!(
                "given up after {} attempts: {}: {}",
                dead.attempts, dead.reason, dead.error
            ),
            None => "given up".to_owned(),
        },
    }
}
