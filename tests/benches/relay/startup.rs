//! The time until a binary is ready, and the memory it holds then.

use std::time::Duration;

use crate::binaries::{Role, Running, Site};
use crate::lab::{Lab, Spread, Variant};
use crate::report::{Report, Section, number};

/// The time after which the allocations of the start are over.
const SETTLE: Duration = Duration::from_secs(1);

const NOTE: &str = "The real release binaries with one topic. Ready is a 200 of `/readyz`: the server is checked, the \
topic declared, the scripts loaded as they are needed. Resident memory one second later. Medians of three, in brackets \
the least and the most.";

struct Start {
    ready_ms: f64,
    resident_mib: Option<f64>,
    anonymous_mib: Option<f64>,
    threads: Option<usize>,
}

/// Starts each binary, one at a time.
pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let site = Site::new(lab, 1);
    // The first start of a run reads the files from the disk.
    for role in Role::ALL {
        site.start(role).await;
    }
    let variants = Role::ALL.map(|role| {
        let site = &site;
        Variant::new(role.name(), move || async move {
            // The role that declares a topic depends on no other; the others find it declared.
            let declared = match role {
                Role::Manager | Role::Combined => None,
                Role::Producer | Role::Consumer => Some(site.start(Role::Manager).await),
            };
            let start = measure(&site.start(role).await).await;
            drop(declared);
            start
        })
    });
    let rounds = lab.alternate(&variants).await;
    let header = [
        "binary",
        "ready, ms",
        "resident, MiB",
        "of which not shared, MiB",
        "threads",
    ];
    let mut section = Section::new("Start", NOTE, &header);
    for (role, rounds) in Role::ALL.iter().zip(&rounds) {
        let spread = |values: Vec<f64>| {
            let known = !values.is_empty();
            known.then(|| Spread::of(values)).map_or_else(
                || "–".to_owned(),
                |all| {
                    format!(
                        "{} ({}–{})",
                        number(all.median),
                        number(all.min),
                        number(all.max)
                    )
                },
            )
        };
        section.row([
            role.name().to_owned(),
            spread(rounds.iter().map(|start| start.ready_ms).collect()),
            spread(
                rounds
                    .iter()
                    .filter_map(|start| start.resident_mib)
                    .collect(),
            ),
            spread(
                rounds
                    .iter()
                    .filter_map(|start| start.anonymous_mib)
                    .collect(),
            ),
            rounds[0]
                .threads
                .map_or("–".to_owned(), |count| count.to_string()),
        ]);
    }
    report.section(section);
}

async fn measure(process: &Running) -> Start {
    tokio::time::sleep(SETTLE).await;
    Start {
        ready_ms: process.ready_after.as_secs_f64() * 1e3,
        resident_mib: process.mib("VmRSS"),
        anonymous_mib: process.mib("RssAnon"),
        threads: process.threads(),
    }
}
