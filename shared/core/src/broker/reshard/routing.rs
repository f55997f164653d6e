//! Finds messages while their topic is resharded: asks the retiring shards first, then checks the messages in transit,
//! then asks the other shards. Messages only migrate in that direction, so none is missed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::broker::execute::Tries;
use crate::broker::reply::command;
use crate::broker::{Broker, BrokerError, TopicHandle};
use crate::message::{MessageId, OrderingKey, PreparedMessage};
use crate::state::{Accepted, Ended};
use crate::topic::{Shard, Topic};

/// The pause before another check whether a message is still in transit.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A search for messages, shard by shard.
pub(crate) struct Search<'a> {
    topic: &'a Topic,
    ids: Vec<&'a MessageId>,
    key: Option<&'a OrderingKey>,
    until: Instant,
    stage: Stage,
    shards: VecDeque<Shard>,
    /// The way the message ended, as the first shard that knows reports it.
    pub(crate) end: Option<Ended>,
}

enum Stage {
    Begin,
    /// The retiring shards are asked.
    Old(Arc<TopicHandle>),
    /// The other shards are asked.
    New(Arc<TopicHandle>),
}

impl Search<'_> {
    /// Returns the shards that one of the messages may be on, those of the first message first.
    fn shards_in(&self, handle: &TopicHandle) -> Vec<Shard> {
        let mut shards = Vec::new();
        for id in &self.ids {
            for shard in handle.shards_of(id, self.key) {
                if !shards.contains(&shard) {
                    shards.push(shard);
                }
            }
        }
        shards
    }
}

impl Broker {
    /// Begins a search for one message.
    pub(crate) fn search<'a>(
        &self,
        topic: &'a TopicHandle,
        id: &'a MessageId,
        key: Option<&'a OrderingKey>,
    ) -> Search<'a> {
        Search {
            key,
            ..self.search_all(topic, [id])
        }
    }

    /// Begins a search for several messages.
    pub(crate) fn search_all<'a>(
        &self,
        topic: &'a TopicHandle,
        ids: impl IntoIterator<Item = &'a MessageId>,
    ) -> Search<'a> {
        Search {
            topic: topic.name(),
            ids: ids.into_iter().collect(),
            key: None,
            until: Instant::now() + self.inner.call_timeout,
            stage: Stage::Begin,
            shards: VecDeque::new(),
            end: None,
        }
    }

    /// Returns the next shard to ask, or `None` when all shards that may have one of the messages were asked.
    pub(crate) async fn next_shard(
        &self,
        search: &mut Search<'_>,
    ) -> Result<Option<Shard>, BrokerError> {
        loop {
            if let Some(shard) = search.shards.pop_front() {
                return Ok(Some(shard));
            }
            search.stage = match std::mem::replace(&mut search.stage, Stage::Begin) {
                Stage::Begin => {
                    let handle = self.topic(search.topic).await?;
                    let shards = search.shards_in(&handle).into_iter();
                    search.shards = shards.filter(|shard| handle.is_retiring(*shard)).collect();
                    Stage::Old(handle)
                }
                Stage::Old(handle) => {
                    let shards = search.shards_in(&handle).into_iter();
                    let (old, new): (Vec<Shard>, Vec<Shard>) =
                        shards.partition(|shard| handle.is_retiring(*shard));
                    let ids = search.ids.iter();
                    let names: Vec<&[u8]> = ids.map(|id| id.as_str().as_bytes()).collect();
                    if self.any_in_transit(&handle, &old, &names).await? {
                        self.wait_for_arrival(search.topic, search.until).await?;
                        continue;
                    }
                    search.shards = new.into();
                    Stage::New(handle)
                }
                // If a resharding has just begun, the message may have migrated to a shard that was not asked.
                Stage::New(handle) => {
                    if handle.is_resharding() || !self.has_moved(&handle).await? {
                        return Ok(None);
                    }
                    self.load(search.topic).await?;
                    Stage::Begin
                }
            };
        }
    }

    /// Sends the messages that have no outcome yet to the shards they belong to now.
    pub(crate) async fn send_around(
        &self,
        topic: &Topic,
        messages: &[PreparedMessage],
        answers: &mut [Option<Accepted>],
    ) -> Result<(), BrokerError> {
        let until = Instant::now() + self.inner.call_timeout;
        let mut tries = Tries::of(topic);
        loop {
            let mut handle = self.topic(topic).await?;
            if tries.any() || !handle.is_resharding() {
                // A closed shard means that our topic metadata is stale.
                self.load(topic).await?;
                handle = self.topic(topic).await?;
            }
            if handle.removal().is_some() {
                let removed = BrokerError::BeingRemoved(topic.clone());
                return Err(match answers.iter().any(Option::is_some) {
                    true => BrokerError::Partly(removed.into()),
                    false => removed,
                });
            }
            tries.next().await?;
            let of_old = |message: &PreparedMessage| handle.old_shard_of_route(message.route());
            self.send_parts(&handle, of_old, messages, answers).await?;
            let mut old: BTreeMap<Shard, Vec<Vec<u8>>> = BTreeMap::new();
            for message in unanswered(messages, answers) {
                if let Some(shard) = of_old(message) {
                    old.entry(shard).or_default().extend(names(message));
                }
            }
            let mut in_transit = false;
            for (shard, names) in &old {
                in_transit |= self.any_in_transit(&handle, &[*shard], names).await?;
            }
            if in_transit {
                self.wait_for_arrival(topic, until).await?;
                tries = Tries::of(topic);
                continue;
            }
            let of_new = |message: &PreparedMessage| Some(handle.shard_of_message(message));
            self.send_parts(&handle, of_new, messages, answers).await?;
            if answers.iter().all(Option::is_some) {
                return Ok(());
            }
        }
    }

    /// Sends the messages that have no outcome yet, each to its shard.
    async fn send_parts(
        &self,
        handle: &TopicHandle,
        shard_of: impl Fn(&PreparedMessage) -> Option<Shard>,
        messages: &[PreparedMessage],
        answers: &mut [Option<Accepted>],
    ) -> Result<(), BrokerError> {
        let mut parts: BTreeMap<Shard, Vec<usize>> = BTreeMap::new();
        for index in (0..messages.len()).filter(|&index| answers[index].is_none()) {
            if let Some(shard) = shard_of(&messages[index]) {
                parts.entry(shard).or_default().push(index);
            }
        }
        for (shard, indices) in parts {
            let part: Vec<PreparedMessage> = indices.iter().map(|&i| messages[i].clone()).collect();
            let sent = self.send_to(handle, shard, &part, false).await;
            let sent = sent.map_err(|error| match answers.iter().any(Option::is_some) {
                true if !matches!(error, BrokerError::Partly(_)) => {
                    BrokerError::Partly(error.into())
                }
                _ => error,
            })?;
            for (index, answer) in indices.into_iter().zip(sent) {
                answers[index] = answer;
            }
        }
        Ok(())
    }

    /// Returns true if one of the names is of a message in transit from one of the shards.
    pub(crate) async fn any_in_transit(
        &self,
        handle: &TopicHandle,
        shards: &[Shard],
        names: &[impl AsRef<[u8]>],
    ) -> Result<bool, BrokerError> {
        for &shard in shards {
            let in_transit = &handle.keys(shard)?.in_transit;
            let names: Vec<&[u8]> = names.iter().map(AsRef::as_ref).collect();
            let found: Vec<Option<Vec<u8>>> =
                self.ask(command("HMGET", in_transit).arg(names)).await?;
            if found.iter().any(Option::is_some) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Waits for a moment, so that messages in transit can arrive.
    ///
    /// # Errors
    /// [`BrokerError::Changing`] after `until`.
    pub(crate) async fn wait_for_arrival(
        &self,
        topic: &Topic,
        until: Instant,
    ) -> Result<(), BrokerError> {
        if Instant::now() > until {
            return Err(BrokerError::Changing(topic.clone()));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
        Ok(())
    }
}

fn unanswered<'a>(
    messages: &'a [PreparedMessage],
    answers: &[Option<Accepted>],
) -> impl Iterator<Item = &'a PreparedMessage> {
    let pairs = messages.iter().zip(answers);
    pairs.filter_map(|(message, answer)| answer.is_none().then_some(message))
}

/// Returns the names in `in_transit` of a message and of those that it replaces or merges with.
fn names(message: &PreparedMessage) -> Vec<Vec<u8>> {
    let options = &message.options;
    let mut names = vec![message.id.as_str().as_bytes().to_vec()];
    names.extend(
        options
            .replace
            .iter()
            .map(|id| id.as_str().as_bytes().to_vec()),
    );
    if let Some(merge_key) = &options.merge_key {
        let key = options.key.as_ref().map_or("", |key| key.as_str());
        names.push(format!("\u{1}{key}\0{}", merge_key.as_str()).into_bytes());
    }
    names
}
