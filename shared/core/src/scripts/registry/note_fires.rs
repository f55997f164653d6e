//! See `note_fires.lua`.

use crate::scripts::operation;
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

operation! {
    "note_fires" on registry(schedules): NoteFires<'_>, |call, args, reply|
    args {
        fires: for fired in call.fires {
            args.text(fired.schedule.as_str());
            args.number(fired.until.unwrap_or_default().get());
            args.text(fired.rule);
        },
    }
    /// The time recorded for each schedule.
    reply Vec<Option<UnixMs>> {
        "noted" => {
            let noted = |_| Ok(Some(UnixMs::new(reply.number()?)).filter(|at| at.get() > 0));
            call.fires.iter().map(noted).collect()
        },
    }
}
