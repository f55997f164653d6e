//! The contents of the benchmarks' plots.

use crate::plot::{Axis, bars, cdf, distribution, lines, number};

#[test]
fn a_distribution_ends_at_all_values_and_keeps_the_extremes() {
    let values: Vec<f64> = (1..=10_000).rev().map(f64::from).collect();
    let points = distribution(&values);
    assert!(points.len() <= 500, "{} points", points.len());
    assert_eq!(points[0], (1.0, 0.01));
    assert_eq!(points[points.len() - 1], (10_000.0, 100.0));
    for (value, share) in points {
        assert_eq!(share, value / 100.0, "the share at most {value}");
    }
    assert_eq!(distribution(&[7.0]), [(7.0, 100.0)]);
    assert_eq!(distribution(&[2.0, 1.0]), [(1.0, 50.0), (2.0, 100.0)]);
}

#[test]
fn a_number_is_short() {
    let said: Vec<_> = [
        0.0, 0.25, 12.5, 40.0, 100.0, 999.9, 1_500.0, 123_456.0, 2.5e6,
    ]
    .map(number)
    .into();
    assert_eq!(
        said,
        [
            "0", "0.25", "12.5", "40", "100", "1,000", "1,500", "123,456", "2.5 M"
        ]
    );
}

#[test]
fn a_longer_bar_has_the_larger_value() {
    let svg = bars(
        "Drain",
        "messages/s",
        &[("ceiling".to_owned(), 200.0), ("lisa".to_owned(), 100.0)],
    );
    let widths: Vec<f64> = svg
        .lines()
        .filter(|line| line.starts_with("<rect") && !line.contains("#FFFFFF"))
        .map(|line| attribute(line, "width"))
        .collect();
    assert_eq!(widths.len(), 2, "{svg}");
    assert!((widths[0] / widths[1] - 2.0).abs() < 0.02, "{widths:?}");
    for word in ["Drain", "messages/s", "ceiling", "lisa", ">\n200", ">\n100"] {
        assert!(svg.contains(word), "{word:?} is not in {svg}");
    }
}

#[test]
fn lines_are_drawn_on_linear_and_logarithmic_axes() {
    let series = [(
        "cost".to_owned(),
        vec![(0.0, 1.0), (10_000.0, 2.0), (5e6, 4.0)],
    )];
    for (x, y) in [(false, false), (true, false), (false, true), (true, true)] {
        let svg = lines(
            "Cost",
            Axis {
                label: "waiting, messages",
                log: x,
            },
            Axis {
                label: "CPU, µs",
                log: y,
            },
            &series,
        );
        let thick = svg.matches(r#"stroke-width="2""#).count();
        assert_eq!(thick, 2, "the line and its legend: {svg}");
        assert!(!svg.contains("NaN"), "{svg}");
    }
}

#[test]
fn a_distribution_with_zeros_fits_its_logarithmic_axis() {
    let svg = cdf(
        "Lateness",
        "ms",
        &[("500/s".to_owned(), vec![0.0, 0.5, 3.0])],
    );
    assert!(
        svg.contains("500/s") && svg.contains("share of messages, %"),
        "{svg}"
    );
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

fn attribute(line: &str, name: &str) -> f64 {
    let value = line.split_once(&format!(" {name}=\"")).unwrap().1;
    value.split_once('"').unwrap().0.parse().unwrap()
}
