//! The states of a message and the outcomes of each operation. Expected results are values, not errors.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::message::{EntryId, MessageId};
use crate::names::{Group, words};
use crate::time::{UnixMs, When};

words!(
    /// The state of a stored message in one group.
    State, "state", {
        /// Stored, not yet due; shared by the groups.
        Waiting = "waiting",
        /// Due, but held back in its group by the window, its priority, a rate limit or a pause.
        Backlog = "backlog",
        /// Due, but behind an earlier message of its ordering key.
        Parked = "parked",
        /// On the group's stream, not yet read.
        Ready = "ready",
        /// Read by a consumer, whose lease (visibility timeout) is running.
        InFlight = "in_flight",
        /// Failed, timed out or deferred; waiting for its next attempt.
        Retry = "retry",
        /// No longer delivered, and kept for inspection (dead letters).
        Garbage = "garbage",
    }
);

words!(
    /// The outcome of a send.
    SendOutcome, "send outcome", {
        /// Stored until it is due.
        Waiting = "waiting",
        /// Due immediately, and on the stream.
        Ready = "ready",
        /// Merged into an earlier message.
        Merged = "merged",
        /// The message is already known by its id, or by its merge key if the topic's `merge` is `reject`. Nothing was
        /// stored.
        Duplicate = "duplicate",
        /// The topic is at its `max_messages` or `max_bytes`; nothing was stored.
        Full = "full",
        /// The message to be replaced could not be cancelled; nothing was stored.
        ReplaceConflict = "replace_conflict",
    }
);

words!(
    /// The reason why a message could not be replaced.
    Blocked, "reason", {
        /// It is already on the stream, ready or in flight.
        InFlight = "in_flight",
        /// It is already in garbage.
        Garbage = "garbage",
        /// No such message exists on the shard of the new one, or it has ended.
        Unknown = "unknown",
    }
);

words!(
    /// The reason why a message was moved to garbage.
    GarbageReason, "garbage reason", {
        /// Its attempts were used up.
        Exhausted = "exhausted",
        /// Its handler rejected it.
        Rejected = "rejected",
        /// It expired, or was due too long ago.
        Expired = "expired",
    }
);

words!(
    /// The end of a message that is no longer stored, from its tombstone.
    End, "end", {
        /// Handled.
        Acked = "acked",
        /// Cancelled by a user.
        Cancelled = "cancelled",
        /// Merged into another message.
        Merged = "merged",
        /// Purged from garbage, or expired.
        Purged = "purged",
    }
);

impl End {
    /// Reads the code in the last two bits of a tombstone's score.
    pub(crate) fn from_code(code: u64) -> Self {
        Self::ALL[(code % 4) as usize]
    }
}

/// The end of a message that is no longer stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The outcome.
    #[serde(rename = "ended")]
    pub how: End,
    /// The message that it was merged into, which now represents it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub into: Option<MessageId>,
}

impl From<End> for Ended {
    fn from(how: End) -> Self {
        Self { how, into: None }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.how)?;
        self.into.iter().try_for_each(|id| write!(f, " into {id}"))
    }
}

/// The result of a send, as Redis returned it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The message in effect: the one that was sent, or the earlier one that it was merged into or that made it a duplicate.
    pub id: MessageId,
    /// The outcome of the send.
    pub outcome: SendOutcome,
    /// The due time of that message; `None` if it is past waiting, or if no message is in effect.
    pub due: Option<UnixMs>,
    /// The end of that message, for a duplicate of one that has ended: it will not be delivered (again).
    pub ended: Option<End>,
    /// The reason, if nothing was stored because the message to be replaced could not be cancelled.
    pub blocked: Option<Blocked>,
}

/// The outcome of a cancel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// The message will not be delivered (again).
    Cancelled {
        /// The encoded record, unless this call was a repeat.
        record: Option<Bytes>,
        /// The groups that have a copy in garbage. These copies stay there, and a requeue would deliver them to a handler.
        in_garbage: Vec<Group>,
    },
    /// It is already on the stream, ready or in flight. Nothing changed.
    InFlight,
    /// It is already in garbage; purge it instead. Nothing changed.
    Garbage,
    /// No such message exists, or it has ended.
    Unknown {
        /// The way it ended, if its tombstone still exists.
        end: Option<Ended>,
    },
}

/// The outcome of a reschedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RescheduleOutcome {
    /// It has a new due time.
    Rescheduled {
        /// The new due time.
        due: UnixMs,
    },
    /// It is already on the stream, ready or in flight. Nothing changed.
    InFlight,
    /// It is already in garbage; requeue it instead. Nothing changed.
    Garbage,
    /// No such message exists, or it has ended.
    Unknown {
        /// The way it ended, if its tombstone still exists.
        end: Option<Ended>,
    },
}

/// One delivery to settle.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// The delivery.
    pub entry: EntryId,
    /// The message.
    pub id: MessageId,
    /// True if the id is the caller's own.
    pub caller_id: bool,
    /// The attempt after which the message goes to garbage.
    pub max_attempts: u32,
    /// Its outcome.
    pub verdict: Verdict,
}

/// The outcome of a delivery, as its consumer reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Handled.
    Ack,
    /// Failed: retried at that time, and counted as an attempt.
    Retry {
        /// The time of the next attempt.
        when: When,
        /// The error.
        error: String,
    },
    /// Deferred: retried at that time, and not counted as an attempt.
    Defer {
        /// The time of the next attempt.
        when: When,
    },
    /// Handed back by its consumer, which ran no handler to completion: retried at that time, not counted as an attempt,
    /// and as suspect as before.
    HandBack {
        /// The time of the next attempt.
        when: When,
    },
    /// Rejected: moved to garbage.
    Reject {
        /// The reason.
        error: String,
    },
    /// Expired: no handler ran, and no attempt is counted.
    Expired,
    /// Lost: its payload is missing.
    Lost,
}

impl Verdict {
    /// Returns the name of the operation that settles a delivery with this outcome.
    pub fn operation(&self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Retry { .. } => "retry",
            Self::Defer { .. } => "defer",
            Self::HandBack { .. } => "hand_back",
            Self::Reject { .. } => "reject",
            Self::Expired => "expire",
            Self::Lost => "lose",
        }
    }
}

/// The outcome of settling one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Handled; this copy of the message is gone.
    Acked,
    /// Retried at this time; counted as an attempt.
    Retry {
        /// The time of the next attempt.
        at: UnixMs,
    },
    /// Delivered again at this time; not counted as an attempt.
    Deferred {
        /// The time of the next attempt.
        at: UnixMs,
    },
    /// Moved to garbage: rejected, its attempts are used up, or it is no longer worth delivering.
    Garbage,
    /// No longer worth delivering; dropped and counted as expired, per the topic's settings.
    Expired,
    /// Its payload was missing; dropped and counted as lost.
    Lost,
    /// The lease ended and the message was delivered again or ended: nothing changed.
    Stale,
}

impl Settled {
    /// Returns the word for it, the same in Lua and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acked => "acked",
            Self::Retry { .. } => "retry",
            Self::Deferred { .. } => "deferred",
            Self::Garbage => "garbage",
            Self::Expired => "expired",
            Self::Lost => "lost",
            Self::Stale => "stale",
        }
    }
}

/// The outcome of reclaiming one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaimed {
    /// Delivered again at this time.
    Retry {
        /// The time of the next attempt.
        at: UnixMs,
    },
    /// Moved to garbage: its attempts are used up, or its next one would be too late.
    Garbage,
    /// Its next attempt would be too late; dropped and counted as expired, per the topic's settings.
    Expired,
    /// Its entry or payload was missing; dropped and counted as lost.
    Lost,
    /// Settled or renewed in the meantime: nothing changed.
    Kept,
    /// Pulled, and its own lease has not ended.
    Held,
}

/// One delivery of a message, as read from its group's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The entry id of this delivery, which is the fence of its settlement.
    pub entry: EntryId,
    /// The number of this attempt, from 1.
    pub number: u32,
    /// The time at which this attempt was due.
    pub due: UnixMs,
    /// The number of processes that died while holding it since its handler last ended.
    pub crashes: u32,
    /// The time from which it is no longer worth handling.
    pub expires: Option<UnixMs>,
}

impl Attempt {
    /// Returns whether the message may be a poison message: at least two processes died while holding it.
    #[must_use]
    pub const fn is_suspect(&self) -> bool {
        self.crashes >= 2
    }
}
