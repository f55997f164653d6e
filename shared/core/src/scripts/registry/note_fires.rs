//! See `note_fires.lua`.

use crate::keys::RegistryKeys;
use crate::scripts::{Args, Operation, Reply, UnexpectedReply, keys, script, unexpected};
use crate::time::UnixMs;
use crate::topic::ScheduleName;

/// Records the times up to which schedules have fired.
pub(crate) struct NoteFires<'a> {
    pub(crate) fires: &'a [Fired<'a>],
}

/// The time up to which a schedule has fired.
#[derive(Clone, Copy, Debug)]
pub struct Fired<'a> {
    /// The schedule.
    pub schedule: &'a ScheduleName,
    /// The time up to which it has fired; `None` only asks.
    pub until: Option<UnixMs>,
    /// The rule that defines its times. A time recorded for another rule does not count.
    pub rule: &'a str,
}

impl Operation for NoteFires<'_> {
    type Scope = RegistryKeys;
    /// The time recorded for each schedule.
    type Reply = Vec<Option<UnixMs>>;
    const KEYS: &'static [crate::scripts::KeyOf<RegistryKeys>] = keys!(schedules);
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
