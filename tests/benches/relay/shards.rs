//! The cost of shards: four of them on one server, and on several.

use lisa_core::topic::TopicSettings;
use lisa_tests::{Aof, Server, eventually};
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, cmd};

use crate::cases::{Case, Stage, compare};
use crate::lab::{self, Lab};
use crate::lisa::TOPIC;
use crate::report::{Reach, Report};

const SHARDS: u16 = 4;
const STAGES: [Stage; 3] = [Stage::Send, Stage::Drain, Stage::All];
const SLOTS: u16 = 16_384;

pub(crate) async fn run(lab: &Lab, report: &mut Report) {
    let n = lab.options.pick(40_000, 5_000);
    let sharded = |name, lab, shards| Case {
        settings: TopicSettings {
            shards,
            ..TopicSettings::default()
        },
        concurrency: 500,
        ..Case::plain(name, lab)
    };
    let cases = [sharded("1 shard", lab, 1), sharded("4 shards", lab, SHARDS)];
    let results = compare(lab, &cases, &STAGES, n).await;
    report.section(results.section(
        "Shards",
        "100 B, concurrency 500, all shards on the one server. A batch of 500 for four shards is four \
             calls of 125.",
    ));

    let mut clusters = Vec::new();
    for nodes in [1, 2, 4] {
        clusters.push(lab.beside_cluster(cluster(nodes).await).await);
    }
    let cases = [
        sharded("1 Redis process", &clusters[0], SHARDS),
        sharded("2 Redis processes", &clusters[1], SHARDS),
        sharded("4 Redis processes", &clusters[2], SHARDS),
    ];
    let results = compare(lab, &cases, &STAGES, n).await;
    for (index, stage) in STAGES.iter().enumerate() {
        report.reach(Reach::at_most(
            format!(
                "four Redis processes instead of one, 4 shards, {}: server time a message",
                stage.name()
            ),
            (105.0, 100.0),
            " %",
            100.0 * results.server_time_of_first(2, index),
        ));
    }
    report.section(results.section(
        "Several Redis processes",
        "100 B, concurrency 500, a topic of four shards on a cluster of one, two and four nodes, over TCP. Server time is \
             the sum of all nodes. On a machine with few cores, the processes and the client take turns: the rate then \
             shows nothing, and the server time shows whether a message costs more.",
    ));
}

/// Starts a cluster of masters among which the topic's shards are distributed evenly.
async fn cluster(nodes: usize) -> Vec<Server> {
    let start = || {
        let settings = lab::settings(Aof::Off).config("cluster-enabled", "yes");
        settings
            .config("cluster-port", &lisa_tests::free_port().to_string())
            .start()
    };
    let servers: Vec<Server> = (0..nodes).map(|_| start()).collect();
    let mut first = servers[0].connection().await;
    let mut slots = Vec::new();
    for shard in 0..SHARDS {
        let tag = format!("{{{TOPIC}:{shard}}}");
        slots.push(ask::<u16>(&mut first, &["CLUSTER", "KEYSLOT", &tag]).await);
    }
    slots.sort_unstable();
    let each = slots.len() / nodes;
    for (index, server) in servers.iter().enumerate() {
        let mut node = server.connection().await;
        let from = if index == 0 { 0 } else { slots[index * each] };
        let to = slots.get((index + 1) * each).copied().unwrap_or(SLOTS) - 1;
        let (from, to) = (from.to_string(), to.to_string());
        ask::<()>(&mut node, &["CLUSTER", "ADDSLOTSRANGE", &from, &to]).await;
        let epoch = (index + 1).to_string();
        ask::<()>(&mut node, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]).await;
    }
    for server in &servers[1..] {
        let (port, bus) = (server.port().to_string(), bus_port(server).await);
        ask::<()>(&mut first, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await;
    }
    for server in &servers {
        let mut node = server.connection().await;
        eventually(std::time::Duration::from_secs(30), async || {
            let info: String = ask(&mut node, &["CLUSTER", "INFO"]).await;
            let complete = [
                "cluster_state:ok\r".to_owned(),
                format!("cluster_size:{nodes}\r"),
            ];
            complete
                .iter()
                .all(|line| info.contains(line.as_str()))
                .then_some(())
                .ok_or("the cluster is not complete")
        })
        .await;
    }
    servers
}

async fn bus_port(server: &Server) -> String {
    let mut node = server.connection().await;
    let found: [String; 2] = ask(&mut node, &["CONFIG", "GET", "cluster-port"]).await;
    found[1].clone()
}

async fn ask<T: FromRedisValue>(node: &mut MultiplexedConnection, words: &[&str]) -> T {
    let mut command = cmd(words[0]);
    command.arg(&words[1..]);
    let reply = command.query_async(node).await;
    reply.unwrap_or_else(|error| panic!("{words:?}: {error}"))
}
