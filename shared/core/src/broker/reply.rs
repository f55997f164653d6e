//! Commands that the broker sends without a script, and how their replies are decoded.
//!
//! `redis` decodes the shapes of both protocols; the types of Lisa in a reply are decoded here. An unexpected reply is an
//! error that names the command.

use std::str::FromStr;

use redis::{Cmd, FromRedisValue, ParsingError, Pipeline, ToRedisArgs, Value, from_redis_value};

use crate::broker::{Broker, BrokerError};
use crate::keys::Key;
use crate::message::{EntryId, MessageId};
use crate::redis::{ConnectionErrorKind, Server};
use crate::time::UnixMs;

/// A message in garbage, with its garbage time when it was seen. The time fences a requeue or purge against a message
/// that has come back to garbage since.
pub(super) type Seen = (MessageId, UnixMs);

/// A pending entry and its consumer, as XPENDING lists it; then how long it has been idle, and its delivery count.
pub(super) type Pending<C = Value, N = Value> = (EntryId, C, Value, N);

/// The fields of a hash or an entry with their values, which may be any bytes.
pub(super) type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// A command on a key.
pub(super) struct Command<'k> {
    name: &'static str,
    key: &'k Key,
    cmd: Cmd,
}

/// Makes a command whose first argument is its key.
pub(super) fn command<'k>(name: &'static str, key: &'k Key) -> Command<'k> {
    let mut cmd = redis::cmd(name);
    cmd.arg(key.as_ref());
    Command { name, key, cmd }
}

impl Command<'_> {
    /// Appends an argument, or each item of a slice.
    pub(super) fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.cmd.arg(arg);
        self
    }

    /// Appends the ids of messages.
    pub(super) fn ids<'i>(mut self, ids: impl IntoIterator<Item = &'i MessageId>) -> Self {
        for id in ids {
            self.cmd.arg(id.as_str());
        }
        self
    }
}

impl Broker {
    /// Sends a command to the server that holds its key, and decodes the reply.
    pub(super) async fn ask<T: FromRedisValue>(
        &self,
        command: Command<'_>,
    ) -> Result<T, BrokerError> {
        let server = self.inner.connection.at(command.key);
        self.ask_at(&server, command).await
    }

    /// Sends a command to a server and decodes the reply.
    pub(super) async fn ask_at<T: FromRedisValue>(
        &self,
        server: &Server<'_>,
        command: Command<'_>,
    ) -> Result<T, BrokerError> {
        let reply = server.call(&command.cmd, self.inner.call_timeout).await?;
        decode(command.name, reply)
    }

    /// Asks for messages and their times: members with scores of `waiting`, `retry`, or `garbage`.
    pub(super) async fn ask_seen(&self, command: Command<'_>) -> Result<Vec<Seen>, BrokerError> {
        let members: Vec<(Member, UnixMs)> = self.ask(command).await?;
        let seen = members.into_iter().map(|(Member(id), time)| (id, time));
        Ok(seen.collect())
    }

    /// Sends commands to a server in one write, and decodes the reply of each. Their keys must be of one slot. Errors
    /// name the first command.
    pub(super) async fn ask_all<T: FromRedisValue>(
        &self,
        server: &Server<'_>,
        commands: Vec<Command<'_>>,
    ) -> Result<Vec<T>, BrokerError> {
        let name = commands.first().map_or("", |command| command.name);
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command.cmd);
        }
        let replies = server.pipeline(&pipeline, self.inner.call_timeout).await?;
        let replies = replies.into_iter();
        replies.map(|reply| decode(name, reply)).collect()
    }
}

/// Decodes the reply of a command.
pub(super) fn decode<T: FromRedisValue>(
    what: &'static str,
    reply: Value,
) -> Result<T, BrokerError> {
    from_redis_value(reply).map_err(|error| BrokerError::Reply {
        what,
        error: error.into(),
    })
}

/// Returns an empty reply if the stream or its group does not exist.
pub(super) fn or_empty<T: Default>(reply: Result<T, BrokerError>) -> Result<T, BrokerError> {
    match reply {
        Err(error) if error.kind() == Some(ConnectionErrorKind::NoGroup) => Ok(T::default()),
        reply => reply,
    }
}

/// Returns bytes as text if they are UTF-8.
pub(super) fn utf8(bytes: Vec<u8>) -> Option<String> {
    String::from_utf8(bytes).ok()
}

/// Returns the id in a member. In that of a message with options, it follows the arrival number.
pub(super) fn id_in(member: &str) -> &str {
    match member.strip_prefix('~') {
        Some(rest) => rest.get(12..).unwrap_or_default(),
        None => member,
    }
}

/// A member of `waiting`, `retry`, or `garbage`.
struct Member(MessageId);

impl FromRedisValue for Member {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let member: String = from_redis_value(value)?;
        parse(id_in(&member), "a message").map(Self)
    }
}

impl FromRedisValue for MessageId {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        parse(&from_redis_value::<String>(value)?, "a message id")
    }
}

impl FromRedisValue for EntryId {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        parse(&from_redis_value::<String>(value)?, "an entry id")
    }
}

/// A time is a whole number of milliseconds, also as a score.
impl FromRedisValue for UnixMs {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        match value {
            Value::Double(score) if score >= 0.0 => Ok(Self::new(score as u64)),
            Value::Double(score) => Err(format!("expected milliseconds, got {score}").into()),
            other => from_redis_value(other).map(Self::new),
        }
    }
}

fn parse<T: FromStr>(text: &str, expected: &str) -> Result<T, ParsingError> {
    text.parse()
        .map_err(|_| format!("expected {expected}, got {text:?}").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Read;

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn members_with_scores_are_the_same_in_both_protocols() {
        let nested = Value::Array(vec![text("a"), Value::Double(1.7e12)]);
        let flat = vec![text("a"), text("1700000000000")];
        for reply in [Value::Array(flat), Value::Array(vec![nested])] {
            let members: Vec<(Member, UnixMs)> = decode("ZRANGE", reply).unwrap();
            let [(Member(id), time)] = members.as_slice() else {
                panic!("{} members", members.len());
            };
            assert_eq!((id.as_str(), time.get()), ("a", 1_700_000_000_000));
        }
    }

    #[test]
    fn entries_of_a_stream_are_the_same_in_both_protocols() {
        let fields = ["i", "a", "a", "3", "new", "x"].map(text);
        let entry = vec![text("5-1"), Value::Array(fields.to_vec())];
        let deleted = vec![text("5-2"), Value::Nil];
        let entries = Value::Array(vec![Value::Array(entry), Value::Array(deleted)]);
        let pair = Value::Array(vec![text("key"), entries.clone()]);
        let replies = [
            Value::Array(vec![pair]),
            Value::Map(vec![(text("key"), entries)]),
        ];
        for reply in replies {
            let mut streams: Vec<(Value, Vec<Read>)> = decode("XREADGROUP", reply).unwrap();
            let (_, reads) = streams.pop().unwrap();
            let seen = reads
                .iter()
                .map(|read| (read.id.as_ref().map(MessageId::as_str), read.attempt.number));
            assert_eq!(seen.collect::<Vec<_>>(), [(Some("a"), 3), (None, 1)]);
        }
        assert!(
            decode::<Vec<Read>>("XREADGROUP", Value::Nil)
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn an_unexpected_reply_is_an_error_that_names_the_command() {
        let error = decode::<Vec<EntryId>>("XCLAIM", Value::Array(vec![text("5")])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "XCLAIM: unexpected reply: Incompatible type - expected an entry id, got \"5\""
        );
        for reply in [Value::Nil, text("x"), Value::Array(Vec::new())] {
            assert!(decode::<u64>("HGET", reply).is_err());
        }
        for reply in [Value::Okay, text("x"), Value::Array(vec![Value::Int(1)])] {
            assert!(decode::<Vec<(Member, UnixMs)>>("ZRANGE", reply).is_err());
        }
    }
}
