//! A subscription: one group of one topic, its handler and its limits.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lisa_core::broker::TopicHandle;
use lisa_core::topic::SubscriptionGroup;
use lisa_core::topic::{Group, Topic};

use crate::callbacks::Callbacks;
use crate::error::ConsumerError;
use crate::handler::Handler;
use crate::suspects::Suspects;

/// The default number of handlers of a subscription that run at a time.
pub const DEFAULT_CONCURRENCY: usize = 16;

/// A subscription: one group of one topic, its handler and its limits.
pub struct Subscription {
    topic: Topic,
    group: Group,
    handler: Arc<dyn Handler>,
    concurrency: usize,
    handler_timeout: Option<Duration>,
    callbacks: Callbacks,
    suspects: Arc<Suspects>,
}

impl Subscription {
    /// Creates a subscription for a group of a topic, with [`DEFAULT_CONCURRENCY`] and the topic's handler timeout.
    pub fn new(topic: Topic, group: Group, handler: impl Handler) -> Self {
        Self::shared(topic, SubscriptionGroup::Named(group), Arc::new(handler))
    }

    /// Creates a subscription for every message that becomes due in a topic while this process runs, no matter which
    /// other consumers get it (fan-out). The process has its own group. `instance_ttl` after the process ends, the group
    /// is removed with all messages that it has not handled.
    pub fn of_instance(topic: Topic, handler: impl Handler) -> Self {
        Self::shared(topic, SubscriptionGroup::Instance, Arc::new(handler))
    }

    pub(crate) fn shared(
        topic: Topic,
        group: SubscriptionGroup,
        handler: Arc<dyn Handler>,
    ) -> Self {
        let group = match group {
            SubscriptionGroup::Named(group) => group,
            SubscriptionGroup::Instance => Group::for_instance(),
        };
        Self {
            topic,
            group,
            handler,
            concurrency: DEFAULT_CONCURRENCY,
            handler_timeout: None,
            callbacks: Callbacks::default(),
            suspects: Arc::default(),
        }
    }

    /// Sets how many handlers may run at a time, over all shards: 1 to 10000.
    #[must_use]
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Sets the handler timeout, which overrides that of the topic. It must be more than zero.
    #[must_use]
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.handler_timeout = Some(timeout);
        self
    }

    /// Sends a callback to this topic for each message that a handler has acknowledged, before the message is removed: its
    /// payload, its headers, and `lisa-callback-` headers with the facts.
    ///
    /// While the topic is full or unavailable, the delivery is held for up to the handler timeout. Then it is deferred
    /// without counting as an attempt, so its handler runs again. See `guides/callbacks.md` of the book.
    #[must_use]
    pub fn success_topic(mut self, topic: Topic) -> Self {
        self.callbacks.success = Some(topic);
        self
    }

    /// Sends a callback to this topic for each message of the group that goes to garbage (dead letters), no matter which
    /// process moved it there. As [`Handler::on_garbage`], it starts with the first consumer that has such a topic.
    #[must_use]
    pub fn garbage_topic(mut self, topic: Topic) -> Self {
        self.callbacks.garbage = Some(topic);
        self
    }

    /// Returns this subscription with a new group for this process, because its current group is being removed.
    pub(crate) fn in_fresh_group(&self) -> Self {
        Self {
            topic: self.topic.clone(),
            group: Group::for_instance(),
            handler: self.handler.clone(),
            concurrency: self.concurrency,
            handler_timeout: self.handler_timeout,
            callbacks: self.callbacks.clone(),
            suspects: self.suspects.clone(),
        }
    }

    pub(crate) fn check(&self, most: usize) -> Result<(), ConsumerError> {
        if !(1..=most).contains(&self.concurrency) {
            return Err(ConsumerError::Concurrency(self.concurrency));
        }
        if self
            .handler_timeout
            .is_some_and(|timeout| timeout.is_zero())
        {
            return Err(ConsumerError::HandlerTimeout);
        }
        if self.handler.max_later().is_some() && self.callbacks.success.is_some() {
            return Err(ConsumerError::CallbackLater);
        }
        Ok(())
    }

    pub(crate) fn topic(&self) -> &Topic {
        &self.topic
    }

    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    pub(crate) fn is_of_instance(&self) -> bool {
        self.group.is_of_instance()
    }

    pub(crate) fn handler(&self) -> &dyn Handler {
        &*self.handler
    }

    pub(crate) fn callbacks(&self) -> &Callbacks {
        &self.callbacks
    }

    /// Returns true if messages in garbage have a hook: that of the handler, a callback, or both.
    pub(crate) fn wants_garbage(&self) -> bool {
        self.callbacks.garbage.is_some() || self.handler.wants_garbage()
    }

    pub(crate) fn limit(&self) -> usize {
        self.concurrency
    }

    pub(crate) fn suspects(&self) -> &Suspects {
        &self.suspects
    }

    /// Returns the time that a handler may run.
    pub(crate) fn timeout(&self, topic: &TopicHandle) -> Duration {
        self.handler_timeout
            .unwrap_or(topic.settings().handler_timeout)
    }
}

impl fmt::Display for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.group)
    }
}
