//! `check`: reports the health of the relay in one line and as an exit code, for Nagios and scripts.

use std::time::Duration;

use lisa_core::broker::{NO_MANAGER, TopicStats};
use lisa_core::time::format_age;
use lisa_service::cli::{Output, escape};
use serde::Serialize;
use serde_json::json;

use super::{counted, print};
use crate::cli::args::CheckArgs;
use crate::cli::error::CliError;
use crate::cli::relay::Relay;
use crate::operations::topics::StatsList;

/// The result of a check, and the exit code of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok = 0,
    Warning = 1,
    Critical = 2,
    Unknown = 3,
}

impl Status {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
            Self::Unknown => "UNKNOWN",
        }
    }
}

/// One problem that the check found.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Problem {
    status: Status,
    what: String,
}

/// Checks all topics, or one. Returns the exit code; a failure to read is unknown.
pub(crate) async fn check(
    relay: Result<Relay, CliError>,
    args: &CheckArgs,
    output: &Output,
) -> Result<u8, CliError> {
    let (problems, lost) = match read(relay, args).await {
        Ok(stats) => (
            problems(&stats, args),
            stats.topics.iter().map(TopicStats::lost).sum(),
        ),
        Err(error) => {
            let unknown = Problem {
                status: Status::Unknown,
                what: error.to_string(),
            };
            (vec![unknown], 0)
        }
    };
    let status = worst(&problems);
    match output.is_table() {
        false => {
            output.object(&json!({ "status": status, "problems": problems, "lost": lost }))?;
        }
        true => print(&text(status, &problems, lost))?,
    }
    Ok(status as u8)
}

async fn read(relay: Result<Relay, CliError>, args: &CheckArgs) -> Result<StatsList, CliError> {
    let mut stats = relay?.stats().await?;
    if let Some(topic) = &args.topic {
        stats.topics.retain(|stats| stats.topic == *topic);
        let is_topic = |name: &str| name == topic.as_str();
        stats
            .missing
            .damaged
            .retain(|damaged| is_topic(&damaged.topic));
        stats
            .missing
            .unanswered
            .retain(|name| is_topic(name.as_str()));
        if stats.topics.is_empty() && stats.missing.is_empty() {
            return Err(CliError::Failed(format!("topic {topic} is not registered")));
        }
    }
    Ok(stats)
}

/// Returns the problems, the worst first.
fn problems(stats: &StatsList, args: &CheckArgs) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut add = |status, what| found.push(Problem { status, what });
    match stats.managers {
        Some(0) => add(Status::Critical, NO_MANAGER.to_owned()),
        None => add(Status::Unknown, "cannot read the managers".to_owned()),
        Some(_) => {}
    }
    for damaged in &stats.missing.damaged {
        let what = format!("topic {}: {}", damaged.topic, damaged.error);
        add(Status::Critical, what);
    }
    for topic in &stats.missing.unanswered {
        add(
            Status::Unknown,
            format!("topic {topic}: Redis did not answer"),
        );
    }
    for topic in &stats.topics {
        of_topic(topic, args, &mut add);
    }
    found.sort_by_key(|problem| std::cmp::Reverse(problem.status));
    found
}

fn of_topic(stats: &TopicStats, args: &CheckArgs, add: &mut impl FnMut(Status, String)) {
    let topic = &stats.topic;
    if stats.conservation_error > 0 {
        let messages = counted(stats.conservation_error, "message");
        add(
            Status::Critical,
            format!("{topic}: {messages} unaccounted for"),
        );
    }
    if stats.missing_records() > 0 {
        let messages = counted(stats.missing_records(), "message");
        add(
            Status::Critical,
            format!("{topic}: {messages} without a record"),
        );
    }
    let mut age = |name: &str, age_ms: u64| {
        let status = match Duration::from_millis(age_ms) {
            age if age > args.oldest => Status::Critical,
            age if age > args.late => Status::Warning,
            _ => return,
        };
        let age = format_age(age_ms);
        add(
            status,
            format!("{name}: oldest due message has waited for {age}"),
        );
    };
    // The age of a topic includes those of its groups.
    if stats.groups.is_empty() && !stats.paused {
        age(topic.as_str(), stats.overdue_ms);
    }
    for group in &stats.groups {
        if !stats.paused && !group.paused {
            age(&format!("{topic}/{}", group.group), group.oldest_due_age_ms);
        }
    }
    for group in &stats.groups {
        if group.garbage > args.garbage {
            let messages = counted(group.garbage, "message");
            let what = format!("{topic}/{}: {messages} in garbage", group.group);
            add(Status::Warning, what);
        }
    }
}

/// Returns the worst status. What is unknown counts less than what is known to be critical.
fn worst(problems: &[Problem]) -> Status {
    let has = |status| problems.iter().any(|problem| problem.status == status);
    let order = [Status::Critical, Status::Unknown, Status::Warning];
    let worst = order.into_iter().find(|status| has(*status));
    worst.unwrap_or(Status::Ok)
}

/// Returns the line of a check. Messages counted as lost are no problem, because the loss cannot be undone.
fn text(status: Status, problems: &[Problem], lost: u64) -> String {
    let mut all: Vec<_> = { problems.iter() }
        .map(|problem| escape(&problem.what).into_owned())
        .collect();
    if all.is_empty() {
        all.push("no problems".to_owned());
    }
    if lost > 0 {
        let messages = counted(lost, "message");
        all.push(format!("{messages} counted as lost earlier"));
    }
    format!("LISA {}: {}", status.as_str(), all.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(status: Status) -> Problem {
        Problem {
            status,
            what: "x".to_owned(),
        }
    }

    #[test]
    fn the_worst_problem_decides() {
        use Status::{Critical, Ok, Unknown, Warning};
        for (problems, status) in [
            (vec![], Ok),
            (vec![Warning], Warning),
            (vec![Warning, Unknown], Unknown),
            (vec![Unknown, Critical, Warning], Critical),
        ] {
            let problems: Vec<_> = problems.into_iter().map(problem).collect();
            assert_eq!(worst(&problems), status, "{problems:?}");
        }
    }

    #[test]
    fn the_text_is_one_line() {
        assert_eq!(text(Status::Ok, &[], 0), "LISA OK: no problems");
        let two = [problem(Status::Warning), problem(Status::Warning)];
        assert_eq!(text(Status::Warning, &two, 0), "LISA WARNING: x; x");
    }

    #[test]
    fn messages_that_were_counted_as_lost_are_named_and_change_no_status() {
        assert_eq!(
            text(Status::Ok, &[], 1),
            "LISA OK: no problems; 1 message counted as lost earlier"
        );
        let one = [problem(Status::Warning)];
        assert_eq!(
            text(Status::Warning, &one, 2),
            "LISA WARNING: x; 2 messages counted as lost earlier"
        );
    }
}
