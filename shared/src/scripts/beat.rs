//! See `beat.lua`.

use std::time::Duration;

use super::{Args, Operation, Reply, UnexpectedReply, keys, script, unexpected};
use crate::keys::RegistryKeys;
use crate::time::millis;

/// Renews a manager's lease on its share of the work.
pub(crate) struct Beat<'a> {
    pub(crate) manager: &'a str,
    /// How long it counts as alive; zero leaves.
    pub(crate) lease: Duration,
}

/// Who is there.
#[derive(Debug)]
pub(crate) struct BeatReply {
    /// Changes with every change of a topic.
    pub(crate) version: u64,
    /// The managers alive.
    pub(crate) managers: Vec<String>,
}

impl Operation for Beat<'_> {
    type Place = RegistryKeys;
    type Reply = BeatReply;
    const KEYS: &'static [super::KeyOf<RegistryKeys>] = keys!(managers topics);
    const ARGS: &'static [&'static str] = &["manager", "lease"];
    script!("beat");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.text(self.manager);
        args.number(millis(self.lease));
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        let word = reply.text()?;
        if word != "beat" {
            return Err(unexpected("beat", &word));
        }
        let version = reply.number()?;
        let mut managers = Vec::new();
        while !reply.is_empty() {
            managers.push(reply.text()?);
        }
        Ok(BeatReply { version, managers })
    }
}
