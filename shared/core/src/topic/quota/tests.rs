use serde_json::json;

use super::*;
use crate::fields::JsonReader;

fn read(body: &Json, topics: Option<&str>) -> Result<Option<TopicQuota>, String> {
    let topics: Option<Vec<NamePattern>> = topics.map(|name| vec![name.parse().unwrap()]);
    let mut reader = JsonReader::new(body.as_object().unwrap());
    let quota = TopicQuota::read(&mut reader, topics.as_deref());
    match &reader.finish()[..] {
        [] => Ok(quota),
        problems => Err(problems.iter().map(|it| format!("{it}\n")).collect()),
    }
}

fn quota(max_topics: u32, max_messages: u64) -> TopicQuota {
    let body = json!({ "max_topics": max_topics, "max_messages": max_messages });
    read(&body, Some("shop-*")).unwrap().unwrap()
}

fn messages(count: u64) -> Extent {
    Extent {
        messages: Some(count),
        streams: Some(1),
        ..Extent::default()
    }
}

/// Checks a change beside topics that hold no more than their limits.
fn check(
    quota: &TopicQuota,
    before: Option<Extent>,
    after: Extent,
    others: &[Extent],
) -> Result<(), OverQuota> {
    let others: Vec<_> = others.iter().copied().map(Counted::from).collect();
    quota.check(before, after, &others)
}

#[test]
fn a_quota_is_read_as_it_is_shown_and_needs_what_it_is_about() {
    let body =
        json!({ "max_topics": 3, "max_streams": 30, "max_messages": 1000, "max_bytes": "1MiB" });
    let quota = read(&body, Some("shop-*")).unwrap().unwrap();
    assert_eq!(quota.max_bytes, Some(Size::new(1 << 20)));
    let shown = quota.fields().map(|(name, value)| json!({ name: value }));
    let expected = [
        json!({ "max_topics": 3 }),
        json!({ "max_streams": 30 }),
        json!({ "max_messages": 1000 }),
        json!({ "max_bytes": "1MiB" }),
    ];
    assert_eq!(shown, expected);
    assert!(quota.has(&"shop-a".parse().unwrap()) && !quota.has(&"bank".parse().unwrap()));
    let topics = [messages(600), Extent::default()].map(Counted::from);
    let used = TopicQuotaUse {
        topics: 2,
        // Those of the second topic are unknown.
        streams: 1 + 10,
        messages: Some(600 + 333),
        bytes: Some(2 * ((1 << 20) / 3)),
    };
    assert_eq!(quota.used(&topics), used);
    assert_eq!(read(&json!({}), None), Ok(None));
    let default = read(&json!({}), Some("a")).unwrap().unwrap();
    assert_eq!((default.max_topics, default.max_streams), (1000, 10_000));
    assert!(default.fields().iter().all(|(_, value)| value.is_none()));
    // A quota of messages needs the number of their topics.
    let body = json!({ "max_topics": 1000, "max_messages": 5000 });
    let quota = read(&body, Some("a")).unwrap().unwrap();
    assert_eq!(quota.fields()[0], ("max_topics", Some(json!(1000))));
    for (body, topics, problem) in [
        (
            json!({ "max_topics": 1 }),
            None,
            "max_topics = 1: requires topics",
        ),
        (
            json!({ "max_streams": 1 }),
            None,
            "max_streams = 1: requires topics",
        ),
        (
            json!({ "max_topics": 10_001 }),
            Some("a"),
            "must be 0 to 10000",
        ),
        (
            json!({ "max_messages": 5 }),
            Some("a"),
            "max_messages = 5: requires max_topics",
        ),
        (
            json!({ "max_bytes": 5 }),
            Some("a"),
            "max_bytes = \"5B\": requires max_topics",
        ),
        (
            json!({ "max_topics": 1, "max_messages": 0 }),
            Some("a"),
            "must be at least 1",
        ),
    ] {
        let problems = read(&body, topics).unwrap_err();
        assert!(problems.contains(problem), "{body}: {problems}");
    }
}

#[test]
fn a_topic_without_a_limit_gets_an_equal_part_that_its_shards_share() {
    let fill = |quota: &TopicQuota, shards| {
        let mut settings = TopicSettings {
            shards,
            ..TopicSettings::default()
        };
        quota.fill(&mut settings);
        assert_eq!(settings.max_bytes, None);
        (settings.max_messages, settings.extent(&[]).messages)
    };
    for (max_topics, total, shards, expected) in [
        (3, 1000, 1, (333, 333)),
        (3, 1000, 4, (332, 332)),
        (3, 2, 1, (1, 1)),
        (1, 3, 4, (3, 4)),
        (1, u64::MAX, 1, (u64::MAX, u64::MAX)),
    ] {
        let (limit, extent) = fill(&quota(max_topics, total), shards);
        let got = (limit.unwrap(), extent.unwrap());
        assert_eq!(got, expected, "{total} / {max_topics} on {shards}");
    }
    let mut settings = TopicSettings {
        max_messages: Some(7),
        ..TopicSettings::default()
    };
    quota(3, 1000).fill(&mut settings);
    assert_eq!(settings.max_messages, Some(7));
}

#[test]
fn each_group_has_a_stream_on_each_shard() {
    let settings = |shards, groups: &[&str]| TopicSettings {
        shards,
        groups: groups.iter().map(|group| group.parse().unwrap()).collect(),
        ..TopicSettings::default()
    };
    let streams = |settings: &TopicSettings, had: &[&str]| {
        let had: Vec<Group> = had.iter().map(|group| group.parse().unwrap()).collect();
        settings.extent(&had).streams.unwrap()
    };
    assert_eq!(streams(&settings(4, &[]), &[]), 4);
    assert_eq!(streams(&settings(4, &["a", "b"]), &[]), 8);
    // A group that the settings no longer name stays.
    assert_eq!(streams(&settings(4, &["a", "b"]), &["b", "c"]), 12);
    let body = json!({ "max_streams": 10 });
    let quota = read(&body, Some("shop-*")).unwrap().unwrap();
    let extent = |shards| settings(shards, &["a", "b"]).extent(&[]);
    assert_eq!(check(&quota, None, extent(3), &[extent(2)]), Ok(()));
    let over = check(&quota, None, extent(4), &[extent(2)]).unwrap_err();
    let why = "the token's quota max_streams is 10, of which its other topics (1) have 4: this one may have 6, not 8; nothing was \
               changed";
    assert_eq!(over.to_string(), why);
    assert!(quota.grows(Some(extent(2)), extent(3)));
}

#[test]
fn limits_are_added_up_and_only_what_grows_is_refused() {
    let quota = quota(3, 100);
    let (one, unlimited) = (messages(40), Extent::default());
    assert_eq!(check(&quota, None, messages(60), &[one]), Ok(()));
    let over = check(&quota, None, messages(61), &[one]).unwrap_err();
    let why = "the token's quota max_messages is 100, of which its other topics (1) have 40: this one may have 60, not 61; nothing \
               was changed";
    assert_eq!(over.to_string(), why);
    // What is held above a limit counts, and the error says so.
    let held = [messages(10).counted(30, 0), messages(10).counted(5, 0)];
    let over = quota.check(None, messages(61), &held).unwrap_err();
    let why = "of which its other topics (2) have 40, as 1 of them still holds more than its limit: this one may have 60, not 61";
    assert!(over.to_string().contains(why), "{over}");
    let over = quota.check(None, messages(61), &[held[0]; 2]).unwrap_err();
    let why = "have 60, as 2 of them still hold more than their limits: this one may have 40";
    assert!(over.to_string().contains(why), "{over}");
    // A topic of others without a limit counts as a third: 33.
    assert_eq!(check(&quota, None, messages(27), &[one, unlimited]), Ok(()));
    assert!(check(&quota, None, messages(28), &[one, unlimited]).is_err());
    let over = check(&quota, None, messages(1), &[messages(1); 3]);
    let over = over.unwrap_err().to_string();
    let why =
        "the token's quota max_topics is 3, and it reaches 3 topics already; nothing was changed";
    assert_eq!(over, why);
    // The quota was larger before.
    let others = [messages(90), messages(90), messages(1), messages(1)];
    assert_eq!(
        check(&quota, Some(messages(50)), messages(50), &others),
        Ok(())
    );
    assert!(check(&quota, Some(messages(49)), messages(50), &others).is_err());
    assert!(quota.grows(None, messages(1)));
    assert!(quota.grows(Some(messages(1)), messages(2)));
    assert!(!quota.grows(Some(messages(2)), messages(2)));
    // It has an equal part already.
    assert!(!quota.grows(Some(unlimited), messages(33)));
    assert!(quota.grows(Some(unlimited), messages(34)));
    assert_eq!(messages(5).or_larger(messages(4)), messages(5));
    let known_streams = Extent {
        streams: messages(5).streams,
        ..unlimited
    };
    assert_eq!(messages(5).or_larger(unlimited), known_streams);
    assert_eq!(unlimited.or_larger(messages(5)), known_streams);
    assert_eq!(messages(5).at_least(7, 9), messages(7));
    assert_eq!(messages(5).at_least(4, 9), messages(5));
    assert_eq!(unlimited.at_least(7, 9), unlimited);
    let huge = check(&quota, None, messages(u64::MAX), &[messages(u64::MAX)]);
    assert!(huge.is_err());
}

#[test]
fn a_token_without_topics_of_its_own_creates_none() {
    let body = json!({ "max_topics": 0 });
    let quota = read(&body, Some("a-*")).unwrap().unwrap();
    let over = check(&quota, None, Extent::default(), &[]).unwrap_err();
    let why =
        "the token's quota max_topics is 0, and it reaches 0 topics already; nothing was changed";
    assert_eq!(over.to_string(), why);
    let there = Some(Extent::default());
    assert_eq!(check(&quota, there, messages(5), &[]), Ok(()));
}

#[test]
fn a_quota_of_bytes_is_shown_as_a_size() {
    let body = json!({ "max_topics": 2, "max_bytes": "1MiB" });
    let quota = read(&body, Some("a")).unwrap().unwrap();
    let bytes = |bytes| Extent {
        streams: None,
        messages: None,
        bytes: Some(bytes),
    };
    let over = check(&quota, None, bytes(2 << 20), &[bytes(1 << 19)]).unwrap_err();
    let why = over.to_string();
    assert!(why.contains("max_bytes is 1MiB"), "{why}");
    assert!(why.contains("this one may have 512KiB, not 2MiB"), "{why}");
}
