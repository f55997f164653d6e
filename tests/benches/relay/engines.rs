//! Lisa and its ceiling on another engine.

use std::path::Path;
use std::process::Command;

use lisa_tests::Aof;

use crate::cases::{Case, Stage, compare};
use crate::ceiling;
use crate::lab::{self, Lab, Sample, Spread, Variant};
use crate::report::{Report, Section, number};

const NAME: &str = "Engines";

pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let n = lab.options.pick(40_000, 5_000);
    let path = match fetch() {
        Ok(path) => path,
        Err(why) => {
            eprintln!("  no Valkey: {why}");
            let note = format!("There was no Valkey to be had: {why}");
            report.section(Section::new(NAME, &note, &["engine"]));
            return;
        }
    };
    let valkey = lab
        .beside(lab::settings(Aof::Off).engine(&path).start())
        .await;
    let (redis_name, valkey_name) = (lab.engine().await, valkey.engine().await);
    let cases = [
        Case::plain(&redis_name, lab),
        Case::plain(&valkey_name, &valkey),
    ];
    let stages = [Stage::Send, Stage::Drain, Stage::All];
    let results = compare(lab, &cases, &stages, n).await;
    report.section(results.section(NAME, "100 B, concurrency 100."));

    let variants: Vec<Variant<'_, (f64, f64)>> = cases
        .iter()
        .map(|case| {
            Variant::new(
                format!("{}: beside its ceiling", case.name),
                move || async move {
                    case.lab.flush().await;
                    let ceiling = ceiling::sum_us(&ceiling::stages(case.lab, n, case.size).await);
                    (ceiling, Sample::cpu_us(&case.time(Stage::All, n).await))
                },
            )
        })
        .collect();
    let rounds = lab.alternate(&variants).await;
    let mut section = Section::new(
        "Engines beside their ceilings",
        "All stages at once; server time of a message, µs.",
        &["engine", "of its ceiling", "ceiling, µs", "Lisa, µs"],
    );
    for (case, rounds) in cases.iter().zip(&rounds) {
        let share = Spread::of(rounds.iter().map(|(ceiling, lisa)| 100.0 * ceiling / lisa));
        section.row([
            case.name.clone(),
            format!("{} %", number(share.median)),
            number(Spread::of(rounds.iter().map(|round| round.0)).median),
            number(Spread::of(rounds.iter().map(|round| round.1)).median),
        ]);
    }
    report.section(section);
}

/// The path of a Valkey 9 server.
fn fetch() -> Result<String, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("fetch-engine.sh");
    let output = Command::new("bash").arg(script).arg("valkey").output();
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
