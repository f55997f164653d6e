//! What a sender is told of a message that stands.

use lisa_shared::durability::Durability;
use lisa_shared::message::MessageId;
use lisa_shared::state::{Accepted, Blocked, End, SendOutcome};
use lisa_shared::time::UnixMs;

use crate::error::SendError;

/// What Redis has accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The identity of the message that stands: if it was merged, or refused for its merge key, the earlier one's. A
    /// repeat of a merged send names that one, too, even if it has ended since.
    pub id: MessageId,
    /// When that message is due; `None` if it is past waiting.
    pub due: Option<UnixMs>,
    /// How the send ended: waiting, ready, merged or duplicate. A duplicate is not an error: the message is known
    /// already.
    pub outcome: SendOutcome,
    /// How that message ended, for a duplicate of one that did: nothing will be delivered under
    /// this id until the topic's `dedup_window` is over. `None` for one that was merged, now or before;
    /// [`End::Merged`] only if nobody knows any more which message it was merged into.
    pub ended: Option<End>,
    /// How safe the message was when this was given: what the send asked for.
    pub durability: Durability,
}

impl Receipt {
    /// Takes what Redis answered to a send that was to replace `replace`.
    ///
    /// # Errors
    /// [`SendError::Full`] or [`SendError::Unreplaced`], if nothing was stored for that reason.
    pub(crate) fn new(
        accepted: Accepted,
        durability: Durability,
        replace: Option<MessageId>,
    ) -> Result<Self, SendError> {
        match accepted.outcome {
            SendOutcome::Full => Err(SendError::Full),
            SendOutcome::Unreplaced => Err(SendError::Unreplaced {
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
            let answer = accepted(SendOutcome::Unreplaced, Some(*blocked));
            let error = Receipt::new(answer, Durability::Memory, "old".parse().ok()).unwrap_err();
            assert!(!error.is_retryable());
            match error {
                SendError::Unreplaced { id, blocked: why } => {
                    assert_eq!((id.as_str(), why), ("old", *blocked));
                }
                other => panic!("{other}"),
            }
        }
    }
}
