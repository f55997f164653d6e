//! Records each action of an operator in the audit log, whichever process carries it out.
//!
//! An entry is added after the action, with its outcome. Requests that are refused before anything is tried are not recorded.

use std::fmt::Display;
use std::os::unix::fs::MetadataExt;

use lisa_core::broker::{AUDIT_WITHIN, AuditEntry, Broker};
use lisa_core::topic::{Group, Topic};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::http::client::token_name;

/// An action of an operator, to be recorded with its outcome.
#[derive(Debug)]
pub struct Action {
    broker: Broker,
    entry: AuditEntry,
    /// True from the start of the work until the entry is added.
    is_running: bool,
}

impl Action {
    /// Creates an action of the client of the HTTP request that is being answered.
    pub fn over_http(broker: &Broker, action: &str) -> Self {
        let who = token_name().map_or(String::new(), |name| name.to_string());
        Self::new(broker, "http", who, action)
    }

    /// Creates an action of the user who runs this command line.
    pub fn on_command_line(broker: &Broker, action: &str) -> Self {
        let user = ["SUDO_USER", "USER", "LOGNAME"]
            .into_iter()
            .find_map(|name| std::env::var(name).ok().filter(|user| !user.is_empty()));
        let user = user.or_else(|| {
            let process = std::fs::metadata("/proc/self").ok()?;
            Some(format!("uid {}", process.uid()))
        });
        Self::new(broker, "cli", user.unwrap_or_default(), action)
    }

    /// Creates an action of a client of Amazon SQS: that of a token, unless none are configured.
    pub fn of_sqs_client(broker: &Broker, who: Option<&str>, action: &str) -> Self {
        Self::new(broker, "sqs", who.unwrap_or_default().to_owned(), action)
    }

    /// Creates an action of a viewer of the dashboard.
    pub fn in_dashboard(broker: &Broker, who: Option<&str>, action: &str) -> Self {
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

    /// Returns the name of the token, or of the user of the operating system; empty if unknown.
    #[must_use]
    pub fn who(&self) -> &str {
        &self.entry.who
    }

    /// Sets the topic.
    #[must_use]
    pub fn topic(mut self, topic: &Topic) -> Self {
        self.entry.topic = topic.to_string();
        self
    }

    /// Sets the group.
    #[must_use]
    pub fn group(mut self, group: &Group) -> Self {
        self.entry.group = group.to_string();
        self
    }

    /// Sets the extent of the action. It must not contain payloads, headers or secrets.
    #[must_use]
    pub fn details(mut self, details: impl Display) -> Self {
        self.entry.details = details.to_string();
        self
    }

    /// Runs the action, and records it with its outcome or error. If this future is dropped, for example because the client
    /// disconnects, records that the action was interrupted.
    ///
    /// # Errors
    /// That of the work.
    pub async fn run<T, E: Display>(
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
    let error = match timeout(AUDIT_WITHIN, broker.audit(&entry)).await {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "Redis did not answer".to_owned(),
    };
    tracing::warn!(?entry, error, "action is not in the audit log");
}
