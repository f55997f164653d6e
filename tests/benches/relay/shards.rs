//! The cost of shards on one server. Shards are for several servers, so this shows only their overhead.

use lisa_core::topic::TopicSettings;

use crate::cases::{Case, Stage, compare};
use crate::lab::Lab;
use crate::report::Report;

pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let n = lab.options.pick(40_000, 5_000);
    let sharded = |name, shards| Case {
        settings: TopicSettings {
            shards,
            ..TopicSettings::default()
        },
        ..Case::plain(name, lab)
    };
    let cases = [sharded("1 shard", 1), sharded("4 shards", 4)];
    let stages = [Stage::Send, Stage::Drain, Stage::All];
    let results = compare(lab, &cases, &stages, n).await;
    report.section(results.section(
        "Shards",
        "100 B, concurrency 100, all shards on the one server. A batch of 500 for four shards is four \
             calls of 125.",
    ));
}
