//! Converts the messages of any source, and sends each until Lisa accepts it or refuses it permanently.

mod health;
mod message;

use std::sync::atomic::{AtomicBool, Ordering};

use lisa_core::state::SendOutcome;
use lisa_service::config::SourceConfig;
use lisa_service::metrics::Metrics;

use self::health::Health;
use self::message::read;
use crate::error::SendError;
use crate::producer::Producer;

pub(super) use self::message::Incoming;

/// The path of one source's messages into Lisa.
#[derive(Debug)]
pub(super) struct Intake {
    config: SourceConfig,
    producer: Producer,
    health: Health,
    /// True once a header was omitted: that is logged once.
    left_out: AtomicBool,
    /// True once a message had no id from its broker: that is logged once.
    without_id: AtomicBool,
}

/// The answer of Lisa for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// Lisa has stored the message, or recognized it as a duplicate.
    Accepted,
    /// Lisa refuses the message permanently; the reason.
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

    /// Sends a message until Lisa accepts it or refuses it permanently. Waits while Lisa cannot store it.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may still be stored.
    pub(super) async fn take(&self, incoming: Incoming) -> Taken {
        let id = incoming.id.clone().unwrap_or_default();
        if incoming.id.is_none() && !self.without_id.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                source = self.config.name,
                "message without an id from its broker; unless it has Lisa-Id, a redelivery may be stored twice"
            );
        }
        let outgoing = match read(incoming, &self.config) {
            Ok(outgoing) => outgoing,
            Err(reason) => return self.refuse(reason, &id),
        };
        if let Some(header) = outgoing.left_out
            && !self.left_out.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                source = self.config.name,
                header,
                "header omitted: Lisa cannot carry it"
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
                // A server without the durability of the topic is no fault of the message.
                Err(SendError::Invalid(problem))
                    if problem.field == "durability" && !outgoing.has_durability =>
                {
                    self.health.stalled(problem.to_string());
                }
                Err(error) if error.is_about_the_message() => {
                    self.health.answered();
                    return self.refuse(error.to_string(), &id);
                }
                Err(error) => self.health.stalled(error.to_string()),
            }
        }
    }

    /// Refuses a message permanently. `id` is for the log.
    pub(super) fn refuse(&self, reason: impl Into<String>, id: &str) -> Taken {
        let reason = reason.into();
        self.health.refused(&reason, id);
        Taken::Refused(reason)
    }
}
