//! Requeues and purges garbage (dead letters), for HTTP and the command line.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use lisa_core::broker::{Broker, BrokerError, TopicHandle};
use lisa_core::message::MessageId;
use lisa_core::state::State;
use lisa_core::text_value;
use lisa_core::time::UnixMs;
use lisa_core::topic::Group;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Messages read and handled per call.
const PAGE: usize = 1000;

/// The operation on garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Deliver it again.
    Requeue,
    /// Remove it.
    Purge,
}

/// The text is not a verb.
#[derive(Debug, thiserror::Error)]
#[error("must be requeue or purge")]
pub(crate) struct UnknownVerb;

impl FromStr for Verb {
    type Err = UnknownVerb;

    fn from_str(text: &str) -> Result<Self, UnknownVerb> {
        let found = [Self::Requeue, Self::Purge].into_iter();
        let mut found = found.filter(|verb| verb.as_str() == text);
        found.next().ok_or(UnknownVerb)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

text_value!(Verb, "verb", "requeue or purge";);

impl Verb {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Requeue => "requeue",
            Self::Purge => "purge",
        }
    }

    async fn apply(
        self,
        broker: &Broker,
        topic: &TopicHandle,
        group: &Group,
        seen: &[(MessageId, UnixMs)],
    ) -> Result<u64, BrokerError> {
        match self {
            Self::Requeue => broker.requeue(topic, group, seen).await,
            Self::Purge => broker.purge(topic, group, seen).await,
        }
    }
}

/// Returns ids without repetitions, in their order.
pub(crate) fn without_repetitions(mut ids: Vec<MessageId>) -> Vec<MessageId> {
    let mut seen = HashSet::new();
    ids.retain(|id| seen.insert(id.clone()));
    ids
}

/// The messages to handle.
#[derive(Clone, Debug)]
pub(crate) enum Selection {
    /// The messages with these ids.
    Ids(Vec<MessageId>),
    /// All messages that are in garbage now.
    All,
}

/// The result of a requeue or purge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = GarbageResult)]
pub(crate) struct Swept {
    /// The number of selected messages that were in garbage.
    pub(crate) found: u64,
    /// The number of messages requeued or purged; 0 in a dry run.
    pub(crate) done: u64,
    /// True if the messages were only counted.
    pub(crate) dry_run: bool,
    /// The ids that were named and are not in garbage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) missing: Vec<MessageId>,
}

impl Swept {
    /// Adds the result for further messages.
    pub(crate) fn add(&mut self, more: Self) {
        self.found += more.found;
        self.done += more.done;
        self.dry_run = more.dry_run;
        self.missing.extend(more.missing);
    }
}

/// Requeues or purges a selection of a group's garbage.
///
/// # Errors
/// [`BrokerError`]; part of the selection may be done. Repeating the call handles the rest.
pub(crate) async fn sweep(
    broker: &Broker,
    topic: &TopicHandle,
    group: &Group,
    verb: Verb,
    selection: &Selection,
    dry_run: bool,
) -> Result<Swept, BrokerError> {
    let mut swept = Swept {
        dry_run,
        ..Swept::default()
    };
    if let Selection::Ids(ids) = selection {
        let seen = broker.in_garbage(topic, group, ids).await?;
        swept.found = seen.len() as u64;
        let is_missing = |id: &&MessageId| !seen.iter().any(|(seen, _)| seen == *id);
        swept.missing = ids.iter().filter(is_missing).cloned().collect();
        if !dry_run {
            swept.done = verb.apply(broker, topic, group, &seen).await?;
        }
        return Ok(swept);
    }
    let newest = broker.latest_time(topic).await?;
    let mut cursor: Option<String> = None;
    loop {
        let page = broker
            .list(topic, group, State::Garbage, cursor.as_deref(), PAGE)
            .await?;
        let seen: Vec<_> = page
            .items
            .into_iter()
            .filter_map(|message| Some((message.id, message.garbage_at?)))
            .filter(|(_, since)| *since <= newest)
            .collect();
        let done = if dry_run {
            0
        } else {
            verb.apply(broker, topic, group, &seen).await?
        };
        swept.done += done;
        // Handled messages have left garbage, so the same cursor shows the messages after them.
        if done == 0 {
            swept.found += seen.len() as u64;
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(swept),
            }
        } else {
            swept.found += done;
        }
    }
}
