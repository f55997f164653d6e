//! See `claim_topic.lua`.

use crate::scripts::operation;
use crate::topic::{Extent, Topic};

/// Notes the limits of a topic that a call is about to declare.
pub(crate) struct ClaimTopic<'a> {
    /// The id of the claim.
    pub(crate) id: &'a str,
    pub(crate) topic: &'a Topic,
    pub(crate) extent: Extent,
    /// The largest number of topics.
    pub(crate) most: usize,
    /// The largest number of claims.
    pub(crate) most_claims: usize,
}

/// The result of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TopicClaim {
    /// It is noted, after all claims of a lower order.
    Claimed { order: u64 },
    /// There are too many topics.
    Full,
    /// There are too many claims.
    Busy,
}

operation! {
    "claim_topic" on registry(topics topic_claims): ClaimTopic<'_>, |call, args, reply|
    args {
        id: args.text(call.id),
        topic: args.text(call.topic.as_str()),
        limits: args.text(&limits(call.extent)),
        most: args.number(call.most),
        most_claims: args.number(call.most_claims),
    }
    reply TopicClaim {
        "claimed" => Ok(TopicClaim::Claimed {
            order: reply.number()?,
        }),
        "full" => Ok(TopicClaim::Full),
        "busy" => Ok(TopicClaim::Busy),
    }
}

/// Returns an extent as a claim has it.
fn limits(extent: Extent) -> String {
    let text = |limit: Option<u64>| limit.map_or("-".to_owned(), |limit| limit.to_string());
    let Extent {
        streams,
        messages,
        bytes,
    } = extent;
    format!("{} {} {}", text(messages), text(bytes), text(streams))
}
