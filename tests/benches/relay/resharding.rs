//! The cost of resharding a topic: how fast waiting messages migrate.

use lisa_core::topic::TopicSettings;
use lisa_producer::NewMessage;

use crate::cases::{Case, Stage, compare};
use crate::lab::Lab;
use crate::report::Report;

/// Ordering keys of the ordered topics.
const KEYS: u64 = 1000;

pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let n = lab.options.pick(40_000, 5_000);
    let sharded = |name, shards, dress: fn(u64, NewMessage) -> NewMessage| Case {
        settings: TopicSettings {
            shards,
            ..TopicSettings::default()
        },
        dress,
        ..Case::plain(name, lab)
    };
    let keyed = |number: u64, message: NewMessage| message.key(format!("key-{}", number % KEYS));
    let cases = [
        sharded("1 shard to 2", 1, |_, message| message),
        sharded("4 shards to 8", 4, |_, message| message),
        sharded("ordered, 1,000 keys, 1 shard to 2", 1, keyed),
        sharded("ordered, 1,000 keys, 4 shards to 8", 4, keyed),
    ];
    let results = compare(lab, &cases, &[Stage::MigrateOut], n).await;
    report.section(results.section(
        "Resharding",
        "100 B, all shards on the one server. Without the three seconds before the old shards are closed.",
    ));
}
