//! What consumers ask about messages that were given up and whose hook has not run yet.

use std::time::Duration;

use super::read::DeadLetter;
use super::{Broker, BrokerError, TopicHandle};
use crate::message::MessageId;
use crate::scripts::{EnableNotices, FinishNotice, TakeNotices, TakenNotice, TakenNotices};
use crate::time::{UnixMs, millis};
use crate::topic::{Group, Shard};

/// The most notices that one call hands out.
const BATCH: usize = 100;

/// A message in garbage whose hook is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The message.
    pub id: MessageId,
    /// When it was given up.
    pub time: UnixMs,
    /// Why; `None` if that cannot be read.
    pub dead: Option<DeadLetter>,
}

impl Broker {
    /// Takes up to `count` (at most 100) messages in garbage whose hook is due, and says whether more
    /// may be. Nobody gets them again before `lease` is over.
    ///
    /// From the first call on, what the group gives up is noted; what was in garbage before is not.
    ///
    /// # Errors
    /// [`BrokerError`]; some may be taken then, and come again after the lease.
    pub async fn take_notices(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        count: usize,
        lease: Duration,
    ) -> Result<(Vec<Notice>, bool), BrokerError> {
        let take = TakeNotices {
            now: self.virtual_now(),
            group,
            batch: count.clamp(1, BATCH) as u16,
            lease,
        };
        let gone = || BrokerError::UnknownTopic(topic.name().clone());
        let keys = topic.group_keys(shard, group)?;
        let taken = self.run(&keys, &take).await?.map_err(|_| gone())?;
        let Some(TakenNotices { more, notices }) = taken else {
            let enable = EnableNotices { group };
            if self.run(&keys, &enable).await?.is_err() {
                self.declare_again(topic).await?;
                self.run(&keys, &enable).await?.map_err(|_| gone())?;
            }
            // What is given up from now on is noted: there is something to take next time.
            return Ok((Vec::new(), false));
        };
        let notice = |taken: TakenNotice| Notice {
            id: taken.id,
            time: taken.time,
            dead: DeadLetter::parse(&taken.dead),
        };
        Ok((notices.into_iter().map(notice).collect(), more))
    }

    /// Lets nobody else take a notice for another `lease`, because its hook still runs. One that was
    /// finished stays so.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn keep_notice(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        id: &MessageId,
        lease: Duration,
    ) -> Result<(), BrokerError> {
        let until = self.now_at(topic, shard).get() + millis(lease);
        let notices = &topic.group_keys(shard, group)?.group.notices;
        let mut cmd = super::deliver::command("ZADD", notices);
        cmd.arg("XX").arg("GT").arg(until).arg(id.as_str());
        self.call(notices, &cmd).await?;
        Ok(())
    }

    /// Forgets a notice whose hook is done; says whether it was there. `time` is the notice's: a
    /// message that was given up again since keeps its new notice.
    ///
    /// # Errors
    /// [`BrokerError`].
    pub async fn finish_notice(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: &Group,
        id: &MessageId,
        time: UnixMs,
    ) -> Result<bool, BrokerError> {
        let items = [(id.clone(), time)];
        let finish = FinishNotice { items: &items };
        let keys = topic.group_keys(shard, group)?;
        let finished = self.run(&keys, &finish).await?;
        Ok(finished.map_err(|_| BrokerError::UnknownTopic(topic.name().clone()))? > 0)
    }
}
