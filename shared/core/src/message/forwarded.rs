//! The headers of a message that was forwarded from the garbage of one topic to another topic.

use super::{Headers, MessageId};
use crate::names::Topic;

/// The prefix of the headers that tell why a message was forwarded. They go when it is moved back.
pub const PREFIX: &str = "lisa-garbage-";
/// The topic that it was in.
pub const TOPIC: &str = "lisa-garbage-topic";
/// The group in whose garbage it was.
pub const GROUP: &str = "lisa-garbage-group";
/// The id that it had.
pub const ID: &str = "lisa-garbage-id";
/// The time at which it went to garbage.
pub const AT: &str = "lisa-garbage-at";
/// The number of times that it was forwarded.
pub const HOPS: &str = "lisa-garbage-hops";
/// The reason why it went to garbage.
pub const REASON: &str = "lisa-garbage-reason";
/// The number of attempts that it had.
pub const ATTEMPTS: &str = "lisa-garbage-attempts";
/// The last error.
pub const ERROR: &str = "lisa-garbage-error";
/// The topic and the id that it had before it was first forwarded. It stays when it is moved back.
const ORIGIN: &str = "lisa-origin";

/// Notes the topic and the id that a message has, unless it was forwarded before.
pub fn note_origin(headers: &mut Headers, topic: &Topic, id: &MessageId) {
    if headers.get(ORIGIN).is_none() {
        // It is left out where a message has as many headers as it may have.
        let _ = headers.insert_any(ORIGIN, &format!("{topic}/{id}"));
    }
}

/// Returns the topic and the id that a message had before it was first forwarded; `None` if it never was.
pub fn origin(headers: &Headers) -> Option<(Topic, MessageId)> {
    let (topic, id) = headers.get(ORIGIN)?.split_once('/')?;
    Some((topic.parse().ok()?, id.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_origin_stays() {
        let mut headers = Headers::default();
        assert_eq!(origin(&headers), None);
        let topic = |name: &str| -> Topic { name.parse().unwrap() };
        let id: MessageId = "order-7".parse().unwrap();
        note_origin(&mut headers, &topic("orders"), &id);
        note_origin(&mut headers, &topic("dead"), &"forward:1".parse().unwrap());
        assert_eq!(origin(&headers), Some((topic("orders"), id)));
    }
}
