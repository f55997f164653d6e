//! The audit log: records each action of an operator, and lists them, for HTTP and the command line.
//!
//! An entry is added after the action, with its outcome. Requests that are refused before anything is tried are not recorded.

use std::fmt::Display;
use std::time::Duration;

use lisa_core::broker::{AuditEntry, Audited, Broker, BrokerError, Checkup, Outcome};
use lisa_core::message::EntryId;
use lisa_core::topic::{Group, Topic};
use lisa_service::http::auth::token_name;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::time::timeout;
use utoipa::ToSchema;

use super::counted;
use super::garbage::{Selection, Swept};

/// The time limit for adding an entry. The action is over by then.
const WITHIN: Duration = Duration::from_secs(1);

/// An action of an operator, to be recorded with its outcome.
#[derive(Debug)]
pub(crate) struct Action {
    broker: Broker,
    entry: AuditEntry,
    /// True from the start of the work until the entry is added.
    is_running: bool,
}

impl Action {
    /// Creates an action of the client of the HTTP request that is being answered.
    pub(crate) fn over_http(broker: &Broker, action: &str) -> Self {
        let who = token_name().map_or(String::new(), |name| name.to_string());
        Self::new(broker, "http", who, action)
    }

    /// Creates an action of the user who runs this command line.
    pub(crate) fn on_command_line(broker: &Broker, action: &str) -> Self {
        let user = ["SUDO_USER", "USER", "LOGNAME"]
            .into_iter()
            .find_map(|name| std::env::var(name).ok().filter(|user| !user.is_empty()));
        Self::new(broker, "cli", user.unwrap_or_default(), action)
    }

    /// Creates an action of a viewer of the dashboard.
    pub(crate) fn in_dashboard(broker: &Broker, who: Option<&str>, action: &str) -> Self {
        Self::new(
            broker,
            "dashboard",
            who.unwrap_or_default().to_owned(),
            action,
        )
    }

    fn new(broker: &Broker, via: &str, who: String, action: &str) -> Self {
        let entry = AuditEntry {
            via: via.to_owned(),
            who,
            action: action.to_owned(),
            ..AuditEntry::default()
        };
        Self {
            broker: broker.clone(),
            entry,
            is_running: false,
        }
    }

    /// Sets the topic.
    pub(crate) fn topic(mut self, topic: &Topic) -> Self {
        self.entry.topic = topic.to_string();
        self
    }

    /// Sets the group.
    pub(crate) fn group(mut self, group: &Group) -> Self {
        self.entry.group = group.to_string();
        self
    }

    /// Sets the extent of the action. It must not contain payloads, headers or secrets.
    pub(crate) fn details(mut self, details: impl Display) -> Self {
        self.entry.details = details.to_string();
        self
    }

    /// Runs the action, and records it with its outcome or error. If this future is dropped, for example because the client
    /// disconnects, records that the action was interrupted.
    pub(crate) async fn run<T, E: Display>(
        mut self,
        work: impl Future<Output = Result<T, E>>,
        outcome: impl FnOnce(&T) -> String,
    ) -> Result<T, E> {
        self.is_running = true;
        let result = work.await;
        self.entry.outcome = match &result {
            Ok(done) => outcome(done),
            Err(error) => format!("failed: {error}"),
        };
        self.is_running = false;
        add(self.broker.clone(), self.entry.clone()).await;
        result
    }
}

impl Drop for Action {
    fn drop(&mut self) {
        if !self.is_running {
            return;
        }
        let (broker, mut entry) = (self.broker.clone(), std::mem::take(&mut self.entry));
        "interrupted; part of it may be done".clone_into(&mut entry.outcome);
        // In a task, because the request is gone. The task ends within a second.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(add(broker, entry));
        }
    }
}

/// Adds an entry. A failure does not affect the action, so it is logged together with the entry.
async fn add(broker: Broker, entry: AuditEntry) {
    let error = match timeout(WITHIN, broker.audit(&entry)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "Redis did not answer".to_owned(),
    };
    tracing::warn!(?entry, error, "action is not in the audit log");
}

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
    /// The interface: `http`, `dashboard` or `cli`.
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

/// Returns a page of the audit log: up to `limit` entries before the one that `cursor` names, newest first.
///
/// # Errors
/// [`BrokerError`].
pub(crate) async fn page(
    broker: &Broker,
    cursor: Option<EntryId>,
    limit: usize,
) -> Result<AuditPage, BrokerError> {
    let entries = broker.audit_log(cursor, limit).await?;
    let last = entries.last().filter(|_| entries.len() == limit);
    let next = last.map(|last| last.id.to_string());
    let entries = entries.into_iter().map(AuditView::from).collect();
    Ok(AuditPage { entries, next })
}
