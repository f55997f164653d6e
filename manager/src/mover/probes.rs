//! Collects the probes of idle shards, and sends them together.

use std::sync::Arc;
use std::time::Duration;

use lisa_core::broker::{Broker, Probe, ProbeRequest, TopicHandle};
use lisa_core::topic::Shard;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::IDLE;

/// The longest time for which probes are collected. Shards that are probed together stay together, since they ask again at the
/// same time.
const GATHER: Duration = Duration::from_millis(500);
/// The largest number of probes in one request. Redis answers it within about 0.1 ms.
const BATCH: usize = 100;
/// The pause between two probes of a shard. With [`GATHER`], it adds up to [`IDLE`].
pub(super) const EVERY: Duration = IDLE.saturating_sub(GATHER);

/// Requests probes of shards. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Probes(mpsc::UnboundedSender<ProbeRequest>);

/// Returns the handle, and the future that answers its requests.
pub(super) fn start(broker: &Broker) -> (Probes, impl Future<Output = ()> + Send + use<>) {
    let (asks, asked) = mpsc::unbounded_channel();
    (Probes(asks), answer(broker.clone(), asked))
}

impl Probes {
    /// Probes a shard. Returns `None` if the script has to be called.
    pub(super) async fn ask(
        &self,
        topic: Arc<TopicHandle>,
        shard: Shard,
        has_messages: bool,
    ) -> Option<Probe> {
        let (answer, answered) = oneshot::channel();
        let request = ProbeRequest {
            topic,
            shard,
            has_messages,
            answer,
        };
        // Without an answer, the mover calls the script.
        self.0.send(request).ok()?;
        answered.await.ok()
    }
}

async fn answer(broker: Broker, mut asked: mpsc::UnboundedReceiver<ProbeRequest>) {
    // A batch that hangs or panics affects only itself.
    let mut batches = JoinSet::new();
    while let Some(first) = asked.recv().await {
        let mut batch = vec![first];
        let gather = async {
            while batch.len() < BATCH
                && let Some(request) = asked.recv().await
            {
                batch.push(request);
            }
        };
        let _ = timeout(GATHER, gather).await;
        while batches.try_join_next().is_some() {}
        let broker = broker.clone();
        batches.spawn(async move { broker.probe(batch).await });
    }
}
