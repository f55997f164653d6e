//! One topic: its groups by state, its limits and settings, and what can be done with it.

use axum::Extension;
use axum::extract::{Path, RawQuery, State as With};
use lisa_core::broker::{GroupStats, Removal, TopicHandle, TopicStats};
use lisa_core::state::State;
use maud::{Markup, html};

use super::Dashboard;
use super::actions::{group_buttons, topic_buttons};
use super::cache::Reading;
use super::form::Fields;
use super::history::{self, Charts};
use super::page::{Context, Failure, Page, Section};
use super::parts::{
    Commands, GROUP_STATES, Level, accounted_for, command, command_line, count_link, meter,
    rate_tiles, relative, staleness, state, tag, tile,
};
use super::text::{grouped, messages, size, span, visible};
use crate::operations::rates::Rate;

pub(super) async fn show(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(topic): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Page, Failure> {
    let topic = dashboard.topic(&topic).await?;
    let reading = dashboard.stats_of(&topic).await;
    let name = topic.name().to_string();
    let is_paused = reading.value.as_ref().is_some_and(|stats| stats.paused);
    let is_in_file = dashboard.0.parts.config.topics.contains_key(topic.name());
    let actions = html! {
        a.button.plain href=(context.link(format!("/topics/{name}/messages"))) { "Messages" }
        a.button.plain href=(context.link(format!("/topics/{name}/garbage"))) { "Garbage" }
        a.button.plain href=(context.link(format!("/topics/{name}/failures"))) { "Failures" }
        a.button.plain href=(context.link(format!("/topics/{name}/keys"))) { "Keys" }
        a.button.plain href=(context.link(format!("/topics/{name}/send"))) { "Send…" }
        (topic_buttons(&context, &name, is_paused, is_in_file))
    };
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    let period = fields.value::<u64>("history")?;
    let charts = history::read(&dashboard, &topic, &reading, period, &context).await?;
    let rate = dashboard.0.rates.lock().of(topic.name());
    let body = render(
        &context,
        &topic,
        &reading,
        charts.as_ref(),
        rate,
        is_in_file,
    );
    Ok(Page::new(Section::Overview, name, body)
        .below("Overview", "/")
        .actions(actions)
        .live())
}

fn render(
    context: &Context,
    topic: &TopicHandle,
    reading: &Reading<TopicStats>,
    charts: Option<&Charts>,
    rate: Option<Rate>,
    is_in_file: bool,
) -> Markup {
    let Some(stats) = reading.value.as_deref() else {
        return staleness("stale", reading);
    };
    let settings = serde_json::to_value(topic.settings()).unwrap_or_default();
    let name = topic.name().as_str();
    // As it is, so that the example changes nothing.
    let example = format!("max_attempts={}", topic.settings().max_attempts);
    let change = ["topics", "change", name, &example];
    let commands = Commands::default()
        .curl(
            context,
            "Read this topic",
            "GET",
            format!("/v1/topics/{name}"),
            None,
        )
        .curl(
            context,
            "Pause",
            "POST",
            format!("/v1/topics/{name}/pause"),
            None,
        )
        .curl(
            context,
            "Read the history",
            "GET",
            format!("/v1/topics/{name}/history?for=6h"),
            None,
        )
        .cli(
            context,
            "Read the history",
            "lisa-manager",
            &["history", name],
        )
        .cli(context, "Pause", "lisa-manager", &["pause", name])
        .curl(
            context,
            "Resume",
            "POST",
            format!("/v1/topics/{name}/resume"),
            None,
        )
        .cli(context, "Resume", "lisa-manager", &["resume", name])
        .cli(context, "Examine", "lisa-manager", &["doctor", name]);
    html! {
        (staleness("stale", reading))
        div #topic-state data-live {
            @if let Some(how) = topic.removal() { p.banner.is-warn { (super::parts::sign(Level::Warn)) span { @match how { Removal::Drain => "This topic is draining: it accepts no new messages, and is removed once nothing is left.", Removal::Force => "This topic is being removed with all its messages." } } } }
            @if stats.paused { p.banner.is-warn { (super::parts::sign(Level::Warn)) span { "This topic is paused: sends are accepted, but nothing becomes ready." } } }
            @if stats.conservation_error > 0 { p.banner.is-bad { (super::parts::sign(Level::Bad)) span { (messages(stats.conservation_error)) " unaccounted for. " a href=(context.link(format!("/topics/{name}/doctor"))) { "Examine the topic" } } } }
            @if stats.missing_records() > 0 { p.banner.is-bad { (super::parts::sign(Level::Bad)) span { (messages(stats.missing_records())) " without a record. " a href=(context.link(format!("/topics/{name}/doctor"))) { "Examine the topic" } } } }
            @if stats.conservation_error + stats.missing_records() == 0 && stats.lost() > 0 { p.card { (accounted_for(stats.lost())) } }
            @if let Some(left) = stats.migrating { p.banner.is-warn { (super::parts::sign(Level::Warn)) span { "This topic is being resharded. Messages on retiring shards: " (grouped(left)) "." } } }
            dl.tiles.is-compact {
                (rate_tiles(rate))
                (tile("Waiting", count_link(stats.waiting, &context.link(format!("/topics/{name}/messages?state=waiting"))), html! {
                    @match stats.next_due { Some(due) => { "next " (relative(due, context.now)) } None => "none is due" }
                }))
                (tile("Stored", html! { (grouped(stats.stored)) }, html! {
                    @if let Some(limit) = topic.settings().max_messages { "of " (grouped(limit)) (meter(stats.stored, limit, "Stored messages")) } @else { "with garbage, no limit" }
                }))
                @if let Some(limit) = topic.settings().max_bytes {
                    (tile("Size", html! { (size(stats.bytes)) }, html! { "of " (size(limit.get())) (meter(stats.bytes, limit.get(), "Size")) }))
                }
                (tile("Oldest due", html! { @if stats.overdue_ms == 0 { span.zero { "–" } } @else { (span(stats.overdue_ms)) } }, html! { "not held by a consumer" }))
                (tile("Shards", html! { (topic.shards().len()) }, html! { (stats.class) " scripts" }))
            }
        }
        section aria-labelledby="groups-title" {
            h2 #groups-title { "Groups" }
            @if stats.groups.is_empty() {
                p.card { "This topic has no group: its messages wait until one is added." }
            } @else {
                div #groups data-live .table-box { (groups(context, name, &stats.groups)) }
            }
        }
        @if let Some(charts) = charts { (charts.render(context, &format!("/topics/{name}?history="))) }
        section aria-labelledby="do-title" {
            h2 #do-title { "Actions on groups" }
            div #group-actions data-live .table-box {
                table.rows.plain-rows {
                    caption.hidden { "Actions on each group" }
                    thead.hidden { tr { th scope="col" { "Group" } th scope="col" { "Actions" } } }
                    tbody { @for group in &stats.groups { tr {
                        th scope="row" { (group.group) }
                        td.buttons { (group_buttons(context, name, group)) }
                    } } }
                }
            }
            (commands.render("topic-commands"))
        }
        section aria-labelledby="events-title" {
            h2 #events-title { "Since the topic was declared" }
            dl #events .pairs data-live {
                @for (event, number) in &stats.counters { @if *number != 0 { div { dt { (visible(event)) } dd.n { (grouped(u64::try_from(*number).unwrap_or(0))) } } } }
            }
        }
        details.card.settings #settings {
            summary { h2 { "Settings" } }
            dl.pairs { (pairs("", &settings)) }
            @if is_in_file {
                p.muted { "To change them, edit " code { "topics." (name) } " in the configuration of the managers, and reload them." }
            } @else {
                p.muted { "This command changes the settings that it names; " code { "PUT /v1/topics/" (name) } " replaces all of them:" }
                (command(&command_line(context, "lisa-manager", &change)))
            }
        }
    }
}

fn groups(context: &Context, topic: &str, groups: &[GroupStats]) -> Markup {
    html! {
        table.rows {
            caption.hidden { "Groups by state" }
            thead { tr {
                th scope="col" { "Group" }
                @for of in GROUP_STATES { th.n scope="col" { (state(of.as_str())) } }
                th.n scope="col" { "Oldest due" } th.n scope="col" { "Consumers" }
            } }
            tbody { @for group in groups {
                tr id=(format!("group-{}", group.group)) {
                    th scope="row" data-label="Group" {
                        (group.group)
                        @if group.paused { " " (tag(Level::Warn, "paused")) }
                        @if let Some(how) = group.retiring { " " (tag(Level::Warn, format!("retiring: {}", how.as_str()))) }
                        @if group.unconfigured { " " (tag(Level::Warn, "not configured")) }
                        @if group.instance { " " (tag(Level::Unknown, "instance")) }
                    }
                    @for (of, number) in group.by_state() {
                        @let href = match of {
                            State::Garbage => format!("/topics/{topic}/garbage?group={}", group.group),
                            _ => format!("/topics/{topic}/messages?state={}&group={}", of.as_str(), group.group),
                        };
                        td.n data-label=(of.as_str().replace('_', " ")) { (count_link(number, &context.link(href))) }
                    }
                    td.n data-label="Oldest due" { @if group.oldest_due_age_ms == 0 { span.zero { "–" } } @else { (span(group.oldest_due_age_ms)) } }
                    td.n data-label="Consumers" {
                        @if group.consumers == 0 && group.ready > 0 { (tag(Level::Bad, "no consumer")) } @else { (group.consumers) }
                    }
                }
            } }
        }
    }
}

/// Returns settings as pairs; those of a table with its name in front.
pub(super) fn pairs(prefix: &str, value: &serde_json::Value) -> Markup {
    let Some(all) = value.as_object() else {
        return html! {};
    };
    html! {
        @for (key, value) in all {
            @match value {
                serde_json::Value::Object(_) => (pairs(&format!("{prefix}{key}."), value)),
                serde_json::Value::Null => { div { dt { (prefix) (key) } dd { span.zero { "not set" } } } }
                serde_json::Value::String(text) => { div { dt { (prefix) (key) } dd { (visible(text)) } } }
                other => { div { dt { (prefix) (key) } dd { (visible(&other.to_string())) } } }
            }
        }
    }
}
