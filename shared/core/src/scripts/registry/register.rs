//! See `register.lua`.

use crate::keys::RegistryKeys;
use crate::scripts::{Args, Operation, Reply, UnexpectedReply, keys, script, unexpected};
use crate::topic::Topic;

/// Lists a topic in the registry.
pub(crate) struct Register<'a> {
    pub(crate) topic: &'a Topic,
    pub(crate) shards: u16,
    pub(crate) epoch: u64,
}

impl Operation for Register<'_> {
    type Scope = RegistryKeys;
    /// The registry's version.
    type Reply = u64;
    const KEYS: &'static [crate::scripts::KeyOf<RegistryKeys>] = keys!(topics);
    const ARGS: &'static [&'static str] = &["topic", "entry"];
    script!("register");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        args.text(self.topic.as_str());
        args.number(format_args!("{} {}", self.shards, self.epoch));
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        match reply.text()?.as_str() {
            "registered" | "same" => reply.number(),
            other => Err(unexpected("an outcome", &other)),
        }
    }
}
