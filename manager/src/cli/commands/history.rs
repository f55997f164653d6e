//! `history`: prints rates, counts and lateness of a topic, or of all topics together, over time.

use lisa_service::cli::{Output, Rows};

use super::in_ms;
use crate::cli::args::HistoryArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::operations::history::HistoryView;

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
    Ok(output.list(&view, Some("steps"), &rows(&view))?)
}

fn rows(view: &HistoryView) -> Rows {
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
    let number = |number: Option<u64>| number.map_or_else(String::new, |n| n.to_string());
    for step in &view.steps {
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
