//! When messages become due, and when schedules send. Steps and axis are in the time zone of the viewer.

use std::time::Duration;

use axum::Extension;
use axum::extract::{RawQuery, State as With};
use lisa_core::time::{UnixMs, format_duration};
use lisa_core::topic::{ScheduleName, Topic};
use lisa_service::http::ProblemCode;
use maud::{Markup, html};

use super::Dashboard;
use super::chart::{Chart, Panel, Role, Series, Unit};
use super::form::Fields;
use super::page::{Context, Failure, Page, Section};
use super::parts::{
    Commands, Level, count, empty, exact_text, relative_text, rest, sign, staleness, tag, tile,
};
use super::text::{counted, grouped, messages, part, span, visible};
use crate::operations::forecast::{ForecastView, NextTime, Peak, Period, forecast};
use crate::operations::schedules::Schedules;

/// The periods to choose from: label and seconds.
const PERIODS: [(&str, u64); 4] = [
    ("1 hour", 3_600),
    ("6 hours", 6 * 3_600),
    ("24 hours", 24 * 3_600),
    ("7 days", 7 * 24 * 3_600),
];
/// The shortest step: a forecast makes steps longer until they are few enough.
const STEP: Duration = Duration::from_secs(1);
/// The most schedules that are listed.
const MOST_SCHEDULES: usize = 50;

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
    // The topics and schedules in it are those that the viewer reaches.
    let reach = context.viewer.reach();
    let key = (name.clone(), reach, *seconds, zone.to_string());
    let cached = dashboard.0.forecasts.of(key);
    let schedules = Schedules {
        broker: dashboard.broker(),
        config: &dashboard.0.parts.config,
    };
    let read = async || {
        let forecast = forecast(dashboard.broker(), topic, period, Some(zone), schedules);
        context.viewer.scope(forecast).await
    };
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

fn length(peak: &Peak) -> String {
    let ms = |at: &str| at.parse::<UnixMs>().map_or(0, UnixMs::get);
    span(ms(&peak.to).saturating_sub(ms(&peak.from)))
}

/// Returns the chart of what becomes due. Waiting messages count once, and those in retry once for each group.
fn chart<'a>(context: &'a Context, view: &ForecastView) -> Chart<'a> {
    let time = |at: &str| at.parse::<UnixMs>().unwrap_or_default();
    let last = view.steps.last().map(|step| &*step.to);
    let ends = view.steps.iter().map(|step| &*step.from).chain(last);
    let series = |label, role, counts: &[u64]| Series {
        label,
        role,
        values: counts.iter().copied().map(Some).collect(),
    };
    let step = span(view.step_ms);
    Chart {
        id: "forecast",
        title: "Messages by due time".to_owned(),
        note: html! {
            "Numbers: all in this period. Steps of " (step) "; the first may be shorter."
            @if view.peak.is_some() { " Dashed line: the peak." }
            " Times are in " (context.zone) "."
        },
        ends: ends.map(time).collect(),
        is_running: false,
        panels: vec![Panel {
            title: "Due",
            unit_text: format!("messages per {step}"),
            unit: Unit::Count,
            series: vec![
                series("waiting", Role::Sent, &view.total.waiting),
                series("retry", Role::Retried, &view.total.retry),
            ],
        }],
        mark: view.peak.as_ref().map(|peak| time(&peak.from)),
        zone: &context.zone,
    }
}

/// The times of one schedule in the period.
#[derive(Debug, PartialEq, Eq)]
struct Fires<'v> {
    schedule: &'v ScheduleName,
    topic: &'v Topic,
    /// The first two times.
    next: &'v str,
    then: Option<&'v str>,
    count: u64,
}

/// Returns one row for each schedule, in the order of their next times.
fn fires(times: &[NextTime]) -> Vec<Fires<'_>> {
    let mut all: Vec<Fires<'_>> = Vec::new();
    for time in times {
        match all
            .iter_mut()
            .find(|fires| *fires.schedule == time.schedule)
        {
            Some(fires) => {
                fires.then.get_or_insert(&time.at);
                fires.count += 1;
            }
            None => all.push(Fires {
                schedule: &time.schedule,
                topic: &time.topic,
                next: &time.at,
                then: None,
                count: 1,
            }),
        }
    }
    all
}

fn schedules(context: &Context, view: &ForecastView) -> Markup {
    let fires = fires(&view.recurring);
    let at_least = |fires: &Fires<'_>| view.may_have_more(fires.count);
    html! {
        section aria-labelledby="recurring" { h2 #recurring { "Schedules in this period " span.badge { (fires.len()) } }
            div.table-box { table.rows {
                caption.hidden { "Schedules, those with the next time first" }
                thead { tr { th scope="col" { "Schedule" } th scope="col" { "Topic" } th scope="col" { "Next" } th scope="col" { "Then" } th.n scope="col" { "Times in this period" } } }
                tbody { @for fires in fires.iter().take(MOST_SCHEDULES) { tr {
                    th scope="row" data-label="Schedule" { a.row-link href=(context.link(format!("/schedules/{}", fires.schedule))) { (fires.schedule) } }
                    td data-label="Topic" { a href=(context.link(format!("/topics/{}", fires.topic))) { (fires.topic) } }
                    td data-label="Next" { (relative_text(fires.next, context.now)) }
                    td data-label="Then" { @match fires.then { Some(at) => (relative_text(at, context.now)), None => { span.zero { "–" } } } }
                    td.n data-label="Times in this period" { @if at_least(fires) { "≥ " } (grouped(fires.count)) }
                } } }
            } }
            @if view.has_more_recurring { p.muted { "≥: there are more times than are counted." } }
            (rest(fires.len(), MOST_SCHEDULES))
        }
    }
}

fn render(context: &Context, view: &ForecastView) -> Markup {
    let steps: Vec<u64> = view.total.in_steps().collect();
    let due: u64 = steps.iter().sum();
    let peak = view.peak.as_ref();
    html! {
        dl.tiles {
            (tile("Due in this period", html! { (grouped(due)) }, html! { "waiting and retry" }))
            (tile("Overdue", html! { (grouped(view.total.overdue)) }, html! { "not moved yet" }))
            (tile("Later", html! { (grouped(view.total.later)) }, html! { "after this period" }))
            (tile("Peak", html! { @match peak { Some(peak) => { @if peak.is_lower_bound { "≥ " } (grouped(peak.messages)) } None => "0" } }, html! { @match peak { Some(peak) => { "in " (length(peak)) ", " (relative_text(&peak.from, context.now)) ", from " (exact_text(&peak.from)) }, None => { "nothing is due" } } }))
        }
        @if let (topics @ 1.., in_them) = view.paused() {
            p.banner.is-warn { (sign(Level::Warn)) span { "Includes " (messages(in_them)) " of " (counted(topics, "paused topic")) ", which are not delivered until resumed" } }
        }
        @if due == 0 {
            (empty("Nothing becomes due in this period", html! { p { "Messages with a later due time are counted under Later." } }))
        } @else {
            (chart(context, view).render())
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
        @if !view.recurring.is_empty() { (schedules(context, view)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_schedule_has_one_row_with_its_next_two_times_and_their_number() {
        let time = |schedule: &str, at: &str| NextTime {
            schedule: schedule.parse().unwrap(),
            topic: "t".parse().unwrap(),
            at: at.to_owned(),
        };
        let times = [
            time("often", "1"),
            time("nightly", "2"),
            time("often", "3"),
            time("often", "4"),
        ];
        let rows = fires(&times);
        let rows = rows
            .iter()
            .map(|row| (row.schedule.as_str(), row.next, row.then, row.count));
        assert_eq!(
            rows.collect::<Vec<_>>(),
            [("often", "1", Some("3"), 3), ("nightly", "2", None, 1)]
        );
    }
}
