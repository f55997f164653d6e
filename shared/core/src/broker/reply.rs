//! Commands that the broker sends without a script, and parsers for their replies.

use redis::{Cmd, Value};

use crate::broker::BrokerError;
use crate::message::{EntryId, MessageId};
use crate::scripts::{UnexpectedReply, unexpected};
use crate::time::UnixMs;

/// A message in garbage, with its garbage time when it was seen. The time fences a requeue or purge against a message
/// that has come back to garbage since.
pub(super) type Seen = (MessageId, UnixMs);

pub(super) fn text(value: &Value) -> Result<&str, UnexpectedReply> {
    match value {
        Value::BulkString(bytes) => {
            std::str::from_utf8(bytes).map_err(|_| unexpected("UTF-8", value))
        }
        Value::SimpleString(text) => Ok(text),
        other => Err(unexpected("a string", other)),
    }
}

pub(super) fn entry_id(value: &Value) -> Result<EntryId, UnexpectedReply> {
    text(value)?
        .parse()
        .map_err(|_| unexpected("an entry id", value))
}

/// Makes a command on a key, for reads that need no script.
pub(super) fn command(name: &'static str, key: &crate::keys::Key) -> Cmd {
    let mut cmd = redis::cmd(name);
    cmd.arg(key.as_ref());
    cmd
}

/// Parses a score, which is a whole number of milliseconds in every zset of ours.
pub(super) fn score_ms(value: &Value) -> Result<Option<UnixMs>, BrokerError> {
    let ms = match value {
        Value::Nil => return Ok(None),
        Value::Double(score) if *score >= 0.0 => Some(*score as u64),
        other => text(other).ok().and_then(|text| text.parse().ok()),
    };
    let wrong = || BrokerError::Reply {
        what: "a score",
        error: unexpected("milliseconds", value),
    };
    ms.map(|ms| Some(UnixMs::new(ms))).ok_or_else(wrong)
}

/// Parses members that are messages, with their times.
pub(super) fn pairs(value: &Value) -> Result<Vec<Seen>, BrokerError> {
    let wrong = |got: &dyn std::fmt::Debug| BrokerError::Reply {
        what: "ZRANGE",
        error: unexpected("messages with times", got),
    };
    members(value)?
        .into_iter()
        .map(|(member, score)| {
            let id = id_in(member).parse().map_err(|_| wrong(&member))?;
            let time = score_ms(score)?.ok_or_else(|| wrong(score))?;
            Ok((id, time))
        })
        .collect()
}

/// Parses members with their scores: flat in RESP2, nested in RESP3.
pub(super) fn members(value: &Value) -> Result<Vec<(&str, &Value)>, BrokerError> {
    let wrong = |got: &Value| BrokerError::Reply {
        what: "ZRANGE",
        error: unexpected("members with scores", got),
    };
    let Value::Array(items) = value else {
        return Err(wrong(value));
    };
    let flat: Vec<&Value> = items
        .iter()
        .flat_map(|item| match item {
            Value::Array(pair) => pair.iter().collect(),
            other => vec![other],
        })
        .collect();
    flat.chunks_exact(2)
        .map(|pair| Ok((text(pair[0]).map_err(|_| wrong(pair[0]))?, pair[1])))
        .collect()
}

/// Returns the id in a member. In that of a message with options, it follows the arrival number.
pub(super) fn id_in(member: &str) -> &str {
    match member.strip_prefix('~') {
        Some(rest) => rest.get(12..).unwrap_or_default(),
        None => member,
    }
}

/// Converts a map reply (RESP3) to the flat array of RESP2.
pub(super) fn flat(value: Value) -> Value {
    match value {
        Value::Map(pairs) => Value::Array(
            pairs
                .into_iter()
                .flat_map(|(key, value)| [key, value])
                .collect(),
        ),
        other => other,
    }
}
