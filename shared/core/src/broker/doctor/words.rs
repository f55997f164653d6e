//! The meaning of each fault and its repair, as shown to operators. For details, see docs/operate/repair.md.

use crate::scripts::Fault;

impl Fault {
    /// Returns the meaning of the fault.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Orphan => {
                "a stored message is in no sorted set or stream, so it would never be delivered"
            }
            Self::Ghost => {
                "a message is still listed but its payload is gone, so it cannot be delivered"
            }
            Self::Twice => "a message is in two states, so it would be delivered twice",
            Self::Left => {
                "the count of groups that must still deliver a message is wrong: it would be removed too early, or never"
            }
            Self::Leftover => "data is left over from a message that is gone",
            Self::Member => {
                "a message is listed under the wrong name, so it cannot be found or cancelled"
            }
            Self::Key => {
                "an ordering key has no valid holder, so its next message would wait forever or overtake"
            }
            Self::Merge => "a merge key points to a message that is gone or has another key",
            Self::Index => {
                "the index of ordering keys lists a message that is gone or has another key"
            }
            Self::Garbage => {
                "a message in garbage (dead letters) has no record of why, or a record has no message"
            }
            Self::Entry => {
                "a delivery is held by no consumer, or a held delivery is gone from the stream"
            }
            Self::Consumer => "a consumer is gone but is still registered",
            Self::Counters => "the counters do not match what is stored",
            Self::Class => "a shard is marked plain but holds what only the general scripts handle",
            Self::Settings => {
                "settings of a shard are missing or wrong, or the registry does not list the topic"
            }
            Self::Type => "a key has the wrong type: something other than Lisa wrote it",
        }
    }

    /// Returns the action that `--repair` takes.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Orphan => {
                "returns it to the state whose counters come up short: waiting, retry, or garbage"
            }
            Self::Ghost => "removes it and counts it as lost",
            Self::Twice => "keeps the state that is furthest along",
            Self::Left => {
                "restores the copies that the counters are short of and corrects the count"
            }
            Self::Leftover => "removes it",
            Self::Member => "lists it under the right name",
            Self::Key => "releases the key to its next message, or gives it to the one on its way",
            Self::Merge => "removes it",
            Self::Index => "removes it",
            Self::Garbage => "writes a placeholder record, or removes the record without a message",
            Self::Entry => "delivers the message again, or drops the missing delivery",
            Self::Consumer => "removes it if it holds nothing; reclaim recovers what it holds",
            Self::Counters => {
                "corrects them: missing messages count as lost, surplus ones as accepted"
            }
            Self::Class => "sets its class to general",
            Self::Settings => "restores them if any shard has valid settings",
            Self::Type => {
                "leaves it alone: rename it, find out who wrote it, and run the doctor again"
            }
        }
    }
}
