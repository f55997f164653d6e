//! The history of a topic, or of all topics together: charts of messages in and out, and of lateness, each with the same
//! numbers in a table.

use std::sync::Arc;
use std::time::Duration;

use lisa_core::broker::{BrokerError, TopicHandle, TopicStats};
use lisa_core::time::{UnixMs, format_duration, millis};
use lisa_core::topic::Topic;
use maud::{Markup, html};

use super::Dashboard;
use super::cache::Reading;
use super::page::{Context, Failure};
use super::parts::{count, exact, staleness};
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
const DEFAULT: u64 = 6 * 3_600;
/// The largest number of steps in a chart.
const STEPS: u64 = 96;
/// The height of a chart, and the width of a step in it.
const HEIGHT: u64 = 180;
const WIDTH: usize = 20;

/// A line of a chart.
struct Line {
    label: &'static str,
    /// The class, which has its dash.
    class: &'static str,
    of: fn(&HistoryStep) -> Option<u64>,
}

const IN_AND_OUT: [Line; 2] = [
    Line {
        label: "sent",
        class: "line",
        of: |step| step.sent,
    },
    Line {
        label: "acknowledged",
        class: "line is-dashed",
        of: |step| step.acked,
    },
];
const LATENESS: [Line; 3] = [
    Line {
        label: "lateness, p50",
        class: "line",
        of: |step| step.lateness_p50_ms,
    },
    Line {
        label: "lateness, p99",
        class: "line is-dashed",
        of: |step| step.lateness_p99_ms,
    },
    Line {
        label: "age of the oldest due",
        class: "line is-dotted",
        of: |step| step.oldest_due_ms,
    },
];

/// The charts of one period of a topic, or of all topics together.
pub(super) struct Charts {
    /// The period in seconds.
    pub(super) chosen: u64,
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
    now: UnixMs,
) -> Result<Option<Charts>, Failure> {
    let Some(counts) = &stats.value else {
        return Ok(None);
    };
    let at = UnixMs::new(now.get().saturating_sub(millis(stats.age)));
    let read = async |period| history(dashboard.broker(), topic, period, (counts, at)).await;
    let of = Some(topic.name().clone());
    charts(dashboard, of, wanted, stats.error.as_ref(), read).await
}

/// Reads the history of all topics together. `counts` are their newest counts. Returns `None` if it is off, or if there are no
/// counts.
pub(super) async fn read_of_all(
    dashboard: &Dashboard,
    counts: &Reading<NewestCounts>,
    wanted: Option<u64>,
) -> Result<Option<Charts>, Failure> {
    let failed = counts.error.as_ref();
    let Some(counts) = &counts.value else {
        return Ok(None);
    };
    let read = async |period| history_of_all(dashboard.broker(), period, counts).await;
    charts(dashboard, None, wanted, failed, read).await
}

/// Reads the charts, or takes the last ones if the counts of the page have just failed with an error.
async fn charts(
    dashboard: &Dashboard,
    topic: Option<Topic>,
    wanted: Option<u64>,
    failed: Option<&String>,
    read: impl AsyncFnOnce(HistoryPeriod) -> Result<HistoryView, BrokerError>,
) -> Result<Option<Charts>, Failure> {
    let config = dashboard.0.parts.config.manager.history;
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
    let cached = dashboard.0.histories.of((topic, chosen));
    let reading = match failed {
        Some(error) => cached.last(error.clone()).await,
        None => {
            let read = async || read(period).await;
            cached.get(&dashboard.0.queries, read).await
        }
    };
    Ok(Some(Charts {
        chosen,
        periods,
        reading,
    }))
}

impl Charts {
    /// Returns the section. `page` is the path of the page, up to the value of the field `history`.
    pub(super) fn render(&self, context: &Context, page: &str) -> Markup {
        html! {
            section aria-labelledby="history-title" {
                h2 #history-title { "History" }
                (staleness("history-stale", &self.reading))
                nav.tabs aria-label="Period of the history" { @for (label, of) in &self.periods {
                    a href=(context.link(format!("{page}{of}#history-title"))) aria-current=[(*of == self.chosen).then_some("true")] { (label) }
                } }
                div #history data-live { @if let Some(view) = self.reading.value.as_deref() {
                    (chart(view, "flow", "Messages in and out", &IN_AND_OUT, linear, grouped, count))
                    (chart(view, "lateness", "Lateness of deliveries, with the age of the oldest due message", &LATENESS, logarithmic, span, |value| html! { (span(value)) }))
                } }
            }
        }
    }
}

/// Returns the height of a value, of which the largest is `most`.
fn linear(value: u64, most: u64) -> u64 {
    let height = u128::from(value) * u128::from(HEIGHT) / u128::from(most.max(1));
    u64::try_from(height).unwrap_or(HEIGHT)
}

/// Returns the height of a value on a logarithmic scale from 0.
fn logarithmic(value: u64, most: u64) -> u64 {
    let log = |value: u64| (value as f64 + 1.0).ln();
    (log(value) / log(most.max(1)) * HEIGHT as f64) as u64
}

fn chart(
    view: &HistoryView,
    id: &str,
    title: &str,
    lines: &[Line],
    height: fn(u64, u64) -> u64,
    text: fn(u64) -> String,
    cell: fn(u64) -> Markup,
) -> Markup {
    let values = lines
        .iter()
        .flat_map(|line| view.steps.iter().filter_map(line.of));
    let most = values.max();
    let step = format_duration(Duration::from_millis(view.step_ms));
    let Some(most) = most else {
        return html! { p.muted { (title) ": nothing was recorded in this period." } };
    };
    let time = |at: &str| match at.parse::<UnixMs>() {
        Ok(at) => exact(at),
        Err(_) => html! { (at) },
    };
    let sample = |line: &Line| {
        html! { svg.sample viewBox="0 0 32 8" width="32" height="8" aria-hidden="true" { path class=(line.class) d="M0 4H32" {} } }
    };
    let last = view.steps.len().saturating_sub(1);
    html! {
        figure.chart aria-labelledby=(format!("{id}-caption")) {
            svg viewBox=(format!("0 -4 {} {}", view.steps.len() * WIDTH, HEIGHT + 6)) preserveAspectRatio="none" role="img" aria-label=(format!("{title}; the largest value is {}", text(most))) {
                @for line in lines {
                    @let values: Vec<_> = view.steps.iter().map(line.of).collect();
                    @let values = values.iter().map(|value| value.map(|value| HEIGHT - height(value, most).min(HEIGHT)));
                    @let values: Vec<_> = values.collect();
                    path class=(line.class) d=(path(&values[..last], 0)) { title { (line.label) } }
                    path class=(format!("{} is-running", line.class)) d=(path(&values[last..], last)) { title { (line.label) ", not over yet" } }
                }
            }
            figcaption.muted id=(format!("{id}-caption")) {
                (title) ", in steps of " (step) "; the top is " (text(most)) ". A gap was not recorded."
                ul.legend { @for line in lines { li { (sample(line)) " " (line.label) } } }
            }
            details id=(format!("{id}-table")) { summary { "Show as a table" }
                div.table-box { table.rows {
                    caption.hidden { (title) }
                    thead { tr { th scope="col" { "From" } @for line in lines { th.n scope="col" { (line.label) } } } }
                    tbody { @for step in view.steps.iter().rev() { tr {
                        th scope="row" data-label="From" { (time(&step.from)) }
                        @for line in lines { td.n data-label=(line.label) { @match (line.of)(step) { Some(value) => (cell(value)), None => { span.zero { "–" } } } } }
                    } } }
                } }
            }
        }
    }
}

/// Returns the path of a line: one level for each step from `first` on, joined where neighbors are known.
fn path(levels: &[Option<u64>], first: usize) -> String {
    let mut path = String::new();
    let mut is_open = false;
    for (index, level) in levels.iter().enumerate() {
        let (from, to) = ((first + index) * WIDTH, (first + index + 1) * WIDTH);
        match level {
            Some(level) if is_open => path.push_str(&format!("V{level}H{to}")),
            Some(level) => path.push_str(&format!("M{from} {level}H{to}")),
            None => {}
        }
        is_open = level.is_some();
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(sent: &[Option<u64>]) -> HistoryView {
        let step = |sent: &Option<u64>| HistoryStep {
            from: UnixMs::new(60_000).to_string(),
            sent: *sent,
            ..HistoryStep::default()
        };
        HistoryView {
            topic: None,
            step_ms: 60_000,
            steps: sent.iter().map(step).collect(),
        }
    }

    #[test]
    fn a_gap_is_drawn_as_a_gap() {
        assert_eq!(
            path(&[Some(5), Some(7), None, Some(0)], 0),
            "M0 5H20V7H40M60 0H80"
        );
        assert_eq!(path(&[None, None], 0), "");
        assert_eq!(path(&[Some(1)], 3), "M60 1H80");
        let view = view(&[Some(4), None, Some(0), Some(2)]);
        let chart = chart(&view, "x", "X", &IN_AND_OUT, linear, grouped, count).into_string();
        assert!(chart.contains(r#"d="M0 0H20M40 180H60""#), "{chart}");
        assert!(chart.contains(r#"is-running" d="M60 90H80""#), "{chart}");
        assert_eq!(
            chart.matches(r#"<span class="zero">–"#).count(),
            5,
            "{chart}"
        );
        assert!(!chart.contains("style="));
    }

    #[test]
    fn without_a_value_there_is_no_chart() {
        let view = view(&[None, None]);
        let chart = chart(&view, "x", "X", &IN_AND_OUT, linear, grouped, count).into_string();
        assert!(chart.contains("nothing was recorded"), "{chart}");
    }

    #[test]
    fn heights_stay_within_the_chart() {
        for height in [linear, logarithmic] {
            assert_eq!(height(0, 1000), 0);
            assert!(height(1000, 1000) <= HEIGHT && height(u64::MAX, u64::MAX) <= HEIGHT);
        }
        assert_eq!(linear(500, 1000), HEIGHT / 2);
        assert!(logarithmic(30, 1000) > HEIGHT / 3);
    }
}
