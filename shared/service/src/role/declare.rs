//! Declares the topics of a configuration at the start of a role.

use crate::shutdown::Shutdown;
use lisa_core::broker::{Broker, BrokerError, Declare, TopicHandle};
use lisa_core::outage::Outage;
use lisa_core::topic::{Topic, TopicSettings};

/// Declares topics. While Redis is unavailable, retries and logs that once. Returns when the shutdown begins. A topic
/// whose stored data is damaged, or that was removed or is being changed, is logged and skipped.
///
/// # Errors
/// A topic cannot be served, because its keys have another layout version, or Redis refuses the call. The remaining topics
/// are not declared.
///
/// # Cancel safety
/// Safe: the next declaration completes a partly declared topic.
pub async fn declare_topics<'a>(
    broker: &Broker,
    topics: impl IntoIterator<Item = (&'a Topic, &'a TopicSettings)>,
    mode: Declare,
    shutdown: &Shutdown,
) -> Result<(), BrokerError> {
    let declared = async {
        let mut outage = Outage::new("declare topics");
        for (topic, settings) in topics {
            loop {
                match broker.declare(topic, settings, mode).await {
                    Ok(there) => {
                        outage.recovered();
                        compare(&there, settings, mode);
                        break;
                    }
                    Err(error) if error.is_retryable() => {
                        tokio::time::sleep(outage.failed(&error)).await;
                    }
                    Err(BrokerError::UnknownTopic(_)) => {
                        tracing::warn!(%topic, "topic was removed; not declaring it again");
                        break;
                    }
                    Err(error) if is_damage(&error) => {
                        tracing::error!(%topic, %error, "cannot declare topic; skipping it");
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    };
    let ended = shutdown.draining().run_until_cancelled(declared).await;
    ended.unwrap_or(Ok(()))
}

/// Returns whether the stored data of the topic must be repaired. Other topics must not wait for that.
fn is_damage(error: &BrokerError) -> bool {
    let of_version = matches!(error, BrokerError::Layout { .. });
    error.is_of_one_topic() && !of_version
}

/// Logs a configured number of shards that is ignored: an existing topic keeps its own, for example after resharding.
fn compare(there: &TopicHandle, settings: &TopicSettings, mode: Declare) {
    let (topic, shards, configured) = (there.name(), there.settings().shards, settings.shards);
    if shards == configured {
        return;
    }
    const KEPT: &str =
        "the topic keeps its number of shards: the configured one applies only to a new topic";
    // Warns only about the managers' file, which operators keep up to date, and not about 1, the default of the setting.
    if mode == Declare::Update && configured != TopicSettings::default().shards {
        tracing::warn!(%topic, shards, configured, "{KEPT}");
    } else {
        tracing::info!(%topic, shards, configured, "{KEPT}");
    }
}
