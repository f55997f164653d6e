//! Lisa, its ceiling and its memory on other engines.

use std::path::Path;
use std::process::Command;

use lisa_tests::Aof;

use crate::cases::{Case, Stage, compare};
use crate::lab::{self, Lab, Sample, Spread, Variant};
use crate::lisa::SOON;
use crate::report::{Reach, Report, Section, number};
use crate::{ceiling, memory};

/// The engines besides the installed one, as `fetch-wheel.sh` calls them.
const OTHERS: [&str; 2] = ["redis-8", "valkey"];

pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let n = lab.options.pick(40_000, 5_000);
    let many = lab.options.pick(1_000_000, 125_000);
    let mut engines = vec![(lab.engine().await, lab.clone())];
    let mut missing = String::new();
    for name in OTHERS {
        match fetch("fetch-wheel.sh", name) {
            Ok(path) => {
                let settings = lab::settings(Aof::Off).engine(&path);
                let other = lab.beside(settings.start()).await;
                engines.push((other.engine().await, other));
            }
            Err(why) => {
                eprintln!("  no {name}: {why}");
                missing += &format!(" {name} was not available: {why}.");
            }
        }
    }
    let cases: Vec<_> = engines
        .iter()
        .map(|(name, lab)| Case::plain(name, lab))
        .collect();
    let stages = [Stage::Send, Stage::Drain, Stage::All];
    let results = compare(lab, &cases, &stages, n).await;
    let note = format!("100 B, concurrency 100.{missing}");
    report.section(results.section("Engines", &note));

    let variants: Vec<Variant<'_, (f64, f64)>> = cases
        .iter()
        .map(|case| {
            Variant::new(
                format!("{}: beside its ceiling", case.name),
                move || async move {
                    let ceiling = ceiling::stages_of_some(case.lab, n, case.size).await;
                    let lisa = case.time(Stage::All, n).await;
                    (ceiling::sum_us(&ceiling), Sample::cpu_us(&lisa))
                },
            )
        })
        .collect();
    let rounds = lab.alternate(&variants).await;
    let mut section = Section::new(
        "Engines beside their ceilings",
        &format!(
            "All stages at once, due within {} ms; server time of a message, µs. Bytes are those of a plain message of \
             100 B that waits, as below.",
            SOON.as_millis()
        ),
        &[
            "engine",
            "the ceiling's server time, of Lisa's",
            "ceiling, µs",
            "Lisa, µs",
            "waiting, B",
        ],
    );
    for (case, rounds) in cases.iter().zip(&rounds) {
        let share = Spread::of(rounds.iter().map(|(ceiling, lisa)| 100.0 * ceiling / lisa));
        let bytes = memory::of_waiting(case.lab, many).await;
        if case.name.starts_with("Redis 8") {
            let figure = "memory of a waiting message of 100 B, plain topic, Redis 8";
            report.reach(Reach::at_most(figure, (280.0, 260.0), " B", bytes));
        }
        section.row([
            case.name.clone(),
            format!("{} %", number(share.median)),
            number(Spread::of(rounds.iter().map(|round| round.0)).median),
            number(Spread::of(rounds.iter().map(|round| round.1)).median),
            number(bytes),
        ]);
    }
    report.section(section);
}

/// Runs a script that fetches a program. Returns the path that it prints, or why there is none.
pub(crate) fn fetch(script: &str, name: &str) -> Result<String, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let output = Command::new("bash").arg(script).arg(name).output();
    let output = output.map_err(|error| error.to_string())?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(errors
            .lines()
            .last()
            .unwrap_or("no reason given")
            .to_owned());
    }
    let path = String::from_utf8_lossy(&output.stdout);
    Ok(path.trim().to_owned())
}
