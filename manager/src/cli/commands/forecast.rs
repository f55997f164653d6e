//! `forecast`: prints when messages become due, as bars.

use lisa_core::topic::Topic;
use lisa_service::cli::{Output, Rows};

use super::{counted, in_ms};
use crate::cli::args::ForecastArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::operations::forecast::ForecastView;

/// The length of the longest bar in characters.
const BAR: u64 = 40;

/// Prints how many messages become due in each step from now on.
pub(crate) async fn forecast(
    client: &Client,
    args: &ForecastArgs,
    output: &Output,
) -> Result<(), CliError> {
    let call = match &args.topic {
        Some(topic) => client.get(&["topics", topic.as_str(), "forecast"]),
        None => client.get(&["forecast"]),
    };
    let call = call.query("for", args.within.map(in_ms));
    let call = call.query("step", args.step.map(in_ms));
    let view: ForecastView = call.answer().await?;
    let damaged = view.damaged.iter();
    let damaged = damaged.map(|damaged| format!("topic {}: {}", damaged.topic, damaged.error));
    let damaged: Vec<_> = damaged.collect();
    let ended = match &damaged[..] {
        [] => Ok(()),
        damaged => Err(CliError::Failed(damaged.join("\n"))),
    };
    output.list(&view, None, &rows(&view))?;
    output.note(&remarks(&view, args.topic.as_ref()).join("\n"))?;
    ended
}

fn rows(view: &ForecastView) -> Rows {
    let counts: Vec<u64> = view.total.in_steps().collect();
    let times = view.recurring.iter().map(|next| next.at.as_str());
    let times: Vec<&str> = times.collect();
    let most = counts.iter().copied().max().unwrap_or(0);
    let mut table =
        Rows::new(["FROM", "DUE", "RETRY", "SCHEDULES", ""]).numbers(["DUE", "RETRY", "SCHEDULES"]);
    let due = view.total.waiting.iter().zip(&view.total.retry);
    for ((step, count), (waiting, retry)) in view.steps.iter().zip(&counts).zip(due) {
        // Times of the same form are in the order of their texts.
        let is_in_step = |at: &&&str| (step.from.as_str()..step.to.as_str()).contains(*at);
        let fires = times.iter().filter(is_in_step).count();
        table.add_row([
            step.from.clone(),
            waiting.to_string(),
            retry.to_string(),
            fires.to_string(),
            bar(*count, most),
        ]);
    }
    table
}

/// Returns what the steps leave out.
fn remarks(view: &ForecastView, topic: Option<&Topic>) -> Vec<String> {
    let mut text = Vec::new();
    let end = view.steps.last().map_or("", |step| step.to.as_str());
    let overdue = counted(view.total.overdue, "message");
    text.push(format!(
        "overdue: {overdue}; due after {end}: {}",
        view.total.later
    ));
    if let Some(peak) = &view.peak {
        let messages = counted(peak.messages, "message");
        let at_least = if peak.is_lower_bound { "at least " } else { "" };
        text.push(format!(
            "peak: {at_least}{messages} from {} to {}",
            peak.from, peak.to
        ));
    }
    if view.topics.iter().any(|topic| topic.is_estimate) {
        text.push("estimated from some of the shards".to_owned());
    }
    if let (topics @ 1.., messages) = view.paused() {
        let messages = counted(messages, "message");
        let topics = counted(topics, "paused topic");
        text.push(format!(
            "included: {messages} of {topics}, not delivered until resumed"
        ));
    }
    if topic.is_none() && view.other_topics > 0 {
        let topics = counted(view.other_topics as u64, "topic");
        let messages = counted(view.other_messages, "message");
        text.push(format!("not counted: {topics} with {messages}"));
    }
    if view.has_more_recurring {
        text.push("some times of schedules are not counted".to_owned());
    }
    text
}

/// Draws a count; anything but none is at least one character.
fn bar(count: u64, most: u64) -> String {
    let length = (u128::from(count) * u128::from(BAR)).div_ceil(u128::from(most.max(1)));
    "█".repeat(usize::try_from(length).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_shows_its_share_of_the_longest() {
        let length = |count, most| bar(count, most).chars().count();
        assert_eq!((length(0, 0), length(0, 9), length(1, 1000)), (0, 0, 1));
        assert_eq!((length(500, 1000), length(1000, 1000)), (20, 40));
        assert_eq!(length(u64::MAX, u64::MAX), 40);
    }
}
