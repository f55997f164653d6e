//! The audit log: the words for outcomes, and the list of actions, for HTTP and the command line.

use lisa_core::broker::{Audited, Broker, BrokerError, Checkup, EntryPosition, Outcome};
pub(crate) use lisa_service::audit::Action;
use lisa_service::http::client::reaches_named;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::counted;
use super::garbage::{Selection, Swept};

/// Returns the outcome of an action that may find its target in the wanted state already.
pub(crate) fn changed(changed: bool) -> String {
    if changed { "done" } else { "unchanged" }.to_owned()
}

/// Returns the extent of a requeue or purge.
pub(crate) fn extent(selection: &Selection) -> String {
    match selection {
        Selection::All => "all".to_owned(),
        Selection::Ids(ids) if ids.len() == 1 => ids[0].to_string(),
        Selection::Ids(ids) => format!("{} ids, the first {}", ids.len(), ids[0]),
    }
}

/// Returns the outcome of a requeue or purge.
pub(crate) fn swept(swept: &Swept) -> String {
    format!("{} of {}", swept.done, swept.found)
}

/// Returns the outcome of a repair.
pub(crate) fn repaired(checkup: &Checkup) -> String {
    let repaired = counted(checkup.count(Outcome::Repaired), "fault");
    let left = checkup.count(Outcome::Found);
    format!("{repaired} repaired, {left} left")
}

/// A page of the audit log, newest first.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct AuditPage {
    pub(crate) entries: Vec<AuditView>,
    /// The cursor of the next page; null at the end.
    pub(crate) next: Option<String>,
}

/// An action of an operator.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct AuditView {
    /// The end of the action, on Redis's clock.
    pub(crate) at: String,
    /// The interface: `http`, `dashboard`, `cli` or `sqs`; or `handler`, if a handler paused its group.
    pub(crate) via: String,
    /// The name of the token, or of the user of the operating system; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) who: Option<String>,
    /// The action, such as `requeue`.
    pub(crate) action: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) topic: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<String>,
    /// The extent of the action, shortened to 200 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) details: Option<String>,
    /// The result, shortened to 200 characters.
    pub(crate) outcome: String,
}

impl From<Audited> for AuditView {
    fn from(audited: Audited) -> Self {
        let at = audited.at().to_string();
        let entry = audited.entry;
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        Self {
            at,
            via: entry.via,
            who: some(entry.who),
            action: entry.action,
            topic: some(entry.topic),
            group: some(entry.group),
            details: some(entry.details),
            outcome: entry.outcome,
        }
    }
}

/// The minimum number of entries per read.
const READ_AT_ONCE: usize = 100;

/// Returns a page of the audit log: up to `limit` entries before the one that `cursor` names, newest first.
///
/// # Errors
/// [`BrokerError`].
pub(crate) async fn page(
    broker: &Broker,
    cursor: Option<EntryPosition>,
    limit: usize,
) -> Result<AuditPage, BrokerError> {
    let (mut entries, mut before) = (Vec::new(), cursor);
    loop {
        let read = broker
            .audit_log(before, (limit + 1).max(READ_AT_ONCE))
            .await?;
        let Some(last) = read.last() else {
            break;
        };
        before = Some(last.position());
        // A page reveals nothing about entries that the client does not reach, not even their number.
        let reached = read.into_iter().filter(|read| {
            let topic = Some(read.entry.topic.as_str()).filter(|topic| !topic.is_empty());
            reaches_named(topic)
        });
        entries.extend(reached);
        if entries.len() > limit {
            break;
        }
    }
    let has_more = entries.len() > limit;
    entries.truncate(limit);
    let last = entries.last().filter(|_| has_more);
    let next = last.map(|last| last.position().to_string());
    let entries = entries.into_iter().map(AuditView::from).collect();
    Ok(AuditPage { entries, next })
}
