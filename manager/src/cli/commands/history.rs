//! `history`: prints rates, counts and lateness of a topic, or of all topics together, over time.

use std::time::Duration;

use lisa_core::broker::Broker;
use lisa_core::time::format_duration;
use lisa_service::cli::{Output, Rows};
use lisa_service::config::HistoryConfig;

use super::ALL_WITHIN;
use crate::cli::args::HistoryArgs;
use crate::cli::error::CliError;
use crate::operations::history::{self, HistoryPeriod, HistoryView};

/// The largest number of rows in a table.
const ROWS: u64 = 72;

/// Prints the history of a topic, or of all topics together.
pub(crate) async fn history(
    broker: &Broker,
    args: HistoryArgs,
    config: HistoryConfig,
    output: &Output,
) -> Result<(), CliError> {
    let most = if output.is_table() { ROWS } else { u64::MAX };
    let period = HistoryPeriod::new(args.within, config, most)
        .map_err(|error| CliError::Usage(format!("--for: {error}")))?;
    let view = match &args.topic {
        Some(topic) => history::read(broker, &*broker.topic(topic).await?, period).await?,
        None => history::read_of_all(broker, period, ALL_WITHIN).await?,
    };
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
    ]);
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let time = |ms: Option<u64>| match ms {
        Some(ms) => format_duration(Duration::from_millis(ms)),
        None => "-".to_owned(),
    };
    for step in &view.steps {
        table.add_row([
            step.from.clone(),
            number(step.sent),
            number(step.acked),
            number(step.retried),
            number(step.discarded),
            time(step.lateness_p50_ms),
            time(step.lateness_p99_ms),
            time(step.oldest_due_ms),
            number(step.messages.map(|messages| messages.waiting)),
        ]);
    }
    table
}
