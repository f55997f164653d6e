//! The outcomes of lookups and cancels, with records decoded.

use lisa_core::broker::{Found, StoredMessage, TopicHandle};
use lisa_core::message::{InvalidRecord, Record};
use lisa_core::state::{self, Ended};
use lisa_core::topic::Group;

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
    /// Decodes what a lookup in a topic has found.
    pub(crate) fn read(topic: &TopicHandle, found: Found) -> Result<Self, InvalidRecord> {
        Ok(match found {
            Found::Stored {
                listed,
                record,
                details,
            } => {
                let message = StoredMessage::new(topic, listed, record, *details)?;
                Self::Stored(Box::new(message))
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
