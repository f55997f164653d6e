//! Garbage (dead letters): how much there is, its messages, and requeue or purge of all of it.

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State as With};
use axum::response::Response;
use lisa_core::time::millis;
use lisa_service::http::ProblemCode;
use lisa_service::http::auth::Scope;
use maud::{Markup, html};

use super::Dashboard;
use super::actions::{Ask, check_typed};
use super::cache::Reading;
use super::form::{Fields, PLAIN};
use super::garbage_filter::{ROWS, confirmed, filter_form, options_of, page_of, query_of};
use super::messages::table;
use super::page::{Context, Failure, Page, Section};
use super::parts::{
    Commands, command, command_line, confirm_link, empty, missing_topics, relative_text, rest,
    staleness,
};
use super::text::{grouped, messages, part, span, visible};
use crate::operations::audit;
use crate::operations::choose_group::choose;
use crate::operations::error_groups::{ErrorGroups, error_groups};
use crate::operations::garbage::{Selection, Verb, sweep as sweep_all};
use crate::operations::garbage_filter::Filter;
use crate::operations::garbage_jobs::{self, JobError, JobLimits, MAX_RATE, NewJob};
use crate::operations::newest_counts::NewestCounts;

/// The groups that are listed, those with the most garbage first.
const ROWS_OF_ALL: usize = 200;

pub(super) async fn all(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
) -> Page {
    let reading = dashboard.counts().await;
    let list = reading.value.as_deref();
    let rows = list.map_or_else(Vec::new, NewestCounts::groups_with_garbage);
    let missing = list.map(|counts| &counts.list.missing);
    let body = html! {
        (staleness("stale", &reading))
        (missing_topics(&context, missing))
        div #garbage data-live {
            @if rows.is_empty() && list.is_some() {
                (empty("No garbage", html! {
                    p { "Messages that used up their attempts, were rejected, or expired are listed here (dead letters)." }
                    @if let Some(first) = list.and_then(|counts| counts.list.topics.first()) {
                        p { "Watch the failures of a topic as they happen:" }
                        (command(&command_line(&context, "lisa-manager", &["tail", first.topic.as_str(), "--failures"])))
                    }
                }))
            } @else {
                div.table-box { table.rows {
                    caption.hidden { "Garbage by topic and group" }
                    thead { tr { th scope="col" { "Topic" } th scope="col" { "Group" } th.n scope="col" { "Garbage" } th scope="col" { "Actions" } } }
                    tbody { @for (topic, group) in rows.iter().take(ROWS_OF_ALL) { tr {
                        @let path = format!("/topics/{topic}/garbage?group={}", group.group);
                        th scope="row" data-label="Topic" { a.row-link href=(context.link(&path)) { (topic) } }
                        td data-label="Group" { (group.group) }
                        td.n data-label="Garbage" { (grouped(group.garbage)) }
                        td.buttons data-label="Actions" {
                            (confirm_link(&context, Scope::Operate, "Requeue all", format!("/topics/{topic}/groups/{}/garbage/requeue", group.group), false))
                        }
                    } } }
                } }
                (rest(rows.len(), ROWS_OF_ALL))
            }
        }
    };
    Page::new(Section::Garbage, "Garbage", body).live()
}

pub(super) async fn of_topic(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(topic): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Page, Failure> {
    let topic = dashboard.topic(&topic).await?;
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    let first = topic.groups().first().map(|group| group.as_str());
    let group = choose(&topic, fields.text("group").or(first))?;
    let cursor = fields.text("cursor");
    let filter: Filter = fields.read_as()?;
    let list = page_of(&dashboard, &topic, group, &filter, cursor).await?;
    let reading = dashboard.stats_of(&topic).await;
    let total = reading
        .value
        .as_ref()
        .and_then(|stats| stats.groups.iter().find(|stats| stats.group == *group))
        .map(|stats| stats.garbage);
    let name = topic.name().as_str();
    let filtered = query_of(&filter);
    let here = |group: &str, cursor: Option<&str>| {
        let cursor = cursor.map_or(String::new(), |cursor| format!("&cursor={}", part(cursor)));
        context.link(format!(
            "/topics/{name}/garbage?group={group}{filtered}{cursor}"
        ))
    };
    let at = |verb: &str| format!("/topics/{name}/groups/{group}/garbage/{verb}");
    let errors = if filter.is_empty() {
        let key = (topic.name().clone(), group.clone());
        let read = async || error_groups(dashboard.broker(), &topic, group).await;
        let errors = dashboard.0.errors.of(key);
        Some(errors.get(&dashboard.0.queries, read).await)
    } else {
        None
    };
    let options = options_of(&filter);
    let mut words = vec![
        "garbage",
        "list",
        name,
        "--group",
        group.as_str(),
        "--newest",
    ];
    words.extend(options.iter().map(String::as_str));
    let commands = Commands::default()
        .curl(
            &context,
            "Read this list",
            "GET",
            format!(
                "/v1/topics/{name}/messages?state=garbage&group={group}&order=newest{filtered}"
            ),
            None,
        )
        .cli(&context, "Read this list", "lisa-manager", &words);
    let looked_at = list.looked_at.unwrap_or_default() as u64;
    let pages = html! {
        nav.pages aria-label="Pages of messages" {
            @if cursor.is_some() { a href=(here(group.as_str(), None)) { "First page" } }
            @if let Some(next) = &list.next { a rel="next" href=(here(group.as_str(), Some(next))) { @if filter.is_empty() { "Next " (ROWS) } @else { "Continue" } } } @else { span { "End of the list" } }
        }
    };
    let body = html! {
        @if topic.groups().len() > 1 {
            nav.tabs aria-label="Groups" { @for other in topic.groups() { a href=(here(other.as_str(), None)) aria-current=[(other == group).then_some("true")] { (other) } } }
        }
        (filter_form(&context, &topic, group, &filter))
        div #garbage-list data-live data-steady { @if list.messages.is_empty() && !filter.is_empty() {
            (empty("No messages match", html! { p { "None of the " @if cursor.is_some() { "next " } (messages(looked_at)) ", newest first, match." } }))
            (pages)
        } @else if list.messages.is_empty() {
            (empty("No garbage here", html! {
                p { "Group " (group) " has no messages in garbage (dead letters)" @if cursor.is_some() { " on this page any longer" } ". Watch its failures as they happen:" }
                (command(&command_line(&context, "lisa-manager", &["tail", name, "--group", group.as_str(), "--failures"])))
            }))
        } @else {
            @if let Some(errors) = &errors { (groups_of_errors(&context, &at("requeue"), errors)) }
            p.muted {
                @if filter.is_empty() { @if let Some(total) = total { (grouped(total)) " in garbage, " } }
                @else { (grouped(list.messages.len() as u64)) " of " (grouped(looked_at)) " messages that were examined, " }
                "newest first" @if topic.shards().len() > 1 { " within each shard" }
            }
            div.table-box { (table(&context, name, &list.messages)) }
            (pages)
        } }
        (commands.render("garbage-commands"))
    };
    let actions = html! {
        @if !list.messages.is_empty() {
            @let which = if filter.is_empty() { "all" } else { "all that match" };
            @let at = |verb| at_filter(&at(verb), &filter);
            (confirm_link(&context, Scope::Operate, &format!("Requeue {which}"), at("requeue"), false))
            (confirm_link(&context, Scope::Operate, &format!("Purge {which}"), at("purge"), true))
        }
    };
    let page = Page::new(Section::Garbage, format!("Garbage of {group}"), body)
        .below("Garbage", "/garbage")
        .below(name, format!("/topics/{name}"))
        .actions(actions);
    // A search costs too much to be repeated every two seconds.
    Ok(match filter.is_empty() {
        true => page.live_list(cursor.is_none()),
        false => page,
    })
}

/// The errors that differ only in numbers and ids, those with the most messages first.
fn groups_of_errors(context: &Context, requeue: &str, reading: &Reading<ErrorGroups>) -> Markup {
    /// The groups that are shown.
    const MOST: usize = 12;
    let errors = reading.value.as_deref();
    let Some(errors) = errors.filter(|errors| !errors.errors.is_empty()) else {
        return html! {};
    };
    html! { section aria-labelledby="errors-title" {
        h2 #errors-title { "Errors " span.badge { (errors.errors.len() + errors.other_errors) } }
        div #errors .table-box { table.rows {
            caption.hidden { "Errors in garbage" }
            thead { tr { th scope="col" { "Error" } th scope="col" { "Reason" } th.n scope="col" { "Messages" } th scope="col" { "First" } th scope="col" { "Last" } th scope="col" { "Actions" } } }
            tbody { @for error in errors.errors.iter().take(MOST) { tr {
                th.error scope="row" data-label="Error" { @if error.error.is_empty() { span.zero { "none" } } @else { (visible(&error.error)) } }
                td data-label="Reason" { (error.reason.as_str()) }
                td.n data-label="Messages" { (grouped(error.count)) }
                td data-label="First" { (relative_text(&error.first, context.now)) }
                td data-label="Last" { (relative_text(&error.last, context.now)) }
                td.buttons data-label="Actions" { @if let Ok(pattern) = error.error.parse() {
                    @let filter = Filter { error: Some(pattern), reason: Some(error.reason), ..Filter::default() };
                    (confirm_link(context, Scope::Operate, "Requeue", at_filter(requeue, &filter), false))
                } }
            } } }
        } }
        p.muted { "From the newest " (grouped(errors.newest)) " of " (messages(errors.total)) " in garbage, counted within the last " (span(millis(reading.age).max(1000))) ". " code { "#" } " stands for a number or an id, " code { "…" } " for quoted text."
            @if errors.errors.len() > MOST || errors.other_errors > 0 { " Only the errors with the most messages are shown." } }
    } }
}

/// Returns a path with a filter as its query.
fn at_filter(path: &str, filter: &Filter) -> String {
    path.to_owned() + &query_of(filter).replacen('&', "?", 1)
}

/// Reads the job that a form or a link asks for; `None` if it is about all garbage.
fn job_of(fields: &Fields, verb: Verb) -> Result<Option<NewJob>, Failure> {
    let filter: Filter = fields.read_as()?;
    let rate = fields.text("rate").map(rate_of).transpose()?;
    if filter.is_empty() && rate.is_none() {
        return Ok(None);
    }
    let limits = JobLimits { max: None, rate };
    Ok(Some(NewJob {
        verb,
        filter,
        limits,
    }))
}

/// Reads a number of messages per second, such as `50` or, as in the configuration, `50/s`.
fn rate_of(text: &str) -> Result<u32, Failure> {
    let number = text.trim().trim_end_matches("/s").parse().ok();
    let number = number.filter(|rate| (1..=MAX_RATE).contains(rate));
    number.ok_or_else(|| {
        let allowed = format!("{text:?} is not a whole number from 1 to {MAX_RATE}, such as 50");
        Failure::invalid("rate", &allowed)
    })
}

fn refused(error: JobError) -> Failure {
    match error {
        JobError::Broker(error) => error.into(),
        error => Failure::new(ProblemCode::Busy, error.to_string()),
    }
}

fn verb_of(verb: &str) -> Result<Verb, Failure> {
    let unknown = |_| Failure::not_found(format!("garbage has no action {verb:?}"));
    verb.parse().map_err(unknown)
}

pub(super) async fn ask(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path((topic, group, verb)): Path<(String, String, String)>,
    RawQuery(query): RawQuery,
) -> Result<Page, Failure> {
    let verb = verb_of(&verb)?;
    let topic = dashboard.topic(&topic).await?;
    let group = choose(&topic, Some(&group))?;
    let name = topic.name().as_str();
    let stats = dashboard.read(dashboard.broker().stats(&topic)).await?;
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    let job = job_of(&fields, verb)?;
    let count = match &job {
        None => {
            let mut of_group = stats.groups.iter();
            let of_group = of_group.find(|stats| stats.group == *group);
            of_group.map_or(0, |stats| stats.garbage)
        }
        Some(job) => {
            let counted = garbage_jobs::count(dashboard.broker(), &topic, group, &job.filter);
            counted.await.map_err(refused)?.found
        }
    };
    let path = format!("/topics/{name}/groups/{group}/garbage/{}", verb.as_str());
    let back = format!("/topics/{name}/garbage?group={group}");
    let number = grouped(count);
    let which = match &job {
        None => "All messages",
        Some(_) => "The matching messages",
    };
    let (title, text, label) = match verb {
        Verb::Requeue => (
            format!("Requeue {} of {name}/{group}?", messages(count)),
            html! { p.lead { (which) " that are in garbage now are delivered again, with new attempts. A message that fails again is not requeued a second time." } },
            format!("Requeue {number}"),
        ),
        Verb::Purge => (
            format!("Purge {} of {name}/{group}?", messages(count)),
            html! { p.lead { (which) " that are in garbage now are permanently removed." } },
            format!("Purge {number}"),
        ),
    };
    let (api, json, more) = match &job {
        None => (
            format!("/v1{path}"),
            r#"{"all":true}"#.to_owned(),
            vec!["--all".to_owned()],
        ),
        Some(job) => {
            let mut json = serde_json::to_value(&job.filter).unwrap_or_default();
            json["verb"] = verb.as_str().into();
            let mut more = options_of(&job.filter);
            if let Some(rate) = job.limits.rate {
                json["rate"] = rate.into();
                more.push(format!("--rate={rate}"));
            }
            let api = format!("/v1/topics/{name}/groups/{group}/garbage/jobs");
            (api, json.to_string(), more)
        }
    };
    let mut words = vec!["garbage", verb.as_str(), name, "--group", group.as_str()];
    words.extend(more.iter().map(String::as_str));
    let commands = Commands::default()
        .curl(&context, verb.as_str(), "POST", api, Some(&json))
        .cli(&context, verb.as_str(), "lisa-manager", &words);
    let typed = (verb == Verb::Purge).then_some(name);
    let filter = job.as_ref().map(|job| &job.filter);
    let inputs = html! {
        @if let Some(filter) = filter { (confirmed(filter)) }
        label for="rate" { "Messages per second, as a job in the background" @if filter.is_none() { " (empty: all at once)" } @else { " (empty: no limit)" } }
        input #rate name="rate" inputmode="numeric" autocomplete="off" placeholder="50";
    };
    let ask = Ask {
        title,
        text,
        fields: inputs,
        label,
        typed,
        path,
        back: back.clone(),
        commands,
    };
    Ok(ask
        .page(&context)
        .below("Garbage", "/garbage")
        .below(name, back))
}

pub(super) async fn sweep(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path((topic, group, verb)): Path<(String, String, String)>,
    body: Body,
) -> Result<Response, Failure> {
    let verb = verb_of(&verb)?;
    let topic = dashboard.topic(&topic).await?;
    let group = choose(&topic, Some(&group))?;
    let name = topic.name();
    let fields = Fields::read(body, PLAIN, &dashboard.0.bodies).await?;
    if verb == Verb::Purge {
        check_typed(&fields, name.as_str())?;
    }
    let action = dashboard.action(&context, verb.as_str());
    let action = action.topic(name).group(group);
    if let Some(job) = job_of(&fields, verb)? {
        let start = garbage_jobs::start(dashboard.broker(), &topic, group, &job);
        let action = action.details(garbage_jobs::extent(&job));
        let job = action.run(start, garbage_jobs::started).await;
        let job = job.map_err(refused)?;
        dashboard.0.parts.garbage_jobs_changed.notify_one();
        let line = format!("A job for {} has started.", messages(job.expected));
        return Ok(context.done("/system", line));
    }
    let action = action.details(audit::extent(&Selection::All));
    let swept = sweep_all(
        dashboard.broker(),
        &topic,
        group,
        verb,
        &Selection::All,
        false,
    );
    let swept = action.run(swept, audit::swept).await?;
    dashboard.changed(name).await;
    tracing::info!(topic = %name, %group, verb = verb.as_str(), done = swept.done, by = context.viewer.name(), "garbage requeued or purged in the dashboard");
    let back = format!("/topics/{name}/garbage?group={group}");
    let done = grouped(swept.done);
    Ok(match (swept.done, verb) {
        (0, _) => context.not_done(back, "There were no messages in garbage."),
        (_, Verb::Requeue) => context.done(back, format!("Requeued messages: {done}.")),
        (_, Verb::Purge) => context.done(back, format!("Purged messages: {done}.")),
    })
}
