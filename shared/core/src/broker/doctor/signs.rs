//! Signs by which a server that failed over or was restored is recognized.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::broker::reply::command;
use crate::broker::{Broker, BrokerError, TopicHandle};
use crate::redis::Server;
use crate::topic::{Shard, Topic};

/// The most that the time of a shard may go back without a restore, in ms: scripts hold their time for that long if a
/// server's clock steps back.
const STEP_MS: u64 = 1000;

/// The signs of shards and of their servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    shards: BTreeMap<(Topic, Shard), ShardSigns>,
    /// The servers that were asked, by address.
    servers: BTreeMap<String, Option<Run>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ShardSigns {
    /// The run of the server that holds it; `None` if the server does not report it.
    run: Option<Run>,
    epoch: u64,
    /// The version of its settings, ms.
    version: u64,
    /// The latest time that a script saw, in ms.
    last_time: u64,
}

/// One run of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Run {
    /// The address by which the server is known; with Sentinel, it is always the same.
    address: String,
    id: String,
    /// The identity of its data, which its replicas share.
    data: String,
    /// That identity before the server became a master, or before it read its data from a file.
    data_before: String,
}

impl Run {
    /// Returns true if stored data may have gone back since `before`. A slot that moved to another running server lost
    /// nothing. A replica that took over, or a server that was restarted, may have.
    fn may_have_gone_back(&self, before: &Self) -> bool {
        if self.address == before.address {
            self.id != before.id
        } else {
            !before.data.is_empty() && self.data_before == before.data
        }
    }
}

impl Signs {
    /// Returns the reason why stored data may have gone back since `before`, if it may.
    #[must_use]
    pub fn suspicion(&self, before: &Self) -> Option<String> {
        self.shards.iter().find_map(|((topic, shard), now)| {
            let before = before.shards.get(&(topic.clone(), *shard))?;
            if let (Some(run), Some(other)) = (&now.run, &before.run)
                && run.may_have_gone_back(other)
            {
                return Some("Redis was restarted, or another server took over".to_owned());
            }
            if now.version > before.version {
                // The topic may have been removed and created again.
                return None;
            }
            if now.epoch < before.epoch {
                let (now, before) = (now.epoch, before.epoch);
                return Some(format!(
                    "the epoch of {topic}:{shard} went back from {before} to {now}"
                ));
            }
            let by = before.last_time.saturating_sub(now.last_time);
            (by > STEP_MS).then(|| format!("the time of {topic}:{shard} went back by {by} ms"))
        })
    }

    /// Keeps the signs from `before` of a shard that could not be read now.
    pub fn keep(&mut self, topic: &Topic, shard: Shard, before: &Self) {
        let index = (topic.clone(), shard);
        if let Some(seen) = before.shards.get(&index) {
            self.shards.entry(index).or_insert_with(|| seen.clone());
        }
    }
}

impl Broker {
    /// Reads the signs of a shard, and of its server if that was not asked yet. Reads three fields of the shard.
    ///
    /// # Errors
    /// [`BrokerError`]. A server that refuses to report its run is not an error.
    pub async fn read_signs(
        &self,
        signs: &mut Signs,
        topic: &TopicHandle,
        shard: Shard,
    ) -> Result<(), BrokerError> {
        if topic.removal().is_some() {
            return Ok(());
        }
        let (keys, server) = (topic.keys(shard)?, self.server(topic, shard)?);
        let fields = vec![
            command("HGET", &keys.conf).arg("epoch"),
            command("HGET", &keys.stats).arg("last_time"),
            command("HGET", &keys.conf).arg("version"),
        ];
        let numbers: Vec<Option<u64>> = self.ask_all(&server, fields).await?;
        let number = |index: usize| numbers.get(index).copied().flatten().unwrap_or(0);
        let run = match signs.servers.entry(server.name()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(self.run_of(&server).await?),
        };
        let of_shard = ShardSigns {
            run: run.clone(),
            epoch: number(0),
            last_time: number(1),
            version: number(2),
        };
        signs.shards.insert((topic.name().clone(), shard), of_shard);
        Ok(())
    }

    async fn run_of(&self, server: &Server<'_>) -> Result<Option<Run>, BrokerError> {
        let mut info = redis::cmd("INFO");
        info.arg("server").arg("replication");
        let reply = match server.call(&info, self.inner.call_timeout).await {
            // Managed services may hide it.
            Err(error) if error.code.is_some() => return Ok(None),
            reply => reply?,
        };
        let lines: String = redis::from_redis_value(reply).unwrap_or_default();
        let field = |name: &str| {
            let mut lines = lines.lines();
            lines.find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
        };
        Ok(field("run_id:").map(|id| Run {
            address: server.name(),
            id,
            data: field("master_replid:").unwrap_or_default(),
            data_before: field("master_replid2:").unwrap_or_default(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(address: &str, id: &str, data: &str, data_before: &str) -> Run {
        let [address, id, data, data_before] = [address, id, data, data_before].map(str::to_owned);
        Run {
            address,
            id,
            data,
            data_before,
        }
    }

    fn signs(run: Option<Run>, epoch: u64, last_time: u64) -> Signs {
        let index = ("t".parse().expect("a topic"), Shard::new(0));
        let of_shard = ShardSigns {
            run,
            epoch,
            last_time,
            version: 0,
        };
        Signs {
            shards: [(index, of_shard)].into(),
            servers: BTreeMap::new(),
        }
    }

    #[test]
    fn what_went_back_is_suspicious_and_what_went_on_is_not() {
        let a = || Some(run("one", "a", "A", "0"));
        let before = signs(a(), 3, 5000);
        let suspicion = |now: Signs| now.suspicion(&before);
        assert_eq!(suspicion(before.clone()), None);
        assert_eq!(suspicion(signs(a(), 4, 9000)), None);
        assert_eq!(suspicion(signs(a(), 3, 4000)), None);
        assert_eq!(suspicion(signs(None, 3, 5000)), None);
        assert_eq!(suspicion(Signs::default()), None);
        let restarted = Some(run("one", "b", "B", "A"));
        for (now, word) in [
            (signs(restarted, 3, 5000), "restarted"),
            (signs(a(), 2, 5000), "epoch"),
            (signs(a(), 3, 3999), "1001 ms"),
            (signs(a(), 3, 0), "time"),
        ] {
            let why = suspicion(now).expect("a suspicion");
            assert!(why.contains(word), "{why}");
        }
    }

    #[test]
    fn a_slot_that_moved_is_no_suspicion_and_a_replica_that_took_over_is() {
        let before = signs(Some(run("one", "a", "A", "0")), 3, 5000);
        let suspicion = |now: Run| signs(Some(now), 3, 5000).suspicion(&before);
        assert_eq!(suspicion(run("two", "b", "B", "0")), None);
        // It took over from another one before.
        assert_eq!(suspicion(run("two", "b", "B", "C")), None);
        assert!(suspicion(run("two", "b", "B", "A")).is_some());
        // Nothing is known of the data.
        let before = signs(Some(run("one", "a", "", "")), 3, 5000);
        let now = signs(Some(run("two", "b", "", "")), 3, 5000);
        assert_eq!(now.suspicion(&before), None);
    }
}
