//! Declares the topics of a configuration at the start of a role.

use std::time::Duration;

use crate::broker::{Broker, BrokerError, Declare, TopicHandle};
use crate::shutdown::Shutdown;
use crate::topic::{Topic, TopicSettings};

/// The pause after a try that Redis did not answer; the try itself lasts as long as the broker's patience.
const PAUSE: Duration = Duration::from_millis(500);

/// Declares topics, retrying while Redis is unavailable, which is said once; returns when the shutdown begins. What is stored
/// of a topic may be damaged: that topic is logged and left out.
///
/// # Errors
/// A topic that this process cannot serve, as its keys are of another version; the rest is not declared.
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
            loop {
                match broker.declare(topic, settings, mode).await {
                    Ok(there) => {
                        compare(&there, settings, mode);
                        break;
                    }
                    Err(error) if error.is_retryable() => {
                        if !std::mem::replace(&mut said, true) {
                            tracing::warn!(%topic, %error, "topics are not declared: retrying");
                        }
                        tokio::time::sleep(PAUSE).await;
                    }
                    Err(error) if is_damage(&error) => {
                        tracing::error!(%topic, %error, "a topic cannot be declared: going on with the others");
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

/// Says whether what is stored of the topic must be repaired, which no other topic should wait for.
fn is_damage(error: &BrokerError) -> bool {
    let of_version = matches!(error, BrokerError::Layout { .. });
    error.is_of_one_topic() && !of_version
}

/// Logs a number of shards that is not used: a topic that was resharded keeps its own, whatever a file still says.
fn compare(there: &TopicHandle, settings: &TopicSettings, mode: Declare) {
    let (topic, shards, configured) = (there.name(), there.settings().shards, settings.shards);
    if shards == configured {
        return;
    }
    const KEPT: &str = "the topic keeps its number of shards: that of the configuration counts for a new topic only";
    // The managers' file is the one that operators keep up to date, and what it does not name is 1.
    if mode == Declare::Update && configured != TopicSettings::default().shards {
        tracing::warn!(%topic, shards, configured, "{KEPT}");
    } else {
        tracing::info!(%topic, shards, configured, "{KEPT}");
    }
}
