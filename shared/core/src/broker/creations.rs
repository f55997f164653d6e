//! Bounds how fast a team creates topics. A removed topic leaves a record for a day, so the number of records must not grow without bound.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::sync::Mutex;
use crate::topic::{NamePattern, OverQuota, TopicQuota};

/// The number of topics that a team may create in a burst, or its quota if that is more.
const AT_ONCE: u32 = TopicQuota::DEFAULT;
/// The interval at which it may then create another one.
const EACH: Duration = Duration::from_secs(1);
/// The number of teams at which those that may create a whole burst again are forgotten.
const MANY_TEAMS: usize = 256;

/// A rate limit for the topics that each team creates in this process: a burst, and then one a second.
#[derive(Debug, Default)]
pub(super) struct Creations {
    /// The time at which a team may create a whole burst again, by the topics that it reaches.
    over: Mutex<HashMap<Vec<NamePattern>, Instant>>,
}

impl Creations {
    /// Counts a new topic of the team with this quota.
    ///
    /// # Errors
    /// It creates topics too fast.
    pub(super) fn admit(&self, quota: &TopicQuota, now: Instant) -> Result<(), OverQuota> {
        let at_once = quota.max_topics.max(AT_ONCE);
        let mut teams = self.over.lock();
        if teams.len() >= MANY_TEAMS {
            teams.retain(|_, over| *over > now);
        }
        let over = teams.entry(quota.topics.clone()).or_insert(now);
        let after = (*over).max(now) + EACH;
        if after > now + EACH * at_once {
            return Err(OverQuota::Created { at_once });
        }
        *over = after;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(topics: &str, max_topics: u32) -> TopicQuota {
        TopicQuota {
            topics: vec![topics.parse().unwrap()],
            max_topics,
            max_streams: 1,
            max_messages: None,
            max_bytes: None,
        }
    }

    #[test]
    fn a_team_creates_a_burst_of_topics_and_then_one_a_second() {
        let creations = Creations::default();
        let (shop, bank) = (quota("shop-*", 3000), quota("bank", 0));
        let start = Instant::now();
        let admitted = |quota: &TopicQuota, seconds| {
            let now = start + Duration::from_secs(seconds);
            let admitted = (0..5000).take_while(|_| creations.admit(quota, now).is_ok());
            admitted.count()
        };
        for (seconds, expected) in [(0, 3000), (0, 0), (1, 1), (3, 2), (9000, 3000)] {
            assert_eq!(admitted(&shop, seconds), expected, "at {seconds} s");
        }
        assert_eq!(admitted(&bank, 100), 1000);
        let over = creations.admit(&bank, start + Duration::from_secs(100));
        assert_eq!(over, Err(OverQuota::Created { at_once: 1000 }));
        for team in 0..1000 {
            let now = start + Duration::from_secs(10_000 + team);
            assert_eq!(
                creations.admit(&quota(&format!("team-{team}"), 1), now),
                Ok(())
            );
        }
        assert!(creations.over.lock().len() <= MANY_TEAMS);
    }
}
