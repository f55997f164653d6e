//! The errors of building and running a consumer.

use lisa_core::topic::InvalidName;
use lisa_service::supervise::SupervisorError;

/// The largest number of handlers of one subscription that may run at a time.
pub(crate) const MAX_CONCURRENCY: usize = 10_000;

/// The error of building or running a consumer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumerError {
    /// The name of a topic or group is invalid.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// There is no subscription.
    #[error("no topic to consume")]
    NoTopic,
    /// Two subscriptions have the same topic and group.
    #[error(
        "group {group} of topic {topic} has two subscriptions: use one with a higher concurrency"
    )]
    Twice {
        /// The topic.
        topic: String,
        /// The group.
        group: String,
    },
    /// The callbacks of a topic would lead back to the topic.
    #[error("callbacks form a cycle: {0}")]
    CallbackCycle(String),
    /// A subscription sends callbacks for acks, and its handler leaves acks to gateways, which send none.
    #[error("success_topic cannot be combined with a handler that completes deliveries later")]
    CallbackLater,
    /// The concurrency is out of bounds.
    #[error("concurrency {0}: must be 1 to {MAX_CONCURRENCY}")]
    Concurrency(usize),
    /// The handler timeout is zero.
    #[error("handler timeout must be more than zero")]
    HandlerTimeout,
    /// A task failed, or did not end within the grace period.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
}
