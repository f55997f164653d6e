//! One schedule (recurring message): its definition, its next times and its progress, and what can be done with it.

use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State as With};
use axum::response::Response;
use lisa_core::time::UnixMs;
use lisa_core::topic::ScheduleName;
use lisa_service::http::ProblemCode;
use lisa_service::http::auth::Scope;
use maud::{Markup, html};
use serde_json::Value as Json;

use super::Dashboard;
use super::actions::Ask;
use super::form::{Fields, PLAIN};
use super::message::{may_see, shown_headers, shown_text};
use super::page::{Context, Failure, Page, Section};
use super::parts::{
    Commands, Level, confirm_link, count, exact_text, post_button, relative_text, sign, tile,
};
use super::text::{grouped, size, visible};
use super::topic::pairs;
use crate::operations::schedules::ScheduleDetails;

/// The fields of a definition that the scope `payload` is for.
pub(super) const CONTENT: [&str; 2] = ["payload", "headers"];

/// Parses the name of a schedule in a path.
pub(super) fn name(text: &str) -> Result<ScheduleName, Failure> {
    text.parse()
        .map_err(|error| Failure::invalid("schedule", &error))
}

impl Dashboard {
    /// Reads a schedule, in one of the slots and in time.
    pub(super) async fn schedule(&self, name: &ScheduleName) -> Result<ScheduleDetails, Failure> {
        self.read_or_problem(self.schedules().show(name)).await
    }
}

pub(super) async fn show(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(schedule): Path<String>,
) -> Result<Page, Failure> {
    let name = name(&schedule)?;
    let details = dashboard.schedule(&name).await?;
    let view = &details.view;
    let hidden = may_see(&dashboard, &context).err();
    let at = |verb: &str| format!("/schedules/{name}/{verb}");
    let (verb, label) = match view.paused_since {
        Some(_) => ("resume", "Resume"),
        None => ("pause", "Pause"),
    };
    let actions = html! {
        (post_button(&context, Scope::Operate, label, at(verb)))
        (post_button(&context, Scope::Operate, "Run now", at("run")))
        // Otherwise, the file is to be edited.
        @if !view.declared_in_file {
            (confirm_link(&context, Scope::Operate, "Edit", at("edit"), false))
            (confirm_link(&context, Scope::Operate, "Remove", at("remove"), true))
        }
    };
    let body = render(&context, &details, hidden);
    Ok(Page::new(Section::Schedules, name.as_str(), body)
        .below("Schedules", "/schedules")
        .actions(actions)
        .live())
}

fn render(context: &Context, details: &ScheduleDetails, hidden: Option<&str>) -> Markup {
    let view = &details.view;
    let topic = &view.topic;
    let time = |at: &Option<String>| html! { @match at { Some(at) => (relative_text(at, context.now)), None => { span.zero { "–" } } } };
    let mut shown = details.definition.clone();
    let [payload, headers] = CONTENT.map(|field| shown.remove(field));
    shown.remove("topic");
    let payload = payload.as_ref().and_then(Json::as_str).unwrap_or_default();
    let headers = headers.as_ref().and_then(Json::as_object);
    let headers = headers.into_iter().flatten();
    let headers = headers.filter_map(|(name, value)| Some((name.as_str(), value.as_str()?)));
    html! {
        div #schedule-state data-live {
            @if let Some(since) = &view.paused_since { p.banner.is-warn { (sign(Level::Warn)) span { "This schedule was paused " (relative_text(since, context.now)) ". It sends nothing until it is resumed, and times that pass meanwhile do not count as missed." } } }
            @if let Some(error) = &view.error { p.banner.is-bad { (sign(Level::Bad)) span { "The last send failed" @if let Some(at) = &view.error_at { " " (relative_text(at, context.now)) } ": " (visible(error)) } } }
            dl.tiles.is-compact {
                (tile("Next", time(&view.next), html! { @match &view.next { Some(at) => (exact_text(at)), None => "paused" } }))
                (tile("Sent until", time(&view.sent_until), html! { "the newest time with a message" }))
                (tile("Missed", count(view.missed), html! { @match &view.newest_missed { Some(newest) => { "the newest " (relative_text(newest, context.now)) } None => "times without a message" } }))
            }
        }
        section aria-labelledby="times-title" { h2 #times-title { "Next times" }
            ul #times .list data-live { @for at in &details.next_times { li { (exact_text(at)) span.muted { (relative_text(at, context.now)) } } } }
            @if !details.warnings.is_empty() { ul #warnings .list.notes aria-label="Warnings" { @for warning in &details.warnings { li { (sign(Level::Note)) span { (visible(warning)) } } } } }
        }
        section aria-labelledby="definition-title" { h2 #definition-title { "Definition" }
            dl #definition .pairs data-live {
                div { dt { "Topic" } dd { a href=(context.link(format!("/topics/{topic}"))) { (topic) } } }
                (pairs("", &shown.into()))
                @if view.declared_in_file { div { dt { "Declared" } dd { "in the managers' configuration" } } }
                @else { div { dt { "Created" } dd { "at run time" } } div { dt { "Version" } dd { (details.version.unwrap_or_default()) } } }
            }
            @if view.declared_in_file { p.muted { "To change or remove it, edit " code { "schedules." (view.schedule) } " in the configuration of the managers, and reload them." } }
        }
        section aria-labelledby="payload-title" { h2 #payload-title { "Payload " span.badge { (size(payload.len() as u64)) } }
            @match hidden {
                Some(reason) => p.card.muted { (reason) },
                None => { (shown_text(payload, usize::MAX)) (shown_headers(headers)) }
            }
        }
        (commands(context, details, hidden.is_none()).render("schedule-commands"))
    }
}

fn commands(context: &Context, details: &ScheduleDetails, may_see: bool) -> Commands {
    let view = &details.view;
    let name = view.schedule.as_str();
    let path = format!("/v1/schedules/{name}");
    let cli = |commands: Commands, what: &str, words: &[&str]| {
        commands.cli(context, what, "lisa-manager", words)
    };
    let mut all = Commands::default().curl(context, "Read", "GET", &path, None);
    all = cli(all, "Read", &["schedules", "show", name]);
    for (what, verb) in [("Pause", "pause"), ("Resume", "resume"), ("Run now", "run")] {
        all = all.curl(context, what, "POST", format!("{path}/{verb}"), None);
        all = cli(all, what, &["schedules", verb, name]);
    }
    let newest = view.newest_missed.as_ref();
    if let Some(from) = newest.and_then(|newest| newest.parse::<UnixMs>().ok()) {
        // Only for this time: others may have been sent before the dedup window.
        let what = "Send for the newest missed time";
        let [from, to] = [from, from.plus(Duration::from_secs(1))].map(|at| at.to_string());
        let json = serde_json::json!({ "from": from, "to": to }).to_string();
        let path = format!("{path}/backfill");
        all = all.curl(context, what, "POST", path, Some(&json));
        let words = ["schedules", "backfill", name, "--from", &from, "--to", &to];
        all = cli(all, what, &words);
    }
    if view.declared_in_file {
        return all;
    }
    if may_see {
        let json = Json::from(details.definition.clone()).to_string();
        all = all.curl(context, "Replace", "PUT", &path, Some(&json));
    }
    let change = ["schedules", "change", name, "catch_up=6h"];
    cli(all, "Change a field", &change)
}

/// Pauses, resumes or runs a schedule.
pub(super) async fn act(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path((schedule, verb)): Path<(String, String)>,
) -> Result<Response, Failure> {
    let name = name(&schedule)?;
    let path = format!("/schedules/{name}");
    let stored = &dashboard.0.parts.stored_schedules;
    match &*verb {
        "pause" | "resume" => {
            let paused = verb == "pause";
            let action = dashboard.action(&context, &format!("{verb}_schedule"));
            let done = dashboard.schedules().pause(&name, paused, action).await?;
            stored.changed.notify_one();
            let state = if paused { "paused" } else { "running" };
            Ok(match done.changed {
                true => context.done(path, format!("Schedule {name} is {state}.")),
                false => context.not_done(path, format!("Schedule {name} was already {state}.")),
            })
        }
        "run" => {
            let action = dashboard.action(&context, "run_schedule");
            let schedules = dashboard.schedules();
            let run = schedules.run(&stored.sender, &name, action).await?;
            dashboard.changed(&run.topic).await;
            let (id, topic) = (&run.id, &run.topic);
            Ok(match run.sent {
                true => context.done(path, format!("Message {id} is sent to topic {topic}.")),
                false => context.not_done(path, format!("Message {id} was already sent.")),
            })
        }
        _ => Err(Failure::not_found(format!(
            "a schedule has no action {verb:?}"
        ))),
    }
}

/// Asks before a schedule is removed, also one whose definition cannot be read.
pub(super) async fn ask_removal(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(schedule): Path<String>,
) -> Result<Page, Failure> {
    let name = name(&schedule)?;
    let details = match dashboard.schedule(&name).await {
        Ok(details) => Some(details),
        Err(Failure::Problem(problem)) if problem.code() == ProblemCode::Internal => None,
        Err(failure) => return Err(failure),
    };
    dashboard.schedules().not_in_file(&name)?;
    let next = details
        .as_ref()
        .and_then(|details| details.view.next.as_ref());
    let missed = details.as_ref().map_or(0, |details| details.view.missed);
    let title = format!("Remove schedule {name}?");
    let text = html! {
        p.lead { "It sends no more messages" @if let Some(next) = next { "; its next time would be " strong { (relative_text(next, context.now)) } } "." }
        p.muted { "Its definition and its progress" @if missed > 0 { ", with " (grouped(missed)) " missed times," } " are permanently removed. This cannot be undone. Messages that it has sent, up to 5 s before their time, are delivered." }
        p.muted { "To stop it for a while, pause it." }
    };
    let fields = html! { @if let Some(details) = &details { input type="hidden" name="version" value=(details.version.unwrap_or_default()); } };
    let (words, route) = (
        ["schedules", "remove", name.as_str()],
        format!("/v1/schedules/{name}"),
    );
    let commands = Commands::default()
        .curl(&context, &title, "DELETE", route, None)
        .cli(&context, &title, "lisa-manager", &words);
    let back = match &details {
        Some(_) => format!("/schedules/{name}"),
        None => "/schedules".to_owned(),
    };
    let ask = Ask {
        title,
        text,
        fields,
        label: "Remove schedule".into(),
        typed: None,
        path: format!("/schedules/{name}/remove"),
        back: back.clone(),
        commands,
    };
    Ok(ask
        .page(&context)
        .below("Schedules", "/schedules")
        .below(name.as_str(), back))
}

/// Removes a schedule, if it is the one that was asked about.
pub(super) async fn remove(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(schedule): Path<String>,
    body: Body,
) -> Result<Response, Failure> {
    let name = name(&schedule)?;
    let fields = Fields::read(body, PLAIN, &dashboard.0.bodies).await?;
    let version = fields.value::<u64>("version")?;
    let action = dashboard.action(&context, "remove_schedule");
    dashboard.schedules().remove(&name, version, action).await?;
    Ok(context.done("/schedules", format!("Schedule {name} is removed.")))
}
