//! `schedules`: lists schedules (recurring messages), shows, creates, changes, removes, pauses and runs one.

use lisa_core::fields::{Describer, Description};
use lisa_core::topic::ScheduleName;
use lisa_service::cli::{Output, Rows, prompt, remark};
use lisa_service::http::auth::Scope;
use lisa_service::recurring::RecurringMessage;
use reqwest::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::{again_if_changed, be_sure, counted, print, require_terminal};
use crate::cli::args::BackfillArgs;
use crate::cli::client::Client;
use crate::cli::error::CliError;
use crate::cli::setting::{Setting, set_all};
use crate::operations::schedules::{
    Backfilled, ScheduleDetails, ScheduleList, SchedulePaused, ScheduleRun, add_earlier,
};

/// The schedules of one request, and the most times of a backfill that are sent for without a question.
const AT_A_TIME: usize = 1000;
/// The most calls that count the times of a period.
const COUNTING_CALLS: usize = 100;

/// Prints the schedules whose names begin with `prefix`.
pub(crate) async fn list(
    client: &Client,
    prefix: Option<&ScheduleName>,
    output: &Output,
) -> Result<(), CliError> {
    let mut all = ScheduleList::default();
    let mut cursor = None;
    loop {
        let page = client.get(&["schedules"]).query("limit", Some(AT_A_TIME));
        let page = page.query("prefix", prefix).query("cursor", cursor);
        let page: ScheduleList = page.answer().await?;
        all.schedules.extend(page.schedules);
        all.damaged.extend(page.damaged);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    if let Some(loaded) = client.configuration()
        && all.schedules.is_empty()
        && loaded.file.is_none()
    {
        remark(format_args!(
            "no schedules: name the managers' configuration file with --config to list those that it declares"
        ));
    }
    let mut table = Rows::new([
        "SCHEDULE",
        "STATE",
        "TOPIC",
        "CRON",
        "TIME ZONE",
        "SENT UNTIL",
        "NEXT",
        "MISSED",
    ])
    .numbers(["MISSED"])
    .marks(["STATE"]);
    for schedule in &all.schedules {
        table.add_row([
            schedule.schedule.as_str(),
            schedule.state(),
            schedule.topic.as_str(),
            &schedule.cron,
            &schedule.time_zone,
            schedule.sent_until.as_deref().unwrap_or_default(),
            schedule.next.as_deref().unwrap_or_default(),
            &schedule.missed.to_string(),
        ]);
    }
    output.list(&all, Some("schedules"), &table)?;
    let damaged = all.damaged.iter();
    let damaged = damaged.map(|one| format!("schedule {}: {}", one.schedule, one.error));
    match &damaged.collect::<Vec<_>>()[..] {
        [] => Ok(()),
        damaged => Err(CliError::Failed(damaged.join("\n"))),
    }
}

/// Prints a schedule with its definition and its next times.
pub(crate) async fn show(
    client: &Client,
    name: &ScheduleName,
    output: &Output,
) -> Result<(), CliError> {
    let details = read(client, name).await?;
    if !output.is_table() {
        return Ok(output.object(&details)?);
    }
    let view = &details.view;
    let mut lines = Vec::new();
    let mut line = |name: &str, value: &str| lines.push(format!("{name:<12} {value}"));
    for (field, value) in &details.definition {
        line(field, &lisa_core::fields::plain(value));
    }
    let source = match view.declared_in_file {
        true => "managers' configuration",
        false => "run time",
    };
    line("source", source);
    let optional = [
        ("paused since", &view.paused_since),
        ("sent until", &view.sent_until),
    ];
    for (field, value) in optional {
        line(field, value.as_deref().unwrap_or("–"));
    }
    if let Some(newest) = &view.newest_missed {
        line("missed", &format!("{}, the newest {newest}", view.missed));
    }
    if let Some((error, at)) = view.error.as_ref().zip(view.error_at.as_ref()) {
        line("error", &format!("{error} ({at})"));
    }
    line("next times", &details.next_times.join(", "));
    print(&lines.join("\n"))?;
    warn(&details);
    Ok(())
}

/// Creates a schedule.
pub(crate) async fn create(
    client: &Client,
    name: &ScheduleName,
    settings: &[Setting],
    output: &Output,
) -> Result<(), CliError> {
    let definition = set_all(Map::new(), settings, &fields());
    let (status, created) = put(client, name, definition, "If-None-Match", Some("*")).await?;
    let what = match status {
        StatusCode::CREATED => "created",
        _ => "already exists with this definition",
    };
    report(&created, what, output)
}

/// Changes fields of a schedule, and keeps the others, including concurrent changes to them.
pub(crate) async fn change(
    client: &Client,
    name: &ScheduleName,
    settings: &[Setting],
    output: &Output,
) -> Result<(), CliError> {
    let read_and_put = async || {
        let before = read(client, name).await?;
        let definition = set_all(before.definition, settings, &fields());
        // Without a version, a file declares it: the response says so.
        let tag = before.version.map(|version| format!("\"{version}\""));
        let (_, changed) = put(client, name, definition, "If-Match", tag.as_deref()).await?;
        Ok((before.version, changed))
    };
    let (before, changed) = again_if_changed(read_and_put).await?;
    let what = match changed.version == before {
        true => "already has this definition",
        false => "changed",
    };
    report(&changed, what, output)
}

/// Removes a schedule.
pub(crate) async fn remove(
    client: &Client,
    name: &ScheduleName,
    output: &Output,
) -> Result<(), CliError> {
    client.require_managers_file()?;
    let path = ["schedules", name.as_str()];
    let call = client.call(Method::DELETE, &path, Scope::Operate);
    call.answer::<()>().await?;
    if !output.is_table() {
        return Ok(output.object(&json!({ "schedule": name, "removed": true }))?);
    }
    print(&format!("{name} is removed"))
}

/// Pauses or resumes a schedule.
pub(crate) async fn pause(
    client: &Client,
    name: &ScheduleName,
    paused: bool,
    output: &Output,
) -> Result<(), CliError> {
    let verb = if paused { "pause" } else { "resume" };
    let call = client.post(&["schedules", name.as_str(), verb]);
    let done: SchedulePaused = call.answer().await?;
    if !output.is_table() {
        return Ok(output.object(&done)?);
    }
    let state = match (paused, done.changed) {
        (true, true) => "is paused",
        (true, false) => "is already paused",
        (false, true) => "is resumed",
        (false, false) => "was not paused",
    };
    print(&format!("{name} {state}"))
}

/// Sends a message of a schedule now.
pub(crate) async fn run(
    client: &Client,
    name: &ScheduleName,
    output: &Output,
) -> Result<(), CliError> {
    let call = client.post(&["schedules", name.as_str(), "run"]);
    let run: ScheduleRun = call.answer().await?;
    if !output.is_table() {
        return Ok(output.object(&run)?);
    }
    let what = match run.sent {
        true => "sent",
        false => "was run within this second already:",
    };
    print(&format!("{what} {} to {}", run.id, run.topic))
}

/// Sends for the times of a schedule in a period of the past. Asks first if there are more times than those of one call.
pub(crate) async fn backfill(
    client: &Client,
    args: &BackfillArgs,
    output: &Output,
) -> Result<(), CliError> {
    let path = ["schedules", args.schedule.as_str(), "backfill"];
    let to = args.to.map(|to| to.to_string());
    let call = async |from: &str, dry_run: bool| {
        let mut body = json!({ "from": from, "to": to });
        // An older manager refuses a field that it does not know.
        if dry_run {
            body["dry_run"] = true.into();
        }
        client.post(&path).json(&body).answer::<Backfilled>().await
    };
    let from = args.from.to_string();
    if args.dry_run || !args.yes {
        let mut found = call(&from, true).await?;
        if !args.dry_run && found.next.is_some() {
            let most = found.times;
            require_terminal(format_args!("a backfill for more than {most} times"))?;
        }
        for _ in 1..COUNTING_CALLS {
            let Some(from) = found.next.take() else { break };
            found.add(call(&from, true).await?);
        }
        let at_least = match found.next {
            None => "",
            Some(_) => "at least ",
        };
        let times = counted(found.times, "scheduled time");
        if args.dry_run {
            return match output.is_table() {
                false => Ok(output.object(&found)?),
                true => print(&format!(
                    "would send to {} for {at_least}{times}, except those that are already sent",
                    found.topic
                )),
            };
        }
        if found.times > AT_A_TIME as u64 {
            prompt(format_args!(
                "send to {} for {at_least}{times} of {}? [y/N] ",
                found.topic, args.schedule
            ));
            be_sure()?;
        }
    }
    let mut all = call(&from, false).await?;
    while let Some(from) = all.next.take() {
        let done = call(&from, false).await;
        all.add(done.map_err(|error| failed(error, all.sent, &from))?);
    }
    if !output.is_table() {
        return Ok(output.object(&all)?);
    }
    let (sent, known) = (counted(all.sent, "message"), all.duplicates);
    print(&format!(
        "{sent} sent to {}, {known} already there",
        all.topic
    ))
}

/// Adds the number of messages that earlier calls have sent to the error of the call that begins at `from`.
fn failed(mut error: CliError, before: u64, from: &str) -> CliError {
    if let CliError::Refused(refusal) = &mut error
        && let Some(text) = add_earlier(&refusal.text, before)
    {
        refusal.text = text;
        return error;
    }
    // The call that failed may have sent others.
    let sent = counted(before, "message");
    remark(format_args!("{sent} sent for the times before {from}"));
    error
}

async fn read(client: &Client, name: &ScheduleName) -> Result<ScheduleDetails, CliError> {
    client.get(&["schedules", name.as_str()]).answer().await
}

async fn put(
    client: &Client,
    name: &ScheduleName,
    definition: Map<String, Value>,
    condition: &'static str,
    value: Option<&str>,
) -> Result<(StatusCode, ScheduleDetails), CliError> {
    client.require_managers_file()?;
    let call = client.call(Method::PUT, &["schedules", name.as_str()], Scope::Operate);
    let call = call.header(condition, value);
    call.json(&definition.into())
        .answer_with_status()
        .await
        .map_err(CliError::about_settings)
}

/// Describes the fields of a definition.
fn fields() -> Vec<Description> {
    let mut described = Describer::default();
    RecurringMessage::read(&mut described);
    described.fields
}

fn report(schedule: &ScheduleDetails, what: &str, output: &Output) -> Result<(), CliError> {
    if !output.is_table() {
        return Ok(output.object(schedule)?);
    }
    let next = schedule.next_times.first().map_or("never", String::as_str);
    print(&format!("{} {what}; next: {next}", schedule.view.schedule))?;
    warn(schedule);
    Ok(())
}

fn warn(schedule: &ScheduleDetails) {
    for warning in &schedule.warnings {
        remark(format_args!("note: {warning}"));
    }
}
