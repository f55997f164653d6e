//! The history of a topic, or of all topics together: what came in, what went out, what failed, and how late deliveries were.

use std::sync::Arc;
use std::time::Duration;

use lisa_core::broker::{BrokerError, TopicHandle, TopicStats};
use lisa_core::time::{UnixMs, millis};
use lisa_core::topic::Topic;
use lisa_service::cron::TimeZone;
use lisa_service::http::client::reaches_named;
use maud::{Markup, html};

use super::Dashboard;
use super::cache::Reading;
use super::chart::{Chart, Panel, Role, Series, Unit};
use super::page::{Context, Failure};
use super::parts::staleness;
use super::text::{grouped, span};
use crate::operations::history::{
    HistoryPeriod, HistoryStep, HistoryView, history, history_of_all,
};
use crate::operations::newest_counts::NewestCounts;

/// The periods to choose from: label and seconds.
const PERIODS: [(&str, u64); 4] = [
    ("1 hour", 3_600),
    ("6 hours", 6 * 3_600),
    ("24 hours", 24 * 3_600),
    ("7 days", 7 * 24 * 3_600),
];
/// The period that is shown by default, in seconds.
const DEFAULT: u64 = 3_600;
/// The largest number of steps in a chart.
const STEPS: u64 = 96;
/// The steps of a chart whose history has just begun.
const FEWEST: usize = 15;

/// A panel of the chart: its title, the things it counts (none if it shows durations), and its series.
struct PanelOf {
    title: &'static str,
    counts: Option<Counted>,
    series: &'static [SeriesOf],
}

/// The things that a panel counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    /// Each counts once.
    Messages,
    /// A message counts once for each group.
    Deliveries,
}

/// A series: its label, its role, and its value in a step.
type SeriesOf = (&'static str, Role, fn(&HistoryStep) -> Option<u64>);

/// The panels of the chart. A sent message counts once, and an acknowledged one once for each group, so they have axes of their
/// own.
const PANELS: [PanelOf; 4] = [
    PanelOf {
        title: "In",
        counts: Some(Counted::Messages),
        series: &[("sent", Role::Sent, |step| step.sent)],
    },
    PanelOf {
        title: "Out",
        counts: Some(Counted::Deliveries),
        series: &[("acknowledged", Role::Acked, |step| step.acked)],
    },
    PanelOf {
        title: "Failed",
        counts: Some(Counted::Deliveries),
        series: &[
            ("retried", Role::Retried, |step| step.retried),
            ("to garbage", Role::Garbage, |step| step.discarded),
        ],
    },
    PanelOf {
        title: "Lateness",
        counts: None,
        series: &[
            ("p50", Role::Typical, |step| step.lateness_p50_ms),
            ("p99", Role::Slow, |step| step.lateness_p99_ms),
            ("oldest due", Role::Oldest, |step| step.oldest_due_ms),
        ],
    },
];

/// The charts of one period of a topic, or of all topics together.
pub(super) struct Charts {
    /// The period in seconds.
    pub(super) chosen: u64,
    /// The number of groups; `None` for all topics together.
    groups: Option<usize>,
    /// The periods of which there is a history.
    periods: Vec<(&'static str, u64)>,
    reading: Reading<HistoryView>,
}

/// Reads the history for the page of a topic whose counts are those of `stats`. Returns `None` if it is off, or if there are no
/// counts.
pub(super) async fn read(
    dashboard: &Dashboard,
    topic: &Arc<TopicHandle>,
    stats: &Reading<TopicStats>,
    wanted: Option<u64>,
    context: &Context,
) -> Result<Option<Charts>, Failure> {
    let Some(counts) = &stats.value else {
        return Ok(None);
    };
    let at = UnixMs::new(context.now.get().saturating_sub(millis(stats.age)));
    let read = async |period, zone: &TimeZone| {
        history(dashboard.broker(), topic, (period, zone), (counts, at)).await
    };
    let of = Some((topic.name().clone(), counts.groups.len()));
    let failed = stats.error.as_ref();
    charts(dashboard, of, (wanted, &context.zone), failed, read).await
}

/// Reads the history of all topics together. `counts` are their newest counts. Returns `None` if it is off, if there are no
/// counts, or if the viewer does not reach all topics: no history of only some of them is recorded.
pub(super) async fn read_of_all(
    dashboard: &Dashboard,
    counts: &Reading<NewestCounts>,
    wanted: Option<u64>,
    zone: &TimeZone,
) -> Result<Option<Charts>, Failure> {
    let failed = counts.error.as_ref();
    let Some(counts) = counts.value.as_ref().filter(|_| reaches_named(None)) else {
        return Ok(None);
    };
    let read = async |period, zone: &TimeZone| {
        history_of_all(dashboard.broker(), (period, zone), counts).await
    };
    charts(dashboard, None, (wanted, zone), failed, read).await
}

/// Reads the charts, or takes the last ones if the counts of the page have just failed with an error.
async fn charts(
    dashboard: &Dashboard,
    of: Option<(Topic, usize)>,
    (wanted, zone): (Option<u64>, &TimeZone),
    failed: Option<&String>,
    read: impl AsyncFnOnce(HistoryPeriod, &TimeZone) -> Result<HistoryView, BrokerError>,
) -> Result<Option<Charts>, Failure> {
    let config = dashboard.0.parts.config.manager.history;
    let (topic, groups) = of.unzip();
    let of = |seconds| HistoryPeriod::new(Some(Duration::from_secs(seconds)), config, STEPS);
    let periods = PERIODS
        .into_iter()
        .filter(|(_, seconds)| of(*seconds).is_ok());
    let periods: Vec<_> = periods.collect();
    if periods.is_empty() {
        return Ok(None);
    }
    let chosen = wanted.unwrap_or(DEFAULT);
    if !periods.iter().any(|(_, seconds)| *seconds == chosen) {
        let allowed: Vec<_> = periods.iter().map(|(_, of)| of.to_string()).collect();
        let allowed = format!("must be one of {}, in seconds", allowed.join(", "));
        return Err(Failure::invalid("history", &allowed));
    }
    let period = of(chosen).map_err(|error| Failure::invalid("history", &error))?;
    // Short steps begin at the same instants in each zone.
    let zone = if period.has_zone() {
        zone
    } else {
        &TimeZone::UTC
    };
    let cached = dashboard.0.histories.of((topic, chosen, zone.to_string()));
    let reading = match failed {
        Some(error) => cached.last(error.clone()).await,
        None => {
            let read = async || read(period, zone).await;
            cached.get(&dashboard.0.queries, read).await
        }
    };
    Ok(Some(Charts {
        chosen,
        groups,
        periods,
        reading,
    }))
}

impl Charts {
    /// Returns the section. `page` is the path of the page, up to the value of the field `history`.
    pub(super) fn render(&self, context: &Context, page: &str) -> Markup {
        html! {
            section aria-labelledby="history-title" {
                div.section-row {
                    h2 #history-title { "History" }
                    nav.tabs aria-label="Period of the history" { @for (label, of) in &self.periods {
                        a href=(context.link(format!("{page}{of}#history-title"))) aria-current=[(*of == self.chosen).then_some("true")] { (label) }
                    } }
                }
                (staleness("history-stale", &self.reading))
                div #history data-live { @if let Some(view) = self.reading.value.as_deref() { (drawn(view, self.groups, context)) } }
            }
        }
    }
}

/// Returns the chart; before anything was recorded, what will appear and when.
fn drawn(view: &HistoryView, groups: Option<usize>, context: &Context) -> Markup {
    let zone = &context.zone;
    let starts = view.steps.iter().map(|step| step.from.parse::<UnixMs>());
    let starts: Vec<UnixMs> = starts.filter_map(Result::ok).collect();
    let is_recorded = |step: &HistoryStep| step.sent.or(step.lateness_p99_ms).is_some();
    let recorded = view.steps.iter().position(is_recorded);
    let (Some(first), Some(last)) = (recorded, starts.last()) else {
        return beginning(context);
    };
    // What is empty at the left would take the space of what is there.
    let first = first.min(view.steps.len().saturating_sub(FEWEST));
    let steps = view.steps.get(first..).unwrap_or_default();
    let end = UnixMs::new(last.get() + view.step_ms);
    let ends = starts.iter().skip(first).copied().chain([end]);
    let each = per_step(view.step_ms);
    let unit_text = |panel: &PanelOf| match (panel.counts, groups) {
        (None, _) => "log scale".to_owned(),
        (Some(Counted::Messages), _) => format!("messages {each}"),
        (Some(Counted::Deliveries), Some(2..)) => {
            let groups = groups.unwrap_or_default() as u64;
            format!("deliveries {each}, {} groups", grouped(groups))
        }
        (Some(Counted::Deliveries), _) => format!("deliveries {each}"),
    };
    let panel = |panel: &PanelOf| Panel {
        title: panel.title,
        unit_text: unit_text(panel),
        unit: match panel.counts {
            Some(_) => Unit::Count,
            None => Unit::Duration,
        },
        series: { panel.series.iter() }
            .map(|(label, role, of)| Series {
                label,
                role: *role,
                values: steps.iter().map(of).collect(),
            })
            .collect(),
    };
    let begun = recorded.filter(|first| *first > 0);
    let chart = Chart {
        id: "history",
        title: "Messages in and out, failures, and lateness".to_owned(),
        note: html! {
            "Numbers: the last full step. Faint: in progress. Gray: not recorded"
            @if let Some(first) = begun { ", as all before " (zone.format(starts[first], "%b %-d, %H:%M")) }
            ". Times are in " (zone) "."
            @if groups != Some(1) { " Each group of a topic gets each message." }
        },
        ends: ends.collect(),
        is_running: true,
        panels: PANELS.iter().map(panel).collect(),
        mark: None,
        zone,
    };
    chart.render()
}

/// Returns a text such as `per min` or `per 5 min`.
fn per_step(step_ms: u64) -> String {
    match step_ms {
        60_000 => "per min".to_owned(),
        3_600_000 => "per h".to_owned(),
        _ => format!("per {}", span(step_ms)),
    }
}

/// Returns what will appear and when, for a period of which nothing was recorded.
fn beginning(context: &Context) -> Markup {
    const MINUTE: u64 = 60_000;
    // The managers count every five seconds.
    let next = UnixMs::new((context.now.get() / MINUTE + 1) * MINUTE);
    html! { div.card.beginning {
        p { strong { "Nothing was recorded in this period yet. " } "The first minute with messages appears shortly after "
            (context.zone.format(next, "%H:%M")) ": how many were sent, acknowledged, retried and moved to garbage, and how late they were delivered." }
        p.muted { "The counts and rates on this page are those of now. A longer period may show what was recorded before." }
    } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::page::Choices;
    use crate::dashboard::session::Viewer;

    fn context() -> Context {
        Context {
            base: "".into(),
            namespace: "lisa".into(),
            viewer: Viewer::Anybody,
            choices: Choices::default(),
            here: "/".into(),
            api: "".into(),
            producer: "".into(),
            url: None,
            redis: None,
            now: UnixMs::new(90_000),
            zone: TimeZone::UTC,
        }
    }

    fn page(sent: &[Option<u64>], groups: Option<usize>) -> String {
        let step = |(minute, sent): (u64, &Option<u64>)| HistoryStep {
            from: UnixMs::new(minute * 60_000).to_string(),
            sent: *sent,
            acked: *sent,
            retried: sent.map(|_| 3),
            discarded: sent.map(|_| 1),
            ..HistoryStep::default()
        };
        let view = HistoryView {
            topic: None,
            step_ms: 60_000,
            steps: (0..).zip(sent).map(step).collect(),
        };
        drawn(&view, groups, &context()).into_string()
    }

    #[test]
    fn without_a_value_the_page_says_what_will_appear_and_when() {
        let page = page(&[None, None], None);
        assert!(page.contains("appears shortly after 00:02"), "{page}");
        assert!(!page.contains("<figure"), "{page}");
    }

    #[test]
    fn the_time_before_the_first_sample_takes_little_space() {
        let mut sent = vec![None; 61];
        sent[58..].fill(Some(7));
        let few = page(&sent, None);
        assert_eq!(few.matches("<tr data-step").count(), FEWEST, "{few}");
        assert!(few.contains("as all before Jan 1, 00:58"), "{few}");
        sent[20..].fill(Some(7));
        let many = page(&sent, None);
        assert_eq!(many.matches("<tr data-step").count(), 41, "{many}");
    }

    #[test]
    fn failures_are_drawn_and_deliveries_say_of_how_many_groups_they_are() {
        let sent = [Some(4); 20];
        for (groups, unit) in [
            (Some(1), "deliveries per min<"),
            (Some(3), "deliveries per min, 3 groups<"),
            (None, "deliveries per min<"),
        ] {
            let page = page(&sent, groups);
            assert!(page.contains(unit), "{page}");
            let has_note = page.contains("Each group of a topic");
            assert_eq!(has_note, groups != Some(1), "{page}");
            for class in ["area is-retried", "area is-garbage"] {
                assert!(page.contains(&format!("{class}\" d=\"M0 ")), "{page}");
            }
        }
    }
}
