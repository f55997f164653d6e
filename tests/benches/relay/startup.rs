//! The time until a binary is ready, and the memory it holds then.

use std::time::{Duration, Instant};

use lisa_core::topic::TopicSettings;
use lisa_producer::NewMessage;
use lisa_tests::Aof;

use crate::binaries::{Role, Running, Site};
use crate::lab::{self, Lab, ROUNDS, Spread, Variant};
use crate::lisa::{HOUR, Lisa, TOPIC, payload, settled};
use crate::report::{Report, Section, number};

/// The time after which the allocations of the start are over.
const SETTLE: Duration = Duration::from_secs(1);

const NOTE: &str = "The real release binaries with one topic. Ready is a 200 of `/readyz`: the server is checked, the \
topic declared, the scripts loaded as they are needed. Resident memory one second later. Medians of the rounds, in \
brackets the least and the most.";

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
                Role::Producer | Role::Consumer | Role::Gateway => {
                    Some(site.start(Role::Manager).await)
                }
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
            if values.is_empty() {
                "–".to_owned()
            } else {
                Spread::of(values).ranged()
            }
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
    report.section(cold(lab).await);
}

/// Starts a manager with millions of waiting messages and one that is overdue.
async fn cold(lab: &Lab) -> Section {
    let waiting = lab.options.pick(5_000_000, 100_000);
    let lab = lab.beside(lab::settings(Aof::Off).start()).await;
    let site = Site::with(&lab, vec![TOPIC.to_owned()]);
    let lisa = Lisa::within(&lab, site.namespace(), TopicSettings::default()).await;
    eprintln!("  filling {}", number(waiting as f64));
    lisa.send_batches(waiting, |_| {
        NewMessage::new(payload(100))
            .delay(HOUR + Duration::from_millis(fastrand::u64(0..3_600_000)))
    })
    .await;
    let consumer = lisa.start_consumer(1);
    let (mut ready, mut handled, mut resident) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=ROUNDS as u64 {
        lab.turn_to("cold start", round as usize, ROUNDS);
        let overdue = NewMessage::new(payload(100)).delay(Duration::from_millis(1));
        lisa.producer
            .send_message(TOPIC, overdue)
            .await
            .expect("accepted");
        tokio::time::sleep(Duration::from_millis(50)).await;
        let began = Instant::now();
        let (manager, ()) = tokio::join!(site.start(Role::Manager), async {
            settled(&consumer, round).await;
            handled.push(began.elapsed().as_secs_f64() * 1e3);
        });
        ready.push(manager.ready_after.as_secs_f64() * 1e3);
        resident.extend(manager.mib("VmRSS"));
        manager.end().await;
    }
    lisa.end().await;
    let mut section = Section::new(
        "Cold start",
        "The manager's release binary starts on a topic where this many messages wait and one is overdue; a consumer is \
         there already. From the start of the process, medians, in brackets the least and the most.",
        &[
            "waiting",
            "ready, ms",
            "the overdue message is settled, ms",
            "resident, MiB",
        ],
    );
    section.row([
        number(waiting as f64),
        Spread::of(ready).ranged(),
        Spread::of(handled).ranged(),
        Spread::of(resident).ranged(),
    ]);
    section
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
