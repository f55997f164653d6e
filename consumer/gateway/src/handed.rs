//! Deliveries on their way to a client. Until the answer is written, each is handed back if anything goes wrong.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lisa_consumer_core::Delivery;
use lisa_consumer_core::internals::{Claims, Fetch, Part, TokenKey, decode, delivery, is_over};
use lisa_core::broker::{BrokerError, Settlement, TopicHandle, Verdict};
use lisa_core::message::{EntryId, MessageId, OrderingKey, Record};
use lisa_core::outage::Outage;
use lisa_core::state::Attempt;
use lisa_core::time::{UnixMs, When};
use lisa_core::topic::Shard;
use lisa_service::http::share::{Share, Shortage};
use lisa_service::http::{Problem, ProblemCode};
use lisa_service::spans::CommonAttributes;

use super::{Gateway, GroupPolls};

/// The most bytes of the messages of one answer, unless a single one is larger.
const MAX_ANSWER: usize = 16 * 1024 * 1024;
/// The memory for all answers that are not written yet, in bytes.
pub(super) const ROOM: usize = 256 * 1024 * 1024;
/// The part of it that one client can hold, by reading slowly.
pub(super) const ROOM_OF_ONE: usize = ROOM / 2;
/// The payloads of a small answer, in bytes: its text is at most six times as long.
const SMALL: usize = 256 * 1024;
/// The longest wait for a share of that memory.
const ROOM_WITHIN: Duration = Duration::from_secs(2);

/// Deliveries that were read for a pull. Dropping them hands them back: they are delivered again at once, and no attempt is
/// counted.
pub(super) struct Handed {
    gateway: Gateway,
    group: Arc<GroupPolls>,
    topic: Arc<TopicHandle>,
    shard: Shard,
    items: Vec<(MessageId, Attempt)>,
    /// The size of their payloads in bytes.
    payloads: usize,
    /// The memory of the answer.
    room: Option<Share>,
    /// The memory of the results in the same answer.
    results: Option<Share>,
}

/// A delivery that a client gets.
pub(super) struct Pulled {
    pub(super) token: String,
    pub(super) delivery: Delivery,
    pub(super) key: Option<OrderingKey>,
    pub(super) lease_until: UnixMs,
}

impl Handed {
    pub(super) fn new(
        gateway: &Gateway,
        group: &Arc<GroupPolls>,
        topic: Arc<TopicHandle>,
        shard: Shard,
        items: Vec<(MessageId, Attempt)>,
    ) -> Self {
        Self {
            gateway: gateway.clone(),
            group: group.clone(),
            topic,
            shard,
            items,
            payloads: 0,
            room: None,
            results: None,
        }
    }

    /// Adds the memory of results that are in the same answer.
    pub(super) fn add_results(&mut self, memory: Share) {
        self.results = Some(memory);
    }

    /// Returns what the spans of the deliveries have in common.
    pub(super) fn common(&self) -> CommonAttributes<'_> {
        CommonAttributes {
            topic: &self.group.topic,
            group: Some(&self.group.group),
            shard: Some(self.shard),
            client: Some(&self.gateway.process().name),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Splits off up to `count` deliveries, the first ones.
    pub(super) fn split(&mut self, count: usize) -> Self {
        let rest = self.items.split_off(count.min(self.items.len()));
        let items = std::mem::replace(&mut self.items, rest);
        Self::new(
            &self.gateway,
            &self.group,
            self.topic.clone(),
            self.shard,
            items,
        )
    }

    /// Puts deliveries that were split off back, before the others.
    pub(super) fn merge(&mut self, mut part: Self) {
        let mut items = std::mem::take(&mut part.items);
        items.append(&mut self.items);
        self.items = items;
    }

    /// Records that the connection has taken the answer: from now on, the client is responsible.
    pub(super) fn delivered(&mut self) {
        self.items.clear();
    }

    /// Returns true if the answer is so large that memory for its text is reserved before the text is built.
    pub(super) fn is_large(&self) -> bool {
        self.payloads > SMALL
    }

    /// Reserves memory for the text of the answer, in addition to that of its payloads.
    ///
    /// # Errors
    /// There is not enough.
    pub(super) fn reserve_text(&mut self, length: usize) -> Result<(), Problem> {
        let Some(room) = &mut self.room else {
            return Ok(());
        };
        let needed = (self.payloads + length).min(ROOM_OF_ONE);
        let more = needed.saturating_sub(room.held());
        room.try_add(more).map_err(no_room)
    }

    /// Returns the text of the answer, which holds its memory until it is written. Releases the memory of the payloads, which
    /// are now part of the text.
    ///
    /// # Errors
    /// There is no memory for a text that is longer than what was reserved: JSON escapes characters.
    pub(super) fn hold(&mut self, text: Bytes) -> Result<Bytes, Problem> {
        let text = match self.results.take() {
            Some(results) => results.hold(text),
            None => text,
        };
        let Some(mut room) = self.room.take() else {
            return Ok(text);
        };
        let length = text.len().min(ROOM_OF_ONE);
        room.shrink_to(length);
        room.try_add(length - room.held()).map_err(no_room)?;
        Ok(room.hold(text))
    }

    /// Adds the messages behind the deliveries in their ordering keys: up to `max` deliveries in all, and `max_per_key` of a key.
    /// Those of the first key come first; a delivery that finds no place is ready again.
    ///
    /// # Errors
    /// Redis does not answer. Messages that it then delivers come again after the lease of the topic.
    pub(super) async fn take_parked(
        &mut self,
        max: usize,
        max_per_key: usize,
    ) -> Result<(), Problem> {
        if max == 1 || max_per_key == 1 {
            return Ok(());
        }
        let items = self.items.iter();
        let items: Vec<_> = items
            .map(|(id, attempt)| (id.clone(), attempt.entry))
            .collect();
        let process = self.gateway.process();
        let (topic, group) = (&self.topic, &self.group.group);
        let taken = process
            .broker
            .take_parked(
                topic,
                self.shard,
                group,
                &process.name,
                &items,
                max,
                max_per_key,
            )
            .await
            .map_err(failed)?;
        self.items.truncate(taken.kept);
        self.items.extend(taken.more);
        Ok(())
    }

    /// Sets the lease of the deliveries, fetches their records and ordering keys, and makes their tokens. Settles those that are
    /// not worth delivering.
    ///
    /// # Errors
    /// Redis does not answer, or there is no memory for the answer.
    pub(super) async fn prepare(
        &mut self,
        key: &TokenKey,
        lease: Option<Duration>,
    ) -> Result<Vec<Pulled>, Problem> {
        let lease = lease.unwrap_or(self.topic.settings().lease);
        self.settle_expired();
        self.reserve().await?;
        let (ids, entries): (Vec<MessageId>, Vec<EntryId>) = self
            .items
            .iter()
            .map(|(id, attempt)| (id.clone(), attempt.entry))
            .unzip();
        let process = self.gateway.process();
        let (topic, shard, group) = (&self.topic, self.shard, &self.group.group);
        let broker = &process.broker;
        // Together these take one round trip to Redis.
        let (leased, records, keys) = tokio::try_join!(
            broker.lease(topic, shard, group, &process.name, &entries, lease),
            async { Ok(self.fetch(&ids).await) },
            broker.ordering_keys(topic, shard, &ids),
        )
        .map_err(failed)?;
        let held: HashSet<_> = leased.held.into_iter().collect();
        let mut fetched = records.into_iter().zip(keys);
        let (mut pulled, mut settled) = (Vec::with_capacity(held.len()), Vec::new());
        for (id, attempt) in std::mem::take(&mut self.items) {
            let fetched = fetched.next();
            // The others were reclaimed or settled.
            if !held.contains(&attempt.entry) {
                continue;
            }
            match fetched {
                Some((Ok(record), ordering_key)) => {
                    self.payloads += record.payload.len();
                    let (token, delivery) = self.deliver(key, &id, &attempt, record);
                    pulled.push(Pulled {
                        token,
                        delivery,
                        key: ordering_key,
                        lease_until: leased.until,
                    });
                    self.items.push((id, attempt));
                }
                Some((Err(verdict), _)) => settled.push(settlement(id, &attempt, verdict)),
                // It does not fit into this answer.
                None => settled.push(settlement(id, &attempt, HAND_BACK)),
            }
        }
        self.settle(settled);
        Ok(pulled)
    }

    fn settle_expired(&mut self) {
        let now = self
            .gateway
            .process()
            .broker
            .now_at(&self.topic, self.shard);
        let expired = self
            .items
            .extract_if(.., |(_, attempt)| is_over(attempt, || now));
        let expired = expired.map(|(id, attempt)| settlement(id, &attempt, Verdict::Expired));
        let expired = expired.collect();
        self.settle(expired);
    }

    /// Reserves memory for the answer: for its payloads, and for its text.
    async fn reserve(&mut self) -> Result<(), Problem> {
        let largest = self.group.sizes.largest(&self.topic);
        let expected = 2 * self.items.len().saturating_mul(largest).min(MAX_ANSWER);
        let mut room = self.gateway.room();
        let added = room.add_within(expected, ROOM_WITHIN).await;
        added.map_err(no_room)?;
        self.room = Some(room);
        Ok(())
    }

    /// Fetches the records of the first deliveries, in order: as many as fit into an answer. For each, the record, or the
    /// verdict if there is none to deliver.
    async fn fetch(&self, ids: &[MessageId]) -> Vec<Result<Record, Verdict>> {
        let (process, draining) = (self.gateway.process(), self.gateway.shutdown().draining());
        let outage = Outage::new("fetch messages");
        let outage = outage.of(&self.group.topic, Some(&self.group.group), self.shard);
        let sizes = &self.group.sizes;
        let mut fetch = Fetch::of(process, &self.topic, self.shard, sizes, draining, outage);
        let (mut records, mut bytes) = (Vec::with_capacity(ids.len()), 0);
        while records.len() < ids.len() && bytes < MAX_ANSWER {
            match fetch.next(&ids[records.len()..]).await {
                Part::Records(part) => {
                    bytes += part.iter().flatten().map(Bytes::len).sum::<usize>();
                    records.extend(part.into_iter().map(decode));
                }
                Part::TooLarge(unfetched) => {
                    let id = &ids[records.len()];
                    tracing::error!(%id, topic = %self.group.topic, size = unfetched.size, "cannot fetch a payload within redis.response_timeout; deferring it");
                    let pause = unfetched.pause.min(self.topic.settings().max_delay);
                    let when = When::After(pause);
                    records.push(Err(Verdict::HandBack { when }));
                }
                Part::Stopped => break,
            }
        }
        records
    }

    fn deliver(
        &self,
        key: &TokenKey,
        id: &MessageId,
        attempt: &Attempt,
        mut record: Record,
    ) -> (String, Delivery) {
        let broker = &self.gateway.process().broker;
        let (topic, group) = (&self.topic, &self.group.group);
        let now = broker.now_at(topic, self.shard);
        let delivery = delivery(topic, group, id, attempt, &mut record, now);
        let token = key.seal(&Claims::of(
            topic,
            group,
            self.shard,
            (id, attempt),
            &record,
        ));
        let lateness = delivery.lateness();
        broker.lateness_of(topic.name()).observe(lateness);
        if let Some(metrics) = &self.group.metrics {
            metrics.lateness(lateness);
        }
        (token, delivery)
    }

    fn settle(&self, settlements: Vec<Settlement>) {
        if !settlements.is_empty() {
            let topic = self.topic.clone();
            self.gateway
                .settle_later(&self.group, topic, self.shard, settlements);
        }
    }
}

/// Converts the error of a call. For the client, nothing has happened.
fn failed(error: BrokerError) -> Problem {
    match Problem::from(error) {
        problem if problem.code() == ProblemCode::Indeterminate => {
            Problem::new(ProblemCode::Unavailable, "Redis did not answer")
        }
        problem => problem,
    }
}

pub(super) fn no_room(shortage: Shortage) -> Problem {
    let of_client = match shortage {
        Shortage::OfClient => " to this client",
        Shortage::OfAll => "",
    };
    let detail = format!("too many large answers{of_client} at the same time; retry later");
    Problem::new(ProblemCode::Unavailable, detail)
}

/// Delivered again at once, and not counted.
const HAND_BACK: Verdict = Verdict::HandBack { when: When::NOW };

impl Drop for Handed {
    fn drop(&mut self) {
        let items = std::mem::take(&mut self.items).into_iter();
        let back = items.map(|(id, attempt)| settlement(id, &attempt, HAND_BACK));
        self.settle(back.collect());
    }
}

/// Settles a delivery that no client gets. None of these verdicts uses the fields of the record.
fn settlement(id: MessageId, attempt: &Attempt, verdict: Verdict) -> Settlement {
    Settlement {
        entry: attempt.entry,
        id,
        caller_id: false,
        max_attempts: u32::MAX,
        verdict,
    }
}

/// Settles deliveries, however long that takes. Stops when the process must end: they are then delivered after their lease.
pub(super) async fn settle(
    gateway: Gateway,
    group: Arc<GroupPolls>,
    topic: Arc<TopicHandle>,
    shard: Shard,
    settlements: Vec<Settlement>,
) {
    let broker = &gateway.process().broker;
    let mut outage = Outage::new("settle messages").of(&group.topic, Some(&group.group), shard);
    let settled: Result<(), BrokerError> = async {
        loop {
            match broker
                .settle(&topic, shard, &group.group, &settlements)
                .await
            {
                Ok(settled) => {
                    outage.recovered();
                    group.count(&settled);
                    return Ok(());
                }
                Err(error) if error.is_retryable() => {
                    tokio::time::sleep(outage.failed(&error)).await
                }
                Err(error) => return Err(error),
            }
        }
    }
    .await;
    if let Err(error) = settled {
        tracing::error!(%error, count = settlements.len(), topic = %group.topic, group = %group.group, "cannot settle; messages are delivered again after their lease");
    }
}
