//! The periodic jobs of this manager, the last examinations, the garbage jobs, and the audit log.

use axum::Extension;
use axum::extract::{Path, State as With};
use axum::response::Response;
use lisa_service::http::auth::Scope;
use lisa_service::http::client::reaches;
use maud::html;

use super::Dashboard;
use super::doctor;
use super::page::{Context, Failure, Page, Section};
use super::parts::{
    Commands, Level, confirm_link, post_button, relative, relative_text, rest, sign,
};
use super::text::{grouped, span, visible};
use crate::jobs::scheduler::LastRun;
use crate::operations::{audit, garbage_jobs};

/// The examined topics that are shown.
const EXAMINED: usize = 20;
/// The garbage jobs that are shown.
const JOBS: usize = 20;
/// The entries of the audit log that are shown.
const AUDITED: usize = 20;

pub(super) async fn show(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
) -> Page {
    let is_of_all = context.reaches_all_topics();
    let jobs = dashboard.0.parts.schedule.jobs();
    let mut examined = dashboard.0.parts.examinations.all();
    examined.retain(|last| reaches(&last.checkup.topic));
    let (garbage, audit) = tokio::join!(
        dashboard.read(garbage_jobs::list(dashboard.broker())),
        dashboard.read(audit::page(dashboard.broker(), None, AUDITED))
    );
    let commands = Commands::default()
        .curl(&context, "List the jobs", "GET", "/v1/jobs", None)
        .cli(&context, "List the jobs", "lisa-manager", &["jobs"])
        .cli(
            &context,
            "Run one",
            "lisa-manager",
            &["jobs", "run", "clean"],
        )
        .cli(&context, "Examine all topics", "lisa-manager", &["doctor"]);
    let body = html! {
        @if is_of_all { section aria-labelledby="jobs-title" { h2 #jobs-title { "Jobs of this manager" }
            div #jobs .table-box data-live { table.rows {
                caption.hidden { "Jobs" }
                thead { tr { th scope="col" { "Job" } th scope="col" { "Times (cron, UTC)" } th scope="col" { "Last run" } th.n scope="col" { "Took" } th scope="col" { "Actions" } } }
                tbody { @for job in &jobs { tr {
                    th scope="row" data-label="Job" { (job.name) }
                    td.mono data-label="Times" { (job.cron) }
                    td data-label="Last run" {
                        @if job.running { "running" }
                        @else if let Some(last) = &job.last { (sign(if last.ok { Level::Ok } else { Level::Bad })) " " (relative_text(&last.started_at, context.now)) @if let Some(error) = &last.error { " " span.clip { (visible(error)) } } }
                        @else { span.zero { "not yet" } }
                    }
                    td.n data-label="Took" { @if let Some(last) = &job.last { (span(last.took_ms)) } @else { span.zero { "–" } } }
                    td.buttons data-label="Actions" { (post_button(&context, Scope::Operate, &format!("Run {}", job.name), format!("/system/jobs/{}", job.name))) }
                } } }
            } }
        } }
        section aria-labelledby="doctor-title" { h2 #doctor-title { "Examined topics" }
            p.muted { "The job " code { "doctor" } " examines all topics if Redis may have lost data. Examine a single topic on its page." }
            div #examined .table-box data-live { @if examined.is_empty() {
                p.card.muted { "This manager has not examined a topic since it started." }
            } @else { table.rows {
                caption.hidden { "The last examination of each topic by this manager, those with faults first" }
                thead { tr { th scope="col" { "Topic" } th scope="col" { "Time" } th scope="col" { "Result" } th scope="col" { "Actions" } } }
                tbody { @for last in examined.iter().take(EXAMINED) { @let topic = &last.checkup.topic; tr {
                    th scope="row" data-label="Topic" { a href=(context.link(format!("/topics/{topic}/doctor"))) { (topic) } }
                    td data-label="Time" { (relative(last.at, context.now)) }
                    td.error data-label="Result" { (sign(doctor::level(last))) " " (doctor::summary(last)) }
                    td.buttons data-label="Actions" {
                        (post_button(&context, Scope::Operate, "Examine", format!("/topics/{topic}/doctor/examine")))
                        @if !last.checkup.is_healthy() { (confirm_link(&context, Scope::Operate, "Repair", format!("/topics/{topic}/doctor/repair"), false)) }
                    }
                } } }
            } } }
            (rest(examined.len(), EXAMINED))
        }
        @if garbage.as_ref().map_or(true, |jobs| !jobs.is_empty()) { section aria-labelledby="garbage-jobs-title" { h2 #garbage-jobs-title { "Garbage jobs" }
            div #garbage-jobs .table-box data-live { @match &garbage {
                Ok(jobs) => { table.rows {
                    caption.hidden { "Garbage jobs" }
                    thead { tr { th scope="col" { "Began" } th scope="col" { "Job" } th scope="col" { "Group" } th scope="col" { "Filter" } th.n scope="col" { "Done" } th scope="col" { "State" } th scope="col" { "Actions" } } }
                    tbody { @for job in jobs.iter().take(JOBS) { tr {
                        th scope="row" data-label="Began" { (relative_text(&job.began_at, context.now)) }
                        td data-label="Job" { (job.verb) }
                        td data-label="Group" { a href=(context.link(format!("/topics/{}/garbage?group={}", job.topic, job.group))) { (job.topic) "/" (job.group) } }
                        td.error data-label="Filter" { @if job.filter.is_empty() { "any" } @else { (visible(&job.filter.summary())) } }
                        td.n data-label="Done" { (grouped(job.done)) " of " (grouped(job.expected)) }
                        td data-label="State" { (job.state.as_str()) @if let Some(error) = &job.error { ": " (visible(error)) } }
                        td.buttons data-label="Actions" { @if job.state.is_open() { (post_button(&context, Scope::Operate, "Stop", format!("/system/garbage-jobs/{}/stop", job.id))) } }
                    } } }
                } }
                Err(_) => { p.stale { (sign(Level::Bad)) span { "Redis did not answer: it is unknown whether garbage jobs are running." } } }
            } }
            @if let Ok(jobs) = &garbage { (rest(jobs.len(), JOBS)) }
        } }
        section aria-labelledby="audit-title" { h2 #audit-title { "Audit log" }
            div #audit .table-box data-live { @match &audit {
                Ok(page) if page.entries.is_empty() => { p.card.muted { "No action has been recorded yet." } }
                Ok(page) => { table.rows {
                    caption.hidden { "The newest actions of operators" }
                    thead { tr { th scope="col" { "Time" } th scope="col" { "Who" } th scope="col" { "Action" } th scope="col" { "On" } th scope="col" { "Outcome" } } }
                    tbody { @for entry in &page.entries { tr {
                        th scope="row" data-label="Time" { (relative_text(&entry.at, context.now)) }
                        td data-label="Who" { (visible(entry.who.as_deref().unwrap_or("anyone"))) " " span.muted { (visible(&entry.via)) } }
                        td data-label="Action" { (visible(&entry.action)) }
                        td.error data-label="On" { (visible(entry.topic.as_deref().unwrap_or_default())) @if let Some(group) = &entry.group { "/" (visible(group)) } @if let Some(details) = &entry.details { " " span.muted { (visible(details)) } } }
                        td.error data-label="Outcome" { (visible(&entry.outcome)) }
                    } } }
                } }
                Err(_) => { p.stale { (sign(Level::Bad)) span { "Redis did not answer." } } }
            } }
        }
        @if is_of_all { section aria-labelledby="about-title" { h2 #about-title { "About" }
            dl.pairs {
                div { dt { "Version" } dd { (env!("CARGO_PKG_VERSION")) } }
                div { dt { "Manager" } dd.mono { (visible(dashboard.0.parts.assignments.name())) } }
                div { dt { "Namespace" } dd { (context.namespace) } }
                div { dt { "Redis" } dd.mono { (visible(&dashboard.0.parts.config.redis.url.to_string())) } }
            }
        }
        (commands.render("system-commands")) }
    };
    Page::new(Section::System, "System", body).live()
}

pub(super) async fn run_job(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(name): Path<String>,
) -> Result<Response, Failure> {
    let run = async {
        let run = dashboard.0.parts.schedule.run_now(&name).await;
        run.ok_or_else(|| format!("there is no job {name:?}"))
    };
    let action = dashboard.action(&context, "run job").details(&name);
    let outcome = |run: &LastRun| match &run.error {
        None => "ran".to_owned(),
        Some(error) => format!("failed: {error}"),
    };
    let run = action.run(run, outcome).await.map_err(Failure::not_found)?;
    tracing::info!(
        job = name,
        by = context.viewer.name(),
        "ran a job from the dashboard"
    );
    Ok(match run.error {
        None => context.done(
            "/system",
            format!("Job {name} ran in {}.", span(run.took_ms)),
        ),
        Some(error) => context.not_done("/system", format!("Job {name} failed: {error}")),
    })
}

pub(super) async fn stop_garbage_job(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(id): Path<String>,
) -> Result<Response, Failure> {
    let stop = garbage_jobs::stop(dashboard.broker(), &id);
    let action = dashboard.action(&context, "stop garbage job").details(&id);
    let stopped = action.run(stop, |job| job.state.as_str().to_owned()).await;
    match stopped {
        Ok(job) => {
            dashboard.0.parts.garbage_jobs_changed.notify_one();
            Ok(context.done(
                "/system",
                format!("Garbage job {id} is {}.", job.state.as_str()),
            ))
        }
        Err(error) => Ok(context.not_done("/system", error)),
    }
}
