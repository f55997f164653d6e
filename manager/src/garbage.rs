//! Requeue and purge of chosen messages, for the HTTP interface and the command line alike.

use std::time::Duration;

use lisa_shared::broker::{Broker, BrokerError, TopicHandle};
use lisa_shared::message::MessageId;
use lisa_shared::state::State;
use lisa_shared::time::UnixMs;
use lisa_shared::topic::Group;
use serde::Serialize;
use utoipa::ToSchema;

const PAGE: usize = 1000;
/// "All" means what is in garbage when it is said; the estimate of Redis's clock may be behind by this.
const SLACK: Duration = Duration::from_millis(100);

/// What to do with garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Deliver it again.
    Requeue,
    /// Remove it.
    Purge,
}

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

/// Which messages.
#[derive(Clone, Debug)]
pub(crate) enum Selection {
    /// These.
    Ids(Vec<MessageId>),
    /// All that are in garbage now.
    All,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Swept {
    /// Messages of the selection that were in garbage.
    pub(crate) found: u64,
    /// Messages requeued or purged; 0 in a dry run.
    pub(crate) done: u64,
    /// Whether it only counted.
    pub(crate) dry_run: bool,
    /// Messages that were named and are not in garbage.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub(crate) missing: Vec<MessageId>,
}

/// Requeues or purges a selection of a group's garbage.
///
/// # Errors
/// [`BrokerError`]; part of the selection may be done then, and the same call goes on with the rest.
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
    let newest = broker.now().plus(SLACK);
    let mut cursor: Option<String> = None;
    loop {
        let page = broker
            .list(topic, group, State::Garbage, cursor.as_deref(), PAGE)
            .await?;
        let seen: Vec<_> = page
            .items
            .into_iter()
            .filter_map(|message| Some((message.id, message.time?)))
            .filter(|(_, given_up)| *given_up <= newest)
            .collect();
        let done = if dry_run {
            0
        } else {
            verb.apply(broker, topic, group, &seen).await?
        };
        swept.done += done;
        // What was done has left the page, so that the same cursor shows what came after it.
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
