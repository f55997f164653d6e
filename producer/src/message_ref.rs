//! How a verb names the message it is about.

/// Names one message of a topic: its id, and its key where it helps.
///
/// An id that Lisa made tells the shard. With a caller's id a key of the message may have decided on the shard: without
/// the key the shards are asked in turn. An id alone is enough wherever this is asked for.
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
    /// Names a message by its id.
    pub fn new(id: impl AsRef<str>) -> Self {
        Self {
            id: id.as_ref().to_owned(),
            key: None,
        }
    }

    /// Names its ordering key, or its merge key if it has no ordering key: only their shard is asked then.
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
