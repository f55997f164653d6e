//! The operations of an operator: functions whose results are the same JSON over HTTP and on the command line.

pub(crate) mod attention;
pub(crate) mod audit;
pub(crate) mod choose_group;
#[cfg(feature = "keda")]
pub(crate) mod demand;
pub(crate) mod doctor;
pub(crate) mod error_groups;
pub(crate) mod events;
pub(crate) mod forecast;
pub(crate) mod garbage;
pub(crate) mod garbage_filter;
pub(crate) mod garbage_jobs;
pub(crate) mod garbage_search;
pub(crate) mod groups;
pub(crate) mod history;
pub(crate) mod messages;
pub(crate) mod newest_counts;
pub(crate) mod parked_keys;
pub(crate) mod past_time;
pub(crate) mod rates;
pub(crate) mod round_step;
pub(crate) mod schedules;
pub(crate) mod snapshot;
pub(crate) mod tokens;
pub(crate) mod topics;
pub(crate) mod workers;

/// Formats a count with its noun: `1 message`, `2 messages`.
pub(crate) fn counted(count: u64, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}
