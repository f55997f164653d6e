//! See `ack_plain.lua` and `ack.lua`.

use crate::scripts::{Args, NUMBER, Reply, UnexpectedReply, operation};
use crate::state::Settlement;
use crate::topic::Group;

/// Removes handled messages of a plain topic: at most 200, with distinct entries.
pub(crate) struct AckPlain<'a> {
    pub(crate) now: u64,
    pub(crate) group: &'a Group,
    pub(crate) items: &'a [&'a Settlement],
}

/// Ends handled deliveries: at most 100, with distinct entries.
pub(crate) struct Ack<'a> {
    pub(crate) items: &'a [&'a Settlement],
}

operation! {
    "ack_plain" on group(conf stats payload ready attempts tomb): AckPlain<'_>, |call, args, reply|
    args {
        now: {
            args.reserve(lengths(call.items));
            args.number(call.now)
        },
        group: args.text(call.group.as_str()),
        count: args.number(call.items.len()),
        items: push(call.items, args),
    }
    /// The index (from 0) of each item that was stale.
    reply Vec<usize> { "acked" => reply.rest(index) }
}

operation! {
    "ack" on general group: Ack<'_>, |call, args, reply|
    args {
        count: {
            args.reserve(lengths(call.items));
            args.number(call.items.len())
        },
        items: push(call.items, args),
    }
    /// The index (from 0) of each item that was stale.
    reply Vec<usize> { "acked" => reply.rest(index) }
}

fn lengths(items: &[&Settlement]) -> impl Iterator<Item = usize> {
    items
        .iter()
        .flat_map(|item| [NUMBER, item.id.as_str().len()])
}

fn push(items: &[&Settlement], args: &mut Args<'_>) {
    for item in items {
        args.number(item.entry);
    }
    for item in items {
        args.text(item.id.as_str());
    }
    for (index, _) in items.iter().enumerate().filter(|(_, item)| item.caller_id) {
        args.number(index + 1);
    }
}

fn index(reply: &mut Reply) -> Result<usize, UnexpectedReply> {
    Ok(reply.number::<usize>()? - 1)
}
