//! The calls of clients with a receipt handle whose visibility timeout has ended.
//!
//! In a standard queue, they have an effect as long as no consumer has received the message since; SQS accepts them even then. In a
//! FIFO queue, both refuse them.

use std::time::Duration;

use lisa_consumer_core::internals::Claims;
use lisa_core::broker::{BrokerError, Found, Hidden, LateAck};
use lisa_service::http::client::Client;
use lisa_service::http::{Problem, ProblemCode};

use super::protocol::{Kind, SqsError};
use super::queues::Queue;
use crate::Gateway;

/// A call that found its delivery stale.
pub(super) struct Late<'a> {
    claims: &'a Claims,
    handle: &'a str,
    is_fifo: bool,
}

/// The state of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Now {
    /// The call had its effect.
    Done,
    /// The group is done with the message.
    Gone,
    /// The group still has it.
    There,
}

fn expired(handle: &str) -> SqsError {
    SqsError::parameter("ReceiptHandle", handle, "The receipt handle has expired")
}

impl<'a> Late<'a> {
    pub(super) fn new(queue: &Queue, claims: &'a Claims, handle: &'a str) -> Self {
        Self {
            claims,
            handle,
            is_fifo: queue.is_fifo(),
        }
    }

    /// Deletes the message. Succeeds if it is gone: a client may delete it twice.
    pub(super) async fn delete(&self, gateway: &Gateway, problem: Problem) -> Result<(), SqsError> {
        let now = self.search(gateway, problem, async |claims| {
            let broker = &gateway.process().broker;
            let topic = broker.topic(&claims.topic).await?;
            let (shard, group) = (claims.shard, &claims.group);
            let may_delete = !self.is_fifo && topic.has(shard);
            let late = match may_delete {
                true => broker.ack_late(&topic, shard, group, &claims.id).await?,
                false => LateAck::Held,
            };
            Ok(late == LateAck::Acked)
        });
        match now.await? {
            Now::Done | Now::Gone => Ok(()),
            Now::There if self.is_fifo => Err(expired(self.handle)),
            Now::There => {
                let message = "The receipt handle has expired: the visibility timeout has ended, and the message may be with another \
                    consumer.";
                Err(SqsError::new(Kind::ReceiptHandleIsInvalid, message))
            }
        }
    }

    /// Hides the message for a new visibility timeout. 0 does nothing to a message that is visible.
    pub(super) async fn change(
        &self,
        gateway: &Gateway,
        timeout: Duration,
        problem: Problem,
    ) -> Result<(), SqsError> {
        let now = self.search(gateway, problem, async |claims| {
            let broker = &gateway.process().broker;
            let topic = broker.topic(&claims.topic).await?;
            let (shard, group) = (claims.shard, &claims.group);
            let may_hide = !self.is_fifo && topic.has(shard);
            let hidden = match may_hide {
                true => {
                    broker
                        .hide(&topic, shard, group, &claims.id, timeout)
                        .await?
                }
                false => Hidden::Held,
            };
            Ok(hidden == Hidden::Hidden)
        });
        match now.await? {
            Now::Done => Ok(()),
            Now::Gone => {
                let reason =
                    "Message does not exist or is not available for visibility timeout change";
                Err(SqsError::parameter("ReceiptHandle", self.handle, reason))
            }
            Now::There => {
                let message = "The message is not in flight with this receipt handle: its visibility timeout has ended.";
                Err(SqsError::new(Kind::MessageNotInflight, message))
            }
        }
    }

    /// Tries a late call, and looks up the message if that has no effect.
    async fn search(
        &self,
        gateway: &Gateway,
        problem: Problem,
        call: impl AsyncFnOnce(&Claims) -> Result<bool, BrokerError>,
    ) -> Result<Now, SqsError> {
        if problem.code() != ProblemCode::Stale {
            return Err(problem.into());
        }
        let _slot = gateway.searches().begin(Client::current()).await?;
        let broker = &gateway.process().broker;
        let found = async {
            if call(self.claims).await? {
                return Ok(Now::Done);
            }
            let topic = broker.topic(&self.claims.topic).await?;
            match broker.lookup(&topic, &self.claims.id, None).await? {
                Found::Unknown { .. } => Ok(Now::Gone),
                Found::Stored { details, .. } => {
                    let mut copies = details.copies.iter();
                    let own = copies.find(|copy| copy.group == self.claims.group);
                    match own.is_some_and(|copy| copy.is_done) {
                        true => Ok(Now::Gone),
                        false => Ok(Now::There),
                    }
                }
            }
        };
        let found: Result<Now, BrokerError> = found.await;
        found.or_else(|error| {
            tracing::debug!(%error, "cannot look up a message with a stale handle");
            Ok(Now::There)
        })
    }
}
