//! When messages become due: a bar for each step, with the same numbers in a table. Steps, axis and tooltips are in the time
//! zone of the viewer.

use std::time::Duration;

use axum::Extension;
use axum::extract::{RawQuery, State as With};
use lisa_core::time::{UnixMs, format_duration, millis};
use lisa_core::topic::Topic;
use lisa_service::http::ProblemCode;
use maud::{Markup, html};

use super::Dashboard;
use super::form::Fields;
use super::page::{Context, Failure, Page, Section};
use super::parts::{
    Commands, Level, count, empty, exact, relative_text, sign, staleness, tag, tile,
};
use super::text::{counted, grouped, messages, part, span, visible};
use crate::operations::forecast::{ForecastView, Peak, Period, Step, forecast};
use crate::operations::round_step::round_step;

/// The periods to choose from: label and seconds.
const PERIODS: [(&str, u64); 4] = [
    ("1 hour", 3_600),
    ("6 hours", 6 * 3_600),
    ("24 hours", 24 * 3_600),
    ("7 days", 7 * 24 * 3_600),
];
/// The shortest step: a forecast makes steps longer until they are few enough.
const STEP: Duration = Duration::from_secs(1);
/// The largest number of labels on the axis, besides one more at its start.
const TICKS: u64 = 8;
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
        let detail = format!("for: must be one of {allowed}, in seconds");
        return Err(Failure::new(ProblemCode::Invalid, detail));
    };
    let topic = match fields.text("topic").filter(|name| !name.is_empty()) {
        Some(name) => Some(dashboard.topic(name).await?),
        None => None,
    };
    let within = Duration::from_secs(*seconds);
    let period =
        Period::new(Some(within), Some(STEP)).map_err(|error| Failure::invalid("for", &error))?;
    let name: Option<Topic> = topic.as_ref().map(|topic| topic.name().clone());
    let zone = &context.zone;
    let key = (name.clone(), *seconds, zone.to_string());
    let cached = dashboard.0.forecasts.of(key);
    let schedules = &dashboard.0.parts.config.schedules;
    let read = async || forecast(dashboard.broker(), topic, period, Some(zone), schedules).await;
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

/// Formats a time in the time zone of the viewer.
fn shown(context: &Context, at: &str, format: &str) -> String {
    match at.parse() {
        Ok(at) => context.zone.format(at, format),
        Err(_) => at.to_owned(),
    }
}

fn length(peak: &Peak) -> String {
    let ms = |at: &str| at.parse::<UnixMs>().map_or(0, UnixMs::get);
    span(ms(&peak.to).saturating_sub(ms(&peak.from)))
}

/// Returns the labels of the axis, each with its position in percent of the width. They are at steps that start at round times.
fn ticks(context: &Context, view: &ForecastView) -> Vec<(usize, String)> {
    let ends = view.steps.first().zip(view.steps.last());
    let ends = ends.map(|(first, last)| (first.from.parse(), last.to.parse()));
    let Some((Ok(from), Ok(to))) = ends else {
        return Vec::new();
    };
    let every = round_step(millis(UnixMs::since(to, from)) / TICKS);
    let tick = |(index, step): (usize, &Step)| {
        let at = step.from.parse::<UnixMs>().ok()?;
        let before = UnixMs::new(at.get().saturating_sub(1));
        let is_tick = context.zone.next_multiple(every, before) == at;
        let label = match &*context.zone.format(at, "%H:%M") {
            "00:00" => context.zone.format(at, "%b %-d"),
            time => time.to_owned(),
        };
        is_tick.then(|| (index * 100 / view.steps.len(), label))
    };
    view.steps.iter().enumerate().filter_map(tick).collect()
}

fn render(context: &Context, view: &ForecastView) -> Markup {
    let steps: Vec<u64> = view.total.in_steps().collect();
    let due: u64 = steps.iter().sum();
    let most = steps.iter().copied().max().unwrap_or(0);
    // Times in the same format sort as text.
    let peak = view.peak.as_ref();
    let has_peak = |step: &Step| {
        peak.is_some_and(|peak| (step.from.as_str()..step.to.as_str()).contains(&&*peak.from))
    };
    let time = |at: &str| match at.parse::<UnixMs>() {
        Ok(at) => exact(at),
        Err(_) => html! { (at) },
    };
    html! {
        dl.tiles {
            (tile("Due in this period", html! { (grouped(due)) }, html! { "waiting and retry" }))
            (tile("Overdue", html! { (grouped(view.total.overdue)) }, html! { "not moved yet" }))
            (tile("Later", html! { (grouped(view.total.later)) }, html! { "after this period" }))
            (tile("Peak", html! { @match peak { Some(peak) => { @if peak.is_lower_bound { "≥ " } (grouped(peak.messages)) } None => "0" } }, html! { @match peak { Some(peak) => { "in " (length(peak)) ", " (relative_text(&peak.from, context.now)) ", from " (time(&peak.from)) }, None => { "nothing is due" } } }))
        }
        @if let (topics @ 1.., in_them) = view.paused() {
            p.banner.is-warn { (sign(Level::Warn)) span { "Includes " (messages(in_them)) " of " (counted(topics, "paused topic")) ", which are not delivered until resumed" } }
        }
        @if due == 0 {
            (empty("Nothing becomes due in this period", html! { p { "Messages with a later due time are counted under Later." } }))
        } @else {
            figure.chart aria-labelledby="forecast-caption" {
                svg viewBox=(format!("0 0 {} {HEIGHT}", steps.len() * WIDTH)) preserveAspectRatio="none" role="img" aria-label=(format!("Due in this period: {}; the largest step has {}", messages(due), grouped(most))) {
                    @for (index, (step, due)) in view.steps.iter().zip(&steps).enumerate() {
                        @let height = (due * HEIGHT).div_ceil(most.max(1));
                        rect x=(index * WIDTH + 1) y=(HEIGHT - height) width=(WIDTH - 2) height=(height) class=(if has_peak(step) { "bar peak" } else { "bar" }) {
                            title { (grouped(*due)) ", " (shown(context, &step.from, "%F %T")) " to " (shown(context, &step.to, "%T")) }
                        }
                    }
                }
                svg.ticks height="18" aria-hidden="true" {
                    @for (share, label) in ticks(context, view) { text x=(format!("{share}%")) y="14" text-anchor="middle" { (label) } }
                }
                figcaption #forecast-caption.muted { "Messages by due time, in steps of " (format_duration(Duration::from_millis(view.step_ms))) ", in the time zone " (context.zone) "; the largest step has " (grouped(most)) }
                details #forecast-table { summary { "Show as a table" }
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
