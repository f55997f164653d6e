//! How a message is found while its topic is resharded: the shards that are being given up are asked first, then what
//! is on its way, then the others. Messages only go that way, so none is missed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;

use super::deliver::command;
use super::run::Tries;
use super::{Broker, BrokerError, TopicHandle};
use crate::message::{MessageId, NewMessage, OrderingKey};
use crate::scripts::unexpected;
use crate::state::{Accepted, Ended};
use crate::topic::{Shard, Topic};

/// How long to wait before looking again whether a message is still on its way.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Messages that are looked for, shard by shard.
pub(super) struct Search<'a> {
    topic: &'a Topic,
    ids: Vec<&'a MessageId>,
    key: Option<&'a OrderingKey>,
    until: Instant,
    stage: Stage,
    shards: VecDeque<Shard>,
    /// How the message ended, as the first shard says that knows.
    pub(super) end: Option<Ended>,
}

enum Stage {
    Begin,
    /// Those that are being given up are asked.
    Old(Arc<TopicHandle>),
    /// The others are asked.
    New(Arc<TopicHandle>),
}

impl Search<'_> {
    /// The shards that one of the messages may be on, those of the first one first.
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
    /// Begins to look for a message.
    pub(super) fn search<'a>(
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

    /// Begins to look for several messages.
    pub(super) fn search_all<'a>(
        &self,
        topic: &'a TopicHandle,
        ids: impl IntoIterator<Item = &'a MessageId>,
    ) -> Search<'a> {
        Search {
            topic: topic.name(),
            ids: ids.into_iter().collect(),
            key: None,
            until: Instant::now() + self.inner.patience,
            stage: Stage::Begin,
            shards: VecDeque::new(),
            end: None,
        }
    }

    /// Gives the next shard to ask; none when all have been asked that one of the messages may be on.
    pub(super) async fn next_shard(
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
                    search.shards = shards.filter(|shard| handle.is_leaving(*shard)).collect();
                    Stage::Old(handle)
                }
                Stage::Old(handle) => {
                    let shards = search.shards_in(&handle).into_iter();
                    let (old, new): (Vec<Shard>, Vec<Shard>) =
                        shards.partition(|shard| handle.is_leaving(*shard));
                    let ids = search.ids.iter();
                    let names: Vec<&[u8]> = ids.map(|id| id.as_str().as_bytes()).collect();
                    if self.any_leaving(&handle, &old, &names).await? {
                        self.wait_for_arrival(search.topic, search.until).await?;
                        continue;
                    }
                    search.shards = new.into();
                    Stage::New(handle)
                }
                // Should resharding have begun just now, the message may have gone where nobody asked.
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

    /// Sends the messages that have no answer yet to the shards that are theirs now.
    pub(super) async fn send_around(
        &self,
        topic: &Topic,
        messages: &[NewMessage],
        answers: &mut [Option<Accepted>],
    ) -> Result<(), BrokerError> {
        let until = Instant::now() + self.inner.patience;
        let mut tries = Tries::of(topic);
        loop {
            let mut handle = self.topic(topic).await?;
            if tries.any() || !handle.is_resharding() {
                // A shard that stores nothing new says that this process knows too little.
                self.load(topic).await?;
                handle = self.topic(topic).await?;
            }
            tries.next().await?;
            let of_old = |message: &NewMessage| handle.old_shard_of_route(message.route());
            self.send_parts(&handle, of_old, messages, answers).await?;
            let mut old: BTreeMap<Shard, Vec<Vec<u8>>> = BTreeMap::new();
            for message in unanswered(messages, answers) {
                if let Some(shard) = of_old(message) {
                    old.entry(shard).or_default().extend(names(message));
                }
            }
            let mut on_its_way = false;
            for (shard, names) in &old {
                let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
                on_its_way |= self.any_leaving(&handle, &[*shard], &names).await?;
            }
            if on_its_way {
                self.wait_for_arrival(topic, until).await?;
                tries = Tries::of(topic);
                continue;
            }
            let of_new = |message: &NewMessage| Some(handle.shard_of_message(message));
            self.send_parts(&handle, of_new, messages, answers).await?;
            if answers.iter().all(Option::is_some) {
                return Ok(());
            }
        }
    }

    /// Sends the messages that have no answer yet, each to the shard that `place` says.
    async fn send_parts(
        &self,
        handle: &TopicHandle,
        place: impl Fn(&NewMessage) -> Option<Shard>,
        messages: &[NewMessage],
        answers: &mut [Option<Accepted>],
    ) -> Result<(), BrokerError> {
        let mut parts: BTreeMap<Shard, Vec<usize>> = BTreeMap::new();
        for index in (0..messages.len()).filter(|&index| answers[index].is_none()) {
            if let Some(shard) = place(&messages[index]) {
                parts.entry(shard).or_default().push(index);
            }
        }
        for (shard, indices) in parts {
            let part: Vec<NewMessage> = indices.iter().map(|&i| messages[i].clone()).collect();
            let sent = self.send_to(handle, shard, &part).await;
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

    /// Whether one of the names is of a message that left one of the shards and has not arrived.
    pub(super) async fn any_leaving(
        &self,
        handle: &TopicHandle,
        shards: &[Shard],
        names: &[&[u8]],
    ) -> Result<bool, BrokerError> {
        for &shard in shards {
            let leaving = &handle.keys(shard)?.leaving;
            let mut cmd = command("HMGET", leaving);
            cmd.arg(names);
            match self.call(leaving, &cmd).await? {
                Value::Array(values) => {
                    if values.iter().any(|value| *value != Value::Nil) {
                        return Ok(true);
                    }
                }
                other => {
                    return Err(BrokerError::Reply {
                        what: "HMGET",
                        error: unexpected("messages that leave", &other),
                    });
                }
            }
        }
        Ok(false)
    }

    pub(super) async fn wait_for_arrival(
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
    messages: &'a [NewMessage],
    answers: &[Option<Accepted>],
) -> impl Iterator<Item = &'a NewMessage> {
    let pairs = messages.iter().zip(answers);
    pairs.filter_map(|(message, answer)| answer.is_none().then_some(message))
}

/// What a message or one that it concerns is called in `leaving`.
fn names(message: &NewMessage) -> Vec<Vec<u8>> {
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
