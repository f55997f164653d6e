//! Managers as processes, of which a test kills some.

use super::SOON;
use super::load::TOPIC;
use lisa_tests::{Api, Binary, Process, eventually, free_port};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The schedule of the check of ended ids, so that old shards soon no longer need to remember any.
pub(super) const EACH_SECOND: &str = "* * * * * *";

/// A manager as an operator runs it.
pub(super) struct Manager {
    pub(super) process: Process,
    pub(super) api: Api,
}

impl Manager {
    pub(super) async fn start(url: &str) -> Self {
        let port = free_port();
        let config = format!(
            r#"
            [redis]
            url = "{url}"
            [manager]
            listen = "127.0.0.1:{port}"
            [manager.jobs]
            clean = "{EACH_SECOND}"
            "#
        );
        let launch = Binary::Manager.with(["run"]).config(&config);
        let (process, api) = (launch.start(), Api::new(port));
        eventually(SOON, async || match api.try_get("/readyz").await {
            Some(answer) if answer.status == 200 => Ok(()),
            answer => Err(format!("{answer:?}")),
        })
        .await;
        Self { process, api }
    }

    /// A counter of the topic under load.
    pub(super) async fn counter(&self, name: &str) -> u64 {
        let metrics = self.api.get("/metrics").await.expect(200).body;
        let sample = format!("lisa_{name}_total{{topic=\"{TOPIC}\"}} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&sample));
        value.map_or(0, |value| value.parse().expect("a count"))
    }
}

/// Starts managers until one has shards to serve, and returns that one.
pub(super) async fn manager_with_shards(url: &str, idle: &mut Vec<Manager>) -> Manager {
    loop {
        let manager = Manager::start(url).await;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(2) {
            // The count of moved messages would not tell: each manager's sweep moves messages on all shards.
            if manager.process.stderr().contains("assignment changed") {
                return manager;
            }
            sleep(Duration::from_millis(50)).await;
        }
        idle.push(manager);
        assert!(idle.len() < 10, "none of ten managers has a shard");
    }
}
