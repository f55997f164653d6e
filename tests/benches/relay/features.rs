//! The cost of order, merging, priority and several groups, compared with a plain topic.

use lisa_core::topic::TopicSettings;
use lisa_producer::NewMessage;

use crate::cases::{Case, Stage, compare};
use crate::lab::Lab;
use crate::report::{Reach, Report};

/// The concurrency of each group.
const CONCURRENCY: usize = 500;
/// Ordering keys of the ordered topic.
const KEYS: u64 = 1000;
/// Sends of each merge key, where they merge.
const SENDS: u64 = 10;

pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let n = lab.options.pick(20_000, 4_000);
    let plain = |name| Case {
        concurrency: CONCURRENCY,
        ..Case::plain(name, lab)
    };
    let with = |name, dress: fn(u64, NewMessage) -> NewMessage| Case {
        dress,
        ..plain(name)
    };
    let groups = ["one", "two"].map(|group| group.parse().expect("a group"));
    let cases = [
        plain("plain"),
        with("ordered, 1,000 keys", |number, message| {
            message.key(format!("key-{}", number % KEYS))
        }),
        with("merging, nothing to merge", |number, message| {
            message.merge_key(format!("merge-{number}"))
        }),
        Case {
            sends_a_message: SENDS,
            ..with("merging, 10 sends a key", |number, message| {
                message.merge_key(format!("merge-{}", number / SENDS))
            })
        },
        with("priority, random", |_, message| {
            message.priority(fastrand::i32(0..100))
        }),
        Case {
            settings: TopicSettings {
                groups: groups.to_vec(),
                ..TopicSettings::default()
            },
            ..plain("two groups")
        },
    ];
    let stages = [Stage::Send, Stage::Drain];
    let results = compare(lab, &cases, &stages, n).await;
    for (case, figure, deliveries) in [
        (1, "ordered topic, drain, server time of plain", 1.0),
        (2, "merging topic, drain, server time of plain", 1.0),
        (4, "priority topic, drain, server time of plain", 1.0),
        (
            5,
            "two-group topic, drain, server time a delivery of plain",
            2.0,
        ),
    ] {
        let ratio = results.server_time_of_first(case, 1) / deliveries;
        let bounds = if case == 1 { (2.5, 2.0) } else { (2.5, 1.8) };
        report.reach(Reach::at_most(figure, bounds, "×", ratio));
    }
    report.section(results.section(
        "Features",
        "100 B, concurrency 500 in each group. A send is counted as it is made: 10 that merge are 10 \
             sends, and one message to drain. A message of two groups is counted once and delivered twice. Merging and \
             priority have a window of 100 messages that are ready or in flight.",
    ));
}
