//! Stored messages with their records decoded.

use lisa_core::broker::{Details, Found, GarbageInfo};
use lisa_core::message::{InvalidRecord, MessageId, Record};
use lisa_core::state::{self, Ended, State};
use lisa_core::time::UnixMs;
use lisa_core::topic::{Group, TopicSettings};

/// The outcome of looking up a message.
#[derive(Clone, Debug, PartialEq)]
pub enum GetOutcome {
    /// The message is stored.
    Stored(Box<StoredMessage>),
    /// No such message is stored, or it has ended.
    Unknown {
        /// Its end, if that is remembered.
        end: Option<Ended>,
    },
}

/// One stored message.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredMessage {
    /// Its id.
    pub id: MessageId,
    /// Its state.
    pub state: State,
    /// The time it is due or retried; for garbage, the time it was moved there. `None` for a ready message that is too far
    /// behind on the stream to be read, unless its options hold its due time.
    pub time: Option<UnixMs>,
    /// The number of the current or next attempt; for garbage, of attempts made.
    pub attempt: u32,
    /// The number of attempts after which it goes to garbage (dead letters): its own limit, or the topic's.
    pub max_attempts: u32,
    /// The consumer that holds it while it is in flight.
    pub consumer: Option<String>,
    /// The last error, unless it is in garbage.
    pub last_error: Option<String>,
    /// The reason it is in garbage (dead letters).
    pub garbage: Option<GarbageInfo>,
    /// Its headers, options and payload.
    pub record: Record,
    /// The options of its sender, and its state in each group.
    pub details: Details,
}

/// The outcome of a cancel.
#[derive(Clone, Debug, PartialEq)]
pub enum CancelOutcome {
    /// The message will not be delivered (again).
    Cancelled {
        /// Its headers, options and payload; `None` if this call was a repeat.
        record: Option<Record>,
        /// The groups that had moved it to garbage before: their copies stay there, and a requeue there runs a handler.
        in_garbage: Vec<Group>,
    },
    /// Too late: the message is on the stream, ready or in flight. Nothing changed.
    InFlight,
    /// The message is in garbage; purge it instead. Nothing changed.
    Garbage,
    /// No such message is stored, or it has ended.
    Unknown {
        /// Its end, if that is remembered.
        end: Option<Ended>,
    },
}

impl GetOutcome {
    /// Decodes a message of a topic with these settings.
    pub(crate) fn read(found: Found, settings: &TopicSettings) -> Result<Self, InvalidRecord> {
        Ok(match found {
            Found::Stored {
                listed,
                record,
                details,
            } => {
                let record = Record::decode(record)?;
                Self::Stored(Box::new(StoredMessage {
                    id: listed.id,
                    state: listed.state,
                    time: listed.time,
                    attempt: listed.attempt,
                    max_attempts: record.max_attempts.unwrap_or(settings.max_attempts),
                    consumer: listed.consumer,
                    last_error: listed.last_error,
                    garbage: listed.garbage,
                    record,
                    details: *details,
                }))
            }
            Found::Unknown { end } => Self::Unknown { end },
        })
    }
}

impl TryFrom<state::CancelOutcome> for CancelOutcome {
    type Error = InvalidRecord;

    fn try_from(outcome: state::CancelOutcome) -> Result<Self, InvalidRecord> {
        use state::CancelOutcome as O;
        Ok(match outcome {
            O::Cancelled { record, in_garbage } => Self::Cancelled {
                record: record.map(Record::decode).transpose()?,
                in_garbage,
            },
            O::InFlight => Self::InFlight,
            O::Garbage => Self::Garbage,
            O::Unknown { end } => Self::Unknown { end },
        })
    }
}
