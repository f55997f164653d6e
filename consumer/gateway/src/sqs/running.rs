//! The long operations of SQS clients: one of a kind at a time for each queue, until the shutdown. The audit log records them, as
//! actions of an operator.

use std::fmt::Display;
use std::sync::Arc;

use lisa_core::topic::Topic;
use lisa_service::audit::Action;
use tokio::sync::oneshot;

use super::protocol::{Kind, SqsError};
use super::{Call, Service};

/// A long operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verb {
    Purge,
    /// Moves the messages of a dead-letter queue.
    Move,
    /// Moves the garbage (dead letters) of a topic to the topic itself.
    Requeue,
}

impl Verb {
    /// Returns its name in the audit log.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Purge => "purge_queue",
            Self::Move => "move_messages",
            Self::Requeue => "requeue",
        }
    }

    /// Returns its outcome in the audit log.
    fn outcome(self, count: u64) -> String {
        match self {
            Self::Purge => format!("{count} removed"),
            Self::Move => format!("{count} moved"),
            Self::Requeue => format!("{count} requeued"),
        }
    }
}

/// The mark that an operation runs. Dropping it removes the mark.
pub(super) struct Running {
    service: Arc<Service>,
    operation: (Verb, Topic),
}

impl Running {
    /// Marks an operation on a queue.
    ///
    /// # Errors
    /// It runs already.
    pub(super) fn begin(
        call: &Call<'_>,
        verb: Verb,
        queue: &str,
        topic: &Topic,
    ) -> Result<Self, SqsError> {
        let service = call.service.clone();
        let operation = (verb, topic.clone());
        if !service.running.lock().insert(operation.clone()) {
            return Err(match verb {
                Verb::Purge => SqsError::purged(queue),
                Verb::Move | Verb::Requeue => SqsError::task_runs(),
            });
        }
        Ok(Self { service, operation })
    }

    /// Runs the work until its end, or the shutdown. Returns the receiver of its result, which need not be awaited.
    pub(super) fn start<E: Display + Send>(
        self,
        call: &Call<'_>,
        work: impl Future<Output = Result<u64, E>> + Send + 'static,
    ) -> oneshot::Receiver<Result<(), SqsError>> {
        let (verb, topic) = &self.operation;
        let broker = &self.service.gateway.process().broker;
        let action = Action::of_sqs_client(broker, call.token.as_deref(), verb.as_str());
        let action = action.topic(topic).group(&self.service.options.group);
        let (end, ended) = oneshot::channel();
        let gateway = self.service.gateway.clone();
        gateway.spawn(async move {
            let (verb, topic) = &self.operation;
            let draining = self.service.gateway.shutdown().draining();
            let work = async {
                match draining.run_until_cancelled(work).await {
                    Some(result) => result.map_err(|error| error.to_string()),
                    None => Err("stopped by the shutdown".to_owned()),
                }
            };
            let result = action.run(work, |count| verb.outcome(*count)).await;
            match &result {
                Ok(count) => tracing::info!(%topic, count, ?verb, "finished for an SQS client"),
                Err(error) => {
                    tracing::error!(%topic, error, ?verb, "failed for an SQS client; call it again");
                }
            }
            let result = result.map(drop).map_err(|error| {
                let message = format!("{error}; call it again");
                SqsError::new(Kind::ServiceUnavailable, message)
            });
            drop(self);
            // The client may not wait for it.
            let _ = end.send(result);
        });
        ended
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.service.running.lock().remove(&self.operation);
    }
}
