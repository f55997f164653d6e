//! What can be seen of a stored message, with its record decoded.

use lisa_shared::broker::{DeadLetter, Details, Found};
use lisa_shared::message::{InvalidRecord, MessageId, Record};
use lisa_shared::state::{self, Ended, State};
use lisa_shared::time::UnixMs;
use lisa_shared::topic::Group;

/// Where a message is.
#[derive(Clone, Debug, PartialEq)]
pub enum GetOutcome {
    /// It is stored.
    Stored(Box<StoredMessage>),
    /// No such message, or it ended.
    Unknown {
        /// How it ended, if that is remembered.
        end: Option<Ended>,
    },
}

/// One stored message.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredMessage {
    /// Its identity.
    pub id: MessageId,
    /// Its place.
    pub state: State,
    /// When it is due or comes again; in garbage, when it was given up. `None` for a ready message that is too far behind
    /// on the stream to be read, unless its options hold its due time.
    pub time: Option<UnixMs>,
    /// The attempt that is running or comes next; for garbage, those that were made.
    pub attempt: u32,
    /// Who holds it, in flight.
    pub consumer: Option<String>,
    /// What went wrong last, before it was given up.
    pub last_error: Option<String>,
    /// Why it was given up.
    pub dead: Option<DeadLetter>,
    /// Its headers, options and payload.
    pub record: Record,
    /// What its sender asked for, and where it is in each group.
    pub details: Details,
}

/// How a cancel ended.
#[derive(Clone, Debug, PartialEq)]
pub enum CancelOutcome {
    /// The message will not be delivered (again). What it held, unless this call was a repeat.
    Cancelled {
        /// Its headers, options and payload.
        record: Option<Record>,
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

impl TryFrom<Found> for GetOutcome {
    type Error = InvalidRecord;

    fn try_from(found: Found) -> Result<Self, InvalidRecord> {
        Ok(match found {
            Found::Stored {
                listed,
                record,
                details,
            } => Self::Stored(Box::new(StoredMessage {
                id: listed.id,
                state: listed.state,
                time: listed.time,
                attempt: listed.attempt,
                consumer: listed.consumer,
                last_error: listed.last_error,
                dead: listed.dead,
                record: Record::decode(record)?,
                details: *details,
            })),
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
