//! Sources: take messages off message brokers, send them to Lisa, and acknowledge each at its broker after the receipt.
//!
//! Each source of `[[producer.sources]]` is one task with its own client. A message is taken, sent with an id that is the
//! same in every redelivery, and acknowledged at the broker once Lisa has it. After a crash in between, the redelivered
//! message is a duplicate. A message of AMQP without an id may be stored twice.
//!
//! | Lisa | the message at the broker |
//! |---|---|
//! | accepts the message, or recognizes it as a duplicate | is acknowledged |
//! | refuses it permanently: an option or the topic is not allowed, or it is too large | is refused: the broker's dead-letter rule applies |
//! | cannot store it now: the topic is full or not registered, Redis is unavailable or out of memory | stays unacknowledged, and is sent again; no more than `prefetch` messages are taken |

#[cfg(feature = "source-amqp")]
mod amqp;
#[cfg(any(
    feature = "source-amqp",
    feature = "source-nats",
    feature = "source-kafka"
))]
mod intake;
#[cfg(feature = "source-kafka")]
mod kafka;
#[cfg(feature = "source-nats")]
mod nats;
#[cfg(any(
    feature = "source-amqp",
    feature = "source-nats",
    feature = "source-kafka"
))]
mod task;

use lisa_service::config::{SourceConfig, SourceFrom};
use lisa_service::role::{Runtime, StartError};

use crate::producer::Producer;

/// The sources of a producer, checked but not started.
#[derive(Debug)]
pub struct Sources(Vec<SourceConfig>);

impl Sources {
    /// Returns the sources of a configuration.
    ///
    /// # Errors
    /// [`StartError::Refused`] if this program was built without a feature that a source needs.
    pub fn of(runtime: &Runtime) -> Result<Self, StartError> {
        let sources = runtime.config.producer.sources.clone();
        for (index, source) in sources.iter().enumerate() {
            let (feature, is_there) = match source.from {
                SourceFrom::Amqp(_) => ("source-amqp", cfg!(feature = "source-amqp")),
                SourceFrom::Nats(_) => ("source-nats", cfg!(feature = "source-nats")),
                SourceFrom::Kafka(_) => ("source-kafka", cfg!(feature = "source-kafka")),
            };
            if !is_there {
                return Err(StartError::Refused(format!(
                    "producer.sources[{index}].from: built without the feature `{feature}`"
                )));
            }
        }
        Ok(Self(sources))
    }

    /// Starts one task for each source, which runs until the shutdown. Each source has its own send buffer, so that it
    /// cannot fill that of the HTTP API. Other options are those of `producer`.
    #[cfg_attr(
        not(any(
            feature = "source-amqp",
            feature = "source-nats",
            feature = "source-kafka"
        )),
        expect(unused_variables, reason = "each source needs a feature")
    )]
    pub fn start(self, runtime: &Runtime, producer: &Producer) {
        for config in self.0 {
            #[cfg(any(
                feature = "source-amqp",
                feature = "source-nats",
                feature = "source-kafka"
            ))]
            task::start(config, runtime, producer);
        }
    }
}
