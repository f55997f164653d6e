//! What a shard's loop does besides moving while its topic is resharded: hands the shard over if it is being given up,
//! and afterwards removes what is left of such shards.

use std::time::Duration;

use lisa_shared::broker::{Broker, BrokerError, Departure, HandedOver, TopicHandle, unless_gone};
use lisa_shared::metrics::Metrics;
use tokio::time::Instant;

use crate::share::Held;

/// How long everybody gets to learn of new shards before the old ones are closed: longer than consumers and managers take
/// to read the registry again, so that nothing due lies on a stream that nobody reads.
const CLOSE_AFTER: Duration = Duration::from_secs(3);
/// How long closed, empty shards stay, for processes that have not noticed the end: longer than any takes to read the
/// registry again.
const VACATE_AFTER: Duration = Duration::from_secs(15);
/// The pause before a shard is looked through again whose last deliveries are in flight; it doubles up to [`AT_REST`] while
/// none of them ends.
const IN_FLIGHT: Duration = Duration::from_millis(50);
/// How often one is looked at that has handed everything over while others have not, or which still remembers ended
/// messages.
const AT_REST: Duration = Duration::from_secs(1);

/// How far a shard's loop is with it.
#[derive(Debug, Default)]
pub(crate) struct GivingUp {
    since: Option<Instant>,
    departure: Departure,
    pace: Pace,
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
            .await;
        let Some(step) = unless_gone(step)? else {
            return Ok(Some(AT_REST));
        };
        if step.count > 0 {
            metrics.handed_over(name.as_str(), step.count);
        }
        Ok(Some(self.pace.after(step)))
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

/// How long to wait between two steps.
#[derive(Debug, Default)]
struct Pace {
    /// What was left when the shard had been looked through the last time.
    left: u64,
    pause: Duration,
}

impl Pace {
    fn after(&mut self, step: HandedOver) -> Duration {
        if step.more {
            return Duration::ZERO;
        }
        self.pause = match step.left {
            0 => AT_REST,
            left if left == self.left => (self.pause * 2).clamp(IN_FLIGHT, AT_REST),
            _ => IN_FLIGHT,
        };
        self.left = step.left;
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_with_deliveries_in_flight_is_looked_through_less_and_less_until_one_ends() {
        let mut pace = Pace::default();
        let mut after = |count, left, more| {
            let step = HandedOver { count, left, more };
            pace.after(step).as_millis()
        };
        assert_eq!(after(50, 300, true), 0);
        let same = [200; 7].map(|left| after(0, left, false));
        assert_eq!(same, [50, 100, 200, 400, 800, 1000, 1000]);
        // Looking through a long one takes several steps, which are no pauses.
        assert_eq!((after(0, 200, true), after(0, 200, false)), (0, 1000));
        assert_eq!((after(0, 199, false), after(0, 199, false)), (50, 100));
        assert_eq!((after(1, 198, true), after(0, 198, false)), (0, 50));
        assert_eq!(after(0, 0, false), 1000);
    }
}
