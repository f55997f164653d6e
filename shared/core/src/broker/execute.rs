//! Runs scripts on the current keys of a shard. If a script refuses, repairs the cause and runs it again.

use std::time::{Duration, Instant};

use crate::broker::{Broker, BrokerError, TopicHandle};
use crate::keys::KeyScope;
use crate::redis::Script;
use crate::scripts::{Args, Call, General, Operation, Refusal, Reply};
use crate::topic::{Group, Shard};

/// The number of tries of a call that is refused. Each refusal has one cause that is gone afterwards, so two tries
/// suffice unless the topic changes at that moment.
const TRIES: u32 = 5;
/// The pause before another try, multiplied by its number: a change of the groups reaches one shard after another.
const PAUSE: Duration = Duration::from_millis(5);

impl Broker {
    /// Runs a general script on a shard, about one of its groups or all of them.
    pub(super) async fn general<G: General>(
        &self,
        topic: &TopicHandle,
        shard: Shard,
        group: Option<&Group>,
        call: &G,
    ) -> Result<G::Reply, BrokerError> {
        let mut tries = Tries::new(topic);
        loop {
            let handle = self.topic(topic.name()).await?;
            let refusal = match self.general_once(&handle, shard, group, call).await? {
                Ok(reply) => return Ok(reply),
                Err(refusal) => refusal,
            };
            self.recover(&mut tries, &handle, shard, refusal).await?;
        }
    }

    /// Runs a general script once. It may refuse.
    pub(super) async fn general_once<G: General>(
        &self,
        handle: &TopicHandle,
        shard: Shard,
        group: Option<&Group>,
        call: &G,
    ) -> Result<Result<G::Reply, Refusal>, BrokerError> {
        debug_assert_eq!(G::OF_A_GROUP, group.is_some());
        let keys = handle.keys(shard)?;
        let index = match group {
            Some(group) => Some(handle.index(keys, group)?),
            None => None,
        };
        let call = Call {
            now: self.virtual_now(),
            groups: &keys.group_names,
            group: index,
            general: call,
        };
        self.run(keys, &call).await
    }

    /// Repairs the cause of a refusal, so that the call can be made again with the newest handle of the topic.
    pub(super) async fn recover(
        &self,
        tries: &mut Tries,
        handle: &TopicHandle,
        shard: Shard,
        refusal: Refusal,
    ) -> Result<(), BrokerError> {
        tries.next().await?;
        match refusal {
            // The caller has noted it.
            Refusal::Class => {}
            Refusal::Changed => self.reload_groups(handle, shard).await?,
            Refusal::Undeclared => self.restore(handle, shard).await?,
        }
        Ok(())
    }

    /// Runs a script and reads its reply.
    pub(super) async fn run<'k, O: Operation>(
        &self,
        on: &'k <O::Scope as KeyScope>::Keys<'k>,
        call: &O,
    ) -> Result<Result<O::Reply, Refusal>, BrokerError> {
        self.run_within(self.inner.call_timeout, Repeat::Safe, on, call)
            .await
    }

    /// Runs a script and reads its reply, with a call timeout.
    pub(super) async fn run_within<'k, O: Operation>(
        &self,
        call_timeout: Duration,
        repeat: Repeat,
        on: &'k <O::Scope as KeyScope>::Keys<'k>,
        call: &O,
    ) -> Result<Result<O::Reply, Refusal>, BrokerError> {
        let script = O::script();
        let mut script_call = script.call(&O::keys(on));
        call.args(&mut Args::new(script_call.cmd()));
        let started = Instant::now();
        let connection = &self.inner.connection;
        let reply = match self.wait.as_ref().filter(|wait| !wait.is_over()) {
            None => {
                let reply = match repeat {
                    Repeat::Safe => connection.eval(&script_call, call_timeout).await,
                    Repeat::Unsafe => connection.eval_once(&script_call, call_timeout).await,
                };
                reply.map(|reply| (reply, None))
            }
            Some(wait) => {
                let (then, limit) = (wait.command(), wait.limit);
                let replies = wait
                    .connection
                    .eval_then(&script_call, &then, limit, call_timeout + limit)
                    .await;
                replies.map(|(reply, waited)| (reply, Some((wait, waited))))
            }
        };
        self.measure(script, started, &reply);
        let (reply, waited) = reply?;
        if let Some(refusal) = Refusal::read(&reply) {
            return Ok(Err(refusal));
        }
        if let Some((wait, waited)) = waited {
            wait.note(&waited);
        }
        Reply::new(reply)
            .and_then(|mut reply| call.parse(&mut reply))
            .map(Ok)
            .map_err(|error| BrokerError::Reply {
                what: script.name(),
                error,
            })
    }

    fn measure<T>(
        &self,
        script: &Script,
        started: Instant,
        reply: &Result<T, crate::redis::ConnectionError>,
    ) {
        let Some(observer) = &self.inner.observer else {
            return;
        };
        match reply {
            Ok(_) => observer.script(script.name(), started.elapsed()),
            Err(error) => observer.redis_error(error.known_code()),
        }
    }
}

/// The rule for a call that Redis may already have run: repeat it, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    Safe,
    Unsafe,
}

/// Counts the tries of one call.
pub(super) struct Tries {
    topic: crate::topic::Topic,
    made: u32,
}

impl Tries {
    pub(super) fn new(topic: &TopicHandle) -> Self {
        Self::of(topic.name())
    }

    pub(super) fn of(topic: &crate::topic::Topic) -> Self {
        Self {
            topic: topic.clone(),
            made: 0,
        }
    }

    pub(super) fn any(&self) -> bool {
        self.made > 0
    }

    pub(super) async fn next(&mut self) -> Result<(), BrokerError> {
        self.made += 1;
        if self.made == TRIES {
            return Err(BrokerError::Changing(self.topic.clone()));
        }
        if self.made > 1 {
            tokio::time::sleep(PAUSE * self.made).await;
        }
        Ok(())
    }
}
