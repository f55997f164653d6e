//! Counts the messages for which a group needs consumers: those that it has now, and those that it will have when a consumer that
//! is started now is ready.

use std::time::Duration;

use lisa_core::broker::{BrokerError, Forecast, GroupStats, Retirement, TopicHandle};
use lisa_core::time::{MILLISECOND, millis};
use lisa_core::topic::{Group, Rate};

use super::forecast::next_times;
use super::schedules::Schedules;
use crate::recurring::AHEAD;

/// The counts of a topic from which the demand of each of its groups follows.
#[derive(Debug)]
pub(crate) struct TopicDemand {
    is_paused: bool,
    groups: Vec<GroupStats>,
    /// The messages that are due, and not yet moved, or become due in time.
    due: Forecast,
    /// The number of recurring messages that become due in time, and are not sent yet.
    recurring: u64,
    /// The most messages that the topic's rate lets through to each group in time.
    rate: u64,
}

impl TopicDemand {
    /// Counts the messages of a topic that are due, or become due `within` this time.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub(crate) async fn count(
        schedules: Schedules<'_>,
        topic: &TopicHandle,
        within: Duration,
    ) -> Result<Self, BrokerError> {
        let broker = schedules.broker;
        let stats = broker.stats(topic).await?;
        let now = broker.now();
        // A message is due at its due time, not only after it.
        let until = now.plus(within + MILLISECOND);
        let due = broker.forecast(topic, &[until]).await?;
        let (upcoming, _) = schedules.upcoming(until).await?;
        let of_topic = upcoming
            .iter()
            .filter(|(_, schedule)| schedule.topic == *topic.name());
        let (recurring, _) = next_times(of_topic, now.plus(AHEAD), until);
        let settings = topic.settings();
        Ok(Self {
            is_paused: stats.paused,
            groups: stats.groups,
            due,
            recurring: recurring.len() as u64,
            rate: settings
                .rate
                .map_or(u64::MAX, |rate| in_time(rate, settings.burst, within)),
        })
    }

    /// Returns the number of messages for which the group needs consumers.
    ///
    /// A message in flight counts: its consumer is needed. One that is parked does not, because the message before it is counted,
    /// and more consumers do not help. What a rate holds back counts as far as the rate lets it through in time, and what a pause
    /// holds back does not count.
    pub(crate) fn of(&self, group: &Group) -> u64 {
        let Some(stats) = self.groups.iter().find(|stats| stats.group == *group) else {
            return 0;
        };
        if stats.retiring == Some(Retirement::Drop) {
            return 0;
        }
        let delivered = stats.ready + stats.in_flight;
        if self.is_paused || stats.paused {
            return delivered;
        }
        let due = |due: &lisa_core::broker::DueBefore| due.counts.iter().sum::<u64>();
        let new = match stats.retiring {
            Some(_) => 0,
            None => due(&self.due.waiting) + self.recurring,
        };
        let retry = self.due.retry.get(group).map_or(0, due);
        delivered + (stats.backlog + new + retry).min(self.rate)
    }
}

/// Returns the most messages that a rate lets through within this time.
fn in_time(rate: Rate, burst: Option<u32>, within: Duration) -> u64 {
    let burst = burst.unwrap_or_else(|| rate.default_burst());
    // The greatest number is a million for each of 600,000 ms.
    (millis(within) as f64 / rate.interval()) as u64 + u64::from(burst)
}

#[cfg(test)]
mod tests {
    use lisa_core::broker::DueBefore;

    use super::*;

    fn group(json: &str) -> GroupStats {
        let all = format!(
            r#"{{"group":"g","backlog":1,"parked":10,"ready":100,"in_flight":1000,"retry":9,"garbage":9,"consumers":1,
            "oldest_due_age_ms":0,"oldest_ready_age_ms":0{json}}}"#
        );
        serde_json::from_str(&all).unwrap()
    }

    fn demand(group: GroupStats) -> TopicDemand {
        let before = |count| DueBefore {
            counts: vec![count],
            total: 900_000_000,
        };
        let name = |name: &str| name.parse::<Group>().unwrap();
        TopicDemand {
            is_paused: false,
            groups: vec![group],
            due: Forecast {
                waiting: before(20_000),
                retry: [(name("g"), before(300_000)), (name("h"), before(7))].into(),
                is_estimate: false,
                is_paused: false,
            },
            recurring: 4_000_000,
            rate: u64::MAX,
        }
    }

    fn of(demand: &TopicDemand) -> u64 {
        demand.of(&"g".parse().unwrap())
    }

    #[test]
    fn what_a_consumer_can_have_in_time_counts_and_nothing_else() {
        assert_eq!(of(&demand(group(""))), 4_321_101);
        let other = demand(group("")).of(&"h".parse().unwrap());
        assert_eq!(other, 0, "a group that the topic does not have");
    }

    #[test]
    fn a_pause_leaves_what_is_delivered_already() {
        assert_eq!(of(&demand(group(r#","paused":true"#))), 1100);
        let mut paused = demand(group(""));
        paused.is_paused = true;
        assert_eq!(of(&paused), 1100);
    }

    #[test]
    fn a_retiring_group_gets_nothing_new() {
        assert_eq!(of(&demand(group(r#","retiring":"drain""#))), 301_101);
        assert_eq!(of(&demand(group(r#","retiring":"drop""#))), 0);
    }

    #[test]
    fn a_rate_bounds_what_is_not_delivered_yet() {
        let mut limited = demand(group(""));
        limited.rate = 55;
        assert_eq!(of(&limited), 1155);
        let seconds = Duration::from_secs;
        let rate = |text: &str| text.parse::<Rate>().unwrap();
        assert_eq!(in_time(rate("100/s"), None, seconds(30)), 3005);
        assert_eq!(in_time(rate("100/s"), Some(50), seconds(30)), 3050);
        assert_eq!(in_time(rate("6/m"), None, seconds(30)), 4);
        // What may be delivered now may be delivered to a consumer that needs no time.
        assert_eq!(in_time(rate("5/h"), None, seconds(0)), 1);
        let most = in_time(rate("1000000/s"), Some(u32::MAX), seconds(600));
        assert_eq!(most, 600_000_000 + u64::from(u32::MAX));
    }
}
