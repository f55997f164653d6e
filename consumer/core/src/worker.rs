//! The worker of one shard of one subscription: starts its loops and ends them in order.
//!
//! A worker reads messages ([`fetch`]), runs their deliveries concurrently ([`runner`], [`deliver`]) and renews leases
//! ([`renewal`]). It settles outcomes ([`settle`]), runs the hooks of messages in garbage ([`garbage_hook`]), and reports that
//! it is alive ([`presence`]).

pub(crate) mod callback;
pub(crate) mod deliver;
pub(crate) mod failures;
pub(crate) mod fetch;
pub(crate) mod garbage_hook;
pub(crate) mod later;
pub(crate) mod lease;
pub(crate) mod payload_limits;
pub(crate) mod payloads;
pub(crate) mod presence;
pub(crate) mod renewal;
pub(crate) mod runner;
pub(crate) mod settle;
pub(crate) mod spans;
pub(crate) mod state;
pub(crate) mod trial;

use std::sync::Arc;
use std::time::Duration;

use lisa_core::task;
use tokio::sync::mpsc;
use tokio::task::JoinError;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use crate::worker::state::{SettleQueue, ShardWorker};

/// The number of outcomes that may wait for Redis. A delivery beyond that keeps its permit until there is room.
const QUEUE: usize = 1024;
/// The time that outcomes get to reach Redis after the grace period ends: less than a supervisor waits.
const FLUSH: Duration = Duration::from_millis(1500);
/// The time after [`FLUSH`] at which tasks that still run are cut off.
const CUT_OFF: Duration = Duration::from_millis(250);

/// The error that ends a worker.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkerError {
    /// A loop of the worker panicked, or ended.
    #[error("the {0} loop ended{why}", why = why(.1.as_ref()))]
    Ended(&'static str, Option<JoinError>),
}

fn why(error: Option<&JoinError>) -> String {
    error.map_or_else(String::new, |error| format!(": {error}"))
}

/// Serves a shard until the shutdown has drained it. Dropping the future stops all tasks of the worker; its deliveries are
/// reclaimed after their lease.
pub(crate) async fn run(worker: Arc<ShardWorker>) -> Result<(), WorkerError> {
    let _stop = worker.stop.clone().drop_guard();
    let (outcomes, queue) = mpsc::channel(QUEUE);
    let mut settling = task::owned(settle::run(worker.clone(), queue));
    let mut renewing = task::owned(renewal::run(worker.clone()));
    let mut hooking = task::owned(garbage_hook::run(worker.clone()));
    let mut present = task::owned(presence::run(worker.clone()));
    let deliveries = TaskTracker::new();
    let queue = SettleQueue {
        worker: worker.clone(),
        outcomes,
        deliveries: deliveries.clone(),
    };
    tokio::select! {
        () = fetch::run(&queue) => {}
        ended = &mut settling => return Err(WorkerError::Ended("settle", ended.err())),
        ended = &mut renewing => return Err(WorkerError::Ended("lease", ended.err())),
        Err(error) = &mut hooking => return Err(WorkerError::Ended("garbage hook", Some(error))),
        Err(error) = &mut present => return Err(WorkerError::Ended("presence", Some(error))),
    }
    let leave = async {
        deliveries.close();
        deliveries.wait().await;
        drop(queue);
        let settled = settling.await;
        settled.map_err(|error| WorkerError::Ended("settle", Some(error)))?;
        if !hooking.is_finished() {
            let hooked = hooking.await;
            hooked.map_err(|error| WorkerError::Ended("garbage hook", Some(error)))?;
        }
        // A late report would create the consumer in Redis again.
        if !present.is_finished() {
            let ended = present.await;
            ended.map_err(|error| WorkerError::Ended("presence", Some(error)))?;
        }
        let (process, topic) = (&worker.process, worker.topic());
        let group = worker.subscription.group();
        let dropped = process
            .broker
            .drop_consumer(&topic, worker.shard, group, &process.name);
        if let Some(Err(error)) = worker.too_late.run_until_cancelled(dropped).await {
            tracing::debug!(%error, "cannot drop the consumer; the manager will");
        }
        Ok(())
    };
    let limit = async {
        worker.stop.cancelled().await;
        sleep(FLUSH).await;
        worker.too_late.cancel();
        sleep(CUT_OFF).await;
    };
    tokio::select! {
        left = leave => left,
        () = limit => {
            tracing::warn!(subscription = %worker.subscription, shard = %worker.shard, "handlers block a thread after the grace period; cutting them off");
            Ok(())
        }
    }
}
