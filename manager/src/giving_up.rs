//! What a shard's loop does besides moving while its topic is resharded: hands the shard over if it is being given up,
//! and afterwards removes what is left of such shards.

use std::time::Duration;

use lisa_shared::broker::{Broker, BrokerError, Departure, TopicHandle};
use lisa_shared::metrics::Metrics;
use tokio::time::Instant;

use crate::share::Held;

/// How long everybody gets to learn of new shards before the old ones are closed: longer than consumers and managers take
/// to read the registry again, so that nothing due lies on a stream that nobody reads.
const CLOSE_AFTER: Duration = Duration::from_secs(3);
/// How long closed, empty shards stay, for processes that have not noticed the end: longer than any takes to read the
/// registry again.
const VACATE_AFTER: Duration = Duration::from_secs(15);
/// How often a shard is looked at whose last deliveries are in flight.
const IN_FLIGHT: Duration = Duration::from_millis(50);
/// How often one is looked at that has handed everything over while others have not, or which still remembers ended
/// messages.
const AT_REST: Duration = Duration::from_secs(1);

/// How far a shard's loop is with it.
#[derive(Debug, Default)]
pub(crate) struct GivingUp {
    since: Option<Instant>,
    departure: Departure,
}

impl GivingUp {
    /// Does one step and gives how long to wait for the next; nothing if the shard is to be moved as ever.
    pub(crate) async fn step(
        &mut self,
        broker: &Broker,
        metrics: &Metrics,
        held: &Held,
    ) -> Result<Option<Duration>, BrokerError> {
        let name = held.topic.name();
        let topic = broker.known(name).unwrap_or_else(|| held.topic.clone());
        if !topic.is_leaving(held.shard) {
            return self.vacate(broker, &topic, held).await;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() < CLOSE_AFTER {
            return Ok(None);
        }
        let step = broker
            .hand_over(&topic, held.shard, &mut self.departure)
            .await?;
        if step.count > 0 {
            metrics.handed_over(name.as_str(), step.count);
        }
        Ok(Some(match step {
            step if step.more => Duration::ZERO,
            step if step.left > 0 => IN_FLIGHT,
            _ => AT_REST,
        }))
    }

    async fn vacate(
        &mut self,
        broker: &Broker,
        topic: &TopicHandle,
        held: &Held,
    ) -> Result<Option<Duration>, BrokerError> {
        if topic.vacating().is_none() || held.shard != topic.first_shard() {
            self.since = None;
            return Ok(None);
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() >= VACATE_AFTER {
            self.since = None;
            broker.vacate(topic).await?;
        }
        Ok(None)
    }
}
