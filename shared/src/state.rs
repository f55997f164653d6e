//! Where a message can be, and how each verb can end. Expected results are values, not errors.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use serde::Serialize;

use crate::message::{EntryId, MessageId};
use crate::time::UnixMs;
use crate::topic::{Group, InvalidName};

/// Makes an enum with one fixed word for each variant.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $what:literal, { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// All of them, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Gives the word for it, the same in Lua, HTTP, CLI and metrics.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = InvalidName;

            fn from_str(text: &str) -> Result<Self, InvalidName> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(InvalidName::new($what, concat!("one of", $(" ", $word),+), text)),
                }
            }
        }
    };
}
pub(crate) use words;

words!(
    /// Where a stored message is, in one group.
    State, "state", {
        /// Stored, not yet due; shared by the groups.
        Waiting = "waiting",
        /// Due, held back for its group by the window, priority, a rate limit or a pause.
        Backlog = "backlog",
        /// Due, behind an earlier message of its ordering key.
        Parked = "parked",
        /// On the group's stream, not yet read.
        Ready = "ready",
        /// Read by a consumer, its lease running.
        InFlight = "in_flight",
        /// Failed, timed out or deferred; waiting for its next attempt.
        Retry = "retry",
        /// Given up, kept to be looked at.
        Garbage = "garbage",
    }
);

words!(
    /// How a send ended.
    SendOutcome, "send outcome", {
        /// Stored until it is due.
        Waiting = "waiting",
        /// Due at once, and on the stream.
        Ready = "ready",
        /// Joined with an earlier message.
        Merged = "merged",
        /// The message is known already, by its id, or by its merge key where the topic's `merge` is
        /// `reject`; nothing was stored.
        Duplicate = "duplicate",
        /// The topic holds as much as its `max_messages` or `max_bytes` allow; nothing was stored.
        Full = "full",
        /// The message to be replaced could not be cancelled; nothing was stored.
        Unreplaced = "unreplaced",
    }
);

words!(
    /// Why a message could not be replaced.
    Blocked, "reason", {
        /// It is on the stream, ready or in flight: too late.
        InFlight = "in_flight",
        /// It was given up already.
        Garbage = "garbage",
        /// No such message on the shard of the new one, or it ended.
        Unknown = "unknown",
    }
);

words!(
    /// Why a message was given up.
    GarbageReason, "garbage reason", {
        /// Its attempts are used up.
        Exhausted = "exhausted",
        /// Its handler gave it up.
        Rejected = "rejected",
        /// It was due too long ago.
        Expired = "expired",
    }
);

words!(
    /// How a message that is no longer stored ended, as its tombstone says.
    End, "end", {
        /// Handled.
        Acked = "acked",
        /// Cancelled by a user.
        Cancelled = "cancelled",
        /// Joined with another message.
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

/// How a message ended that is not stored any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ended {
    /// How.
    #[serde(rename = "ended")]
    pub how: End,
    /// The message that it was merged into, and that stands for it.
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

/// What Redis answered to a send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The message that stands: the one that was sent, or the earlier one that it was merged with or
    /// refused for.
    pub id: MessageId,
    /// How it ended.
    pub outcome: SendOutcome,
    /// When that message is due; `None` if it is past waiting, and where nothing stands.
    pub due: Option<UnixMs>,
    /// How it ended, for a duplicate of one that did: it will not be delivered (again).
    pub ended: Option<End>,
    /// Why nothing was stored, if the message to be replaced could not be cancelled.
    pub blocked: Option<Blocked>,
}

/// How a cancel ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// The message will not be delivered (again). Its stored record, unless this call was a repeat.
    Cancelled {
        /// The encoded record.
        record: Option<Bytes>,
        /// The groups that gave it up before: their copies stay in garbage, and a requeue there runs a handler.
        in_garbage: Vec<Group>,
    },
    /// It is on the stream, ready or in flight: too late. Nothing changed.
    InFlight,
    /// It was given up already; purge it instead. Nothing changed.
    Garbage,
    /// No such message, or it ended.
    Unknown {
        /// How it ended, if that is remembered.
        end: Option<Ended>,
    },
}

/// How a reschedule ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RescheduleOutcome {
    /// It has a new due time.
    Rescheduled {
        /// The new due time.
        due: UnixMs,
    },
    /// It is on the stream, ready or in flight: too late. Nothing changed.
    InFlight,
    /// It was given up already; requeue it instead. Nothing changed.
    Garbage,
    /// No such message, or it ended.
    Unknown {
        /// How it ended, if that is remembered.
        end: Option<Ended>,
    },
}

/// How one delivery was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Done; the message is gone.
    Acked,
    /// Comes again at this time; counted as an attempt.
    Retry {
        /// When.
        at: UnixMs,
    },
    /// Comes again at this time; not counted.
    Deferred {
        /// When.
        at: UnixMs,
    },
    /// Given up: rejected, or its attempts are used up, or it is not worth delivering any more.
    Garbage,
    /// Not worth delivering any more; dropped and counted as expired, as the topic says.
    Expired,
    /// Its payload was missing; dropped and counted as lost.
    Lost,
    /// The lease ran out and the message moved on: nothing changed.
    Stale,
}

impl Settled {
    /// Gives the word for it, the same in Lua and metrics.
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

/// How the reclaim of one entry ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaimed {
    /// Comes again at this time.
    Retry {
        /// When.
        at: UnixMs,
    },
    /// Its attempts are used up, or its next one would be too late.
    Garbage,
    /// Its next attempt would be too late; dropped and counted as expired, as the topic says.
    Expired,
    /// Its entry or payload was missing; dropped and counted as lost.
    Lost,
    /// Settled or renewed meanwhile: nothing changed.
    Kept,
}

/// One delivery of a message, as read from its group's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The entry that this delivery is known by; the fence of its settlement.
    pub entry: EntryId,
    /// Counts from 1.
    pub number: u32,
    /// When it was due.
    pub due: UnixMs,
    /// The processes that died with it since its handler last ended.
    pub crashes: u32,
    /// From when on it is not worth handling any more.
    pub expires: Option<UnixMs>,
}

impl Attempt {
    /// Returns whether the message may kill its process: a second one died with it.
    #[must_use]
    pub const fn is_suspect(&self) -> bool {
        self.crashes >= 2
    }
}
