//! The examinations of topics: one at a time in a process, which keeps the last one of each topic.

use std::collections::BTreeMap;
use std::sync::Arc;

use lisa_core::broker::{Broker, Checkup};
use lisa_core::sync::Mutex;
use lisa_core::time::UnixMs;
use lisa_core::topic::Topic;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard};

/// The number of topics whose last examination is kept.
const MOST: usize = 200;
/// The number of findings of an examination that are kept.
const FINDINGS: usize = 20;

/// The examinations of a process. The job and operators share them.
#[derive(Debug, Default)]
pub(crate) struct Examinations {
    running: AsyncMutex<()>,
    last: Mutex<BTreeMap<Topic, Examined>>,
}

/// The last examination of a topic by this process.
#[derive(Clone, Debug)]
pub(crate) struct Examined {
    /// The end of the examination, on Redis's clock.
    pub(crate) at: UnixMs,
    /// The result, with the first findings.
    pub(crate) checkup: Arc<Checkup>,
}

impl Examinations {
    /// Waits until no examination is running, and keeps others from starting.
    pub(crate) async fn lock(&self) -> MutexGuard<'_, ()> {
        self.running.lock().await
    }

    /// Keeps others from starting, unless one is running.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
        self.running.try_lock().ok()
    }

    /// Keeps the result of an examination. Forgets the oldest one if there are too many, and those of topics that are gone.
    pub(crate) fn note(&self, broker: &Broker, checkup: &Checkup) {
        let mut kept = checkup.clone();
        kept.findings.truncate(FINDINGS);
        let examined = Examined {
            at: broker.now(),
            checkup: Arc::new(kept),
        };
        let mut last = self.last.lock();
        last.retain(|topic, _| broker.known(topic).is_some());
        last.insert(checkup.topic.clone(), examined);
        while last.len() > MOST {
            let oldest = last.iter().min_by_key(|(_, examined)| examined.at);
            let Some(oldest) = oldest.map(|(topic, _)| topic.clone()) else {
                return;
            };
            last.remove(&oldest);
        }
    }

    /// Returns the last examination of a topic.
    pub(crate) fn of(&self, topic: &Topic) -> Option<Examined> {
        self.last.lock().get(topic).cloned()
    }

    /// Returns the last examination of each topic: those with faults first, then the newest.
    pub(crate) fn all(&self) -> Vec<Examined> {
        let mut all: Vec<_> = self.last.lock().values().cloned().collect();
        all.sort_by_key(|examined| {
            (
                examined.checkup.is_healthy(),
                std::cmp::Reverse(examined.at),
            )
        });
        all
    }
}
