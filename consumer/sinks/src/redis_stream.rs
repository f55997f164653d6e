//! The `redis-stream` sink: appends each delivery to a stream of any Redis (`XADD`).
//!
//! An ack means that Redis has appended the entry, which is as safe as that server's persistence. If the reply is lost, the
//! entry is appended again, so it can be in the stream twice, with the same `id`.
//!
//! The fields of an entry are `id` (the message id, the same in every attempt), `topic`, `group`, `attempt`, `due_at`, `late`
//! if it is late, `payload`, and `header:NAME` for each header.
//!
//! A server is unavailable if it cannot be reached, does not respond within `timeout`, refuses the login, is loading its data,
//! is read-only, or is at its memory limit. The delivery is then deferred, or retried, as `away` says. A stream that the login
//! may not write (ACL), a key of another type, or any other error leads to a retry.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use lisa_consumer_core::target::{Answer, Target};
use lisa_consumer_core::{Context, Delivery, Handler, Outcome};
use lisa_core::redis::{
    Connection, ConnectionError, ConnectionErrorKind, ConnectionSettings, StreamEntry, TlsSettings,
};
use lisa_core::topic::Namespace;
use lisa_service::brokers::redis_stream::RedisStreamSinkSettings;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::batches::{Batch, Batches, Reply};
use super::destination;

/// The time limit for connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The most memory that a reply may take, in bytes. The largest is the slot map of a cluster.
const MAX_REPLY: usize = 4 * 1024 * 1024;

/// A sink that appends each delivery to a stream of any Redis. It has its own connection, opened by the first delivery.
pub struct RedisStreamSink {
    settings: RedisStreamSinkSettings,
    namespace: Namespace,
    target: Target,
    connection: OnceCell<Connection>,
    batches: Batches<StreamEntry, Result<(), ConnectionError>>,
}

/// Shows no URL, which may hold a password.
impl fmt::Debug for RedisStreamSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStreamSink").finish_non_exhaustive()
    }
}

impl RedisStreamSink {
    /// Creates the sink. Does not connect yet. It appends to no stream that starts with `namespace`, as the relay's own keys do.
    pub fn new(settings: RedisStreamSinkSettings, namespace: Namespace) -> Self {
        Self {
            target: Target::new(settings.target),
            settings,
            namespace,
            connection: OnceCell::new(),
            batches: Batches::default(),
        }
    }

    /// Returns an outcome in place of an answer for a delivery that is not sent.
    async fn append(&self, delivery: &Delivery, context: &Context) -> Result<Answer, Outcome> {
        let stream = destination(&self.settings.stream, delivery).map_err(Outcome::reject)?;
        let namespace = &self.namespace;
        if stream.is_empty() || namespace.owns(&stream) {
            return Err(Outcome::reject(format!(
                "the stream {stream:?} is empty or starts with {namespace}:, the prefix of the relay's own keys"
            )));
        }
        let connection = match self
            .connection
            .get_or_try_init(async || self.connect())
            .await
        {
            Ok(connection) => connection,
            Err(error) => return Ok(Answer::Away(error)),
        };
        let (attempt, due_at) = (delivery.attempt.to_string(), delivery.due_at.to_string());
        let headers = context.headers_to_pass_on(delivery);
        let headers: Vec<_> = headers
            .map(|(name, value)| (format!("header:{name}"), value))
            .collect();
        let headers = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()));
        let fields = [
            ("id", delivery.id.as_str().as_bytes()),
            ("topic", delivery.topic.as_str().as_bytes()),
            ("group", delivery.group.as_str().as_bytes()),
            ("attempt", attempt.as_bytes()),
            ("due_at", due_at.as_bytes()),
        ];
        let late = delivery.late.then_some(("late", "true".as_bytes()));
        let payload = [("payload", &*delivery.payload)];
        let fields = fields.into_iter().chain(late).chain(headers).chain(payload);
        let entry = StreamEntry::new(stream.into_owned(), self.settings.max_length, fields);
        let (connection, timeout) = (connection.clone(), self.settings.timeout);
        let append = async move |batch: Batch<_, _>| {
            connection.append(batch, timeout, Reply::send).await;
        };
        Ok(match self.batches.request(entry, append).await {
            Some(Ok(())) => Answer::Accepted,
            None => Answer::Failed(Outcome::retry("the append ended without a reply")),
            Some(Err(error)) => match error.kind {
                // The login is permitted, this stream is not.
                ConnectionErrorKind::Denied if error.known_code() == "NOPERM" => {
                    Answer::Failed(Outcome::retry(error))
                }
                ConnectionErrorKind::WrongType
                | ConnectionErrorKind::Script
                | ConnectionErrorKind::NoGroup => Answer::Failed(Outcome::retry(error)),
                ConnectionErrorKind::Unavailable
                | ConnectionErrorKind::Denied
                | ConnectionErrorKind::Full
                | ConnectionErrorKind::NotSupported
                | ConnectionErrorKind::Invalid => Answer::Away(error.to_string()),
            },
        })
    }

    fn connect(&self) -> Result<Connection, String> {
        let settings = ConnectionSettings {
            password: self.settings.password.clone(),
            connect_timeout: CONNECT_TIMEOUT,
            response_timeout: self.settings.timeout,
            client_name: "lisa-consumer-sink".to_owned(),
            max_reply: MAX_REPLY,
            tls: TlsSettings {
                ca_file: self.settings.ca_file.clone(),
                ..TlsSettings::default()
            },
            ..ConnectionSettings::new(self.settings.url.clone())
        };
        // The connection ends when the sink is dropped.
        Connection::new(settings, &CancellationToken::new()).map_err(|error| error.to_string())
    }
}

/// # Cancel safety
/// If the future is dropped, Redis may or may not have the entry.
#[async_trait]
impl Handler for RedisStreamSink {
    async fn handle(&self, delivery: Delivery, context: Context) -> Outcome {
        match self.append(&delivery, &context).await {
            Ok(answer) => self.target.outcome(answer),
            Err(outcome) => outcome,
        }
    }

    fn target(&self) -> Option<&Target> {
        Some(&self.target)
    }
}
