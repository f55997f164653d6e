//! See `take_fires.lua`.

use std::time::Duration;

use crate::scripts::operation;
use crate::time::{UnixMs, millis};
use crate::topic::ScheduleName;

/// Takes the schedules whose message is to be sent now.
pub(crate) struct TakeFires {
    /// The most schedules to take.
    pub(crate) most: usize,
    /// The bytes of definitions after which it takes no more.
    pub(crate) bytes: usize,
    /// The time for which no other manager takes them.
    pub(crate) lease: Duration,
}

/// The schedules that a manager has taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenFires {
    /// The time at which they were taken, on Redis's clock.
    pub now: UnixMs,
    /// The time until the next one is to be taken, if there is one.
    pub next: Option<Duration>,
    /// The schedules.
    pub taken: Vec<TakenFire>,
}

/// A schedule that a manager has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenFire {
    /// The schedule.
    pub schedule: ScheduleName,
    /// Its definition.
    pub definition: String,
    /// The time up to which it has fired.
    pub done: UnixMs,
    /// The version of its definition.
    pub version: u64,
}

operation! {
    "take_fires" on registry(fires schedule_definitions schedule_progress): TakeFires, |call, args, reply|
    args {
        most: args.number(call.most),
        bytes: args.number(call.bytes),
        lease: args.number(millis(call.lease)),
    }
    reply TakenFires {
        "taken" => {
            let now = UnixMs::new(reply.number()?);
            let next: i64 = reply.number()?;
            // What cannot be read must not hold up the others.
            let taken = reply.rest(|reply| {
                let (schedule, definition) = (reply.lossy()?, reply.lossy()?);
                let (done, version) = (reply.number()?, reply.text()?);
                let taken = |schedule| TakenFire {
                    schedule,
                    definition,
                    done: UnixMs::new(done),
                    version: version.parse().unwrap_or_default(),
                };
                Ok(schedule.parse().ok().map(taken))
            })?;
            let taken = taken.into_iter().flatten().collect();
            Ok(TakenFires {
                now,
                next: u64::try_from(next).ok().map(Duration::from_millis),
                taken,
            })
        },
    }
}
