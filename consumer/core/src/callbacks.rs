//! The topics to which a subscription sends callbacks, and which of them accept none at the moment.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use lisa_core::sync::Mutex;
use lisa_core::time::format_duration;
use lisa_core::topic::Topic;
use tokio::time::{Instant, sleep};

/// The prefix of the headers that describe the outcome.
pub(crate) const PREFIX: &str = "lisa-callback-";
/// The time between two attempts of a subscription to send a callback again.
const TRY_AGAIN: Duration = Duration::from_millis(250);
/// The shortest time between two log lines about callbacks that cannot be sent.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The topics that a subscription sends callbacks to. Clones share the state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Callbacks {
    pub(crate) success: Option<Topic>,
    pub(crate) garbage: Option<Topic>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    troubles: Mutex<BTreeMap<Topic, Trouble>>,
    logged: Mutex<Option<Instant>>,
    /// Locked while a callback waits for its next attempt, so that only one is tried at a time.
    turn: tokio::sync::Mutex<()>,
}

/// The time since which a topic accepts no callbacks, and the reason.
#[derive(Debug)]
struct Trouble {
    since: Instant,
    error: String,
}

impl Callbacks {
    /// Returns the topics that get callbacks.
    pub(crate) fn topics(&self) -> impl Iterator<Item = &Topic> {
        [&self.success, &self.garbage].into_iter().flatten()
    }

    /// Returns a warning for operators for each topic that accepts no callbacks.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let troubles = self.state.troubles.lock();
        let warning = |(topic, Trouble { since, error }): (&Topic, &Trouble)| {
            let time = format_duration(Duration::from_secs(since.elapsed().as_secs()));
            format!("callbacks to topic {topic} wait for {time}: {error}")
        };
        troubles.iter().map(warning).collect()
    }

    /// Records that a topic accepts no callback of this subscription.
    pub(crate) fn failed(&self, to: &Topic, subscription: &dyn Display, error: &dyn Display) {
        let mut troubles = self.state.troubles.lock();
        let trouble = troubles.entry(to.clone()).or_insert_with(|| Trouble {
            since: Instant::now(),
            error: String::new(),
        });
        trouble.error = error.to_string();
        drop(troubles);
        if self.is_time_to_log() {
            tracing::warn!(%subscription, topic = %to, %error, "cannot send callbacks; retrying");
        }
    }

    /// Records that a topic accepts callbacks.
    pub(crate) fn works(&self, to: &Topic) {
        self.state.troubles.lock().remove(to);
    }

    /// Returns whether enough time has passed since the last log line about callbacks.
    pub(crate) fn is_time_to_log(&self) -> bool {
        let mut logged = self.state.logged.lock();
        let is_time = logged.is_none_or(|at| at.elapsed() >= LOG_EVERY);
        if is_time {
            *logged = Some(Instant::now());
        }
        is_time
    }

    /// Waits before the next attempt if the topic still accepts no callbacks. Only one callback of a subscription waits at
    /// a time; the others wait for it.
    pub(crate) async fn turn(&self, to: &Topic) {
        let _turn = self.state.turn.lock().await;
        let is_troubled = self.state.troubles.lock().contains_key(to);
        if is_troubled {
            sleep(TRY_AGAIN).await;
        }
    }
}
