//! See `heartbeat.lua`.

use std::time::Duration;

use crate::scripts::{Reply, operation};
use crate::time::millis;

/// Renews a manager's lease on its assignment.
pub(crate) struct Heartbeat<'a> {
    pub(crate) manager: &'a str,
    /// The time for which it counts as alive; zero leaves.
    pub(crate) lease: Duration,
}

/// The reply to a heartbeat.
#[derive(Debug)]
pub(crate) struct HeartbeatReply {
    /// The registry's version, which changes whenever a topic changes.
    pub(crate) version: u64,
    /// The managers that are alive.
    pub(crate) managers: Vec<String>,
}

operation! {
    "heartbeat" on registry(managers topics): Heartbeat<'_>, |call, args, reply|
    args { manager: args.text(call.manager), lease: args.number(millis(call.lease)) }
    reply HeartbeatReply {
        "heartbeat" => Ok(HeartbeatReply {
            version: reply.number()?,
            managers: reply.rest(Reply::text)?,
        }),
    }
}
