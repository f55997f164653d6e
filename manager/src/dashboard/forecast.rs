//! When messages become due: a bar for each step, with the same numbers in a table.

use std::time::Duration;

use axum::Extension;
use axum::extract::{RawQuery, State as With};
use lisa_core::time::{UnixMs, format_duration};
use lisa_core::topic::Topic;
use lisa_service::http::ProblemCode;
use maud::{Markup, html};

use super::Dashboard;
use super::form::Fields;
use super::page::{Context, Failure, Page, Section};
use super::parts::{
    Commands, Level, count, empty, exact, relative_text, sign, staleness, tag, tile,
};
use super::text::{counted, grouped, messages, part, visible};
use crate::operations::forecast::{ForecastView, Period, forecast};

/// The periods to choose from: label and seconds.
const PERIODS: [(&str, u64); 4] = [
    ("1 hour", 3_600),
    ("6 hours", 6 * 3_600),
    ("24 hours", 24 * 3_600),
    ("7 days", 7 * 24 * 3_600),
];
/// The steps of a period.
const STEPS: u32 = 48;
/// The height of the chart, and the width of a step in it.
const HEIGHT: u64 = 180;
const WIDTH: usize = 20;

pub(super) async fn show(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    RawQuery(query): RawQuery,
) -> Result<Page, Failure> {
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    let wanted = fields.value::<u64>("for")?.unwrap_or(24 * 3_600);
    let Some((_, seconds)) = PERIODS.iter().find(|(_, seconds)| *seconds == wanted) else {
        let allowed = PERIODS.map(|(_, seconds)| seconds.to_string()).join(", ");
        let detail = format!("for: allowed are {allowed}, in seconds");
        return Err(Failure::new(ProblemCode::Invalid, detail));
    };
    let topic = match fields.text("topic").filter(|name| !name.is_empty()) {
        Some(name) => Some(dashboard.topic(name).await?),
        None => None,
    };
    let within = Duration::from_secs(*seconds);
    let period = Period::new(Some(within), Some(within / STEPS))
        .map_err(|error| Failure::invalid("for", &error))?;
    let name: Option<Topic> = topic.as_ref().map(|topic| topic.name().clone());
    let cached = dashboard.0.forecasts.of((name.clone(), *seconds));
    let schedules = &dashboard.0.parts.config.schedules;
    let read = async || forecast(dashboard.broker(), topic, period, schedules).await;
    let reading = cached.get(&dashboard.0.queries, read).await;
    let at = |seconds: u64| match &name {
        Some(topic) => format!("/forecast?for={seconds}&topic={topic}"),
        None => format!("/forecast?for={seconds}"),
    };
    let body = html! {
        (staleness("stale", &reading))
        nav.tabs aria-label="Period" { @for (label, of) in PERIODS { a href=(context.link(at(of))) aria-current=[(of == *seconds).then_some("true")] { (label) } } }
        div #forecast data-live { @if let Some(view) = reading.value.as_deref() { (render(&context, view)) } }
        (commands(&context, name.as_ref(), within))
    };
    let title = match &name {
        Some(topic) => format!("Forecast of {topic}"),
        None => "Forecast".to_owned(),
    };
    let page = Page::new(Section::Forecast, title, body).live();
    Ok(match &name {
        Some(topic) => page.below_topic(topic),
        None => page,
    })
}

fn commands(context: &Context, topic: Option<&Topic>, within: Duration) -> Markup {
    let (path, words) = match topic {
        Some(topic) => (
            format!("/v1/topics/{topic}/forecast"),
            vec!["forecast", topic.as_str()],
        ),
        None => ("/v1/forecast".to_owned(), vec!["forecast"]),
    };
    let within = format_duration(within);
    let words = [&words[..], &["--for", &within]].concat();
    Commands::default()
        .curl(
            context,
            "Read this forecast",
            "GET",
            format!("{path}?for={within}"),
            None,
        )
        .cli(context, "Read this forecast", "lisa-manager", &words)
        .render("forecast-commands")
}

fn render(context: &Context, view: &ForecastView) -> Markup {
    let steps: Vec<u64> = view.total.in_steps().collect();
    let due: u64 = steps.iter().sum();
    let most = steps.iter().copied().max().unwrap_or(0);
    let peak = steps
        .iter()
        .position(|step| *step == most)
        .filter(|_| most > 0);
    let time = |at: &str| match at.parse::<UnixMs>() {
        Ok(at) => exact(at),
        Err(_) => html! { (at) },
    };
    html! {
        dl.tiles {
            (tile("Due in this period", html! { (grouped(due)) }, html! { "waiting and retry" }))
            (tile("Overdue", html! { (grouped(view.total.overdue)) }, html! { "not moved yet" }))
            (tile("Later", html! { (grouped(view.total.later)) }, html! { "after this period" }))
            (tile("Peak", html! { (grouped(most)) }, html! { @match peak.and_then(|at| view.steps.get(at)) { Some(step) => { (relative_text(&step.from, context.now)) ", from " (time(&step.from)) }, None => { "nothing is due" } } }))
        }
        @if let (topics @ 1.., in_them) = view.paused() {
            p.banner.is-warn { (sign(Level::Warn)) span { "Includes " (messages(in_them)) " of " (counted(topics, "paused topic")) ", which are not delivered until resumed" } }
        }
        @if due == 0 {
            (empty("Nothing becomes due in this period", html! { p { "Messages with a later due time are counted under Later." } }))
        } @else {
            figure.chart aria-labelledby="forecast-caption" {
                svg viewBox=(format!("0 0 {} {HEIGHT}", steps.len() * WIDTH)) preserveAspectRatio="none" role="img" aria-label=(format!("Due in this period: {}; the largest step has {}", messages(due), grouped(most))) {
                    @for (index, step) in steps.iter().enumerate() {
                        @let height = (step * HEIGHT).div_ceil(most.max(1));
                        rect x=(index * WIDTH + 1) y=(HEIGHT - height) width=(WIDTH - 2) height=(height) class=(if Some(index) == peak { "bar peak" } else { "bar" }) {
                            title { (grouped(*step)) @if let Some(step) = view.steps.get(index) { " from " (step.from) } }
                        }
                    }
                }
                @if let [first, .., last] = view.steps.as_slice() { p.axis.muted { span { (time(&first.from)) } span { (time(&last.to)) } } }
                figcaption #forecast-caption.muted { "Messages by due time, in steps of " (format_duration(Duration::from_millis(view.step_ms))) }
                details #forecast-table { summary { "The same as a table" }
                    div.table-box { table.rows {
                        caption.hidden { "Messages by due time" }
                        thead { tr { th scope="col" { "From" } th.n scope="col" { "Waiting" } th.n scope="col" { "Retry" } } }
                        tbody { @for ((step, waiting), retry) in view.steps.iter().zip(&view.total.waiting).zip(&view.total.retry) { tr {
                            th scope="row" data-label="From" { (time(&step.from)) }
                            td.n data-label="Waiting" { (count(*waiting)) }
                            td.n data-label="Retry" { (count(*retry)) }
                        } } }
                    } }
                }
            }
        }
        @if view.topics.len() > 1 { section aria-labelledby="by-topic" { h2 #by-topic { "By topic" }
            div.table-box { table.rows {
                caption.hidden { "Messages that become due, by topic" }
                thead { tr { th scope="col" { "Topic" } th.n scope="col" { "In this period" } th.n scope="col" { "Overdue" } th.n scope="col" { "Later" } } }
                tbody { @for topic in &view.topics { tr {
                    th scope="row" data-label="Topic" { a.row-link href=(context.link(format!("/forecast?topic={}", topic.topic))) { (topic.topic) } @if topic.is_estimate { " " span.muted { "estimate" } } @if topic.is_paused { " " (tag(Level::Warn, "paused")) } }
                    td.n data-label="In this period" { (count(topic.due.in_steps().sum())) }
                    td.n data-label="Overdue" { (count(topic.due.overdue)) }
                    td.n data-label="Later" { (count(topic.due.later)) }
                } } }
            } }
        } }
        @if !view.damaged.is_empty() { ul.list { @for damaged in &view.damaged { li {
            (sign(Level::Bad)) a href=(context.link(format!("/topics/{}", part(&damaged.topic)))) { (visible(&damaged.topic)) } span { "cannot be counted: " (visible(&damaged.error)) }
        } } } }
        @if view.other_topics > 0 { p.muted { "Not counted: " (counted(view.other_topics as u64, "other topic")) " with " (messages(view.other_messages)) "." } }
        @if !view.recurring.is_empty() { section aria-labelledby="recurring" { h2 #recurring { "Schedules in this period" }
            ul.list { @for next in view.recurring.iter().take(20) { li { (time(&next.at)) " " strong { (next.schedule) } " to " a href=(context.link(format!("/topics/{}", next.topic))) { (next.topic) } } }
                @if view.recurring.len() > 20 || view.has_more_recurring { li.muted { "and more" } } }
        } }
    }
}
