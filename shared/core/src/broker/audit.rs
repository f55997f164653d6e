//! The audit log: one entry for each action of an operator, in one stream of the namespace.
//!
//! It never contains payloads, headers or tokens. The stream is bounded, so old entries are removed: those of the authors with the most
//! entries, so that one team cannot push out the entries of another.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::{FromRedisValue, ParsingError, Value, from_redis_value};

use crate::broker::reply::command;
use crate::broker::{Broker, BrokerError, EntryPosition};
use crate::message::EntryId;
use crate::names::MAX_TOPIC;
use crate::scripts::NoteAction;
use crate::time::{UnixMs, shorten_to};

/// The number of entries that are kept. Up to a tenth more are stored before any are removed.
pub const AUDIT_KEPT: usize = 1000;
/// The time limit for adding an entry. The action is over by then.
pub const AUDIT_WITHIN: Duration = Duration::from_secs(1);
/// The longest details and outcome, in characters.
const LONGEST_TEXT: usize = 200;
/// The longest name in an entry, in characters.
const LONGEST_NAME: usize = MAX_TOPIC;

/// An action of an operator. Texts that are empty are not stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditEntry {
    /// The interface: `http`, `dashboard`, `cli` or `sqs`; or `handler`, if a handler paused its group.
    pub via: String,
    /// The name of the token, or of the user of the operating system. Empty if unknown.
    pub who: String,
    /// The action, such as `requeue`.
    pub action: String,
    /// The topic, unless the action is not about one.
    pub topic: String,
    /// The group, unless the action is not about one.
    pub group: String,
    /// The extent of the action, up to 200 characters.
    pub details: String,
    /// The result, up to 200 characters.
    pub outcome: String,
}

/// An entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audited {
    /// The id of the entry. Its first part is the time on Redis's clock.
    pub id: EntryId,
    /// The action.
    pub entry: AuditEntry,
}

impl Audited {
    /// Returns the position of the entry: the page after it begins there.
    pub fn position(&self) -> EntryPosition {
        EntryPosition(self.id)
    }

    /// Returns the time at which the entry was added.
    pub fn at(&self) -> UnixMs {
        UnixMs::new(self.id.ms())
    }
}

impl Broker {
    /// Appends an entry to the audit log. Costs one script call; the log has about [`AUDIT_KEPT`] entries at most.
    ///
    /// # Errors
    /// [`BrokerError`]; if [`BrokerError::maybe_applied`] returns true, the entry may be there. A repeated call adds it twice.
    pub async fn audit(&self, entry: &AuditEntry) -> Result<(), BrokerError> {
        let mut fields = Vec::new();
        for (field, text, longest) in [
            ("via", &entry.via, LONGEST_NAME),
            ("who", &entry.who, LONGEST_NAME),
            ("action", &entry.action, LONGEST_NAME),
            ("topic", &entry.topic, LONGEST_NAME),
            ("group", &entry.group, LONGEST_NAME),
            ("details", &entry.details, LONGEST_TEXT),
            ("outcome", &entry.outcome, LONGEST_TEXT),
        ] {
            if !text.is_empty() {
                fields.push((field, shortened(text, longest)));
            }
        }
        let kept = AUDIT_KEPT;
        let fields = &fields[..];
        self.run_on_registry(&NoteAction { kept, fields }).await?;
        Ok(())
    }

    /// Returns up to `limit` (at most [`AUDIT_KEPT`]) entries of the audit log, newest first: those before an entry, or the
    /// newest.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn audit_log(
        &self,
        before: Option<EntryPosition>,
        limit: usize,
    ) -> Result<Vec<Audited>, BrokerError> {
        let end = before.map_or_else(|| "+".to_owned(), |entry| format!("({entry}"));
        let read = command("XREVRANGE", &self.inner.registry.audit)
            .arg(&[end.as_str(), "-", "COUNT"])
            .arg(limit.clamp(1, AUDIT_KEPT));
        self.ask(read).await
    }
}

/// Shortens a text, and replaces control characters, which could change a terminal.
fn shortened(text: &str, longest: usize) -> String {
    let text: String = text
        .chars()
        .take(longest + 1)
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    shorten_to(&text, longest)
}

impl FromRedisValue for Audited {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let (id, mut fields): (EntryId, BTreeMap<String, String>) = from_redis_value(value)?;
        let mut field = |name| fields.remove(name).unwrap_or_default();
        let entry = AuditEntry {
            via: field("via"),
            who: field("who"),
            action: field("action"),
            topic: field("topic"),
            group: field("group"),
            details: field("details"),
            outcome: field("outcome"),
        };
        Ok(Self { id, entry })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_and_control_characters_become_spaces() {
        let text = format!("a\u{1b}[2J\n{}", "x".repeat(1000));
        let short = shortened(&text, 200);
        assert!(short.starts_with("a [2J xxx"), "{short}");
        assert_eq!(short.chars().count(), 201, "200 and the mark of a cut");
        assert_eq!(shortened("3 ids", 200), "3 ids");
    }
}
