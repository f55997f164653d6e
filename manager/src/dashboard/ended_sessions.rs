//! The sessions that were ended by a logout, as far as this manager knows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lisa_core::broker::{Broker, BrokerError};
use lisa_core::sync::Mutex;
use lisa_core::task;
use lisa_core::time::UnixMs;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::timeout_at;

use super::session::{LONGEST, SessionId};

/// The time for which other managers may not know of a logout.
const FRESH: Duration = Duration::from_secs(1);
/// The longest wait of a page and of a change for the list.
const PAGE_WITHIN: Duration = Duration::from_millis(200);
const CHANGE_WITHIN: Duration = Duration::from_millis(1800);
/// The ended sessions of one token that are listed. Beyond that, a logout ends all sessions of the token, so that nobody can drop
/// others from the list.
const MOST_OF_A_TOKEN: usize = 1000;

/// The list of ended sessions. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct EndedSessions {
    known: Arc<Mutex<Ended>>,
    /// Locked while the list is read or changed.
    reads: Arc<AsyncMutex<Reads>>,
}

/// Names of sessions, each with the time of its end.
pub(super) type Ended = Arc<HashMap<String, UnixMs>>;

#[derive(Debug, Default)]
struct Reads {
    read_at: Option<Instant>,
    failed_at: Option<Instant>,
}

impl EndedSessions {
    /// Returns the list, and whether it is current: at most a second old. A page does not wait for Redis for long.
    pub(super) async fn read(&self, broker: &Broker, is_change: bool) -> (Ended, bool) {
        let within = if is_change {
            CHANGE_WITHIN
        } else {
            PAGE_WITHIN
        };
        let until = tokio::time::Instant::now() + within;
        let reads = timeout_at(until, self.reads.clone().lock_owned()).await;
        let is_recent = |at: Option<Instant>| at.is_some_and(|at| at.elapsed() < FRESH);
        let is_current = match reads {
            Err(_) => false,
            Ok(reads) if is_recent(reads.read_at) => true,
            Ok(reads) if is_recent(reads.failed_at) && !is_change => false,
            Ok(reads) => {
                // In a task, so that a list that comes too late for this request is there for the next one.
                let refreshed = task::detached(self.clone().refresh(broker.clone(), reads));
                matches!(timeout_at(until, refreshed).await, Ok(Ok(true)))
            }
        };
        (self.known.lock().clone(), is_current)
    }

    async fn refresh(self, broker: Broker, mut reads: OwnedMutexGuard<Reads>) -> bool {
        let begun = Instant::now();
        let read = broker.ended_sessions().await;
        match read {
            Ok(ended) => {
                *self.known.lock() = Arc::new(ended);
                reads.read_at = Some(begun);
                true
            }
            Err(error) => {
                tracing::debug!(%error, "cannot read the ended sessions");
                reads.failed_at = Some(Instant::now());
                false
            }
        }
    }

    /// Ends a session, or all sessions of its token; also if too many of the token are in the list.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub(super) async fn end(
        &self,
        broker: &Broker,
        id: &SessionId,
        is_all: bool,
    ) -> Result<(), BrokerError> {
        // No read may replace the list by an older one meanwhile.
        let _reads = self.reads.lock().await;
        let (now, known) = (broker.now(), self.known.lock().clone());
        let of_token = format!("{}/", id.token);
        let listed = known.keys().filter(|name| name.starts_with(&of_token));
        let name = if is_all || listed.count() >= MOST_OF_A_TOKEN {
            id.all()
        } else {
            id.one()
        };
        broker.end_session(&name, now, LONGEST).await?;
        Arc::make_mut(&mut self.known.lock()).insert(name, now);
        Ok(())
    }
}
