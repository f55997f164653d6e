//! The reference to a stored message.

/// A reference to one message of a topic: its id and, optionally, its key.
///
/// An id that Lisa generated contains the shard. For a caller-supplied id, a key of the message may have chosen the shard:
/// without the key, the shards are asked in turn. An id alone is always sufficient.
///
/// ```
/// use lisa_producer::MessageRef;
///
/// let keyed = MessageRef::new("order-7-timeout").key("customer-1");
/// assert_ne!(keyed, MessageRef::from("order-7-timeout"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRef {
    pub(crate) id: String,
    pub(crate) key: Option<String>,
}

impl MessageRef {
    /// Refers to a message by its id.
    pub fn new(id: impl AsRef<str>) -> Self {
        Self {
            id: id.as_ref().to_owned(),
            key: None,
        }
    }

    /// Adds its ordering key, or its merge key if it has no ordering key, so that only the shard of the key is asked.
    #[must_use]
    pub fn key(mut self, key: impl AsRef<str>) -> Self {
        self.key = Some(key.as_ref().to_owned());
        self
    }
}

impl<T: AsRef<str>> From<T> for MessageRef {
    fn from(id: T) -> Self {
        Self::new(id)
    }
}
