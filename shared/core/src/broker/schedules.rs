//! Schedules: the definitions of those that were created at run time, and the progress of all, as Redis keeps them.
//!
//! A definition is a text of the caller, which this does not read.

use std::time::Duration;

use crate::broker::reply::command;
use crate::broker::{Broker, BrokerError};
use crate::keys::Key;
use crate::scripts::{
    Fired, MissedTimes, NoteFires, PauseSchedule, Progress, PutSchedule, RemoveSchedule,
    SchedulePut, ScheduleRemoved, TakeFires, TakenFires,
};
use crate::time::UnixMs;
use crate::topic::{MAX_SCHEDULES, ScheduleName, ScheduleQuota};

/// The largest size of a definition in bytes.
pub const MAX_DEFINITION: usize = 64 * 1024;
/// The bytes of definitions after which a call takes, or reads, no more schedules.
const BYTES_AT_ONCE: usize = 1024 * 1024;
/// The number of schedules that one call reads.
const READ_AT_ONCE: usize = 100;

/// A schedule and its progress, as Redis keeps them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSchedule {
    /// Its name.
    pub name: ScheduleName,
    /// Its definition; `None` if a configuration declares it.
    pub definition: Option<String>,
    /// The version of its definition; 0 without one.
    pub version: u64,
    /// The time up to which it has fired, or the time of its last resume if it has not fired since.
    pub done: Option<UnixMs>,
    /// The time up to which it had fired before its pause, if it has not fired since its last resume.
    pub before_pause: Option<UnixMs>,
    /// The rule to which `done` belongs.
    pub rule: String,
    /// The time at which it was paused, if it is.
    pub paused: Option<UnixMs>,
    /// The times that it missed, and the error of its last send.
    pub faults: ScheduleFaults,
}

/// The times for which a schedule sent no message, and the error of its last send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduleFaults {
    /// The times that it missed.
    pub missed: MissedTimes,
    /// The time and the text of the error, if the last send failed.
    pub error: Option<(UnixMs, String)>,
}

impl ScheduleFaults {
    /// Parses `<missed> <newest missed> <ms of the error> <error>`.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ' ');
        let mut number = || parts.next()?.parse::<u64>().ok();
        let (count, newest, failed) = (number()?, number()?, number()?);
        let error = parts.next()?.to_owned();
        Some(Self {
            missed: MissedTimes {
                count,
                newest: UnixMs::new(newest),
            },
            error: Some((UnixMs::new(failed), error)).filter(|(at, _)| at.get() > 0),
        })
    }
}

impl Broker {
    /// Records up to which times schedules have fired. Returns the recorded progress of each, in order. A time goes back
    /// only if the rule of the schedule changes or Redis's clock goes back. A schedule that only asks changes nothing.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn note_fires(&self, fires: &[Fired<'_>]) -> Result<Vec<Progress>, BrokerError> {
        self.run_on_registry(&NoteFires { fires }).await
    }

    /// Takes up to `most` schedules whose message is to be sent now. Other managers can take them again after the lease.
    ///
    /// # Errors
    /// [`BrokerError`].
    ///
    /// # Cancel safety
    /// Schedules that were taken by a dropped call are taken again after the lease.
    pub async fn take_fires(
        &self,
        most: usize,
        lease: Duration,
    ) -> Result<TakenFires, BrokerError> {
        let take = TakeFires {
            most,
            bytes: BYTES_AT_ONCE,
            lease,
        };
        self.run_on_registry(&take).await
    }

    /// Creates a schedule, or replaces its definition. `at` is the version that it must have, 0 if it must not exist. `rule` is a
    /// text that changes whenever its times do. At most [`MAX_SCHEDULES`] are stored, and a new one must be within the quota.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn put_schedule(
        &self,
        schedule: &ScheduleName,
        definition: &str,
        rule: &str,
        at: Option<u64>,
        quota: Option<&ScheduleQuota>,
    ) -> Result<SchedulePut, BrokerError> {
        let put = PutSchedule {
            schedule,
            definition,
            rule,
            at,
            most: MAX_SCHEDULES,
            quota,
        };
        self.run_on_registry(&put).await
    }

    /// Counts the schedules of a quota.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn count_schedules(&self, quota: &ScheduleQuota) -> Result<u64, BrokerError> {
        let names = &self.inner.registry.schedule_names;
        let count = |(from, to): (String, String)| command("ZLEXCOUNT", names).arg(from).arg(to);
        let server = self.inner.connection.at(names);
        let commands = quota.ranges().map(count).collect();
        let counts = self.ask_all::<u64>(&server, commands).await?;
        Ok(counts.into_iter().sum())
    }

    /// Removes a schedule that was created at run time. `at` is the version that it must have.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn remove_schedule(
        &self,
        schedule: &ScheduleName,
        at: Option<u64>,
    ) -> Result<ScheduleRemoved, BrokerError> {
        self.run_on_registry(&RemoveSchedule { schedule, at }).await
    }

    /// Pauses or resumes a schedule. Returns whether that changed anything; `None` if it is not stored and the caller's
    /// configuration does not declare it either.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn pause_schedule(
        &self,
        schedule: &ScheduleName,
        paused: bool,
        is_declared: bool,
    ) -> Result<Option<bool>, BrokerError> {
        let pause = PauseSchedule {
            schedule,
            paused,
            is_declared,
        };
        self.run_on_registry(&pause).await
    }

    /// Returns the names of up to `limit` schedules that were created at run time: those that begin with `prefix` and come after
    /// `after`, in order.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn schedule_names(
        &self,
        prefix: &str,
        after: Option<&ScheduleName>,
        limit: usize,
    ) -> Result<Vec<ScheduleName>, BrokerError> {
        let names = &self.inner.registry.schedule_names;
        self.names_in(names, prefix, after, limit).await
    }

    /// Returns the names of up to `limit` schedules whose last send failed and that are not paused: the first names that begin with
    /// `prefix`, in order. Includes schedules that a configuration declares or used to declare.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn failing_schedules(
        &self,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<ScheduleName>, BrokerError> {
        let failing = &self.inner.registry.failing_schedules;
        self.names_in(failing, prefix, None, limit).await
    }

    /// Returns members of a sorted set of names that all have the score 0.
    async fn names_in(
        &self,
        names: &Key,
        prefix: &str,
        after: Option<&ScheduleName>,
        limit: usize,
    ) -> Result<Vec<ScheduleName>, BrokerError> {
        let from = match after {
            Some(after) if after.as_str() >= prefix => format!("({after}"),
            _ => format!("[{prefix}"),
        };
        // No name has this byte.
        let to = format!("[{prefix}\u{7f}");
        let range = command("ZRANGE", names)
            .arg((from, to))
            .arg(&["BYLEX", "LIMIT", "0"])
            .arg(limit);
        let names: Vec<String> = self.ask(range).await?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Returns the names of up to `limit` schedules that were created at run time and that managers take before `until`, the next
    /// one first.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn next_schedules(
        &self,
        until: UnixMs,
        limit: usize,
    ) -> Result<Vec<ScheduleName>, BrokerError> {
        let range = command("ZRANGE", &self.inner.registry.fires)
            .arg("-inf")
            .arg(until.get())
            .arg(&["BYSCORE", "LIMIT", "0"])
            .arg(limit);
        let names: Vec<String> = self.ask(range).await?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Reads schedules, in order. The result has no definition for a name that is not stored. It ends early if the definitions
    /// are large: a hundred schedules at a time, until those exceed 1 MiB.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn read_schedules(
        &self,
        names: &[ScheduleName],
    ) -> Result<Vec<StoredSchedule>, BrokerError> {
        let mut read: Vec<StoredSchedule> = Vec::new();
        let mut bytes = 0;
        for names in names.chunks(READ_AT_ONCE) {
            let next = self.read_few_schedules(names).await?;
            let definitions = next.iter().filter_map(|read| read.definition.as_deref());
            bytes += definitions.map(str::len).sum::<usize>();
            read.extend(next);
            if bytes > BYTES_AT_ONCE {
                break;
            }
        }
        Ok(read)
    }

    async fn read_few_schedules(
        &self,
        names: &[ScheduleName],
    ) -> Result<Vec<StoredSchedule>, BrokerError> {
        let keys = &self.inner.registry;
        let texts: Vec<&str> = names.iter().map(ScheduleName::as_str).collect();
        let of = [
            &keys.schedule_definitions,
            &keys.schedules,
            &keys.schedule_progress,
            &keys.paused_schedules,
            &keys.schedule_faults,
            &keys.resumed_schedules,
        ];
        let server = self.inner.connection.at(of[0]);
        let commands = of.map(|key| command("HMGET", key).arg(&texts)).into();
        let mut read: Vec<Vec<Option<String>>> = self.ask_all(&server, commands).await?;
        let mut next = || read.remove(0).into_iter();
        let (definitions, declared, stored) = (next(), next(), next());
        let (paused, faults, resumed) = (next(), next(), next());
        let progress = declared.zip(stored);
        let all = names.iter().zip(definitions).zip(progress);
        let all = all.zip(paused.zip(faults).zip(resumed));
        let read = all.map(
            |(((name, definition), progress), ((paused, faults), resumed))| {
                let is_stored = definition.is_some();
                let progress = if is_stored { progress.1 } else { progress.0 };
                let (done, version, rule) = parse_progress(progress.as_deref(), is_stored);
                StoredSchedule {
                    name: name.clone(),
                    definition,
                    version,
                    done,
                    before_pause: resumed.and_then(|resumed| before_pause(&resumed, done?)),
                    rule,
                    paused: paused.and_then(|at| at.parse().ok()).map(UnixMs::new),
                    faults: faults
                        .and_then(|faults| ScheduleFaults::parse(&faults))
                        .unwrap_or_default(),
                }
            },
        );
        Ok(read.collect())
    }
}

/// Parses `<ms of the resume> <ms>`, and returns the second if the first is the time up to which the schedule has fired.
fn before_pause(resumed: &str, done: UnixMs) -> Option<UnixMs> {
    let (at, before) = resumed.split_once(' ')?;
    let at = at.parse().ok().map(UnixMs::new)?;
    let before = before.parse().ok().map(UnixMs::new)?;
    (at == done).then_some(before)
}

/// Parses `<ms> <version> <rule>` of a stored schedule, or `<ms> <rule>` of one that a configuration declares.
fn parse_progress(text: Option<&str>, is_stored: bool) -> (Option<UnixMs>, u64, String) {
    let parse = |text: &str| {
        let (done, rule) = text.split_once(' ')?;
        let done = UnixMs::new(done.parse().ok()?);
        let (version, rule) = match is_stored {
            true => {
                let (version, rule) = rule.split_once(' ')?;
                (version.parse().ok()?, rule)
            }
            false => (0, rule),
        };
        Some((Some(done), version, rule.to_owned()))
    };
    text.and_then(parse).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_parsed_and_nonsense_is_nothing() {
        let of = |text, is_stored| parse_progress(Some(text), is_stored);
        let rule = "0 * * * * * UTC".to_owned();
        let at = Some(UnixMs::new(5));
        assert_eq!(of("5 7 0 * * * * * UTC", true), (at, 7, rule.clone()));
        assert_eq!(of("5 0 * * * * * UTC", false), (at, 0, rule));
        assert_eq!(of("nonsense", true), (None, 0, String::new()));
        assert_eq!(parse_progress(None, false), (None, 0, String::new()));
        let faults = ScheduleFaults::parse("3 9 11 topic full: no").unwrap();
        assert_eq!(faults.missed.count, 3);
        let error = Some((UnixMs::new(11), "topic full: no".to_owned()));
        assert_eq!(faults.error, error);
        assert_eq!(ScheduleFaults::parse("3 9 0 ").unwrap().error, None);
        assert_eq!(ScheduleFaults::parse("3 9"), None);
    }
}
