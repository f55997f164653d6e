//! The distribution of the server's time: the cost of each script per message, and the longest single call of the whole
//! run, during which no other client is served.

use std::collections::BTreeMap;

use crate::cases::{Case, Stage};
use crate::lab::{Lab, ROUNDS, Spread, Variant};
use crate::report::{Reach, Report, Section, number};
use crate::slowlog::Call;

pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    report.section(costs(lab).await);
    // From the records of all sections before this one.
    let mut section = Section::new(
        "Longest script calls",
        "The longest call of each round, by the server's clock, where it took 0.5 ms or more; each section and \
         script shows the case that is the worst in its quietest round. The clock also counts time in which the \
         machine does something else during a call. So the quietest round shows the cost of a call, and the others \
         show the disturbances on this machine.",
        &[
            "section",
            "script",
            "worst case",
            "longest of the quietest round, ms",
            "of the loudest, ms",
        ],
    );
    let mut worst: BTreeMap<(&str, String), (String, Spread)> = BTreeMap::new();
    for (place, mut ms) in lab.longest() {
        ms.resize(ms.len().max(ROUNDS), 0.0);
        let spread = Spread::of(ms);
        let known = worst
            .entry((place.section, place.script))
            .or_insert_with(|| (place.variant.clone(), spread));
        if spread.min > known.1.min {
            *known = (place.variant, spread);
        }
    }
    let longest = worst.values().map(|(_, ms)| ms.min).fold(0.0, f64::max);
    for ((name, script), (variant, ms)) in worst {
        let below = |ms: f64| {
            if ms > 0.0 {
                number(ms)
            } else {
                "< 0.5".to_owned()
            }
        };
        section.row([
            name.to_owned(),
            script,
            variant,
            below(ms.min),
            number(ms.max),
        ]);
    }
    report.reach(Reach::at_most(
        "longest single script call, of the quietest round",
        (2.0, 1.0),
        " ms",
        longest,
    ));
    report.section(section);
}

/// Runs all stages at once with every script call in the slow log.
async fn costs(lab: &Lab) -> Section {
    let n = lab.options.pick(60_000, 10_000);
    let round = move || async move {
        lab.log_calls_from(0).await;
        let sample = Case::plain("plain", lab).time(Stage::All, n).await;
        let calls = lab.script_calls().await;
        lab.log_calls_from(crate::lab::LONG_US).await;
        (sample.cpu_us(), calls)
    };
    let logged = [Variant::new("all stages, logged", round)];
    let rounds = lab.alternate(&logged).await.remove(0);
    let mut section = Section::new(
        "Where the server's time goes",
        "All stages at once, 100 B, concurrency 100, with each script call logged; the quietest round. Time \
         outside scripts goes to reading and writing the connections, XREADGROUP and HMGET. The time in scripts is by the server's clock.",
        &[
            "script",
            "µs/message",
            "messages a call",
            "median call, µs",
            "p99, µs",
            "longest, µs",
        ],
    );
    // Waits for the processor count as time in a script; the round with the fewest waits is used.
    let in_scripts = |calls: &[Call]| calls.iter().map(|call| call.us as f64).sum::<f64>();
    let quietest = |a: &&(f64, Vec<Call>), b: &&(f64, Vec<Call>)| {
        in_scripts(&a.1).total_cmp(&in_scripts(&b.1))
    };
    let (cpu_us, calls) = rounds.iter().min_by(quietest).expect("a round");
    let mut scripts: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for call in calls {
        let known = scripts.entry(&call.script).or_default();
        known.push(call.us as f64);
    }
    for (script, mut us) in scripts {
        us.sort_by(f64::total_cmp);
        let at = |share: f64| us[((us.len() - 1) as f64 * share) as usize];
        section.row([
            script.to_owned(),
            number(us.iter().sum::<f64>() / n as f64),
            number(n as f64 / us.len() as f64),
            number(at(0.5)),
            number(at(0.99)),
            number(at(1.0)),
        ]);
    }
    let rest = cpu_us - in_scripts(calls) / n as f64;
    for (name, us) in [("all else", rest), ("sum", *cpu_us)] {
        let blank = String::new;
        section.row([
            name.to_owned(),
            number(us),
            blank(),
            blank(),
            blank(),
            blank(),
        ]);
    }
    section
}
