//! Consumers in this process, each with its own connection, and one handler for all of them.

use super::deployment::TOPIC;
use super::{Deployment, SOON};
use lisa_consumer::{Consumer, Context, Delivery, Outcome, RunReport, delivery_fn};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The handler's work on a delivery, boxed so that many consumers can share it.
type Work = dyn Fn(Delivery) -> Pin<Box<dyn Future<Output = Outcome> + Send>> + Send + Sync;

/// Running consumers of one group.
pub(super) struct Workers {
    stop: CancellationToken,
    runs: Vec<JoinHandle<RunReport>>,
}

impl Workers {
    /// Starts `count` consumers of a group, each of which handles up to `concurrency` messages at a time.
    pub(super) async fn start<F, R>(
        here: &Deployment,
        group: &str,
        (count, concurrency): (usize, usize),
        work: F,
    ) -> Self
    where
        F: Fn(Delivery) -> R + Send + Sync + 'static,
        R: Future<Output = Outcome> + Send + 'static,
    {
        let work: Arc<Work> = Arc::new(move |delivery| Box::pin(work(delivery)));
        let stop = CancellationToken::new();
        let mut runs = Vec::new();
        for _ in 0..count {
            let work = work.clone();
            let handler = delivery_fn(move |delivery: Delivery, _: Context| work(delivery));
            let consumer = Consumer::builder(here.broker().await)
                .group(group)
                .concurrency(concurrency)
                .grace(SOON)
                .topic(TOPIC, handler)
                .build()
                .unwrap();
            let run = consumer
                .run()
                .with_graceful_shutdown(stop.clone().cancelled_owned());
            runs.push(tokio::spawn(async move { run.await.unwrap() }));
        }
        Self { stop, runs }
    }

    /// Ends them all cleanly, and returns the report of each.
    pub(super) async fn stop(self) -> Vec<RunReport> {
        self.stop.cancel();
        let mut reports = Vec::new();
        for run in self.runs {
            reports.push(run.await.expect("no panic"));
        }
        reports
    }
}
