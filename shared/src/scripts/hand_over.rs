//! See `hand_over.lua`.

use super::general::{General, general_script};
use super::{Args, KeyOf, Reply, UnexpectedReply, expect, keys};
use crate::keys::ShardKeys;
use crate::message::MessageId;
use crate::time::UnixMs;

/// Takes messages out of a shard that is being given up.
pub(crate) struct HandOver<'a> {
    /// The batch that was taken in.
    pub(crate) done: u64,
    /// Those of it that come back, separated by spaces.
    pub(crate) refused: &'a str,
    /// At most 50.
    pub(crate) ids: &'a [MessageId],
}

/// One batch of messages on its way, and what is left.
#[derive(Debug)]
pub(crate) struct Leaving {
    pub(crate) batch: u64,
    /// The number of arrivals so far.
    pub(crate) arrivals: u64,
    /// Before it nothing comes from there any more; `None` if nothing ever does.
    pub(crate) horizon: Option<UnixMs>,
    /// How far the rate of each group is used up there.
    pub(crate) tats: String,
    /// Messages and entries.
    pub(crate) left: u64,
    /// How many entries became retries.
    pub(crate) withdrawn: u64,
    pub(crate) bundles: Vec<Bundle>,
}

/// A message with all its copies, as one text.
#[derive(Debug)]
pub(crate) struct Bundle {
    pub(crate) id: MessageId,
    /// The ordering key, else the merge key, else nothing.
    pub(crate) key: String,
    pub(crate) text: Vec<u8>,
}

impl General for HandOver<'_> {
    type Reply = Leaving;
    const OF_A_GROUP: bool = false;
    const ARGS: &'static [&'static str] = &["done", "refused", "ids"];
    const MORE: &'static [KeyOf<ShardKeys>] = keys!(leaving);
    general_script!("hand_over", "_streams.lua", "_bundles.lua");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.number(self.done);
        args.text(self.refused);
        for id in self.ids {
            args.text(id.as_str());
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        expect(reply, "leaving")?;
        let mut leaving = Leaving {
            batch: reply.number()?,
            arrivals: reply.number()?,
            horizon: u64::try_from(reply.number::<i64>()?).ok().map(UnixMs::new),
            tats: reply.text()?,
            left: reply.number()?,
            withdrawn: reply.number()?,
            bundles: Vec::new(),
        };
        while !reply.is_empty() {
            let id = reply.text()?;
            leaving.bundles.push(Bundle {
                id: id
                    .parse()
                    .map_err(|_| super::unexpected("a message id", &id))?,
                key: reply.text()?,
                text: reply.bytes()?,
            });
        }
        Ok(leaving)
    }
}
