//! The calls of the scripts, on topics where each has something to do.

use super::stage::{Asking, SHARD, Stage, defer, groups, name, reject};
use lisa_core::broker::{Broker, BrokerError, Declare, Retirement, Settlement, Verdict};
use lisa_core::message::{MessageId, NewId, PreparedMessage};
use lisa_core::time::{UnixMs, When};
use lisa_core::topic::{Group, Size, TopicSettings};
use lisa_tests::relay::{START, WORKER, id, message, ms, retry, settlement};
use redis::cmd;
use std::collections::BTreeMap;

/// The messages of a [`busy`] topic by their state, as the subjects of the calls below.
pub(super) struct Busy {
    pub(super) stage: Stage,
    /// Held by a consumer of a, the holder of key `k`, with another behind it.
    pub(super) held: Settlement,
    /// The calls on a message in the garbage of `a`.
    pub(super) seen: [(MessageId, UnixMs); 1],
}

/// A topic of two groups with a message in every state, so that each call has something to do.
pub(super) async fn busy(other: TopicSettings) -> Busy {
    let stage = Stage::with(TopicSettings {
        max_ready: Some(3),
        max_bytes: Some(Size::new(1_000_000)),
        dedup_window: ms(0),
        ..other
    })
    .await;
    stage
        .put(&[message("dead", ms(0)), message("again", ms(0)).ttl(90_000)])
        .await;
    stage.run("a", "dead", reject()).await;
    stage.run("a", "again", retry(ms(20))).await;
    stage.send(&[message("gone", ms(9))]).await;
    stage.cancel("gone").await;
    stage
        .put(&["holder", "parked"].map(|name| message(name, ms(0)).key("k")))
        .await;
    let held = stage.begin("a", "holder").await;
    stage.forget("a", &held).await;
    stage
        .put(&["r1", "r2", "gated"].map(|name| message(name, ms(1)).merge(name)))
        .await;
    stage
        .send(&[
            message("due", ms(10)).key("k").priority(2),
            message("waits", ms(50_000)).merge("x"),
        ])
        .await;
    stage.pass(5).await;
    stage.step(20);
    Busy {
        stage,
        held: settlement(&held, Verdict::Ack),
        seen: [(id("dead"), UnixMs::new(START))],
    }
}

pub(super) async fn two_groups() -> Busy {
    busy(groups(&["a", "b"])).await
}

/// A plain topic with a message in every state that such a topic has, and a pending garbage hook.
pub(super) async fn plain() -> Busy {
    let stage = Stage::with(TopicSettings {
        dedup_window: ms(0),
        ..groups(&["a"])
    })
    .await;
    let (broker, topic, group) = (stage.broker(), stage.topic(), name("a"));
    let enable = broker.enable_garbage_hook(topic, SHARD, &group);
    enable.await.unwrap();
    stage
        .put(&["dead", "again", "holder"].map(|name| message(name, ms(0))))
        .await;
    stage.run("a", "dead", reject()).await;
    stage.run("a", "again", retry(ms(20))).await;
    let held = stage.begin("a", "holder").await;
    stage.forget("a", &held).await;
    stage
        .send(&[
            message("gone", ms(9)),
            message("due", ms(10)),
            message("gated", ms(50_000)),
            message("waits", ms(50_000)),
        ])
        .await;
    stage.cancel("gone").await;
    stage.step(20);
    Busy {
        stage,
        held: settlement(&held, Verdict::Ack),
        seen: [(id("dead"), UnixMs::new(START))],
    }
}

/// A call of a general script, and whose groups' keys it looks at.
pub(super) struct Case {
    pub(super) what: &'static str,
    pub(super) groups: &'static [&'static str],
    pub(super) call: Verb,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Verb {
    SendPlain,
    SendNew,
    Send,
    SendMerged,
    SendReplacing,
    MoveDue,
    Ack,
    Retry,
    Defer,
    Reject,
    Expired,
    Lost,
    Reclaim,
    Cancel,
    CancelWaiting,
    Reschedule,
    Requeue,
    Purge,
    Clean,
    PauseTopic,
    ResumeTopic,
    PauseGroup,
    Retire,
    RemoveGroup,
    Lookup,
    Stats,
    Declare,
    DropConsumer,
    Forget,
    TakeGarbageHooks,
    FinishGarbageHook,
}

pub(super) const BOTH: &[&str] = &["a", "b"];
pub(super) const ONE: &[&str] = &["a"];
pub(super) const NONE: &[&str] = &[];

pub(super) const CASES: [Case; 24] = [
    case("send", NONE, Verb::Send),
    case("a send that is merged", BOTH, Verb::SendMerged),
    case("a send that replaces", BOTH, Verb::SendReplacing),
    case("move_due", BOTH, Verb::MoveDue),
    case("ack", ONE, Verb::Ack),
    case("settle with retry", ONE, Verb::Retry),
    case("settle with defer", ONE, Verb::Defer),
    case("settle with reject", ONE, Verb::Reject),
    case("settle with expired", ONE, Verb::Expired),
    case("settle with lost", ONE, Verb::Lost),
    case("reclaim", ONE, Verb::Reclaim),
    case("cancel", BOTH, Verb::Cancel),
    case("cancel of a waiting message", BOTH, Verb::CancelWaiting),
    case("reschedule", BOTH, Verb::Reschedule),
    case("requeue", ONE, Verb::Requeue),
    case("purge", ONE, Verb::Purge),
    case("clean", BOTH, Verb::Clean),
    case("pause of the topic", NONE, Verb::PauseTopic),
    case("resume of the topic", NONE, Verb::ResumeTopic),
    case("pause of a group", NONE, Verb::PauseGroup),
    case("retire", NONE, Verb::Retire),
    case("remove_group", ONE, Verb::RemoveGroup),
    case("lookup", BOTH, Verb::Lookup),
    case("stats", BOTH, Verb::Stats),
];

/// The calls of the scripts for a [`plain`] topic.
pub(super) const PLAIN: [Case; 3] = [
    case("send_plain", NONE, Verb::SendPlain),
    case("move_due_plain", ONE, Verb::MoveDue),
    case("ack_plain", ONE, Verb::Ack),
];

pub(super) const fn case(what: &'static str, groups: &'static [&'static str], call: Verb) -> Case {
    Case { what, groups, call }
}

impl Verb {
    /// Prepares the state before the call.
    pub(super) async fn prepare(self, busy: &Busy) {
        let (broker, topic) = (busy.stage.broker(), busy.stage.topic());
        match self {
            Self::RemoveGroup => {
                let drop = Some(Retirement::Drop);
                broker.retire(topic, &name("a"), drop).await.unwrap();
            }
            Self::Clean => {
                // An entry that no consumer holds.
                let mut remove = cmd("XGROUP");
                remove.arg("DELCONSUMER").arg(busy.stage.key("ready:a"));
                let _: u64 = busy.stage.command(remove.arg("a").arg(WORKER)).await;
            }
            Self::ResumeTopic => assert!(broker.pause(topic, true).await.unwrap()),
            Self::DropConsumer => {
                let held = std::slice::from_ref(&busy.held);
                busy.stage.end_all("a", held).await;
            }
            _ => {}
        }
    }

    /// Makes the call; returns the outcome as text.
    pub(super) async fn call(self, busy: &Busy) -> Result<String, BrokerError> {
        self.call_by(busy, busy.stage.broker()).await
    }

    /// Makes the call by another process's broker.
    pub(super) async fn call_by(self, busy: &Busy, broker: &Broker) -> Result<String, BrokerError> {
        let topic = busy.stage.topic();
        let a: &Group = &name("a");
        let send_all = async |messages: &[PreparedMessage]| {
            let sent = broker.send(topic, SHARD, messages).await?;
            let outcomes: Vec<_> = sent.iter().map(|sent| sent.outcome.to_string()).collect();
            Ok(outcomes.join(" "))
        };
        let send = async |message| send_all(&[message]).await;
        let settle = async |verdict| {
            let settlement = Settlement {
                verdict,
                ..busy.held.clone()
            };
            let settled = broker.settle(topic, SHARD, a, &[settlement]).await?;
            Ok(settled[0].as_str().to_owned())
        };
        match self {
            // The second one is due, and its id is that of a message that was cancelled before.
            Self::SendPlain => send_all(&[message("new", ms(9)), message("gone", ms(0))]).await,
            // With ids that Lisa made: the script looks up none.
            Self::SendNew => {
                let new = [("new", 9), ("now", 0)].map(|(name, after)| PreparedMessage {
                    new_id: NewId::generated(),
                    ..message(name, ms(after))
                });
                send_all(&new).await
            }
            Self::Send => send(message("new", ms(9)).key("k").ttl(5)).await,
            Self::SendMerged => send(message("new", ms(9)).merge("x")).await,
            Self::SendReplacing => send(message("new", ms(9)).replacing("waits")).await,
            Self::MoveDue => {
                let moved = broker.move_due(topic, SHARD, 200, ms(60_000)).await?;
                Ok(format!("{moved:?}"))
            }
            Self::Ack => settle(Verdict::Ack).await,
            Self::Retry => settle(retry(ms(5))).await,
            Self::Defer => settle(defer(5)).await,
            Self::Reject => settle(reject()).await,
            Self::Expired => settle(Verdict::Expired).await,
            Self::Lost => settle(Verdict::Lost).await,
            Self::Reclaim => Ok(format!(
                "{:?}",
                broker.reclaim(topic, SHARD, a, true).await?
            )),
            Self::Cancel => cancel(broker.cancel(topic, &id("gated"), None).await?),
            Self::CancelWaiting => cancel(broker.cancel(topic, &id("waits"), None).await?),
            Self::Reschedule => {
                let when = When::At(UnixMs::new(START + 70_000));
                Ok(format!(
                    "{:?}",
                    broker.reschedule(topic, &id("gated"), None, when).await?
                ))
            }
            Self::Requeue => Ok(broker.requeue(topic, a, &busy.seen).await?.to_string()),
            Self::Purge => Ok(broker.purge(topic, a, &busy.seen).await?.to_string()),
            Self::Clean => Ok(format!("{:?}", broker.clean(topic, SHARD, a, None).await?)),
            Self::PauseTopic => Ok(broker.pause(topic, true).await?.to_string()),
            Self::ResumeTopic => Ok(broker.pause(topic, false).await?.to_string()),
            Self::PauseGroup => Ok(broker.pause_group(topic, a, true).await?.to_string()),
            Self::Retire => {
                let how = Some(Retirement::Drain);
                Ok(format!("{:?}", broker.retire(topic, a, how).await?))
            }
            Self::RemoveGroup => Ok(format!("{:?}", broker.remove_group(topic, SHARD, a).await?)),
            Self::Lookup => Ok(format!(
                "{:?}",
                broker.lookup(topic, &id("gated"), None).await?
            )),
            Self::Stats => {
                let mut stats = broker.stats(topic).await?;
                // Those that have reported lately, on the clock of the server: fewer on a slow machine.
                stats
                    .groups
                    .iter_mut()
                    .for_each(|group| group.consumers = 0);
                Ok(format!("{stats:?}"))
            }
            Self::Declare => {
                let other = TopicSettings {
                    dedup_window: ms(1),
                    ..topic.settings().clone()
                };
                let declared = broker
                    .declare(topic.name(), &other, Declare::Update)
                    .await?;
                Ok(declared.name().to_string())
            }
            Self::DropConsumer => {
                let dropped = broker.drop_consumer(topic, SHARD, a, WORKER).await?;
                Ok(dropped.to_string())
            }
            Self::Forget => Ok(format!("{:?}", broker.forget(topic, SHARD).await?)),
            Self::TakeGarbageHooks => {
                let taken = broker.take_garbage_hooks(topic, SHARD, a, 10, ms(1000));
                Ok(format!("{:?}", taken.await?))
            }
            Self::FinishGarbageHook => {
                let [(id, time)] = &busy.seen;
                let finished = broker.finish_garbage_hook(topic, SHARD, a, id, *time);
                Ok(finished.await?.to_string())
            }
        }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "as the other arms")]
pub(super) fn cancel(outcome: lisa_core::state::CancelOutcome) -> Result<String, BrokerError> {
    let text = format!("{outcome:?}");
    let end = text.find([' ', '{']).unwrap_or(text.len());
    Ok(text[..end].to_owned())
}

/// Returns the answer of the second call where it differs from the first.
pub(super) fn second_answers() -> BTreeMap<&'static str, &'static str> {
    [
        ("send", "duplicate"),
        ("a send that is merged", "merged"),
        ("a send that replaces", "duplicate"),
        ("ack", "stale"),
        ("settle with retry", "stale"),
        ("settle with defer", "stale"),
        ("settle with reject", "stale"),
        ("settle with expired", "stale"),
        ("settle with lost", "stale"),
        ("requeue", "0"),
        ("purge", "0"),
        ("pause of the topic", "false"),
        ("resume of the topic", "false"),
        ("pause of a group", "false"),
        ("retire", "Same"),
    ]
    .into()
}

/// Calls whose second answer depends on what the first one left.
pub(super) const FREE: [&str; 4] = ["move_due", "reclaim", "clean", "remove_group"];
