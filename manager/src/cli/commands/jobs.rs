//! `jobs`: lists and runs the periodic jobs of a running manager. Only that manager knows them, so it is asked over HTTP.

use lisa_service::cli::{Output, Rows};
use serde_json::Value;

use super::print;
use crate::cli::args::JobsVerb;
use crate::cli::client::Client;
use crate::cli::error::CliError;

/// Lists the jobs of a manager, or runs one of them.
pub(crate) async fn jobs(
    manager: &Client,
    verb: Option<JobsVerb>,
    output: &Output,
) -> Result<(), CliError> {
    let Some(JobsVerb::Run { name }) = verb else {
        let answer: Value = manager.get(&["jobs"]).answer().await?;
        if output.is_table() && !output.no_headers {
            print(&format!(
                "manager {}",
                answer["manager"].as_str().unwrap_or_default()
            ))?;
        }
        return Ok(output.list(&answer, Some("jobs"), &listed(&answer))?);
    };
    let run = manager.post(&["jobs", &name, "run"]).long();
    let run: Value = run.answer().await?;
    if !output.is_table() {
        output.object(&run)?;
    }
    let took = run["took_ms"].as_u64().unwrap_or_default();
    match (run["ok"].as_bool(), output.is_table()) {
        (Some(true), false) => Ok(()),
        (Some(true), true) => print(&format!("{name} finished in {took} ms: {}", run["report"])),
        _ => Err(CliError::Failed(format!(
            "{name} failed: {}",
            run["error"].as_str().unwrap_or_default()
        ))),
    }
}

fn listed(answer: &Value) -> Rows {
    let mut rows = Rows::new(["JOB", "CRON", "RUNNING", "LAST RUN", "TOOK", "RESULT"]);
    for job in answer["jobs"].as_array().into_iter().flatten() {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let last = &job["last"];
        let result = match last["ok"].as_bool() {
            Some(true) => last["report"].to_string(),
            Some(false) => text(&last["error"]),
            None => String::new(),
        };
        let took = last["took_ms"].as_u64();
        rows.add_row([
            text(&job["name"]),
            text(&job["cron"]),
            if job["running"] == true { "yes" } else { "no" }.to_owned(),
            text(&last["started_at"]),
            took.map_or(String::new(), |ms| format!("{ms} ms")),
            result,
        ]);
    }
    rows
}
