//! A chart over time, described once: its panels, their series, units and roles. The drawing, the legend, the table, and what
//! the script shows at the pointer and for the keyboard derive from this description.
//!
//! The script reads the table and the positions of the steps, so that it knows no series, unit or time zone.

mod axis;
#[cfg(test)]
mod colors;

use std::fmt::Write as _;

use lisa_core::time::UnixMs;
use lisa_service::cron::TimeZone;
use maud::{Markup, html};

pub(super) use axis::Unit;
use axis::{HEIGHT, MANY_TIMES, Scale, WIDTH, position, step, times};

use super::parts::exact;

/// The meaning of a series, which decides its color and its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Incoming.
    Sent,
    /// A good end.
    Acked,
    /// A failure that is tried again.
    Retried,
    /// A final failure.
    Garbage,
    /// A typical value.
    Typical,
    /// A value that few exceed.
    Slow,
    /// The longest wait.
    Oldest,
}

impl Role {
    const fn class(self) -> &'static str {
        match self {
            Self::Sent => "is-sent",
            Self::Acked => "is-acked",
            Self::Retried => "is-retried",
            Self::Garbage => "is-garbage",
            Self::Typical => "is-typical",
            Self::Slow => "is-slow",
            Self::Oldest => "is-oldest",
        }
    }

    /// Returns true if it is drawn as an area, on top of the areas before it in its panel. Others are lines.
    const fn is_area(self) -> bool {
        !matches!(self, Self::Typical | Self::Slow | Self::Oldest)
    }
}

/// Values over time, one for each step; `None` for what is not known.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) label: &'static str,
    pub(super) role: Role,
    pub(super) values: Vec<Option<u64>>,
}

/// Series that share an axis of values.
#[derive(Clone, Debug)]
pub(super) struct Panel {
    pub(super) title: &'static str,
    /// The unit, as it stands beside the title.
    pub(super) unit_text: String,
    pub(super) unit: Unit,
    pub(super) series: Vec<Series>,
}

/// Panels that share an axis of time.
#[derive(Clone, Debug)]
pub(super) struct Chart<'a> {
    pub(super) id: &'static str,
    pub(super) title: String,
    /// A remark below the chart.
    pub(super) note: Markup,
    /// The boundaries of the steps: one more than there are steps.
    pub(super) ends: Vec<UnixMs>,
    /// True if the last step has not ended.
    pub(super) is_running: bool,
    pub(super) panels: Vec<Panel>,
    /// An instant to mark.
    pub(super) mark: Option<UnixMs>,
    pub(super) zone: &'a TimeZone,
}

impl Panel {
    /// Returns the lower and upper value of each step of a series: areas lie on those before them, and nothing of them is drawn
    /// for zero.
    fn stacked(&self, series: usize) -> Vec<Option<(u64, u64)>> {
        let below = |step: usize| -> u64 {
            let before = self.series[..series].iter();
            let values = before.filter_map(|series| series.values.get(step).copied().flatten());
            values.fold(0, u64::saturating_add)
        };
        let of = &self.series[series];
        let values = of.values.iter().enumerate();
        values
            .map(|(step, value)| {
                let lower = if of.role.is_area() { below(step) } else { 0 };
                let value = value.filter(|value| *value > 0 || !of.role.is_area());
                value.map(|value| (lower, lower.saturating_add(value)))
            })
            .collect()
    }

    fn scale(&self) -> Scale {
        let each = (0..self.series.len()).flat_map(|series| self.stacked(series));
        let most = each.flatten().map(|(_, upper)| upper).max();
        Scale::new(self.unit, most.unwrap_or(0))
    }

    /// Returns true if no series has a value for a step.
    fn is_unknown(&self, step: usize) -> bool {
        { self.series.iter() }.all(|series| series.values.get(step).copied().flatten().is_none())
    }

    /// Returns what the drawing shows, in words.
    fn summary(&self, last: Option<usize>) -> String {
        let mut text = format!("{}, {}", self.title, self.unit_text);
        for series in &self.series {
            let known = series.values.iter().flatten();
            let (least, most) = (known.clone().min(), known.max());
            let _ = match least.zip(most) {
                Some((least, most)) => write!(
                    text,
                    "; {}: {} to {}",
                    series.label,
                    self.unit.text(*least),
                    self.unit.text(*most)
                ),
                None => write!(text, "; {}: nothing", series.label),
            };
            let last = last.and_then(|last| series.values.get(last).copied().flatten());
            if let Some(last) = last {
                let _ = write!(text, ", last {}", self.unit.text(last));
            }
        }
        text
    }
}

impl Chart<'_> {
    fn steps(&self) -> usize {
        self.ends.len().saturating_sub(1)
    }

    /// Returns the last step that has ended.
    fn last_full(&self) -> Option<usize> {
        self.steps().checked_sub(1 + usize::from(self.is_running))
    }

    fn span(&self) -> (UnixMs, UnixMs) {
        let ends = self.ends.first().zip(self.ends.last());
        ends.map_or_else(Default::default, |(from, to)| (*from, *to))
    }

    /// Returns true if a panel has no value at all for a step.
    fn is_gap(&self, step: usize) -> bool {
        self.panels.iter().any(|panel| panel.is_unknown(step))
    }

    /// Returns the number beside the name of a series: that of the last full step, or the sum if all steps are to come.
    fn number(&self, series: &Series) -> Option<u64> {
        match self.is_running {
            true => series.values.get(self.last_full()?).copied().flatten(),
            false => Some(
                series
                    .values
                    .iter()
                    .flatten()
                    .fold(0, |sum, value| sum.saturating_add(*value)),
            ),
        }
    }

    /// Returns the text of the time of a step.
    fn step_text(&self, index: usize) -> String {
        let (from, to) = self.span();
        let of_day = |at| self.zone.format(at, "%F");
        let ends = (self.ends[index], self.ends[index + 1]);
        let running = match self.is_running && index + 1 == self.steps() {
            true => " (in progress)",
            false => "",
        };
        format!(
            "{}{running}",
            step(self.zone, ends, of_day(from) != of_day(to))
        )
    }

    pub(super) fn render(&self) -> Markup {
        let (from, to) = self.span();
        let ends = self.ends.iter().map(|at| position(*at, from, to));
        let ends: Vec<u64> = ends.collect();
        let joined: Vec<String> = ends.iter().map(u64::to_string).collect();
        let last = self.steps().saturating_sub(1);
        html! {
            figure.chart aria-labelledby=(format!("{}-caption", self.id)) data-ends=(joined.join(" ")) {
                input.cursor type="range" min="0" max=(last) value=(last) aria-label=(format!("{}: step", self.title)) aria-controls=(format!("{}-table", self.id));
                div.panels.(if self.panels.len() > 1 { "is-grid" } else { "is-single" }) { @for panel in &self.panels { (self.panel(panel, &ends)) } }
                div.reading aria-hidden="true" hidden {}
                figcaption.muted id=(format!("{}-caption", self.id)) { strong { (self.title) } ". " (self.note) }
                (self.table())
            }
        }
    }

    fn panel(&self, panel: &Panel, ends: &[u64]) -> Markup {
        let scale = panel.scale();
        let top = |value: u64| HEIGHT - scale.height(value);
        let percent = |of: u64, all: u64| {
            let hundredths = of * 10_000 / all;
            format!("{}.{:02}%", hundredths / 100, hundredths % 100)
        };
        let (from, to) = self.span();
        let last = self.last_full();
        html! {
            div.panel {
                div.panel-head {
                    p.panel-title { (panel.title) " " span.muted { (panel.unit_text) } }
                    ul.legend { @for series in &panel.series {
                        li { (sample(series.role)) (series.label) " " b { @match self.number(series) { Some(value) => (panel.unit.text(value)), None => "–" } } }
                    } }
                }
                svg.y-axis aria-hidden="true" { @for tick in scale.ticks() {
                    text x="100%" y=(percent(top(tick), HEIGHT)) text-anchor="end" dominant-baseline="middle" { (scale.label(tick)) }
                } }
                svg.plot viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" role="img" aria-label=(panel.summary(last)) {
                    @for (from, to) in runs(self.steps(), |step| self.is_gap(step)) {
                        rect.gap x=(ends[from]) width=(ends[to] - ends[from]) height=(HEIGHT) {}
                    }
                    @for tick in scale.ticks() { path.grid d=(format!("M0 {}H{WIDTH}", top(tick))) {} }
                    rect.band height=(HEIGHT) {}
                    @for (index, series) in panel.series.iter().enumerate() {
                        @let levels: Vec<_> = panel.stacked(index).into_iter().map(|value| value.map(|(lower, upper)| (top(lower), top(upper)))).collect();
                        @let ended = self.last_full().map_or(0, |last| last + 1);
                        @for (part, class) in [(0..ended, ""), (ended..self.steps(), " is-running")] {
                            @if !part.is_empty() {
                                @if series.role.is_area() { path class=(format!("area {}{class}", series.role.class())) d=(area(&levels, ends, part.clone())) {} }
                                path class=(format!("stroke {}{class}", series.role.class())) d=(stroke(&levels, ends, part)) {}
                            }
                        }
                    }
                    @if let Some(mark) = self.mark { @let at = position(mark, from, to); path.mark d=(format!("M{at} 0V{HEIGHT}")) {} }
                }
                @let times = times(self.zone, from, to);
                svg.x-axis.(if times.len() > MANY_TIMES { "is-dense" } else { "is-sparse" }) aria-hidden="true" { @for (at, text) in times {
                    text x=(percent(position(at, from, to), WIDTH)) y="13" text-anchor="middle" { (text) }
                } }
            }
        }
    }

    fn table(&self) -> Markup {
        let all = || {
            self.panels
                .iter()
                .flat_map(|panel| panel.series.iter().map(move |series| (panel, series)))
        };
        html! {
            details id=(format!("{}-table", self.id)) { summary { "Show as a table" }
                div.table-box { table.rows {
                    caption.hidden { (self.title) }
                    thead { tr { th scope="col" { "From" } @for (_, series) in all() { th.n scope="col" { (series.label) } } } }
                    tbody { @for (index, at) in self.ends.iter().take(self.steps()).enumerate() { tr data-step=(self.step_text(index)) {
                        th scope="row" data-label="From" { (exact(*at)) }
                        @for (panel, series) in all() {
                            td.n data-label=(series.label) { @match series.values.get(index).copied().flatten() {
                                Some(0) => { span.zero { (panel.unit.text(0)) } }
                                Some(value) => (panel.unit.text(value)),
                                None => { span.zero { "–" } }
                            } }
                        }
                    } } }
                } }
            }
        }
    }
}

/// Returns a sample of the color and the form of a role.
fn sample(role: Role) -> Markup {
    let path = if role.is_area() {
        "M0 1H18V9H0Z"
    } else {
        "M0 5H18"
    };
    html! { svg.sample viewBox="0 0 18 10" width="18" height="10" aria-hidden="true" {
        @if role.is_area() { path class=(format!("area {}", role.class())) d=(path) {} }
        path class=(format!("stroke {}", role.class())) d=(path) {}
    } }
}

/// Returns the runs of consecutive indexes below `count` for which `is_in` holds, each with its end.
fn runs(count: usize, is_in: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for index in (0..count).filter(|index| is_in(*index)) {
        match runs.last_mut() {
            Some((_, end)) if *end == index => *end += 1,
            _ => runs.push((index, index + 1)),
        }
    }
    runs
}

/// The lower and the upper edge of a series in each step; `None` for what is not known.
type Levels = [Option<(u64, u64)>];

/// Returns the path of the upper edges of some steps, joined where neighbors are known.
fn stroke(levels: &Levels, ends: &[u64], part: std::ops::Range<usize>) -> String {
    let mut path = String::new();
    let mut is_open = false;
    for step in part {
        let level = levels.get(step).copied().flatten();
        if let Some((_, upper)) = level {
            let _ = match is_open {
                true => write!(path, "V{upper}H{}", ends[step + 1]),
                false => write!(path, "M{} {upper}H{}", ends[step], ends[step + 1]),
            };
        }
        is_open = level.is_some();
    }
    path
}

/// Returns the path around the areas of some steps, one for each run of known neighbors.
fn area(levels: &Levels, ends: &[u64], part: std::ops::Range<usize>) -> String {
    let mut path = String::new();
    let (begin, levels) = (part.start, levels.get(part).unwrap_or_default());
    for (from, to) in runs(levels.len(), |step| levels[step].is_some()) {
        let edges = || (from..to).filter_map(|step| Some((begin + step, levels[step]?)));
        path += &stroke(levels, &ends[begin..], from..to);
        for (step, (lower, _)) in edges().rev() {
            let _ = write!(path, "V{lower}H{}", ends[step]);
        }
        path.push('Z');
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000;
    static UTC: TimeZone = TimeZone::UTC;

    fn series(role: Role, values: &[Option<u64>]) -> Series {
        Series {
            label: "of messages",
            role,
            values: values.to_vec(),
        }
    }

    fn chart(unit: Unit, series: Vec<Series>) -> Chart<'static> {
        let steps = series[0].values.len() as u64;
        Chart {
            id: "x",
            title: "X".to_owned(),
            note: html! {},
            ends: (0..=steps).map(|step| UnixMs::new(step * MINUTE)).collect(),
            is_running: true,
            panels: vec![Panel {
                title: "Y",
                unit_text: "per min".to_owned(),
                unit,
                series,
            }],
            mark: None,
            zone: &UTC,
        }
    }

    #[test]
    fn a_gap_is_drawn_as_a_gap_and_the_running_step_apart() {
        let values = [Some(4), None, Some(0), Some(2)];
        let chart = chart(Unit::Count, vec![series(Role::Typical, &values)]);
        let page = chart.render().into_string();
        assert!(
            page.contains(r#"class="stroke is-typical" d="M0 0H2500M5000 1000H7500""#),
            "{page}"
        );
        assert!(
            page.contains(r#"is-typical is-running" d="M7500 500H10000""#),
            "{page}"
        );
        assert!(
            page.contains(r#"class="gap" x="2500" width="2500""#),
            "{page}"
        );
        assert!(page.contains("0 to 4, last 0"), "{page}");
        assert!(
            page.contains(r#"data-step="00:03 – 00:04 (in progress)""#),
            "{page}"
        );
        assert_eq!(page.matches(r#"<span class="zero">–"#).count(), 1, "{page}");
        assert!(!page.contains("style="), "the policy would refuse it");
    }

    #[test]
    fn areas_lie_on_each_other_and_the_axis_holds_their_sum() {
        let all = vec![
            series(Role::Retried, &[Some(3), Some(0)]),
            series(Role::Garbage, &[Some(1), Some(4)]),
        ];
        let page = chart(Unit::Count, all).render().into_string();
        // 0, 2 and 4 are the ticks.
        assert_eq!(page.matches("class=\"grid\"").count(), 3, "{page}");
        assert!(
            page.contains(r#"class="area is-retried" d="M0 250H5000V1000H0Z""#),
            "{page}"
        );
        assert!(
            page.contains(r#"class="area is-garbage" d="M0 0H5000V250H0Z""#),
            "{page}"
        );
        assert!(
            page.contains(r#"is-garbage is-running" d="M5000 0H10000V1000H5000Z""#),
            "{page}"
        );
    }

    #[test]
    fn one_step_no_value_and_huge_values_are_drawn() {
        for values in [
            vec![None],
            vec![Some(0)],
            vec![Some(u64::MAX); 2],
            vec![None; 3],
        ] {
            for (unit, role) in [(Unit::Count, Role::Sent), (Unit::Duration, Role::Slow)] {
                let all = vec![series(role, &values), series(role, &values)];
                let page = chart(unit, all).render().into_string();
                assert!(!page.contains("NaN") && page.contains("<tbody>"), "{page}");
            }
        }
    }

    #[test]
    fn the_legend_the_table_and_the_script_have_the_same_series() {
        let all = vec![series(Role::Sent, &[Some(1234), Some(5)])];
        let page = chart(Unit::Count, all).render().into_string();
        assert!(page.contains("of messages <b>1,234</b>"), "{page}");
        assert!(
            page.contains(r#"<th class="n" scope="col">of messages</th>"#),
            "{page}"
        );
        assert!(
            page.contains(r#"data-label="of messages">1,234</td>"#),
            "{page}"
        );
        assert!(page.contains(r#"data-ends="0 5000 10000""#), "{page}");
    }
}
