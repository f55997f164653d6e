//! See `send_plain.lua` and `send.lua`.

use std::collections::HashMap;
use std::time::Duration;

use crate::message::{Expiry, MessageId, PreparedMessage};
use crate::scripts::change::cancel::survivor;
use crate::scripts::{Args, NUMBER, Reply, UnexpectedReply, operation, unexpected};
use crate::state::{Accepted, Blocked, End, SendOutcome};
use crate::time::{UnixMs, When, millis};
use crate::topic::Group;

/// Tombstone scores by message id.
pub(crate) type Tombstones = HashMap<MessageId, u64>;

/// Stores messages of a plain topic: at most 100, with distinct ids and no options.
pub(crate) struct SendPlain<'a> {
    pub(crate) now: u64,
    pub(crate) group: &'a Group,
    /// The dedup window: the time for which ended ids are remembered.
    pub(crate) dedup: Duration,
    pub(crate) messages: &'a [PreparedMessage],
    /// Tombstones to ignore: their messages are sent although they were cancelled.
    pub(crate) again: &'a Tombstones,
    /// The time until which the ids need no lookup, in ms on Redis's clock. Zero unless Lisa generated all of them for this
    /// call.
    pub(crate) fresh: u64,
}

/// Stores messages of a topic that uses features: at most 100, with distinct ids.
pub(crate) struct SendScript<'a> {
    /// The shard's `max_ready` while a message has a priority or a merge key, if the topic sets none.
    pub(crate) default_max_ready: u64,
    /// The dedup window: the time for which ended ids are remembered.
    pub(crate) dedup: Duration,
    pub(crate) messages: &'a [PreparedMessage],
    /// Tombstones to ignore: their messages are sent although they were cancelled.
    pub(crate) again: &'a Tombstones,
}

operation! {
    "send_plain" on group(conf stats waiting payload ready tomb wake into):
    SendPlain<'_>, |call, args, reply|
    args {
        now: {
            args.reserve(call.messages.iter().flat_map(lengths));
            args.number(call.now)
        },
        group: args.text(call.group.as_str()),
        dedup: args.number(millis(call.dedup)),
        again: push_again(call.messages, call.again, args),
        fresh: args.number(call.fresh),
        items: {
            let mut record = Vec::new();
            for message in call.messages {
                args.text(message.id.as_str());
                push_record(message, &mut record, args);
            }
            for message in call.messages {
                args.number(message.when.to_arg());
            }
        },
    }
    reply Vec<Accepted> { "sent" => call.outcomes(reply) }
}

impl SendPlain<'_> {
    fn outcomes(&self, reply: &mut Reply) -> Result<Vec<Accepted>, UnexpectedReply> {
        let now = UnixMs::new(reply.number()?);
        let open = reply.flag()?;
        let stored = |message: &PreparedMessage| {
            let due = message.when.due(now);
            let outcome = if due <= now && open {
                SendOutcome::Ready
            } else {
                SendOutcome::Waiting
            };
            accepted(message, outcome, Some(due))
        };
        let mut all: Vec<Accepted> = self.messages.iter().map(stored).collect();
        while !reply.is_empty() {
            let index = reply.number::<usize>()?;
            let number = reply.number::<i64>()?;
            let slot = all.get_mut(index.wrapping_sub(1));
            let slot = slot.ok_or_else(|| unexpected("the index of a message", &index))?;
            slot.outcome = SendOutcome::Duplicate;
            (slot.due, slot.ended) = due_or_end(number);
            if let Some(survivor) = survivor(reply.text()?)? {
                (slot.id, slot.outcome, slot.ended) = (survivor, SendOutcome::Merged, None);
            }
        }
        Ok(all)
    }
}

operation! {
    "send" on general shard: SendScript<'_>, |call, args, reply|
    args {
        ready: {
            args.reserve(call.messages.iter().flat_map(lengths));
            args.number(call.default_max_ready)
        },
        dedup: args.number(millis(call.dedup)),
        again: push_again(call.messages, call.again, args),
        own: args.flag(has_own(call.messages)),
        items: {
            let mut record = Vec::new();
            for message in call.messages {
                args.text(message.id.as_str());
                args.number(message.when.to_arg());
                push_record(message, &mut record, args);
                push_options(message, args);
            }
        },
    }
    /// `None` for a message that the shard does not know and does not store, because it is retiring.
    reply Vec<Option<Accepted>> {
        "sent" => {
            let _now = reply.number::<u64>()?;
            call.messages.iter().map(|message| outcome(message, reply)).collect()
        },
    }
}

fn outcome(
    message: &PreparedMessage,
    reply: &mut Reply,
) -> Result<Option<Accepted>, UnexpectedReply> {
    let outcome = reply.text()?;
    let number = reply.number::<i64>()?;
    let id = reply.text()?;
    if outcome == "closed" {
        return Ok(None);
    }
    let outcome = outcome
        .parse()
        .map_err(|_| unexpected("an outcome", &outcome))?;
    let mut item = accepted(message, outcome, None);
    match outcome {
        SendOutcome::Full => {}
        SendOutcome::ReplaceConflict => {
            item.ended = due_or_end(-2 - number).1;
            let blocked: Blocked = id.parse().map_err(|_| unexpected("a reason", &id))?;
            item.blocked = Some(blocked);
        }
        _ => {
            (item.due, item.ended) = due_or_end(number);
            item.id = id.parse().map_err(|_| unexpected("a message id", &id))?;
        }
    }
    Ok(Some(item))
}

/// Appends the tombstones to ignore, by the index of their message.
fn push_again(messages: &[PreparedMessage], again: &Tombstones, args: &mut Args<'_>) {
    let mut pairs = Vec::with_capacity(again.len());
    if !again.is_empty() {
        for (index, message) in messages.iter().enumerate() {
            let score = again.get(&message.id);
            pairs.extend(score.map(|score| format!("{}:{score}", index + 1)));
        }
    }
    args.text(&pairs.join(" "));
}

/// Returns whether a caller chose any of the ids, which may then be stored already.
fn has_own(messages: &[PreparedMessage]) -> bool {
    messages.iter().any(|message| message.record.caller_id)
}

/// Returns the lengths of the arguments that each message has.
fn lengths(message: &PreparedMessage) -> [usize; 3] {
    let (id, record) = (message.id.as_str(), &message.record);
    [id.len(), record.encoded_len(), NUMBER]
}

/// Appends the encoded record of a message. `buffer` is reused for all messages.
fn push_record(message: &PreparedMessage, buffer: &mut Vec<u8>, args: &mut Args<'_>) {
    buffer.clear();
    message.record.encode(buffer);
    args.bytes(buffer);
}

fn push_options(message: &PreparedMessage, args: &mut Args<'_>) {
    let options = &message.options;
    args.text(options.key.as_ref().map_or("", |key| key.as_str()));
    args.text(options.merge_key.as_ref().map_or("", |key| key.as_str()));
    args.number(options.priority);
    match options.expiry {
        None => args.text("0"),
        Some(Expiry::After(ttl)) => args.number(millis(ttl).max(1)),
        Some(Expiry::At(at)) => args.number(When::At(at).to_arg().min(-1)),
    }
    args.text(options.replace.as_ref().map_or("", |id| id.as_str()));
}

fn accepted(message: &PreparedMessage, outcome: SendOutcome, due: Option<UnixMs>) -> Accepted {
    Accepted {
        id: message.id.clone(),
        outcome,
        due,
        ended: None,
        blocked: None,
    }
}

/// Decodes a due time, -1 for a message that is past waiting, or -2 minus a tombstone's code.
fn due_or_end(number: i64) -> (Option<UnixMs>, Option<End>) {
    let due = u64::try_from(number).ok().map(UnixMs::new);
    let end = u64::try_from(-2 - number).ok().map(End::from_code);
    (due, end)
}
