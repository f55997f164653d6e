//! One connection with one channel: publishes messages, and replies to each publish.
//!
//! One task publishes all messages and polls all confirms, because of the way the client library reports returned messages.
//! The server returns an unroutable message before it confirms it. The library attaches the returned message to the next
//! confirm that completes, which may be that of another message. Confirms are polled in the order in which they completed. So
//! once all completed confirms are polled, every returned message has been seen, and a confirm without one is reliable.

use std::collections::HashMap;
use std::pin::pin;

use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, Stream, StreamExt};
use lapin::message::BasicReturnMessage;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::protocol::AMQPErrorKind;
use lapin::types::{AMQPValue, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, ConnectionStatus, ErrorKind, Event};
use lisa_core::task;
use lisa_service::brokers::amqp::Client;
use tokio::sync::{mpsc, oneshot};

/// The largest number of messages that wait to be published. Other deliveries wait for space.
const QUEUE: usize = 1024;

/// A message to publish.
pub(super) struct Message {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) mandatory: bool,
    pub(super) properties: BasicProperties,
    pub(super) payload: Bytes,
}

/// The result of a publish.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// The server has the message.
    Confirmed,
    /// The server returned the message because it reaches no queue; the reason.
    Returned(String),
    /// The server refused the message (nack).
    Refused,
    /// It is unknown whether the message reached a queue.
    InDoubt,
    /// The server closed the channel because of this message; the reason.
    ChannelClosed(String),
    /// The server closed the channel because of this message or another one that was in flight.
    Suspect,
    /// The server blocks publishers; the reason.
    Blocked(String),
    /// The connection ended.
    Lost(String),
}

/// An open connection.
pub(super) struct Publisher {
    status: ConnectionStatus,
    /// The largest frame that the server accepts, in bytes.
    frame_max: usize,
    requests: mpsc::Sender<(Message, oneshot::Sender<Reply>)>,
}

impl Publisher {
    /// Opens a channel on a connection, and starts its task. The task ends when the publisher is dropped or the channel is
    /// closed. It then closes the connection.
    pub(super) async fn open(client: Client) -> Result<Self, lapin::Error> {
        let channel = client.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        let (requests, queue) = mpsc::channel(QUEUE);
        let status = client.status().clone();
        let frame_max = client.configuration().frame_max() as usize;
        task::detached(async move {
            run(channel, client.events_listener(), queue).await;
            client.close().await;
        });
        Ok(Self {
            status,
            frame_max,
            requests,
        })
    }

    pub(super) fn is_open(&self) -> bool {
        !self.requests.is_closed() && self.status.connected()
    }

    /// Checks that the server can receive the message. If its properties and headers do not fit into one frame, the server
    /// would end the connection.
    pub(super) fn check(&self, message: &Message) -> Result<(), String> {
        let (size, max) = (header_frame(&message.properties), self.frame_max);
        if size <= max {
            return Ok(());
        }
        Err(format!(
            "the headers need {size} bytes in AMQP, more than the server's largest frame of {max} bytes (frame_max)"
        ))
    }

    /// Publishes a message and waits for the reply.
    ///
    /// # Cancel safety
    /// If the future is dropped, the server may still receive the message.
    pub(super) async fn publish(&self, message: Message) -> Reply {
        if self.status.blocked() {
            return Reply::Blocked("memory or disk alarm".to_owned());
        }
        let (reply, replied) = oneshot::channel();
        let lost = || Reply::Lost("closed".to_owned());
        match self.requests.send((message, reply)).await {
            Ok(()) => replied.await.unwrap_or_else(|_| lost()),
            Err(_) => lost(),
        }
    }
}

/// A publish that has ended.
struct Ended {
    number: u64,
    id: Option<ShortString>,
    result: lapin::Result<Confirmation>,
}

/// Returns the size of the frame with the properties and the headers of a message, in bytes.
fn header_frame(properties: &BasicProperties) -> usize {
    /// The frame's header and end, the class, the weight, the size of the payload, and the list of properties.
    const FIXED: usize = 8 + 2 + 2 + 8 + 2;
    /// The delivery mode and the timestamp.
    const NUMBERS: usize = 1 + 8;
    let short =
        |text: &Option<ShortString>| text.as_ref().map_or(0, |text| 1 + text.as_str().len());
    let headers = properties.headers().as_ref().map_or(0, |headers| {
        let entry = |(name, value): (&ShortString, &AMQPValue)| {
            let value = value
                .as_long_string()
                .map_or(0, |text| text.as_bytes().len());
            1 + name.as_str().len() + 1 + 4 + value
        };
        4 + headers.inner().iter().map(entry).sum::<usize>()
    });
    FIXED + NUMBERS + short(properties.message_id()) + short(properties.content_type()) + headers
}

/// Publishes messages and replies to them until the publisher is dropped or the channel is closed.
async fn run(
    channel: Channel,
    events: impl Stream<Item = Event>,
    mut queue: mpsc::Receiver<(Message, oneshot::Sender<Reply>)>,
) {
    let mut events = pin!(events);
    let mut waiting = FuturesUnordered::new();
    let mut replies = Replies::default();
    let mut number = 0;
    let end = loop {
        let mut ended = Vec::new();
        tokio::select! {
            request = queue.recv() => match request {
                Some((message, reply)) => {
                    number += 1;
                    replies.open.insert(number, reply);
                    waiting.push(publish(&channel, number, message));
                }
                // The publisher was dropped, so nothing waits for the remaining confirms.
                None => return,
            },
            Some(first) = waiting.next() => ended.push(first),
            Some(event) = events.next() => if let Event::ConnectionBlocked(reason) = event {
                // Messages that are not written yet reach the server after it unblocks, as duplicates.
                replies.all(&Reply::Blocked(reason));
            },
        }
        while let Some(Some(next)) = waiting.next().now_or_never() {
            ended.push(next);
        }
        if let Some(end) = replies.to(ended) {
            break end;
        }
    };
    queue.close();
    while let Some((_, reply)) = queue.recv().await {
        let _ = reply.send(end.clone());
    }
}

async fn publish(channel: &Channel, number: u64, message: Message) -> Ended {
    let id = message.properties.message_id().clone();
    let options = BasicPublishOptions {
        mandatory: message.mandatory,
        ..BasicPublishOptions::default()
    };
    let published = async {
        let confirm = channel.basic_publish(
            message.exchange,
            message.routing_key,
            options,
            &message.payload,
            message.properties,
        );
        confirm.await?.await
    };
    let result = published.await;
    Ended { number, id, result }
}

#[derive(Default)]
struct Replies {
    /// The deliveries that wait for a reply, by the number of their publish.
    open: HashMap<u64, oneshot::Sender<Reply>>,
    /// The reasons why messages were returned, by message id.
    returned: HashMap<Option<ShortString>, Vec<String>>,
}

impl Replies {
    /// Replies to all deliveries that wait.
    fn all(&mut self, reply: &Reply) {
        for (_, waits) in self.open.drain() {
            let _ = waits.send(reply.clone());
        }
    }

    /// Replies to publishes that ended together. If the channel or the connection has ended, replies to all, and returns the
    /// reply to messages that are not published yet.
    fn to(&mut self, ended: Vec<Ended>) -> Option<Reply> {
        for Ended { result, .. } in &ended {
            if let Ok(Confirmation::Ack(Some(message)) | Confirmation::Nack(Some(message))) = result
            {
                let id = message.delivery.properties.message_id().clone();
                self.returned.entry(id).or_default().push(reason(message));
            }
        }
        let mut failed = None;
        for Ended { number, id, result } in ended {
            let returned = self.take_returned(&id);
            let reply = match (returned, result) {
                (Some(reason), Ok(_)) => Reply::Returned(reason),
                // The confirm carries the returned message of another publish; its own may follow.
                (None, Ok(Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)))) => {
                    Reply::InDoubt
                }
                (None, Ok(Confirmation::Ack(None))) => Reply::Confirmed,
                (None, Ok(Confirmation::Nack(None))) => Reply::Refused,
                (None, Ok(Confirmation::NotRequested)) => Reply::InDoubt,
                // It stays in `open`, because it may be the cause.
                (_, Err(error)) => {
                    failed = Some(error);
                    continue;
                }
            };
            if let Some(waits) = self.open.remove(&number) {
                let _ = waits.send(reply);
            }
        }
        let (open, unpublished) = ends(&failed?, self.open.len());
        self.all(&open);
        Some(unpublished)
    }

    fn take_returned(&mut self, id: &Option<ShortString>) -> Option<String> {
        let reasons = self.returned.get_mut(id)?;
        let reason = reasons.pop();
        if reasons.is_empty() {
            self.returned.remove(id);
        }
        reason
    }
}

/// Returns the reply to the messages that were in flight when a publish failed, and the reply to those not yet published.
fn ends(error: &lapin::Error, in_flight: usize) -> (Reply, Reply) {
    match error.kind() {
        // The server reports one reason for the channel, and all publishes in flight fail with it.
        ErrorKind::ProtocolError(error) if matches!(error.kind(), AMQPErrorKind::Soft(_)) => {
            let open = match in_flight {
                1 => Reply::ChannelClosed(error.get_message().to_string()),
                _ => Reply::Suspect,
            };
            (open, Reply::InDoubt)
        }
        // Published on a channel that was already closed.
        ErrorKind::InvalidChannelState(..) => (Reply::Suspect, Reply::InDoubt),
        _ => {
            let lost = Reply::Lost(error.to_string());
            (lost.clone(), lost)
        }
    }
}

fn reason(message: &BasicReturnMessage) -> String {
    format!(
        "returned by the server: {} {}",
        message.reply_code, message.reply_text
    )
}

#[cfg(test)]
mod tests {
    use lapin::protocol::{AMQPError, AMQPSoftError};

    use super::*;

    fn replies(count: u64) -> (Replies, Vec<oneshot::Receiver<Reply>>) {
        let mut replies = Replies::default();
        let waits = (0..count).map(|number| {
            let (reply, waits) = oneshot::channel();
            replies.open.insert(number, reply);
            waits
        });
        let waits = waits.collect();
        (replies, waits)
    }

    fn returned(id: &str) -> BasicReturnMessage {
        let delivery = lapin::message::Delivery::mock(0, "".into(), "q".into(), false, Vec::new());
        let mut message = BasicReturnMessage {
            delivery,
            reply_code: 312,
            reply_text: "NO_ROUTE".into(),
        };
        message.delivery.properties = BasicProperties::default().with_message_id(id.into());
        message
    }

    fn ended(number: u64, result: Confirmation) -> Ended {
        let id = Some(number.to_string().into());
        Ended {
            number,
            id,
            result: Ok(result),
        }
    }

    #[test]
    fn a_returned_message_is_never_confirmed_whichever_confirm_carries_it() {
        // 1 is returned, and the confirm of 0 carries it. The order in which the two ended is random.
        for reversed in [false, true] {
            let (mut replies, waits) = replies(3);
            let mut both = vec![
                ended(0, Confirmation::Ack(Some(returned("1")))),
                ended(1, Confirmation::Ack(None)),
                ended(2, Confirmation::Ack(None)),
            ];
            if reversed {
                both.reverse();
            }
            assert!(replies.to(both).is_none());
            let got: Vec<_> = waits
                .into_iter()
                .map(|mut waits| waits.try_recv().unwrap())
                .collect();
            assert!(matches!(got[0], Reply::InDoubt), "{got:?}");
            assert!(
                matches!(&got[1], Reply::Returned(reason) if reason.contains("312 NO_ROUTE")),
                "{got:?}"
            );
            assert!(matches!(got[2], Reply::Confirmed), "{got:?}");
            assert!(replies.returned.is_empty());
        }
    }
    #[test]
    fn a_closed_channel_is_charged_only_to_a_message_that_was_alone() {
        for in_flight in [1, 2] {
            let (mut replies, waits) = replies(1 + in_flight);
            let refused = AMQPError::new(AMQPSoftError::ACCESSREFUSED.into(), "refused".into());
            let closed = Ended {
                number: 1,
                id: None,
                result: Err(ErrorKind::ProtocolError(refused).into()),
            };
            // The order in which publishes ended is random. A confirmed one is not in flight.
            let end = replies.to(vec![closed, ended(0, Confirmation::Ack(None))]);
            assert!(matches!(end, Some(Reply::InDoubt)), "{end:?}");
            let mut got = waits.into_iter().map(|mut waits| waits.try_recv().unwrap());
            assert!(matches!(got.next(), Some(Reply::Confirmed)));
            for reply in got {
                match in_flight {
                    1 => assert!(matches!(&reply, Reply::ChannelClosed(why) if why == "refused")),
                    _ => assert!(matches!(reply, Reply::Suspect), "{reply:?}"),
                }
            }
        }
    }
}
