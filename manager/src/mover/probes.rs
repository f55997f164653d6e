//! Collects the looks at idle shards, and sends those of one moment together.

use std::sync::Arc;
use std::time::Duration;

use lisa_core::broker::{Broker, Probe, ProbeRequest, TopicHandle};
use lisa_core::topic::Shard;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::IDLE;

/// The time for which looks are collected.
const GATHER: Duration = Duration::from_millis(20);
/// The largest number of looks in one request: Redis answers it within about 0.1 ms.
const BATCH: usize = 100;
/// The interval of a shard's looks. The answers are there after [`IDLE`].
pub(super) const EVERY: Duration = IDLE.saturating_sub(GATHER);

/// Asks for looks at shards. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Probes(mpsc::UnboundedSender<ProbeRequest>);

/// Returns the handle, and the future that answers.
pub(super) fn start(broker: &Broker) -> (Probes, impl Future<Output = ()> + Send + use<>) {
    let (asks, asked) = mpsc::unbounded_channel();
    (Probes(asks), answer(broker.clone(), asked))
}

impl Probes {
    /// Looks at a shard; `None` if the script has to be called.
    pub(super) async fn ask(&self, topic: Arc<TopicHandle>, shard: Shard) -> Option<Probe> {
        let (answer, answered) = oneshot::channel();
        let request = ProbeRequest {
            topic,
            shard,
            answer,
        };
        // No answer is an answer as well: the shard then calls its script.
        self.0.send(request).ok()?;
        answered.await.ok()
    }
}

async fn answer(broker: Broker, mut asked: mpsc::UnboundedReceiver<ProbeRequest>) {
    // A batch that hangs or panics affects only itself.
    let mut batches = JoinSet::new();
    while let Some(first) = asked.recv().await {
        sleep(GATHER).await;
        let mut requests = vec![first];
        while let Ok(request) = asked.try_recv() {
            requests.push(request);
        }
        while batches.try_join_next().is_some() {}
        while !requests.is_empty() {
            let batch = requests.split_off(requests.len().saturating_sub(BATCH));
            let broker = broker.clone();
            batches.spawn(async move { broker.probe(batch).await });
        }
    }
}
