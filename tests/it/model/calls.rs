//! A call on both sides: what Redis answers and what the reference expects must be the same.

use super::check::declared;
use super::expected::without_reasons;
use super::reference::{Holder, Reference, Refused, Rules};
use super::removal::refused;
use super::run::{IDLE, InGarbage, Run, STEADY, Stop, same};
use lisa_core::broker::{
    Declare, Forgotten, Membership, Removal, Retired, Retirement, Settlement, Verdict,
};
use lisa_core::message::{MessageId, NewId, PreparedMessage};
use lisa_core::state::{CancelOutcome, End, RescheduleOutcome, SendOutcome, Settled};
use lisa_core::time::{When, millis};
use lisa_core::topic::{Group, Shard, TopicSettings};
use std::time::{Duration, Instant};

/// A step with every choice made, so that it can be repeated exactly. Groups are referred to by name, as one may be
/// gone by then.
pub(super) enum Call {
    Send(Vec<(Shard, Vec<PreparedMessage>)>),
    Move(u16),
    Settle(Group, Vec<(Shard, Vec<Settlement>)>),
    Reclaim,
    DropConsumer(&'static str),
    Cancel(MessageId),
    Reschedule(MessageId, When),
    Requeue(Group, InGarbage),
    Purge(Group, InGarbage),
    PurgeOld,
    Clean,
    Pause(bool),
    PauseGroup(Group, bool),
    Retire(Group, Option<Retirement>),
    RemoveGroup(Group, u16),
    Join(Group),
    Declare(Box<TopicSettings>),
    Lookup(MessageId),
    AckLate(Group, MessageId),
    Hide(Group, MessageId, Duration),
    RemoveTopic(Removal, Option<u64>),
    RemoveShards(Option<u16>),
    /// To this number of shards.
    Reshard(u16),
}

impl Run {
    pub(super) async fn call(&mut self, call: &Call) -> Result<(), Stop> {
        match call {
            Call::RemoveTopic(..) | Call::RemoveShards(_) | Call::Reshard(_) => {
                self.call_for_removal(call).await
            }
            Call::Declare(settings) if self.is_gone() => self.create(settings).await,
            _ if self.is_gone() => self.call_too_late(call).await,
            Call::Send(_) | Call::Move(_) | Call::Cancel(_) | Call::Reschedule(..) => {
                self.call_for_messages(call).await
            }
            Call::Settle(..) | Call::Reclaim | Call::DropConsumer(_) => {
                self.call_for_deliveries(call).await
            }
            _ => self.call_for_operators(call).await,
        }
    }

    async fn call_for_messages(&mut self, call: &Call) -> Result<(), Stop> {
        let (broker, topic) = (self.broker(), self.relay.topic());
        let clock = self.relay.now().get();
        match call {
            Call::Send(sends) => {
                for (shard, messages) in sends {
                    let reference = &mut self.shards[usize::from(shard.get())];
                    // Redis does not look up an id that no message had before.
                    let mut marked = messages.clone();
                    for message in &mut marked {
                        if self.sent.insert(message.id.clone()) {
                            message.new_id = NewId::generated();
                        }
                    }
                    let sent = refused(broker.send(topic, *shard, &marked).await)?;
                    let expected = reference.send(clock, messages);
                    let mut all = expected.iter().zip(messages);
                    self.unstored |= all.any(|(sent, message)| {
                        let Some(sent) = sent else {
                            return true;
                        };
                        let was_cancelled = sent.ended == Some(End::Cancelled);
                        sent.outcome == SendOutcome::Full || sent.id != message.id || was_cancelled
                    });
                    let some = expected.iter().any(Option::is_some);
                    let all: Option<Vec<_>> = expected.into_iter().collect();
                    let expected = all.ok_or(match some {
                        true => Refused::Partly,
                        false => Refused::BeingRemoved,
                    });
                    same("send", sent, expected)?;
                }
            }
            Call::Move(batch) => {
                for (shard, reference) in topic.shards().zip(&mut self.shards) {
                    let moved = refused(broker.move_due(topic, shard, *batch, IDLE).await)?;
                    let expected = reference.unless_gone(|r| r.move_due(clock, *batch, IDLE));
                    same("move", moved, expected)?;
                }
            }
            Call::Cancel(id) => {
                for shard in topic.shards_of(id, None) {
                    let reference = &mut self.shards[usize::from(shard.get())];
                    let cancelled = refused(broker.cancel_on(topic, shard, id).await)?;
                    let expected = reference.unless_gone(|r| r.cancel(clock, id));
                    same("cancel", &cancelled, &expected)?;
                    if !matches!(expected, Ok(CancelOutcome::Unknown { .. }) | Err(_)) {
                        break;
                    }
                }
            }
            Call::Reschedule(id, when) => {
                for shard in topic.shards_of(id, None) {
                    let reference = &mut self.shards[usize::from(shard.get())];
                    let rescheduled = broker.reschedule_on(topic, shard, id, *when).await;
                    let expected = reference.unless_gone(|r| r.reschedule(clock, id, *when));
                    same("reschedule", &refused(rescheduled)?, &expected)?;
                    if !matches!(expected, Ok(RescheduleOutcome::Unknown { .. }) | Err(_)) {
                        break;
                    }
                }
            }
            _ => unreachable!("not about messages"),
        }
        Ok(())
    }

    async fn call_for_deliveries(&mut self, call: &Call) -> Result<(), Stop> {
        let topic = self.topic().await?;
        let broker = self.broker();
        let clock = self.relay.now().get();
        match call {
            Call::Settle(group, settles) => {
                for (shard, settlements) in settles {
                    let reference = &mut self.shards[usize::from(shard.get())];
                    if reference.is_gone && topic.groups().contains(group) {
                        let settled = broker.settle(&topic, *shard, group, settlements).await;
                        same("late settle", refused(settled)?, Err(Refused::ShardGone))?;
                    }
                    let Some(g) = reference.place_of(group) else {
                        continue;
                    };
                    let settled = broker.settle(&topic, *shard, group, settlements).await?;
                    same("settle", &settled, &reference.settle(clock, g, settlements))?;
                    for (settlement, settled) in settlements.iter().zip(settled) {
                        let is_back = matches!(settlement.verdict, Verdict::HandBack { .. });
                        if is_back && !matches!(settled, Settled::Stale | Settled::Lost) {
                            let shard = usize::from(shard.get());
                            self.watch
                                .handed_back(shard, group.as_str(), &settlement.id);
                        }
                    }
                }
            }
            Call::Reclaim => {
                let begun = Instant::now();
                self.set_idle().await;
                for (shard, reference) in topic.shards().zip(&mut self.shards) {
                    for (g, group) in reference.names() {
                        let report = broker.reclaim(&topic, shard, &group, true).await?;
                        if begun.elapsed() > STEADY {
                            return Err(Stop::Slow);
                        }
                        same("reclaim", report, reference.reclaim(clock, g))?;
                    }
                }
            }
            Call::DropConsumer(name) => {
                for (shard, reference) in topic.shards().zip(&mut self.shards) {
                    for (g, group) in reference.names() {
                        let group_now = &mut reference.groups[g];
                        let holds = |holder: &Holder| matches!(holder, Holder::Held { consumer, .. } if consumer == name);
                        let held = group_now.stream.iter().any(|d| holds(&d.holder));
                        let dropped = broker.drop_consumer(&topic, shard, &group, name).await?;
                        same("drop_consumer", dropped, !held)?;
                        if !held {
                            group_now.consumers.remove(*name);
                        }
                    }
                }
            }
            _ => unreachable!("not about deliveries"),
        }
        Ok(())
    }

    async fn call_for_operators(&mut self, call: &Call) -> Result<(), Stop> {
        let topic = self.topic().await?;
        let broker = self.broker();
        let clock = self.relay.now().get();
        match call {
            Call::Requeue(group, seen) if self.shards[0].place_of(group).is_some() => {
                let requeued = broker.requeue(&topic, group, seen).await?;
                let mut expected = 0;
                for (shard, seen) in self.calls_by_shard(seen) {
                    let reference = &mut self.shards[shard];
                    let g = reference.place_of(group).unwrap_or_default();
                    expected += reference.requeue(clock, g, &seen);
                }
                same("requeue", requeued, expected)?;
            }
            Call::Purge(group, seen) if self.shards[0].place_of(group).is_some() => {
                let purged = broker.purge(&topic, group, seen).await?;
                let mut expected = 0;
                for (shard, seen) in self.calls_by_shard(seen) {
                    let reference = &mut self.shards[shard];
                    let g = reference.place_of(group).unwrap_or_default();
                    expected += reference.purge(clock, g, &seen);
                }
                same("purge", purged, expected)?;
            }
            Call::PurgeOld => {
                for (shard, reference) in topic.shards().zip(&mut self.shards) {
                    for (g, group) in reference.names() {
                        let purged = broker.purge_old(&topic, shard, &group).await?;
                        same("purge_old", purged, reference.purge_old(clock, g))?;
                    }
                }
            }
            Call::Clean => {
                for (shard, reference) in topic.shards().zip(&mut self.shards) {
                    for (g, group) in reference.names() {
                        let cleaned = broker.clean(&topic, shard, &group, None).await?;
                        same("clean", cleaned.last, None)?;
                        reference.clean(clock, g);
                    }
                    let forgotten = broker.forget(&topic, shard).await?;
                    let expected = Forgotten {
                        dropped: reference.forget_ends(clock),
                        left: 0,
                    };
                    same("forget", forgotten, expected)?;
                }
            }
            Call::Pause(paused) => {
                let changed = broker.pause(&topic, *paused).await?;
                let expected: Vec<_> = self.there().map(|shard| shard.pause(*paused)).collect();
                same("pause", changed, expected.contains(&true))?;
            }
            Call::PauseGroup(group, paused) if self.shards[0].place_of(group).is_some() => {
                let changed = broker.pause_group(&topic, group, *paused).await?;
                let pause = |shard: &mut Reference| {
                    let g = shard.place_of(group).unwrap_or_default();
                    shard.pause_group(g, *paused)
                };
                let expected: Vec<_> = self.there().map(pause).collect();
                same("pause_group", changed, expected.contains(&true))?;
            }
            Call::Retire(group, how) if self.shards[0].place_of(group).is_some() => {
                let retired = broker.retire(&topic, group, *how).await?;
                let mut expected = Retired::Same;
                for reference in self.there() {
                    let g = reference.place_of(group).unwrap_or_default();
                    if reference.retire(g, *how) == Retired::Done {
                        expected = Retired::Done;
                    }
                }
                same("retire", retired, expected)?;
            }
            Call::RemoveGroup(group, batch) if self.shards[0].place_of(group).is_some() => {
                // It is removed from all shards or from none, as they would not agree about the groups otherwise.
                let ends = |shard: &Reference| {
                    let g = shard.place_of(group);
                    g.is_some_and(|g| shard.ends_with(g, *batch))
                };
                let all = self.there().all(|shard| ends(shard));
                for (shard, reference) in topic.shards().zip(&mut self.shards) {
                    if !reference.is_gone && (all || !ends(reference)) {
                        let removed = broker.remove_group_by(&topic, shard, group, *batch);
                        let g = reference.place_of(group).unwrap_or_default();
                        let expected = reference.remove_group(clock, g, *batch);
                        same("remove_group", removed.await?, expected)?;
                    }
                }
                if all {
                    self.watch.forget(group.as_str());
                }
            }
            Call::Join(group) => {
                let joined = broker.join(&topic, group).await?;
                let mut memberships = (self.there()).map(|shard| shard.join(clock, group.as_str()));
                let lapsed = memberships.any(|joined| joined == Membership::Lapsed);
                let expected = if lapsed {
                    Membership::Lapsed
                } else {
                    Membership::Member
                };
                same("join", joined, expected)?;
            }
            Call::Declare(settings) => {
                let updated = broker
                    .declare(topic.name(), settings, Declare::Update)
                    .await;
                let updated = refused(updated.map(drop))?;
                if self.shards[0].removal.is_some() {
                    return same("declare", updated, Err(Refused::BeingRemoved));
                }
                same("declare", updated, Ok(()))?;
                let names: Vec<_> = settings.groups.iter().map(ToString::to_string).collect();
                let changed = (**settings != self.settings).then(|| Rules::of(settings));
                for reference in &mut self.shards {
                    reference.declare(&names, changed.as_ref());
                }
                if changed.is_some() {
                    self.settings = (**settings).clone();
                    self.fixed = declared(&self.relay.snapshot().await);
                    self.watch.forget_times();
                }
            }
            Call::AckLate(group, id) if self.shards[0].place_of(group).is_some() => {
                for shard in topic.shards_of(id, None) {
                    let reference = &mut self.shards[usize::from(shard.get())];
                    let g = reference.place_of(group).unwrap_or_default();
                    let late = broker.ack_late(&topic, shard, group, id);
                    let late = refused(late.await)?;
                    let expected = reference.unless_gone(|r| r.ack_late(clock, g, id));
                    same("late ack", late, expected)?;
                }
            }
            Call::Hide(group, id, delay) if self.shards[0].place_of(group).is_some() => {
                for shard in topic.shards_of(id, None) {
                    let reference = &mut self.shards[usize::from(shard.get())];
                    let g = reference.place_of(group).unwrap_or_default();
                    let hidden = broker.hide(&topic, shard, group, id, *delay).await;
                    let expected = reference.unless_gone(|r| r.hide(clock, g, id, millis(*delay)));
                    same("hide", refused(hidden)?, expected)?;
                }
            }
            Call::Lookup(id) => {
                for shard in topic.shards_of(id, None) {
                    let found = broker.lookup_on(&topic, shard, id).await;
                    let found = refused(found.map(without_reasons))?;
                    let reference = &mut self.shards[usize::from(shard.get())];
                    same("lookup", found, reference.unless_gone(|r| r.lookup(id)))?;
                }
            }
            // The group is gone.
            _ => {}
        }
        Ok(())
    }
}
