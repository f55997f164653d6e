//! What a role tells `/readyz`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::link::{Link, LinkStatus};

/// The state that a role tells `/readyz`: Redis answers, and nothing is left to be done. A cheap clone.
#[derive(Clone)]
pub struct Readiness {
    link: Link,
    awaited: Arc<Mutex<BTreeMap<&'static str, String>>>,
    warnings: Arc<Mutex<Vec<Warnings>>>,
}

/// Returns what hinders a role that is ready all the same, one sentence each.
type Warnings = Box<dyn Fn() -> Vec<String> + Send>;

impl Readiness {
    pub(super) fn new(link: &Link) -> Self {
        Self {
            link: link.clone(),
            awaited: Arc::default(),
            warnings: Arc::default(),
        }
    }

    /// Shows these sentences, too, each time somebody asks; the role is ready whatever they say. Must be quick.
    pub fn warn_with(&self, warnings: impl Fn() -> Vec<String> + Send + 'static) {
        let mut all = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Box::new(warnings));
    }

    /// Returns what hinders the role although it is ready.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let all = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().flat_map(|warnings| warnings()).collect()
    }

    /// Holds the role not ready, for this reason, until [`Readiness::met`] is called with the same name.
    pub fn wait_for(&self, name: &'static str, reason: impl Into<String>) {
        self.awaited().insert(name, reason.into());
    }

    /// Says that this is done.
    pub fn met(&self, name: &str) {
        self.awaited().remove(name);
    }

    /// Gives the reasons why the role is not ready; none when it is.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let status = match &*self.link.status().borrow() {
            LinkStatus::Up => None,
            LinkStatus::Connecting => Some("redis: connecting".to_owned()),
            LinkStatus::Down { reason, .. } => Some(format!("redis: {reason}")),
        };
        status
            .into_iter()
            .chain(self.awaited().values().cloned())
            .collect()
    }

    fn awaited(&self) -> MutexGuard<'_, BTreeMap<&'static str, String>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
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
