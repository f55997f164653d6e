//! See `heartbeat.lua`.

use std::time::Duration;

use crate::keys::RegistryKeys;
use crate::scripts::{Args, Operation, Reply, UnexpectedReply, keys, script, unexpected};
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

impl Operation for Heartbeat<'_> {
    type Scope = RegistryKeys;
    type Reply = HeartbeatReply;
    const KEYS: &'static [crate::scripts::KeyOf<RegistryKeys>] = keys!(managers topics);
    const ARGS: &'static [&'static str] = &["manager", "lease"];
    script!("heartbeat");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.text(self.manager);
        args.number(millis(self.lease));
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        let word = reply.text()?;
        if word != "heartbeat" {
            return Err(unexpected("heartbeat", &word));
        }
        let version = reply.number()?;
        let mut managers = Vec::new();
        while !reply.is_empty() {
            managers.push(reply.text()?);
        }
        Ok(HeartbeatReply { version, managers })
    }
}
