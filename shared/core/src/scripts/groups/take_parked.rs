//! See `take_parked.lua`.

use crate::message::{EntryId, MessageId};
use crate::scripts::{Reply, UnexpectedReply, operation};
use crate::state::Attempt;
use crate::time::UnixMs;

/// Delivers parked messages to the consumer that holds deliveries of their keys.
pub(crate) struct TakeParked<'a> {
    pub(crate) consumer: &'a str,
    /// The most deliveries in all, at most 200.
    pub(crate) most: usize,
    /// The most deliveries of a key.
    pub(crate) each: usize,
    /// The deliveries that the consumer holds, at most `most`.
    pub(crate) items: &'a [(MessageId, EntryId)],
}

/// The deliveries of a consumer, after it took parked messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenParked {
    /// The number of its deliveries that it keeps, the first ones. The others are ready again.
    pub kept: usize,
    /// The new deliveries, in the order of each key.
    pub more: Vec<(MessageId, Attempt)>,
}

operation! {
    "take_parked" + "streams" on general group: TakeParked<'_>, |call, args, reply|
    args {
        consumer: args.text(call.consumer),
        most: args.number(call.most),
        each: args.number(call.each),
        items: for (id, entry) in call.items {
            args.number(entry);
            args.text(id.as_str());
        },
    }
    reply TakenParked {
        "taken" => Ok(TakenParked {
            kept: reply.number::<u64>()? as usize,
            more: reply.rest(delivery)?,
        }),
    }
}

fn delivery(reply: &mut Reply) -> Result<(MessageId, Attempt), UnexpectedReply> {
    let entry = reply.parsed("an entry id")?;
    let id = reply.parsed("a message id")?;
    let due = UnixMs::new(reply.number()?);
    let (number, crashes) = (reply.number()?, reply.number()?);
    let expires: i64 = reply.number()?;
    let expires = u64::try_from(expires).ok().map(UnixMs::new);
    let attempt = Attempt {
        entry,
        number,
        due,
        crashes,
        expires,
    };
    Ok((id, attempt))
}
