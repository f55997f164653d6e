//! The faults in words, for people who meet them. The same, at greater length, is in docs/doctor.md.

use crate::scripts::Fault;

impl Fault {
    /// What it means.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Orphan => "a stored message is in no place, and would never be delivered",
            Self::Ghost => "a place names a message whose payload is gone",
            Self::Twice => "a message is in two places, and would be delivered twice",
            Self::Left => "the count of the groups that owe a message is wrong",
            Self::Leftover => "something is kept of a message that is gone",
            Self::Member => "a message is in its place by a name under which it is not looked for",
            Self::Key => "an ordering key has no holder that lets its next message go on",
            Self::Merge => "a merge key points at no message",
            Self::Index => "the index of ordering keys names a message that is not there",
            Self::Garbage => {
                "a message in garbage has no record of why, or there is a record and no message"
            }
            Self::Entry => {
                "a delivery is with nobody, or what somebody holds is gone from the stream"
            }
            Self::Consumer => "a consumer has gone without a word",
            Self::Counters => "the counters do not agree with what is there",
            Self::Class => "a plain topic holds what only the general scripts see",
            Self::Settings => {
                "settings of a shard are missing or wrong, or the registry does not list the topic"
            }
            Self::Type => "somebody else's key stands where one of ours belongs",
        }
    }

    /// What `--repair` does about it.
    #[must_use]
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Orphan => "puts it where the sums miss it: back to waiting, retry or garbage",
            Self::Ghost => "removes it, and counts it as lost",
            Self::Twice => "keeps the one that is furthest along",
            Self::Left => "puts back the copies that the sums miss, and counts again",
            Self::Leftover => "removes it",
            Self::Member => "puts it in by its own name",
            Self::Key => "lets the key go on with its next message",
            Self::Merge => "removes it",
            Self::Index => "removes it",
            Self::Garbage => "writes an empty record, or removes the one without a message",
            Self::Entry => "delivers the message again, or forgets that it was held",
            Self::Consumer => "forgets it, if it holds nothing; reclaim takes back what it holds",
            Self::Counters => {
                "corrects them: what is missing was lost, what is too much was accepted"
            }
            Self::Class => "makes it full",
            Self::Settings => "writes them anew where some shard tells them",
            Self::Type => "leaves it: nobody knows whose it is",
        }
    }
}
