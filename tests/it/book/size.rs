//! The estimates in the page about capacity are those of `lisa-manager size`, and its figures are those of `make bench`.

use super::{assert_current, read, root};
use lisa_tests::{Binary, SOON};
use serde_json::Value;
use std::fmt::Write as _;

const PAGE: &str = "shared/docs/operate/capacity.md";
/// The lines between which the table stands.
const BEGIN: &str = "<!-- estimates: written by a test -->\n";
const END: &str = "<!-- end of estimates -->\n";

/// The loads of the table, as options.
const LOADS: [&str; 7] = [
    "--waiting 100000 --sends 10",
    "--waiting 1000000 --sends 100",
    "--waiting 10000000 --sends 1000",
    "--waiting 1000000 --sends 1000 --batch 100 --pull",
    "--waiting 1000000 --sends 100 --payload 10KiB",
    "--waiting 1000000 --sends 500 --key 20 --groups 3 --own-ids --dedup-window 1h",
    "--waiting 1000000 --sends 100 --topics 1000",
];

/// The largest difference between a figure and the report of the latest run, as machines differ.
const TOLERANCE: f64 = 0.15;

async fn size(options: &str) -> Value {
    let arguments = ["size", "--output", "json"].into_iter();
    let arguments = arguments.chain(options.split_whitespace());
    let done = Binary::Manager.with(arguments).run(SOON).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

fn shown(bytes: &Value) -> String {
    let mib = bytes.as_f64().expect("bytes") / 1024.0 / 1024.0;
    match mib {
        ..1000.0 => format!("{mib:.0} MiB"),
        _ => format!("{:.1} GiB", mib / 1024.0),
    }
}

#[tokio::test]
async fn the_estimates_of_the_page_are_those_of_the_command() {
    let mut table = "| options | memory | machine | disk | Redis | producers | managers | consumers | connections |\n\
        |---|---:|---:|---:|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for load in LOADS {
        let needs = size(load).await;
        let cores = |role: &str| needs["cores"][role].as_f64().expect("cores");
        let open: u64 = ["producers", "managers", "consumers"]
            .map(|role| needs["connections"][role].as_u64().expect("connections"))
            .iter()
            .sum();
        let redis = &needs["redis"];
        let (memory, machine, disk) = (
            shown(&redis["memory"]),
            shown(&redis["machine"]),
            shown(&redis["disk"]),
        );
        let _ = writeln!(
            table,
            "| `{load}` | {memory} | {machine} | {disk} | {:.2} | {:.2} | {:.2} | {:.2} | {open} |",
            cores("redis"),
            cores("producers"),
            cores("managers"),
            cores("consumers"),
        );
    }
    let page = read(&root().join(PAGE));
    let (before, rest) = page.split_once(BEGIN).expect("the begin of the table");
    let (_, after) = rest.split_once(END).expect("the end of the table");
    assert_current(PAGE, &format!("{before}{BEGIN}\n{table}\n{END}{after}"));
}

/// A cell of the report of `make bench`, by section, begin of the row, and column.
fn cell(report: &str, section: &str, row: &str, column: &str) -> f64 {
    let place = format!("{section} / {row} / {column}");
    let section = report
        .split("\n## ")
        .find(|text| text.starts_with(&format!("{section}\n")));
    let mut lines = section
        .expect(&place)
        .lines()
        .filter_map(|line| line.strip_prefix("| "));
    let header: Vec<&str> = lines.next().expect(&place).split(" | ").collect();
    let column = header
        .iter()
        .position(|name| name.trim_end_matches(" |") == column);
    let line = lines
        .find(|line| line.starts_with(&format!("{row} | ")))
        .expect(&place);
    let cell = line.split(" | ").nth(column.expect(&place)).expect(&place);
    let number = cell.trim_end_matches(" |").replace(',', "");
    number.parse().unwrap_or_else(|_| panic!("{place}: {cell}"))
}

#[tokio::test]
async fn the_figures_of_an_estimate_are_those_of_the_benchmark() {
    let report = read(&root().join("tests/benches/results/relay.md"));
    let figures = size("--figures").await;
    let mut compared = 0;
    for figure in figures["figures"].as_array().expect("figures") {
        let (name, origin) = (
            &figure["name"],
            figure["origin"].as_str().expect("an origin"),
        );
        if let Some(place) = origin.strip_prefix("make bench: ") {
            let place: Vec<&str> = place.split(" / ").collect();
            let [section, row, column] = place[..] else {
                panic!("{name}: {origin}");
            };
            let measured = cell(&report, section, row, column);
            let value = figure["value"].as_f64().expect("a value");
            let difference = (value / measured - 1.0).abs();
            assert!(
                difference <= TOLERANCE,
                "{name} is {value}, but {measured} in the report: set it in figures.rs"
            );
            compared += 1;
        } else if let Some((file, _)) = origin.split_once(": ") {
            assert!(root().join(file).exists(), "{name}: {origin}");
        }
    }
    assert!(compared > 20, "{compared}");
}

#[tokio::test]
async fn a_load_that_no_server_can_hold_is_an_error() {
    for (options, said) in [
        (
            "--waiting 18446744073709551615 --payload 1MiB",
            "more than 16 EiB",
        ),
        ("--key 257", "257 is not in 0..=256"),
        ("--payload 513MiB", "expected at most 512MiB"),
    ] {
        let arguments = ["size"].into_iter().chain(options.split_whitespace());
        let done = Binary::Manager.with(arguments).run(SOON).await;
        assert_eq!(done.code, Some(2), "{done:?}");
        assert!(done.stderr.contains(said), "{done:?}");
    }
}
