//! Declares the topics of a configuration at the start of a role.

use std::time::Duration;

use crate::broker::{Broker, BrokerError, Declare};
use crate::shutdown::Shutdown;
use crate::topic::{Topic, TopicSettings};

/// The pause after a try that Redis did not answer; the try itself lasts as long as the broker's patience.
const PAUSE: Duration = Duration::from_millis(500);

/// Declares topics, trying on while Redis is away, which is said once; gives up when the shutdown begins.
///
/// # Errors
/// A topic that cannot be as described; the rest is not declared.
///
/// # Cancel safety
/// Safe: a topic that was declared in part is completed by the next declaration.
pub async fn declare_topics<'a>(
    broker: &Broker,
    topics: impl IntoIterator<Item = (&'a Topic, &'a TopicSettings)>,
    mode: Declare,
    shutdown: &Shutdown,
) -> Result<(), BrokerError> {
    let declared = async {
        let mut said = false;
        for (topic, settings) in topics {
            while let Err(error) = broker.declare(topic, settings, mode).await {
                if !error.is_retryable() {
                    return Err(error);
                }
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!(%topic, %error, "topics are not declared: trying on");
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(())
    };
    let ended = shutdown.draining().run_until_cancelled(declared).await;
    ended.unwrap_or(Ok(()))
}
