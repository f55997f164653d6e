//! The readiness of a role, as `/readyz` reports it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use lisa_core::redis::{Connection, ConnectionStatus};
use lisa_core::sync::Mutex;

/// The readiness of a role: it is ready if Redis answers and no condition is unmet. Cheap to clone.
#[derive(Clone)]
pub struct Readiness {
    connection: Connection,
    awaited: Arc<Mutex<BTreeMap<&'static str, String>>>,
    warnings: Arc<Mutex<Vec<Warnings>>>,
}

/// Returns problems that do not affect readiness, one sentence each.
type Warnings = Box<dyn Fn() -> Vec<String> + Send>;

impl Readiness {
    pub(super) fn new(connection: &Connection) -> Self {
        Self {
            connection: connection.clone(),
            awaited: Arc::default(),
            warnings: Arc::default(),
        }
    }

    /// Adds a function that returns warnings for each report. They do not affect readiness. The function must be fast.
    pub fn warn_with(&self, warnings: impl Fn() -> Vec<String> + Send + 'static) {
        self.warnings.lock().push(Box::new(warnings));
    }

    /// Returns the current warnings, which do not affect readiness.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let all = self.warnings.lock();
        all.iter().flat_map(|warnings| warnings()).collect()
    }

    /// Keeps the role not ready, for this reason, until [`Readiness::met`] is called with the same name.
    pub fn wait_for(&self, name: &'static str, reason: impl Into<String>) {
        self.awaited.lock().insert(name, reason.into());
    }

    /// Marks the condition with this name as met.
    pub fn met(&self, name: &str) {
        self.awaited.lock().remove(name);
    }

    /// Returns the reasons why the role is not ready; empty if it is ready.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let status = match &*self.connection.status().borrow() {
            ConnectionStatus::Up => None,
            ConnectionStatus::Connecting => Some("not connected to Redis yet".to_owned()),
            ConnectionStatus::Down { reason, .. } => Some(format!("Redis unavailable: {reason}")),
        };
        status
            .into_iter()
            .chain(self.awaited.lock().values().cloned())
            .collect()
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut readiness = f.debug_struct("Readiness");
        readiness
            .field("awaited", &self.awaited)
            .finish_non_exhaustive()
    }
}
