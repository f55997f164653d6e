//! `history`: prints rates, counts and lateness of a topic, or of all topics together, over time.

use lisa_service::cli::{Output, Rows};

use super::in_ms;
use crate::cli::args::HistoryArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::operations::history::{HistoryStep, HistoryView};

/// The largest number of rows in a table.
const ROWS: u64 = 72;

/// Prints the history of a topic, or of all topics together.
pub(crate) async fn history(
    client: &Client,
    args: &HistoryArgs,
    output: &Output,
) -> Result<(), CliError> {
    let call = match &args.topic {
        Some(topic) => client.get(&["topics", topic.as_str(), "history"]),
        None => client.get(&["history"]),
    };
    let call = call.query("for", args.within.map(in_ms));
    let call = call.query("steps", output.is_table().then_some(ROWS));
    let view: HistoryView = call.answer().await?;
    if !output.is_table() {
        return Ok(output.list(&view, Some("steps"), &rows(&view.steps, ""))?);
    }
    let recorded = recorded(&view.steps);
    output.list(&view, Some("steps"), &rows(recorded, "-"))?;
    if let [first, ..] = recorded
        && recorded.len() < view.steps.len()
    {
        output.note(&format!("nothing recorded before {}", first.from))?;
    }
    Ok(())
}

/// Returns the steps from the first one of which anything was recorded.
fn recorded(steps: &[HistoryStep]) -> &[HistoryStep] {
    let is_recorded = |step: &HistoryStep| step.sent.is_some() || step.messages.is_some();
    let first = steps.iter().position(is_recorded);
    &steps[first.unwrap_or(0)..]
}

/// Returns the rows of the steps; `missing` stands for what was not recorded.
fn rows(steps: &[HistoryStep], missing: &str) -> Rows {
    let mut table = Rows::new([
        "FROM",
        "SENT",
        "ACKED",
        "RETRIED",
        "GARBAGE",
        "P50",
        "P99",
        "OLDEST DUE",
        "WAITING",
    ])
    .ages(["P50", "P99", "OLDEST DUE"])
    .numbers(["SENT", "ACKED", "RETRIED", "GARBAGE", "WAITING"]);
    let number = |number: Option<u64>| number.map_or_else(|| missing.to_owned(), |n| n.to_string());
    for step in steps {
        table.add_row([
            step.from.clone(),
            number(step.sent),
            number(step.acked),
            number(step.retried),
            number(step.discarded),
            number(step.lateness_p50_ms),
            number(step.lateness_p99_ms),
            number(step.oldest_due_ms),
            number(step.messages.map(|messages| messages.waiting)),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_begins_with_what_was_recorded_and_marks_what_is_missing() {
        let step = |from: &str, sent| HistoryStep {
            from: from.to_owned(),
            sent,
            ..HistoryStep::default()
        };
        let steps = [step("a", None), step("b", Some(0)), step("c", None)];
        let shown = recorded(&steps);
        assert_eq!(shown, &steps[1..]);
        let table = rows(shown, "-").to_string();
        let lines: Vec<Vec<&str>> = { table.lines() }
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[1], ["b", "0", "-", "-", "-", "-", "-", "-", "-"]);
        assert_eq!(lines[2], ["c", "-", "-", "-", "-", "-", "-", "-", "-"]);
        assert_eq!(recorded(&steps[..1]).len(), 1);
    }
}
