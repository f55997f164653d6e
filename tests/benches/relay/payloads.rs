//! The cost of larger payloads, compared with their cost to the ceiling.

use crate::cases::{Case, Stage, compare};
use crate::ceiling;
use crate::lab::{Lab, Sample, Spread, Variant};
use crate::report::{Report, Section, number};

pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let n = lab.options.pick(40_000, 5_000);
    let sized = |name, size| Case {
        size,
        ..Case::plain(name, lab)
    };
    let cases = [sized("100 B", 100), sized("1 KiB", 1024)];
    let stages = [Stage::Send, Stage::Drain, Stage::All];
    let results = compare(lab, &cases, &stages, n).await;
    report.section(results.section("Payloads", "concurrency 100."));

    let (case, size) = (&cases[1], 1024);
    let variants: [Variant<'_, Vec<Sample>>; 2] = [
        Variant::new("1 KiB: ceiling", move || ceiling::stages(lab, n, size)),
        Variant::new("1 KiB: all stages at once", move || async move {
            vec![case.time(Stage::All, n).await]
        }),
    ];
    let rounds = lab.alternate(&variants).await;
    let us = |samples: &Vec<Sample>| ceiling::sum_us(samples);
    let mut section = Section::new(
        "1 KiB beside its ceiling",
        "The ceiling's commands carry the same payloads.",
        &[
            "variant",
            "of the ceiling, by server time",
            "server µs/message",
        ],
    );
    for (name, variant) in [("ceiling", 0), ("Lisa, all stages at once", 1)] {
        let share = Spread::of_ratios(&rounds[0], &rounds[variant], us);
        section.row([
            name.to_owned(),
            format!("{} %", number(100.0 * share.median)),
            number(Spread::of(rounds[variant].iter().map(us)).median),
        ]);
    }
    report.section(section);
}
