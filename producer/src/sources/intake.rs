//! The way of a message from any source into Lisa: it is converted, and sent until Lisa has it or refuses it for good.

mod health;
mod message;

use std::sync::atomic::{AtomicBool, Ordering};

use lisa_core::state::SendOutcome;
use lisa_service::config::SourceConfig;
use lisa_service::metrics::Metrics;

use self::health::Health;
use self::message::read;
use crate::producer::Producer;

pub(super) use self::message::Incoming;

/// The way of the messages of one source.
#[derive(Debug)]
pub(super) struct Intake {
    config: SourceConfig,
    producer: Producer,
    health: Health,
    /// True once a header was left out, or a message had no id: each is logged once.
    left_out: AtomicBool,
    without_id: AtomicBool,
}

/// The answer of Lisa for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// Lisa has it.
    Accepted,
    /// Lisa refuses it for good, for this reason.
    Refused(String),
}

impl Intake {
    pub(super) fn new(config: SourceConfig, producer: Producer, metrics: Metrics) -> Self {
        Self {
            health: Health::new(&config.name, metrics),
            config,
            producer,
            left_out: AtomicBool::new(false),
            without_id: AtomicBool::new(false),
        }
    }

    pub(super) fn config(&self) -> &SourceConfig {
        &self.config
    }

    pub(super) fn name(&self) -> &str {
        &self.config.name
    }

    pub(super) fn health(&self) -> &Health {
        &self.health
    }

    /// Sends a message until Lisa has it, or refuses it for good. Waits while Lisa cannot store it.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the send: the message may still be sent.
    pub(super) async fn take(&self, incoming: Incoming) -> Taken {
        let id = incoming.id.clone().unwrap_or_default();
        if incoming.id.is_none() && !self.without_id.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                source = self.config.name,
                "a message without an id: a redelivery of such a message is stored twice"
            );
        }
        let outgoing = match read(incoming, &self.config) {
            Ok(outgoing) => outgoing,
            Err(reason) => return self.refused(reason, &id),
        };
        if let Some(header) = outgoing.left_out
            && !self.left_out.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                source = self.config.name,
                header,
                "a header that Lisa cannot carry is left out"
            );
        }
        loop {
            self.health.sendable().await;
            let sent = self
                .producer
                .send_message(&outgoing.topic, outgoing.message.clone());
            match sent.await {
                Ok(receipt) => {
                    self.health.answered();
                    self.health.accepted(match receipt.outcome {
                        SendOutcome::Duplicate => "duplicate",
                        _ => "accepted",
                    });
                    return Taken::Accepted;
                }
                Err(error) if error.is_about_the_message() => {
                    self.health.answered();
                    return self.refused(error.to_string(), &id);
                }
                Err(error) => self.health.stalled(error.to_string()),
            }
        }
    }

    fn refused(&self, reason: String, id: &str) -> Taken {
        self.health.refused(&reason, id);
        Taken::Refused(reason)
    }
}
