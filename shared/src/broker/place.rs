//! Where the shards of a topic are. The first one leads to the newest, for whoever knew only older ones.

use std::ops::Range;

use redis::Value;

use super::deliver::{command, text};
use super::{Broker, BrokerError, TopicHandle};
use crate::keys::ShardKeys;
use crate::scripts::{Point, Vacating, unexpected};
use crate::topic::{Shard, Topic};

/// Which shards a topic has. They are numbered on: those that follow others come behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Those that are being given up; its end is the first that is not.
    pub(super) old: Range<u16>,
    /// Those that were given up, and whose keys may still be there.
    pub(super) vacating: Option<Range<u16>>,
}

impl Place {
    /// Nothing is given up.
    pub(super) fn of(open: u16) -> Self {
        Self {
            old: open..open,
            vacating: None,
        }
    }
}

impl Broker {
    /// Finds the shards of a topic, which need not be there.
    pub(super) async fn follow(&self, topic: &Topic) -> Result<Place, BrokerError> {
        let mut place = Place::default();
        loop {
            let open = place.old.end;
            let shard = ShardKeys::new(&self.inner.namespace, topic, Shard::new(open), &[]);
            let mut cmd = command("HMGET", &shard.conf);
            cmd.arg(&["next", "previous", "vacating"]);
            let reply = self.call(&shard.conf, &cmd).await?;
            let Value::Array(values) = &reply else {
                return Err(BrokerError::Reply {
                    what: "HMGET",
                    error: unexpected("the numbers of shards", &reply),
                });
            };
            let field = |index: usize| values.get(index).and_then(|value| text(value).ok());
            let number = |index| field(index).and_then(|text| text.parse::<u16>().ok());
            if let Some((start, end)) = field(2).and_then(|text| text.split_once(' ')) {
                let vacating = start.parse().ok().zip(end.parse().ok());
                place.vacating = vacating.map(|(start, end)| start..end);
            }
            match number(0).filter(|next| *next > open) {
                Some(next) => place.old = next..next,
                None => {
                    place.old = number(1).filter(|old| *old < open).unwrap_or(open)..open;
                    return Ok(place);
                }
            }
        }
    }

    /// Whether a topic has other shards by now than a handle knows.
    pub(super) async fn has_moved(&self, handle: &TopicHandle) -> Result<bool, BrokerError> {
        let place = self.follow(handle.name()).await?;
        Ok(place.old.end != handle.open())
    }

    /// Lets those who look for a topic go on from its first shard to another one.
    pub(super) async fn point(&self, topic: &Topic, open: u16) -> Result<(), BrokerError> {
        let first = ShardKeys::new(&self.inner.namespace, topic, Shard::new(0), &[]);
        let unknown = |_| BrokerError::UnknownTopic(topic.clone());
        self.run(&first, &Point { next: open })
            .await?
            .map_err(unknown)
    }

    /// Notes that shards were given up and may still have keys; or, once these are gone, that they have none any more.
    pub(super) async fn note_vacating(
        &self,
        topic: &Topic,
        shards: Range<u16>,
        gone: bool,
    ) -> Result<(), BrokerError> {
        let first = ShardKeys::new(&self.inner.namespace, topic, Shard::new(0), &[]);
        let unknown = |_| BrokerError::UnknownTopic(topic.clone());
        self.run(&first, &Vacating { shards, gone })
            .await?
            .map_err(unknown)
    }
}
