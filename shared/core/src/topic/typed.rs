//! A topic tied to the type of its payloads.

use std::fmt;
use std::marker::PhantomData;

/// The name of a topic whose payloads are JSON of one type, declared once for senders and handlers:
/// `const ORDERS: TopicOf<Order> = TopicOf::new("orders");`.
///
/// The name is checked when it is used, like any other topic name.
pub struct TopicOf<T> {
    name: &'static str,
    payload: PhantomData<fn(T) -> T>,
}

impl<T> TopicOf<T> {
    /// Ties the topic `name` to payloads of type `T`.
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            payload: PhantomData,
        }
    }

    /// Returns the name of the topic.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl<T> Clone for TopicOf<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for TopicOf<T> {}

impl<T> fmt::Debug for TopicOf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TopicOf").field(&self.name).finish()
    }
}

impl<T> AsRef<str> for TopicOf<T> {
    fn as_ref(&self) -> &str {
        self.name
    }
}
