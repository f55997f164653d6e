//! The health of a source: the availability of its broker, and the ability of Lisa to store its messages. Used for logs,
//! metrics and the warnings of `/readyz`.

use std::time::Duration;

use lisa_core::sync::Mutex;
use lisa_service::metrics::Metrics;
use lisa_service::supervise::Backoff;
use tokio::time::Instant;

/// The shortest time between two log lines about one kind of problem.
const LOG_AGAIN: Duration = Duration::from_secs(60);

/// The health of one source.
#[derive(Debug)]
pub(in crate::sources) struct Health {
    source: String,
    metrics: Metrics,
    broker: Mutex<Broker>,
    stall: Mutex<Stalls>,
    refused: Mutex<Refused>,
}

#[derive(Debug, Default)]
struct Broker {
    up_since: Option<Instant>,
    /// The reason of the last failure, while it lasts.
    failed: Option<String>,
    failures: u32,
    logged: Option<Instant>,
}

/// The current period in which Lisa cannot store messages, and the last log line about one.
#[derive(Debug, Default)]
struct Stalls {
    stall: Option<Stall>,
    logged: Option<Instant>,
}

#[derive(Debug)]
struct Stall {
    reason: String,
    until: Instant,
    failures: u32,
}

#[derive(Debug, Default)]
struct Refused {
    logged: Option<Instant>,
    since: u64,
}

impl Health {
    pub(in crate::sources) fn new(source: &str, metrics: Metrics) -> Self {
        metrics.source_up(source, false);
        Self {
            source: source.to_owned(),
            metrics,
            broker: Mutex::default(),
            stall: Mutex::default(),
            refused: Mutex::default(),
        }
    }

    /// Records that the source can take messages off its broker.
    pub(in crate::sources) fn up(&self) {
        let mut broker = self.broker.lock();
        if broker.up_since.is_some() {
            return;
        }
        broker.up_since = Some(Instant::now());
        self.metrics.source_up(&self.source, true);
        if broker.failed.take().is_some() {
            tracing::info!(source = self.source, "source recovered");
        } else {
            tracing::info!(source = self.source, "source started");
        }
    }

    /// Records that the connection to the broker failed, and returns the pause before the next one.
    pub(in crate::sources) fn failed(&self, reason: String) -> Duration {
        self.down(reason);
        // The messages that waited for Lisa are delivered again.
        self.answered();
        let mut broker = self.broker.lock();
        let pause = Backoff::default().pause(broker.failures);
        broker.failures = broker.failures.saturating_add(1);
        pause
    }

    /// Records that the source cannot take messages off its broker. Logs a new reason at most once a minute.
    pub(in crate::sources) fn down(&self, reason: String) {
        let (mut broker, now) = (self.broker.lock(), Instant::now());
        // A source that failed soon after it started has not recovered.
        let worked = broker
            .up_since
            .take()
            .map(|since| now.duration_since(since));
        if worked.is_some_and(|worked| worked > Backoff::default().cap) {
            broker.failures = 0;
        }
        self.metrics.source_up(&self.source, false);
        let is_old = |at| now.duration_since(at) >= LOG_AGAIN;
        let is_news = match &broker.failed {
            None => true,
            // The text of an error may differ with each try.
            Some(failed) => *failed != reason && broker.logged.is_none_or(is_old),
        };
        if is_news {
            tracing::warn!(
                source = self.source,
                error = reason,
                "cannot take messages off the source; retrying"
            );
            broker.logged = Some(now);
        }
        broker.failed = Some(reason);
    }

    /// Records that Lisa could not store a message. Messages that fail at the same time count once.
    pub(in crate::sources) fn stalled(&self, reason: String) {
        let (mut stalls, now) = (self.stall.lock(), Instant::now());
        let failures = match &stalls.stall {
            Some(stall) if now < stall.until => return,
            Some(stall) => stall.failures.saturating_add(1),
            None => 0,
        };
        if stalls
            .logged
            .is_none_or(|at| now.duration_since(at) >= LOG_AGAIN)
        {
            tracing::warn!(
                source = self.source,
                error = reason,
                "Lisa cannot store messages of the source; it takes no more, retrying"
            );
            stalls.logged = Some(now);
        }
        stalls.stall = Some(Stall {
            reason,
            until: now + Backoff::default().pause(failures),
            failures,
        });
    }

    /// Records that Lisa has accepted or refused a message.
    pub(in crate::sources) fn answered(&self) {
        self.stall.lock().stall = None;
    }

    /// Returns true while Lisa cannot store messages.
    pub(in crate::sources) fn is_stalled(&self) -> bool {
        self.stall.lock().stall.is_some()
    }

    /// Waits until a message may be sent.
    pub(in crate::sources) async fn sendable(&self) {
        loop {
            let until = self.stall.lock().stall.as_ref().map(|stall| stall.until);
            match until {
                Some(until) if until > Instant::now() => tokio::time::sleep_until(until).await,
                _ => return,
            }
        }
    }

    /// Counts an accepted message; `outcome` is `accepted` or `duplicate`.
    pub(in crate::sources) fn accepted(&self, outcome: &str) {
        self.metrics.source_message(&self.source, outcome);
    }

    /// Counts a message that Lisa refuses permanently. Logs at most one a minute, with the number since the last log line.
    pub(in crate::sources) fn refused(&self, reason: &str, id: &str) {
        self.metrics.source_message(&self.source, "refused");
        let (mut refused, now) = (self.refused.lock(), Instant::now());
        refused.since += 1;
        if refused
            .logged
            .is_none_or(|at| now.duration_since(at) >= LOG_AGAIN)
        {
            let count = refused.since;
            tracing::warn!(source = self.source, id, reason, count, "message refused");
            *refused = Refused {
                logged: Some(now),
                since: 0,
            };
        }
    }

    /// Returns the current problems, for operators.
    pub(in crate::sources) fn warnings(&self) -> Vec<String> {
        let failed = self.broker.lock().failed.clone();
        let failed = failed.map(|reason| format!("source {} unavailable: {reason}", self.source));
        let stalls = self.stall.lock();
        let stalled = stalls.stall.as_ref().map(|stall| {
            let (source, reason) = (&self.source, &stall.reason);
            format!("source {source} takes no messages: {reason}")
        });
        failed.into_iter().chain(stalled).collect()
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn health() -> Health {
        Health::new("in", Metrics::new(Registry::default(), "0", "test"))
    }

    #[test]
    fn pauses_grow_while_the_source_never_works_for_long() {
        let health = health();
        let failed = || health.failed("refused".to_owned());
        assert!(failed() <= SECOND);
        for _ in 0..10 {
            health.up();
            failed();
        }
        assert!(failed() > 20 * SECOND);
    }

    #[test]
    fn messages_that_fail_together_share_a_pause_that_an_answer_ends() {
        let health = health();
        for _ in 0..100 {
            health.stalled("full".to_owned());
        }
        let failures = health.stall.lock().stall.as_ref().map(|s| s.failures);
        assert_eq!(failures, Some(0), "one failure, not a hundred");
        assert!(health.is_stalled());
        assert_eq!(health.warnings(), ["source in takes no messages: full"]);
        health.answered();
        assert!(!health.is_stalled() && health.warnings().is_empty());
    }

    #[test]
    fn a_lost_connection_ends_the_stall_of_the_messages_it_had() {
        let health = health();
        health.up();
        health.stalled("full".to_owned());
        health.failed("lost".to_owned());
        assert_eq!(health.warnings(), ["source in unavailable: lost"]);
        health.up();
        assert!(health.warnings().is_empty());
    }
}
