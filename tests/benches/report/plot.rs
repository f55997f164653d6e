//! Plots of the benchmarks as SVG text, readable on light and dark pages: bars, distributions and lines.

use std::error::Error;
use std::fmt::Debug;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

/// Width of a plot, px.
const WIDTH: u32 = 860;
/// Height of a plot with axes, px.
const HEIGHT: u32 = 460;
/// Height of one bar with its gap, px.
const BAR: u32 = 30;
/// The largest number of points drawn of a distribution; more could not be distinguished.
const POINTS: usize = 500;
/// Seven hues that people with a color deficiency can also distinguish (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(60, 60, 60),
];

type Drawn = Result<(), Box<dyn Error>>;

/// One axis: what it counts with its unit, and whether it is logarithmic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis<'a> {
    /// The label, with the unit: `"lateness, ms"`.
    pub(crate) label: &'a str,
    /// Logarithmic: then values below the smallest positive one are drawn at it.
    pub(crate) log: bool,
}

/// Draws a horizontal bar for each label, in the given order, with its value.
///
/// # Panics
/// Panics if there is no bar, or a value is negative or not finite.
pub(crate) fn bars(title: &str, unit: &str, bars: &[(String, f64)]) -> String {
    assert!(!bars.is_empty(), "{title}: no bars");
    for (label, value) in bars {
        assert!(value.is_finite() && *value >= 0.0, "{label}: {value}");
    }
    let height = 90 + BAR * bars.len() as u32;
    draw(height, |area| {
        let most = bars.iter().map(|(_, value)| *value).fold(0.0, f64::max);
        let most = if most > 0.0 { most } else { 1.0 };
        // From top to bottom: bar 0 has the largest y.
        let y = |index: usize| (bars.len() - 1 - index) as f64;
        let label_width = bars.iter().map(|(label, _)| label.chars().count()).max();
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 18))
            .margin(10)
            .margin_right(20)
            .set_label_area_size(
                LabelAreaPosition::Left,
                7 * label_width.unwrap_or(0) as u32 + 16,
            )
            .set_label_area_size(LabelAreaPosition::Bottom, 40)
            .build_cartesian_2d(0.0..most * 1.15, -0.5..bars.len() as f64 - 0.5)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .light_line_style(TRANSPARENT)
            .x_desc(unit)
            .x_label_formatter(&|value| number(*value))
            .draw()?;
        for (index, (label, value)) in bars.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let (low, high) = (y(index) - 0.35, y(index) + 0.35);
            chart.draw_series([Rectangle::new(
                [(0.0, low), (*value, high)],
                colour.filled(),
            )])?;
            let at = chart.backend_coord(&(0.0, y(index)));
            area.draw(&text(label, (at.0 - 8, at.1), true))?;
            let end = chart.backend_coord(&(*value, y(index)));
            area.draw(&text(&number(*value), (end.0 + 6, end.1), false))?;
        }
        Ok(())
    })
}

/// Draws, for each series, the share of its values that are at most x; x is logarithmic.
///
/// # Panics
/// Panics if there is no series, or one is empty.
pub(crate) fn cdf(title: &str, unit: &str, series: &[(String, Vec<f64>)]) -> String {
    let series: Vec<_> = series
        .iter()
        .map(|(label, values)| (label.clone(), distribution(values)))
        .collect();
    let x = Axis {
        label: unit,
        log: true,
    };
    let y = Axis {
        label: "share of messages, %",
        log: false,
    };
    lines(title, x, y, &series)
}

/// Draws a line for each series, through its points in the given order.
///
/// # Panics
/// Panics if there is no point.
pub(crate) fn lines(
    title: &str,
    x: Axis<'_>,
    y: Axis<'_>,
    series: &[(String, Vec<(f64, f64)>)],
) -> String {
    let points = || series.iter().flat_map(|(_, points)| points);
    let xs = range(x, points().map(|point| point.0));
    let ys = range(y, points().map(|point| point.1));
    draw(HEIGHT, |area| {
        let frame = Frame {
            title,
            x,
            y,
            series,
            least: (xs.start, ys.start),
        };
        match (x.log, y.log) {
            (false, false) => frame.draw(area, xs, ys),
            (true, false) => frame.draw(area, xs.log_scale(), ys),
            (false, true) => frame.draw(area, xs, ys.log_scale()),
            (true, true) => frame.draw(area, xs.log_scale(), ys.log_scale()),
        }
    })
}

struct Frame<'a> {
    title: &'a str,
    x: Axis<'a>,
    y: Axis<'a>,
    series: &'a [(String, Vec<(f64, f64)>)],
    least: (f64, f64),
}

impl Frame<'_> {
    fn draw<X, Y>(&self, area: &DrawingArea<SVGBackend<'_>, Shift>, x: X, y: Y) -> Drawn
    where
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 18))
            .margin(10)
            .margin_right(24)
            .set_label_area_size(LabelAreaPosition::Left, 62)
            .set_label_area_size(LabelAreaPosition::Bottom, 44)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .light_line_style(BLACK.mix(0.06))
            .y_max_light_lines(1)
            .x_desc(self.x.label)
            .y_desc(self.y.label)
            .x_label_formatter(&|value| number(*value))
            .y_label_formatter(&|value| number(*value))
            .draw()?;
        for (index, (label, points)) in self.series.iter().enumerate() {
            let style = COLOURS[index % COLOURS.len()].stroke_width(2);
            let points = points
                .iter()
                .map(|(x, y)| (x.max(self.least.0), y.max(self.least.1)));
            chart
                .draw_series(LineSeries::new(points, style))?
                .label(label)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        Ok(())
    }
}

/// The values and the share in percent that is at most each; thinned, with the first and the last kept.
///
/// # Panics
/// Panics if there is no value, or one is not a number.
pub(crate) fn distribution(values: &[f64]) -> Vec<(f64, f64)> {
    assert!(!values.is_empty(), "a distribution without values");
    assert!(values.iter().all(|value| !value.is_nan()), "not a number");
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    let steps = last.clamp(1, POINTS - 1);
    let mut points: Vec<_> = (0..=steps)
        .map(|step| step * last / steps)
        .map(|index| {
            (
                values[index],
                (index + 1) as f64 * 100.0 / values.len() as f64,
            )
        })
        .collect();
    points.dedup();
    points
}

/// A short decimal: `0.25`, `12.5`, `1,500`, `2.5 M`.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 1e6 {
        return format!("{} M", trim(format!("{:.2}", value / 1e6)));
    }
    if size < 1.0 {
        return trim(format!("{value:.3}"));
    }
    if size < 100.0 {
        return trim(format!("{value:.1}"));
    }
    // At most six digits: one comma.
    let whole = format!("{value:.0}");
    match whole.len().checked_sub(3) {
        Some(thousands) if whole.trim_start_matches('-').len() > 3 => {
            format!("{},{}", &whole[..thousands], &whole[thousands..])
        }
        _ => whole,
    }
}

fn trim(decimal: String) -> String {
    decimal
        .trim_end_matches('0')
        .trim_end_matches('.')
        .to_owned()
}

/// Returns the range of an axis: from 0 or, if logarithmic, from the smallest positive value.
fn range(axis: Axis<'_>, values: impl Iterator<Item = f64> + Clone) -> Range<f64> {
    assert!(
        values.clone().all(f64::is_finite),
        "{}: not finite",
        axis.label
    );
    let most = values.clone().reduce(f64::max);
    let most = most.unwrap_or_else(|| panic!("{}: no point", axis.label));
    if !axis.log {
        return 0.0..if most > 0.0 { most * 1.02 } else { 1.0 };
    }
    let least = values.filter(|value| *value > 0.0).reduce(f64::min);
    let least = least.unwrap_or(1.0);
    least..if most > least {
        most * 1.1
    } else {
        least * 10.0
    }
}

fn text<'a>(words: &'a str, at: (i32, i32), ends_there: bool) -> Text<'a, (i32, i32), &'a str> {
    use plotters::style::text_anchor::{HPos, Pos, VPos};
    let side = if ends_there { HPos::Right } else { HPos::Left };
    let style = TextStyle::from(("sans-serif", 13).into_font()).pos(Pos::new(side, VPos::Center));
    Text::new(words, at, style)
}

/// Returns the SVG that `content` draws on a white area.
///
/// # Panics
/// Panics if it cannot be drawn, which no argument can cause.
fn draw<F>(height: u32, content: F) -> String
where
    F: FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Drawn,
{
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let drawn = area.fill(&WHITE).map_err(Into::into);
        let drawn: Drawn = drawn.and_then(|()| content(&area));
        drawn.expect("a plot in memory");
        area.present().expect("a plot in memory");
    }
    svg
}
