//! See `parked_keys.lua`.

use crate::message::MessageId;
use crate::scripts::{Reply, UnexpectedReply, operation, unexpected};
use crate::state::State;
use crate::time::UnixMs;

/// Lists ordering keys that have parked messages: at most 50.
pub(crate) struct ParkedKeys<'a> {
    /// The key after which the list begins; empty for all.
    pub(crate) after: &'a str,
    pub(crate) limit: usize,
}

/// An ordering key that has parked messages in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedKey {
    /// The ordering key.
    pub key: String,
    /// The number of its parked messages.
    pub parked: u64,
    /// The due time of the first of them.
    pub oldest_due: UnixMs,
    /// The message that they wait for; `None` if there is none, which the doctor repairs.
    pub holder: Option<Holder>,
}

/// The message that the parked ones of its ordering key wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its id.
    pub id: MessageId,
    /// Its state: backlog, retry or garbage; `None` if it is on the stream, ready or in flight.
    pub state: Option<State>,
    /// The time of its next attempt (retry), at which it went to garbage (garbage), or at which it was due.
    pub time: UnixMs,
}

operation! {
    "parked_keys" on general group: ParkedKeys<'_>, |call, args, reply|
    args { after: args.text(call.after), limit: args.number(call.limit) }
    /// The keys in byte order.
    reply Vec<ParkedKey> { "parked_keys" => reply.rest(ParkedKey::read) }
}

impl ParkedKey {
    fn read(reply: &mut Reply) -> Result<Self, UnexpectedReply> {
        let (key, parked) = (reply.lossy()?, reply.number()?);
        let oldest_due = UnixMs::new(reply.number()?);
        let (id, state) = (reply.text()?, reply.text()?);
        let time = UnixMs::new(reply.number()?);
        let state = match state.as_str() {
            "none" | "stream" => None,
            state => Some(state.parse().map_err(|_| unexpected("a state", &state))?),
        };
        let holder = match id.as_str() {
            "" => None,
            id => Some(Holder {
                id: id.parse().map_err(|_| unexpected("a message id", &id))?,
                state,
                time,
            }),
        };
        Ok(Self {
            key,
            parked,
            oldest_due,
            holder,
        })
    }
}
