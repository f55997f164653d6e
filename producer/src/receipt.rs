//! The receipt of a send.

use lisa_core::durability::Durability;
use lisa_core::message::MessageId;
use lisa_core::state::{Accepted, Blocked, End, SendOutcome};
use lisa_core::time::UnixMs;

use crate::error::SendError;

/// The confirmation that Redis has accepted a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The id of the message that stands. If the send was merged, or refused because of its merge key, this is the id of the
    /// earlier message; a repeat of a merged send names it too, even if it has ended since.
    pub id: MessageId,
    /// The due time of that message; `None` if it is no longer waiting.
    pub due: Option<UnixMs>,
    /// The outcome: waiting, ready, merged or duplicate. A duplicate is not an error: the message is already known.
    pub outcome: SendOutcome,
    /// The end of that message, for a duplicate of one that has ended: nothing will be delivered under this id until the
    /// topic's `dedup_window` has passed. `None` for a message that was merged, now or before; [`End::Merged`] only if the
    /// message it was merged into is no longer known.
    pub ended: Option<End>,
    /// The durability that was reached when this receipt was issued: the one that the send requested.
    pub durability: Durability,
}

impl Receipt {
    /// Converts the reply to a send that was to replace `replace`.
    ///
    /// # Errors
    /// [`SendError::Full`] or [`SendError::ReplaceConflict`]; nothing was stored.
    pub(crate) fn new(
        accepted: Accepted,
        durability: Durability,
        replace: Option<MessageId>,
    ) -> Result<Self, SendError> {
        match accepted.outcome {
            SendOutcome::Full => Err(SendError::Full),
            SendOutcome::ReplaceConflict => Err(SendError::ReplaceConflict {
                id: replace.unwrap_or(accepted.id),
                blocked: accepted.blocked.unwrap_or(Blocked::Unknown),
            }),
            SendOutcome::Waiting
            | SendOutcome::Ready
            | SendOutcome::Merged
            | SendOutcome::Duplicate => Ok(Self {
                id: accepted.id,
                due: accepted.due,
                outcome: accepted.outcome,
                ended: accepted.ended,
                durability,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(outcome: SendOutcome, blocked: Option<Blocked>) -> Accepted {
        Accepted {
            id: "stands".parse().unwrap(),
            outcome,
            due: Some(UnixMs::new(7)),
            ended: None,
            blocked,
        }
    }

    #[test]
    fn a_receipt_names_the_message_that_stands() {
        for outcome in [
            SendOutcome::Waiting,
            SendOutcome::Ready,
            SendOutcome::Merged,
            SendOutcome::Duplicate,
        ] {
            let receipt = Receipt::new(accepted(outcome, None), Durability::Aof, None).unwrap();
            assert_eq!(receipt.id.as_str(), "stands");
            assert_eq!(receipt.durability, Durability::Aof);
            assert_eq!(
                (receipt.outcome, receipt.due),
                (outcome, Some(UnixMs::new(7)))
            );
        }
    }

    #[test]
    fn what_was_not_stored_has_no_receipt() {
        let full =
            Receipt::new(accepted(SendOutcome::Full, None), Durability::Memory, None).unwrap_err();
        assert!(matches!(full, SendError::Full) && full.is_retryable());
        for blocked in Blocked::ALL {
            let answer = accepted(SendOutcome::ReplaceConflict, Some(*blocked));
            let error = Receipt::new(answer, Durability::Memory, "old".parse().ok()).unwrap_err();
            assert!(!error.is_retryable());
            match error {
                SendError::ReplaceConflict { id, blocked: why } => {
                    assert_eq!((id.as_str(), why), ("old", *blocked));
                }
                other => panic!("{other}"),
            }
        }
    }
}
