//! Groups the errors of garbage (dead letters) that differ only in numbers, ids and quoted text.

use std::collections::BTreeMap;

use lisa_core::broker::{Broker, BrokerError, ListedMessage, TopicHandle};
use lisa_core::message::MessageId;
use lisa_core::state::GarbageReason;
use lisa_core::time::{UnixMs, shorten_to};
use lisa_core::topic::{Group, Topic};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The number of messages that are read, the newest first.
const NEWEST: usize = 5000;
/// The number of groups that are returned, those with the most messages first.
const GROUPS: usize = 100;
/// The length of a pattern in characters.
const PATTERN: usize = 200;
/// The number of digits from which hexadecimal text is a number.
const HEX: usize = 8;
/// The length from which text with digits in it is an id.
const ID: usize = 16;

/// The errors in a group's garbage.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct ErrorGroups {
    pub(crate) topic: Topic,
    pub(crate) group: Group,
    /// The groups of errors, those with the most messages first: at most 100.
    pub(crate) errors: Vec<ErrorGroup>,
    /// The number of further groups, and of their messages.
    pub(crate) other_errors: usize,
    pub(crate) other_messages: u64,
    /// The number of messages that were read: the newest of each shard, about 5,000 together.
    pub(crate) newest: u64,
    /// The number of messages in garbage.
    pub(crate) total: u64,
}

/// Messages in garbage with similar errors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct ErrorGroup {
    pub(crate) reason: GarbageReason,
    /// The error, with `#` for each number and id, and `…` for quoted text; at most 200 characters.
    pub(crate) error: String,
    /// The number of messages.
    pub(crate) count: u64,
    /// The time at which the first of them went to garbage.
    pub(crate) first: String,
    /// The time at which the last of them went to garbage.
    pub(crate) last: String,
    /// The last of them.
    pub(crate) example: Example,
}

/// A message in garbage, and its error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ErrorExample)]
pub(crate) struct Example {
    pub(crate) id: MessageId,
    pub(crate) error: String,
}

/// Groups the errors of a group's newest garbage.
///
/// # Errors
/// [`BrokerError`].
pub(crate) async fn error_groups(
    broker: &Broker,
    topic: &TopicHandle,
    group: &Group,
) -> Result<ErrorGroups, BrokerError> {
    let garbage = broker.newest_garbage(topic, group, NEWEST).await?;
    let newest = garbage.newest.len() as u64;
    let mut errors = group_by_error(garbage.newest);
    let others = errors.split_off(errors.len().min(GROUPS));
    Ok(ErrorGroups {
        topic: topic.name().clone(),
        group: group.clone(),
        errors,
        other_errors: others.len(),
        other_messages: others.iter().map(|error| error.count).sum(),
        newest,
        total: garbage.total.max(newest),
    })
}

/// The messages with one pattern.
struct Similar {
    count: u64,
    first: UnixMs,
    last: UnixMs,
    example: Example,
}

fn group_by_error(messages: Vec<ListedMessage>) -> Vec<ErrorGroup> {
    let mut similar: BTreeMap<(GarbageReason, String), Similar> = BTreeMap::new();
    for message in messages {
        let (Some(at), Some(reason)) = (message.garbage_at, message.reason) else {
            continue;
        };
        let (id, error) = (message.id, message.error.unwrap_or_default());
        let similar = similar
            .entry((reason, pattern(&error)))
            .or_insert_with(|| Similar {
                count: 0,
                first: at,
                last: UnixMs::default(),
                example: Example {
                    id: id.clone(),
                    error: error.clone(),
                },
            });
        similar.count += 1;
        similar.first = similar.first.min(at);
        if at > similar.last {
            similar.last = at;
            similar.example = Example { id, error };
        }
    }
    let mut groups: Vec<_> = similar.into_iter().collect();
    groups.sort_by_key(|(_, similar)| {
        (
            std::cmp::Reverse(similar.count),
            std::cmp::Reverse(similar.last),
        )
    });
    let group = |((reason, error), similar): ((GarbageReason, String), Similar)| ErrorGroup {
        reason,
        error,
        count: similar.count,
        first: similar.first.to_string(),
        last: similar.last.to_string(),
        example: similar.example,
    };
    groups.into_iter().map(group).collect()
}

/// Replaces numbers and ids by `#`, and quoted text by `…`.
fn pattern(error: &str) -> String {
    let mut pattern = String::new();
    let mut rest = error;
    let mut before = None;
    while let Some(next) = rest.chars().next() {
        let (length, replacement) = match next {
            '"' | '`' | '“' | '\'' if !is_apostrophe(next, before) => match quoted(rest, next) {
                Some(length) => (length, Some("…")),
                None => (next.len_utf8(), None),
            },
            next if next.is_ascii_alphanumeric() => match uuid(rest) {
                Some(length) => (length, Some("#")),
                None => {
                    let length = word(rest);
                    let (word, _) = rest.split_at(length);
                    if is_id(word) {
                        (length, Some("#"))
                    } else {
                        without_numbers(word, &mut pattern);
                        (length, Some(""))
                    }
                }
            },
            next => (next.len_utf8(), None),
        };
        let (text, after) = rest.split_at(length);
        pattern.push_str(replacement.unwrap_or(text));
        before = text.chars().last();
        rest = after;
    }
    shorten_to(&pattern, PATTERN)
}

/// Returns true for a quote that stands within or behind a word, as in `can't`.
fn is_apostrophe(quote: char, before: Option<char>) -> bool {
    quote == '\'' && before.is_some_and(char::is_alphanumeric)
}

/// Returns the length of the quoted text at the start.
fn quoted(text: &str, quote: char) -> Option<usize> {
    let close = if quote == '“' { '”' } else { quote };
    let inner = text.get(quote.len_utf8()..)?;
    Some(quote.len_utf8() + inner.find(close)? + close.len_utf8())
}

/// Returns the length of the UUID at the start.
fn uuid(text: &str) -> Option<usize> {
    const LENGTH: usize = 36;
    let is_part = |(index, byte): (usize, u8)| match index {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    let all = text.as_bytes().get(..LENGTH)?;
    let ends = !text
        .as_bytes()
        .get(LENGTH)
        .is_some_and(u8::is_ascii_alphanumeric);
    (ends && all.iter().copied().enumerate().all(is_part)).then_some(LENGTH)
}

/// Returns the length of the letters and digits at the start, with the points and commas within numbers.
fn word(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut length = 0;
    while let Some(byte) = bytes.get(length) {
        let is_digit = |index: Option<usize>| {
            let byte = index.and_then(|index| bytes.get(index));
            byte.is_some_and(u8::is_ascii_digit)
        };
        let is_within = matches!(byte, b'.' | b',')
            && is_digit(length.checked_sub(1))
            && is_digit(Some(length + 1));
        if !byte.is_ascii_alphanumeric() && !is_within {
            break;
        }
        length += 1;
    }
    length
}

/// Returns true for a long hexadecimal number, a number with the prefix `0x`, or a long mixture of digits and letters.
fn is_id(word: &str) -> bool {
    let is_hex = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let has_digit = word.bytes().any(|byte| byte.is_ascii_digit());
    let is_long_hex = word.len() >= HEX && is_hex(word) && has_digit;
    let is_prefixed = word.strip_prefix("0x").is_some_and(is_hex);
    let is_mixture = word.len() >= ID && has_digit && !word.contains(['.', ',']);
    is_long_hex || is_prefixed || is_mixture
}

/// Appends a word with `#` for each number in it.
fn without_numbers(word: &str, pattern: &mut String) {
    let mut is_number = false;
    for letter in word.chars() {
        let is_part = letter.is_ascii_digit() || matches!(letter, '.' | ',');
        if is_part && !is_number {
            pattern.push('#');
        } else if !is_part {
            pattern.push(letter);
        }
        is_number = is_part;
    }
}

#[cfg(test)]
mod tests {
    use lisa_core::state::State;

    use super::*;

    #[test]
    fn errors_that_differ_in_numbers_ids_and_quoted_text_have_one_pattern() {
        let cases = [
            ("HTTP 503 from shop", "HTTP # from shop"),
            (
                "connect to 10.0.0.17:443 timed out after 1,000.5 ms",
                "connect to #:# timed out after # ms",
            ),
            (
                "user 123e4567-e89b-12d3-a456-426614174000 is gone",
                "user # is gone",
            ),
            ("0xdeadbeef, 5f2b9c01 and deadbeef", "#, # and deadbeef"),
            ("message 0Kf3kXy9bZQ1LmNoPqRsTu", "message #"),
            ("no \"order\" in `x` or 'y' or “z”", "no … in … or … or …"),
            ("can't find the user's name", "can't find the user's name"),
            (
                "an open \"quote, and w-7 of http2",
                "an open \"quote, and w-# of http#",
            ),
            ("ends with 5.", "ends with #."),
            ("größe 3 ‚ß‘", "größe # ‚ß‘"),
            ("", ""),
        ];
        for (error, expected) in cases {
            assert_eq!(pattern(error), expected, "{error}");
        }
        let long = "word ".repeat(100);
        assert_eq!(pattern(&long).chars().count(), PATTERN + 1);
    }

    fn in_garbage(id: &str, at: u64, reason: GarbageReason, error: &str) -> ListedMessage {
        let (id, at) = (id.parse().unwrap(), UnixMs::new(at));
        ListedMessage {
            reason: Some(reason),
            error: Some(error.to_owned()),
            ..ListedMessage::new(id, State::Garbage, Some(at), 1)
        }
    }

    #[test]
    fn similar_errors_are_counted_with_the_first_the_last_and_an_example() {
        let groups = group_by_error(vec![
            in_garbage("a", 3, GarbageReason::Exhausted, "HTTP 503"),
            in_garbage("b", 9, GarbageReason::Exhausted, "HTTP 500"),
            in_garbage("c", 1, GarbageReason::Exhausted, "HTTP 502"),
            in_garbage("d", 5, GarbageReason::Rejected, "HTTP 503"),
        ]);
        let [most, other] = &groups[..] else {
            panic!("{groups:?}");
        };
        assert_eq!((most.error.as_str(), most.count), ("HTTP #", 3));
        assert_eq!(most.first, UnixMs::new(1).to_string());
        assert_eq!(most.last, UnixMs::new(9).to_string());
        assert_eq!(
            (most.example.id.as_str(), most.example.error.as_str()),
            ("b", "HTTP 500")
        );
        assert_eq!((other.reason, other.count), (GarbageReason::Rejected, 1));
    }
}
