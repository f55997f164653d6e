//! The cost of a message to the server by its options: the time of the scripts from send to ack, and bytes.

use lisa_core::topic::{Group, Merge, OnLate, Size, TopicSettings};
use lisa_producer::NewMessage;
use redis::cmd;

use crate::cases::{Case, Stage};
use crate::lab::{LONG_US, Lab, Spread, Variant};
use crate::lisa::HOUR;
use crate::report::{Report, Section, number};

const NOTE: &str = "Time in scripts by the server's clock, of all calls that belong to messages of 100 B: sends in batches of \
500, then a drain of what is due with concurrency 100 in each group. Counted by sends: 10 that merge are 10. The median of \
the rounds, which take turns. Bytes are the growth of `used_memory` over a message that waits. XREADGROUP, HMGET and the \
connections are not in it: they cost each case the same.";

/// Sends of each merge key, where they merge.
const SENDS: u64 = 10;

/// The cost of a send in one round, including all later calls for the message.
struct Cost {
    /// In scripts, µs: send, move, and what ends or retries it.
    us: [f64; 3],
    /// The bytes of a message that waits.
    bytes: f64,
}

impl Cost {
    fn sum(&self) -> f64 {
        self.us.iter().sum()
    }
}

pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let n = lab.options.pick(31_250, 7_800);
    let cases = cases(lab);
    let variants: Vec<_> = cases
        .iter()
        .map(|case| Variant::new(case.name.clone(), move || cost(lab, case, n)))
        .collect();
    let rounds = lab.alternate(&variants).await;
    let mut section = Section::new(
        "What a message costs",
        NOTE,
        &[
            "case",
            "send, µs",
            "move, µs",
            "settle, µs",
            "all, µs",
            "of plain",
            "waiting, B",
        ],
    );
    for (case, costs) in cases.iter().zip(&rounds) {
        let median =
            |figure: &dyn Fn(&Cost) -> f64| number(Spread::of(costs.iter().map(figure)).median);
        let of_plain = Spread::of_ratios(costs, &rounds[0], Cost::sum).median;
        section.row([
            case.name.clone(),
            median(&|cost| cost.us[0]),
            median(&|cost| cost.us[1]),
            median(&|cost| cost.us[2]),
            median(&Cost::sum),
            format!("{of_plain:.1}×"),
            median(&|cost| cost.bytes),
        ]);
    }
    report.section(section);
}

async fn cost(lab: &Lab, case: &Case<'_>, n: u64) -> Cost {
    lab.log_calls_from(0).await;
    let empty = lab.used_memory().await;
    let messages = n / case.sends_a_message;
    case.time(Stage::Send, messages).await;
    let [send, ..] = in_scripts(lab, n).await;
    let bytes = (lab.used_memory().await - empty) / messages as f64;
    case.time(Stage::Drain, messages).await;
    let [_, moved, settled] = in_scripts(lab, n).await;
    assert!(
        send > 0.0 && moved > 0.0 && settled > 0.0,
        "each stage calls scripts that the harness knows: {send} {moved} {settled}"
    );
    lab.log_calls_from(LONG_US).await;
    Cost {
        us: [send, moved, settled],
        bytes,
    }
}

/// The time that scripts took for one of `n` sends, since the latest stage began: send, move, settle. Forgets the
/// calls.
async fn in_scripts(lab: &Lab, n: u64) -> [f64; 3] {
    let mut us = [0.0; 3];
    for call in lab.script_calls().await {
        let stage = match call.script.as_str() {
            "send" | "send_plain" => 0,
            "move_due" | "move_due_plain" => 1,
            "ack" | "ack_plain" | "settle" => 2,
            _ => continue,
        };
        us[stage] += call.us as f64;
    }
    lab.ask::<()>(cmd("SLOWLOG").arg("RESET")).await;
    us.map(|us| us / n as f64)
}

fn cases(lab: &Lab) -> Vec<Case<'_>> {
    let case =
        |name: &str, change: fn(&mut TopicSettings), dress: fn(u64, NewMessage) -> NewMessage| {
            let mut case = Case {
                dress,
                ..Case::plain(name, lab)
            };
            change(&mut case.settings);
            case
        };
    let topic = |name: &str, change| case(name, change, |_, message| message);
    let message = |name: &str, dress| case(name, |_| (), dress);
    let merging = |name, merge| {
        let mut case = message(name, |number, message| {
            message.merge_key(format!("merge-{}", number / SENDS))
        });
        (case.settings.merge, case.sends_a_message) = (merge, SENDS);
        case
    };
    let ten_priorities: fn(u64, NewMessage) -> NewMessage =
        |number, message| message.priority((number % 10) as i32);
    let everything: fn(u64, NewMessage) -> NewMessage = |number, message| {
        let message = message.key(format!("key-{}", number % 100)).ttl(HOUR);
        let message = message.merge_key(format!("merge-{number}"));
        message.priority((number % 7) as i32)
    };
    vec![
        Case::plain("plain", lab),
        topic("`max_messages`", |it| it.max_messages = Some(1_000_000)),
        topic("`max_bytes`", |it| {
            it.max_bytes = Some(Size::new(1_000_000_000))
        }),
        topic("`max_lateness` with `drop`", |it| {
            (it.max_lateness, it.on_late) = (Some(HOUR), OnLate::Drop);
        }),
        topic("`rate`", |it| {
            (it.rate, it.burst) = ("1000000/s".parse().ok(), Some(1_000_000));
        }),
        topic("`max_ready = 1000`", |it| it.max_ready = Some(1000)),
        message("ttl", |_, message| message.ttl(HOUR)),
        case(
            "10 priorities, `max_ready = 100`",
            |it| it.max_ready = Some(100),
            ten_priorities,
        ),
        case(
            "10 priorities, `max_ready = 1000`",
            |it| it.max_ready = Some(1000),
            ten_priorities,
        ),
        message("merge key, no two alike", |number, message| {
            message.merge_key(format!("merge-{number}"))
        }),
        merging("9 of 10 are merged, `last`", Merge::Last),
        merging("9 of 10 are merged, `first`", Merge::First),
        message("ordering key, 5,000 of them", |number, message| {
            message.key(format!("key-{}", number % 5000))
        }),
        message("ordering key, 100 of them", |number, message| {
            message.key(format!("key-{}", number % 100))
        }),
        case(
            "the same with `key_index`",
            |it| it.key_index = true,
            |number, message| message.key(format!("key-{}", number % 100)),
        ),
        topic("two groups", |it| it.groups = groups(2)),
        topic("three groups", |it| it.groups = groups(3)),
        case(
            "key, merge key, ttl, priority and `max_ready = 1000`",
            |it| it.max_ready = Some(1000),
            everything,
        ),
        case(
            "the same with two groups",
            |it| (it.max_ready, it.groups) = (Some(1000), groups(2)),
            everything,
        ),
    ]
}

fn groups(count: usize) -> Vec<Group> {
    let names = ["one", "two", "three"].into_iter().take(count);
    names.map(|name| name.parse().expect("a group")).collect()
}
