//! Names, ids, keys and headers, and the shard that an id or a key leads to.

#![no_main]

use std::fmt::{Debug, Display};
use std::str::FromStr;

use libfuzzer_sys::fuzz_target;
use lisa_fuzz::is_bounded;
use lisa_core::topic::SubscriptionGroup;
use lisa_core::message::{EntryId, Headers, MergeKey, MessageId, OrderingKey, route_of_key};
use lisa_core::topic::{Group, Namespace, Topic};

/// Reads a name; an accepted one is printed unchanged, and follows the rule.
fn name<T>(text: &str, rule: impl Fn(&str) -> bool) -> Option<T>
where
    T: FromStr + Display + Debug,
    T::Err: Display,
{
    match text.parse::<T>() {
        Ok(name) => {
            assert_eq!(name.to_string(), text);
            assert!(rule(text), "{text:?}");
            Some(name)
        }
        Err(error) => {
            assert!(!rule(text), "{text:?}: {error}");
            is_bounded(error);
            None
        }
    }
}

fn made_of(text: &str, longest: usize, more: &str, upper: bool) -> bool {
    let fits = |c: char| {
        c.is_ascii_lowercase()
            || c.is_ascii_digit()
            || more.contains(c)
            || (upper && c.is_ascii_uppercase())
    };
    !text.is_empty() && text.len() <= longest && text.chars().all(fits)
}

fn begins_well(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.len() <= 256 && !text.chars().any(char::is_control)
}

fuzz_target!(|input: (u16, u16, &str)| {
    let (route, shards, text) = input;
    name::<Topic>(text, |text| {
        made_of(text, 64, "._-", false) && begins_well(text)
    });
    name::<Group>(text, |text| {
        made_of(text, 64, "_-", false) && begins_well(text)
    });
    name::<Namespace>(text, |text| made_of(text, 32, "_-", false));
    if let Ok(group) = text.parse::<SubscriptionGroup>() {
        assert_eq!(group.to_string(), text);
    }
    if let Ok(entry) = text.parse::<EntryId>() {
        assert_eq!(entry.to_string().parse::<EntryId>().ok(), Some(entry));
    }
    if let Some(id) = name::<MessageId>(text, |text| made_of(text, 64, "_:-", true)) {
        let shard = id.shard(shards);
        assert!(shard.get() < shards.max(1));
        if !id.tells_route() {
            assert_eq!(id.route(), route_of_key(text));
        }
    }
    if let Some(key) = name::<OrderingKey>(text, is_key) {
        assert_eq!(key.route(), route_of_key(text));
        assert!(key.shard(shards).get() < shards.max(1));
    }
    name::<MergeKey>(text, is_key);
    let made = MessageId::generate_on(route);
    assert!(made.tells_route() && made.route() == route);
    assert!(made_of(made.as_str(), 22, "", true));

    let mut headers = Headers::default();
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    match headers.insert(key, value) {
        Ok(()) => {
            assert_eq!(headers.get(key), Some(value));
            assert!(!value.contains(['\r', '\n', '\0']) && value.len() <= 4096);
            assert!(made_of(&key.to_ascii_lowercase(), 64, "-", false));
        }
        Err(error) => {
            assert!(headers.is_empty());
            is_bounded(error);
        }
    }
});
