//! See `note_fires.lua`.

use super::{Args, Operation, Reply, UnexpectedReply, keys, script, unexpected};
use crate::keys::RegistryKeys;
use crate::schedule::ScheduleName;
use crate::time::UnixMs;

/// Notes up to which times schedules have fired.
pub(crate) struct NoteFires<'a> {
    pub(crate) fires: &'a [Fired<'a>],
}

/// Up to when a schedule has fired.
#[derive(Clone, Copy, Debug)]
pub struct Fired<'a> {
    /// The schedule.
    pub schedule: &'a ScheduleName,
    /// It has fired up to then; `None` only asks.
    pub until: Option<UnixMs>,
    /// Its times. What was noted of another rule counts for nothing.
    pub rule: &'a str,
}

impl Operation for NoteFires<'_> {
    type Place = RegistryKeys;
    /// What is noted of each.
    type Reply = Vec<Option<UnixMs>>;
    const KEYS: &'static [super::KeyOf<RegistryKeys>] = keys!(schedules);
    const ARGS: &'static [&'static str] = &["fires"];
    script!("note_fires");

    fn args<'a>(&'a self, args: &mut Args<'a>) {
        for fired in self.fires {
            args.text(fired.schedule.as_str());
            args.number(fired.until.unwrap_or_default().get());
            args.text(fired.rule);
        }
    }

    fn parse(&self, reply: &mut Reply) -> Result<Self::Reply, UnexpectedReply> {
        let word = reply.text()?;
        if word != "noted" {
            return Err(unexpected("noted", &word));
        }
        let noted = |_| Ok(Some(UnixMs::new(reply.number()?)).filter(|at| at.get() > 0));
        self.fires.iter().map(noted).collect()
    }
}
