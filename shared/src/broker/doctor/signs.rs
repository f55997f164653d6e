//! What a server says of itself, by which one that failed over or was restored is told from the one before.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use redis::Value;

use super::super::deliver::{command, text};
use super::super::{Broker, BrokerError, TopicHandle};
use crate::link::Server;
use crate::scripts::unexpected;
use crate::topic::{Shard, Topic};

/// A server's clock may step back by this without a restore: scripts hold their time for so long.
const STEP_MS: u64 = 1000;

/// What was seen of shards and their servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    shards: BTreeMap<(Topic, Shard), ShardSigns>,
    /// The runs of the servers that were asked, by address.
    runs: BTreeMap<String, Option<String>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ShardSigns {
    /// Which run of which server holds it; `None` where that is not told.
    run: Option<String>,
    epoch: u64,
    /// The latest time that a script saw, ms.
    last_time: u64,
}

impl Signs {
    /// Says why what is stored may have gone back since `before`, if it may.
    #[must_use]
    pub fn suspicion(&self, before: &Self) -> Option<String> {
        self.shards.iter().find_map(|((topic, shard), now)| {
            let before = before.shards.get(&(topic.clone(), *shard))?;
            if let (Some(run), Some(other)) = (&now.run, &before.run)
                && run != other
            {
                return Some("redis was restarted or is another server".to_owned());
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

    /// Takes over what was seen `before` of a shard that could not be read now.
    pub fn keep(&mut self, topic: &Topic, shard: Shard, before: &Self) {
        let place = (topic.clone(), shard);
        if let Some(seen) = before.shards.get(&place) {
            self.shards.entry(place).or_insert_with(|| seen.clone());
        }
    }
}

impl Broker {
    /// Reads the signs of a shard, and of its server if that was not asked yet. Costs two fields of the shard.
    ///
    /// # Errors
    /// [`BrokerError`]. That a server may not be asked for its run is none.
    pub async fn read_signs(
        &self,
        signs: &mut Signs,
        topic: &TopicHandle,
        shard: Shard,
    ) -> Result<(), BrokerError> {
        let (keys, server) = (topic.keys(shard)?, self.server(topic, shard)?);
        let mut pipeline = redis::Pipeline::with_capacity(2);
        for (key, field) in [(&keys.conf, "epoch"), (&keys.stats, "last_time")] {
            let mut cmd = command("HGET", key);
            cmd.arg(field);
            pipeline.add_command(cmd);
        }
        let values = server.pipeline(&pipeline, self.inner.patience).await?;
        let number = |place: usize| match values.get(place) {
            Some(Value::Nil) | None => Ok(0),
            Some(value) => text(value)
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| BrokerError::Reply {
                    what: "HGET",
                    error: unexpected("a number", value),
                }),
        };
        let run = match signs.runs.entry(server.name()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(self.run_of(&server).await?),
        };
        let of_shard = ShardSigns {
            run: run.clone(),
            epoch: number(0)?,
            last_time: number(1)?,
        };
        signs.shards.insert((topic.name().clone(), shard), of_shard);
        Ok(())
    }

    async fn run_of(&self, server: &Server<'_>) -> Result<Option<String>, BrokerError> {
        let mut info = redis::cmd("INFO");
        info.arg("server");
        let reply = match server.call(&info, self.inner.patience).await {
            // Services that are managed by others may hide it.
            Err(error) if error.code.is_some() => return Ok(None),
            reply => reply?,
        };
        let lines = text(&reply).unwrap_or_default().lines();
        Ok(lines
            .filter_map(|line| line.strip_prefix("run_id:"))
            .map(|run| run.trim().to_owned())
            .next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signs(run: Option<&str>, epoch: u64, last_time: u64) -> Signs {
        let place = ("t".parse().expect("a topic"), Shard::new(0));
        let run = run.map(str::to_owned);
        let of_shard = ShardSigns {
            run,
            epoch,
            last_time,
        };
        Signs {
            shards: [(place, of_shard)].into(),
            runs: BTreeMap::new(),
        }
    }

    #[test]
    fn what_went_back_is_suspicious_and_what_went_on_is_not() {
        let before = signs(Some("a"), 3, 5000);
        let suspicion = |now: Signs| now.suspicion(&before);
        assert_eq!(suspicion(before.clone()), None);
        assert_eq!(suspicion(signs(Some("a"), 4, 9000)), None);
        assert_eq!(suspicion(signs(Some("a"), 3, 4000)), None);
        assert_eq!(suspicion(signs(None, 3, 5000)), None);
        assert_eq!(suspicion(Signs::default()), None);
        for (now, word) in [
            (signs(Some("b"), 3, 5000), "restarted"),
            (signs(Some("a"), 2, 5000), "epoch"),
            (signs(Some("a"), 3, 3999), "1001 ms"),
            (signs(Some("a"), 3, 0), "time"),
        ] {
            let told = suspicion(now).expect("a suspicion");
            assert!(told.contains(word), "{told}");
        }
    }
}
