//! Where the server's time goes: what each script costs a message, and the longest single call of the whole run, during
//! which nobody else is served.

use std::collections::BTreeMap;

use redis::cmd;

use crate::cases::{Case, Stage};
use crate::lab::{Lab, Spread, Variant};
use crate::report::{Reach, Report, Section, number};
use crate::slowlog::Call;

pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    report.section(costs(lab).await);
    // Of what all sections before this one noted.
    let mut section = Section::new(
        "Longest script calls",
        "Of each timed stretch that had a call of 0.5 ms or more: its longest call, by the server's clock. A host that takes \
         the processor away in the middle of a call makes it look long, hence the median.",
        &[
            "section",
            "script",
            "stretches",
            "longest call of a stretch, median, ms",
            "longest of all, ms",
        ],
    );
    let mut worst: f64 = 0.0;
    for ((name, script), ms) in lab.longest() {
        let spread = Spread::of(ms.iter().copied());
        worst = worst.max(spread.median);
        section.row([
            name.to_owned(),
            script,
            ms.len().to_string(),
            number(spread.median),
            number(spread.max),
        ]);
    }
    report.reach(Reach::at_most(
        "longest single script call: the worst script of the worst section, median of its stretches",
        (2.0, 1.0),
        " ms",
        worst,
    ));
    report.section(section);
}

/// Runs all stages at once with every script call in the slow log.
async fn costs(lab: &Lab) -> Section {
    let n = lab.options.pick(60_000, 10_000);
    let round = move || async move {
        log_calls_from(lab, 0).await;
        let sample = Case::plain("plain", lab).time(Stage::All, n).await;
        let calls = lab.script_calls().await;
        log_calls_from(lab, crate::lab::LONG_US).await;
        (sample.cpu_us(), calls)
    };
    let logged = [Variant::new("all stages, logged", round)];
    let rounds = lab.alternate(&logged).await.remove(0);
    let mut section = Section::new(
        "Where the server's time goes",
        "All stages at once, 100 B, concurrency 100, with each script call logged. What is not in a script is reading \
         and writing the connections, XREADGROUP and HMGET. The time in scripts is by the server's clock.",
        &[
            "script",
            "µs/message",
            "messages a call",
            "median call, µs",
            "p99, µs",
            "longest, µs",
        ],
    );
    let mut scripts: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in rounds.iter().flat_map(|(_, calls)| calls) {
        scripts.entry(&call.script).or_default().push(call);
    }
    let messages = n as f64 * rounds.len() as f64;
    let mut in_scripts = 0.0;
    for (script, calls) in scripts {
        let mut us: Vec<f64> = calls.iter().map(|call| call.us as f64).collect();
        us.sort_by(f64::total_cmp);
        let at = |share: f64| us[((us.len() - 1) as f64 * share) as usize];
        let each = us.iter().sum::<f64>() / messages;
        in_scripts += each;
        section.row([
            script.to_owned(),
            number(each),
            number(messages / us.len() as f64),
            number(at(0.5)),
            number(at(0.99)),
            number(at(1.0)),
        ]);
    }
    let all = Spread::of(rounds.iter().map(|(cpu_us, _)| *cpu_us)).median;
    for (name, us) in [("all else", all - in_scripts), ("sum", all)] {
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

async fn log_calls_from(lab: &Lab, us: u64) {
    let mut set = cmd("CONFIG");
    set.arg("SET").arg("slowlog-log-slower-than").arg(us);
    lab.ask::<()>(&set).await;
}
