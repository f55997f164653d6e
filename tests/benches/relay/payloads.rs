//! The cost of larger payloads, compared with their cost to the ceiling.

use crate::cases::{Case, Stage};
use crate::ceiling;
use crate::lab::{Lab, Sample, Spread, Variant};
use crate::lisa::HOUR;
use crate::report::{Report, Section, number};

/// Payloads in bytes, their names, and the part of the messages that are sent of each.
const SIZES: [(usize, &str, u64); 4] = [
    (100, "100 B", 1),
    (1 << 10, "1 KiB", 1),
    (10 << 10, "10 KiB", 10),
    (100 << 10, "100 KiB", 100),
];
const STAGES: [Stage; 3] = [Stage::Send, Stage::Drain, Stage::All];

/// One round of a size: the ceiling's server time in µs, and a sample for each of [`STAGES`].
struct Round {
    ceiling_us: f64,
    stages: Vec<Sample>,
}

pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let most = lab.options.pick(40_000, 5_000);
    let variants: Vec<_> = SIZES
        .iter()
        .map(|&(size, name, part)| {
            let n = most / part;
            Variant::new(name, move || async move {
                let ceiling = ceiling::stages(lab, n, HOUR, size).await;
                let case = Case {
                    size,
                    ..Case::plain(name, lab)
                };
                let mut stages = Vec::new();
                for stage in STAGES {
                    stages.push(case.time(stage, n).await);
                }
                Round {
                    ceiling_us: ceiling::sum_us(&ceiling),
                    stages,
                }
            })
        })
        .collect();
    let rounds = lab.alternate(&variants).await;
    let mut section = Section::new(
        "Payloads",
        "Concurrency 100. The ceiling's commands carry the same payloads; its share is that of all stages at once.",
        &[
            "payload",
            "messages",
            "stage",
            "the ceiling's server time, of its",
            "messages/s",
            "MB/s",
            "server µs/message",
            "client µs/message",
        ],
    );
    for ((size, name, part), rounds) in SIZES.iter().zip(&rounds) {
        for (index, stage) in STAGES.iter().enumerate() {
            let median = |figure: fn(&Sample) -> f64| {
                Spread::of(rounds.iter().map(|round| figure(&round.stages[index]))).median
            };
            let share = Spread::of(
                rounds
                    .iter()
                    .map(|round| 100.0 * round.ceiling_us / round.stages[index].cpu_us()),
            );
            let is_all = *stage == Stage::All;
            section.row([
                (*name).to_owned(),
                number((most / part) as f64),
                stage.name().to_owned(),
                if is_all {
                    format!("{} %", number(share.median))
                } else {
                    "–".to_owned()
                },
                number(median(Sample::rate)),
                number(median(Sample::rate) * *size as f64 / 1e6),
                number(median(Sample::cpu_us)),
                number(median(Sample::client_us)),
            ]);
        }
    }
    report.section(section);
}
