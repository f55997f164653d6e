//! What a role tells `/readyz`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::link::{Link, LinkStatus};

/// The state that a role tells `/readyz`: Redis answers, and nothing is left to be done. A cheap clone.
#[derive(Clone, Debug)]
pub struct Readiness {
    link: Link,
    awaited: Arc<Mutex<BTreeMap<&'static str, String>>>,
}

impl Readiness {
    pub(super) fn new(link: &Link) -> Self {
        Self {
            link: link.clone(),
            awaited: Arc::default(),
        }
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
