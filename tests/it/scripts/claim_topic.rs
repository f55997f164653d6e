//! claim_topic: topics that are declared by call at the same time, within a quota and within the limit of all topics.

use futures_util::future::join_all;
use lisa_core::broker::{BrokerError, Declare, Removal};
use lisa_core::topic::{MAX_TOPICS, OverQuota, Topic, TopicQuota, TopicSettings};
use lisa_tests::relay::{connection, settings};
use lisa_tests::{Relay, SOON, Server, eventually};
use redis::cmd;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// A quota for the topics of a team.
fn quota(max_topics: u32, max_messages: u64) -> Option<Arc<TopicQuota>> {
    Some(Arc::new(TopicQuota {
        topics: vec!["shop-*".parse().unwrap()],
        max_topics,
        max_streams: 50,
        max_messages: Some(max_messages),
        max_bytes: None,
    }))
}

fn limited(max_messages: u64) -> TopicSettings {
    TopicSettings {
        max_messages: Some(max_messages),
        ..TopicSettings::default()
    }
}

fn of_shards(shards: u16) -> TopicSettings {
    TopicSettings {
        shards,
        ..limited(u64::from(shards))
    }
}

fn topic(name: &str) -> Topic {
    name.parse().unwrap()
}

/// Declares a topic by call, and returns its `max_messages`.
async fn declare(
    relay: &Relay,
    name: &str,
    settings: &TopicSettings,
    quota: Option<Arc<TopicQuota>>,
) -> Result<Option<u64>, BrokerError> {
    let name = topic(name);
    let declare = relay
        .broker()
        .declare_by_call(&name, settings, Declare::Update, quota);
    declare.await.map(|topic| topic.settings().max_messages)
}

fn key(relay: &Relay, what: &str) -> String {
    format!("{}:v1:{{registry}}:{what}", relay.broker().namespace())
}

async fn claims(relay: &Relay) -> usize {
    relay
        .command(cmd("HLEN").arg(key(relay, "topic_claims")))
        .await
}

async fn write_claim(relay: &Relay, at_ms: u128, claim: &str) {
    let mut write = cmd("HSET");
    write.arg(key(relay, "topic_claims")).arg(claim);
    // Before all others.
    write.arg(format!("0 {at_ms} {claim}"));
    let _: u64 = relay.command(&write).await;
}

fn now_ms() -> u128 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap().as_millis()
}

/// Removes the topics of the test, so that the next round begins without any.
async fn remove(relay: &Relay, name: &str) {
    let name = topic(name);
    let broker = relay.broker();
    broker
        .remove_topic(&name, Removal::Force, None)
        .await
        .unwrap();
    let handle = broker.newest(&name).await.unwrap();
    for shard in handle.shards() {
        broker.remove_shard(&handle, shard).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_calls_at_the_same_time_as_many_succeed_as_the_quota_allows() {
    let relay = Relay::start("claims").await;
    for (quota, wanted, most) in [
        // Of messages, and of topics.
        (quota(10, 100), limited(30), 3),
        (quota(2, 1000), limited(30), 2),
        (quota(4, 100), TopicSettings::default(), 4),
        // Of streams.
        (quota(10, 1000), of_shards(20), 2),
    ] {
        let names: Vec<_> = (0..8).map(|number| format!("shop-{number}")).collect();
        let calls = names
            .iter()
            .map(|name| declare(&relay, name, &wanted, quota.clone()));
        let ended = join_all(calls).await;
        let (mut created, mut refused) = (Vec::new(), 0);
        for (name, ended) in names.iter().zip(ended) {
            match ended {
                Ok(limit) => {
                    assert_eq!(limit, wanted.max_messages.or(Some(25)));
                    created.push(name);
                }
                Err(BrokerError::OverQuota { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!((created.len(), refused), (most, 8 - most));
        assert_eq!(claims(&relay).await, 0);
        for name in created {
            remove(&relay, name).await;
        }
    }
}

/// The record of a removed topic stays for a day.
#[tokio::test(flavor = "multi_thread")]
async fn a_team_that_creates_and_removes_topics_without_end_is_rate_limited() {
    let relay = Relay::start("churn").await;
    let quota = quota(1, 100);
    let settings = TopicSettings::default();
    let began = Instant::now();
    let mut created = 0;
    let over = loop {
        match declare(&relay, "shop-a", &settings, quota.clone()).await {
            Ok(_) => created += 1,
            Err(over) => break over,
        }
        remove(&relay, "shop-a").await;
    };
    let why = "topic shop-a: the token creates topics too fast: it may create 1000 in a burst and then one a second; nothing was changed";
    assert_eq!(over.to_string(), why);
    let lasted = began.elapsed().as_secs();
    assert!(
        (1000..=1001 + lasted).contains(&created),
        "{created} in {lasted} s"
    );
    assert_eq!(claims(&relay).await, 0);
    // Others are not rate limited.
    declare(&relay, "bank", &settings, None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_changes_at_the_same_time_only_as_many_grow_as_the_quota_allows() {
    let relay = Relay::start("claims").await;
    let quota = quota(4, 100);
    let names = ["shop-a", "shop-b", "shop-c"];
    for name in names {
        let declared = declare(&relay, name, &limited(20), quota.clone()).await;
        assert_eq!(declared.unwrap(), Some(20));
    }
    for _ in 0..10 {
        let grown = names.map(|name| (name, limited(50)));
        let calls = grown.iter();
        let calls = calls.map(|(name, settings)| declare(&relay, name, settings, quota.clone()));
        let ended = join_all(calls).await;
        let done = ended.iter().filter(|ended| ended.is_ok()).count();
        assert_eq!(done, 1, "{ended:?}");
        for name in names {
            declare(&relay, name, &limited(20), quota.clone())
                .await
                .unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_of_other_topics_disturb_no_call_that_is_checked_against_a_quota() {
    let relay = Relay::start("claims").await;
    let churn = async |name: &str| {
        for round in 1.. {
            declare(&relay, name, &limited(round), None).await.unwrap();
        }
    };
    let checked = async {
        for number in 0..20 {
            let name = format!("shop-{number}");
            let declared = declare(&relay, &name, &limited(5), quota(20, 100)).await;
            assert_eq!(declared.unwrap(), Some(5), "{name}");
        }
    };
    tokio::select! {
        () = checked => {}
        _ = join_all(["a", "b", "c", "d"].map(churn)) => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_counts_until_it_is_old_and_a_topic_that_was_left_unlisted_is_listed_then() {
    let relay = Relay::start("claims").await;
    let quota = quota(3, 100);
    write_claim(&relay, now_ms(), "shop-x 60 -").await;
    // Claims of others do not count, and the smaller one of a topic does not.
    write_claim(&relay, now_ms(), "bank 60 - 50").await;
    write_claim(&relay, now_ms(), "shop-x 10 - 9").await;
    let over = declare(&relay, "shop-a", &limited(41), quota.clone()).await;
    let Err(BrokerError::OverQuota { over, .. }) = over else {
        panic!("{over:?}");
    };
    let expected = OverQuota::Sum {
        quota: "max_messages",
        total: 100,
        others: 1,
        used: 60,
        above: 0,
        wanted: 41,
    };
    assert_eq!(over, expected);
    let declared = declare(&relay, "shop-a", &limited(40), quota.clone()).await;
    assert_eq!(declared.unwrap(), Some(40));
    // A claim of the topic itself does not count.
    write_claim(&relay, now_ms(), "shop-a 90 -").await;
    let same = declare(&relay, "shop-a", &limited(40), quota.clone()).await;
    assert_eq!(same.unwrap(), Some(40));
    let _: u64 = relay
        .command(cmd("DEL").arg(key(&relay, "topic_claims")))
        .await;
    // The process has stopped before it declared the topic.
    write_claim(&relay, 1, "shop-x 60 -").await;
    write_claim(&relay, now_ms(), "damaged").await;
    let declared = declare(&relay, "shop-b", &limited(60), quota.clone()).await;
    assert_eq!((declared.unwrap(), claims(&relay).await), (Some(60), 0));
    // It has stopped before it listed the topic.
    let unlist = [key(&relay, "topics"), "shop-b".to_owned()];
    let _: u64 = relay.command(cmd("HDEL").arg(&unlist)).await;
    write_claim(&relay, 1, "shop-b 60 -").await;
    let over = declare(&relay, "shop-c", &limited(1), quota.clone()).await;
    assert!(
        matches!(over, Err(BrokerError::OverQuota { .. })),
        "{over:?}"
    );
    let listed: u64 = relay.command(cmd("HEXISTS").arg(&unlist)).await;
    assert_eq!((listed, claims(&relay).await), (1, 0));
}

/// Sets the keys of which the server lets this process read.
async fn allow(relay: &Relay, keys: &[&str]) {
    let mut allow = cmd("ACL");
    allow.arg("SETUSER").arg("default").arg("resetkeys");
    for pattern in keys {
        allow.arg(format!("~{pattern}"));
    }
    relay.command::<()>(&allow).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_claim_of_a_topic_that_cannot_be_read_counts_and_disturbs_no_call() {
    let server = Server::start();
    let relay = Relay::on(&server, &connection(&server).await, "claims", settings()).await;
    let quota = quota(3, 100);
    write_claim(&relay, 1, "shop-x 60 -").await;
    allow(&relay, &["*:{registry}:*", "*:{shop-a:*"]).await;
    let declared = declare(&relay, "shop-a", &limited(40), quota.clone()).await;
    assert_eq!((declared.unwrap(), claims(&relay).await), (Some(40), 1));
    let over = declare(&relay, "shop-a", &limited(41), quota.clone()).await;
    assert!(
        matches!(over, Err(BrokerError::OverQuota { .. })),
        "{over:?}"
    );
    allow(&relay, &["*"]).await;
    let declared = declare(&relay, "shop-a", &limited(41), quota.clone()).await;
    assert_eq!((declared.unwrap(), claims(&relay).await), (Some(41), 0));
}

/// The topic is declared all the same, and its claim ends.
// One thread: the call cannot end before it is dropped.
#[tokio::test]
async fn a_call_whose_client_is_gone_leaves_no_claim() {
    let relay = Relay::start("claims").await;
    let quota = quota(1, 100);
    let settings = limited(5);
    for round in 0..20 {
        let call = declare(&relay, "shop-a", &settings, quota.clone());
        let mut call = Box::pin(call);
        // It has begun.
        assert!(futures_util::poll!(&mut call).is_pending());
        drop(call);
        let name = topic("shop-a");
        eventually(SOON, async || {
            let is_there = relay.broker().newest(&name).await.is_ok();
            match (is_there, claims(&relay).await) {
                (true, 0) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        remove(&relay, "shop-a").await;
        assert_eq!(claims(&relay).await, 0, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_create_topics_up_to_the_limit_of_all_and_change_those_that_exist() {
    let relay = Relay::start("claims").await;
    declare(&relay, "known", &limited(1), None).await.unwrap();
    let topics = key(&relay, "topics");
    // With `t`, `known` and the claims below, one is left.
    let others: Vec<_> = (4..MAX_TOPICS)
        .map(|number| format!("other-{number}"))
        .collect();
    let mut fill = cmd("HSET");
    fill.arg(&topics);
    for name in &others {
        fill.arg(name).arg("1 1");
    }
    let _: u64 = relay.command(&fill).await;
    // A claim for a topic that is listed already, and two for the same new one.
    write_claim(&relay, now_ms(), "known 1 -").await;
    write_claim(&relay, now_ms(), "new-x 1 -").await;
    write_claim(&relay, now_ms(), "new-x 2 -").await;
    let settings = limited(1);
    let names: Vec<_> = (0..5).map(|number| format!("new-{number}")).collect();
    let calls = names
        .iter()
        .map(|name| declare(&relay, name, &settings, None));
    let ended = join_all(calls).await;
    let created = ended.iter().filter(|ended| ended.is_ok()).count();
    assert_eq!(created, 1, "{ended:?}");
    let refused = ended.iter().filter_map(|ended| ended.as_ref().err());
    for refused in refused {
        assert!(
            matches!(refused, BrokerError::TooManyTopics(_)),
            "{refused}"
        );
        let why = "is not created: the limit of 10000 topics is reached";
        assert!(refused.to_string().ends_with(why), "{refused}");
    }
    let changed = declare(&relay, "known", &limited(2), None).await;
    assert_eq!(changed.unwrap(), Some(2));
    // That of a process that has stopped makes room.
    let _: u64 = relay
        .command(cmd("DEL").arg(key(&relay, "topic_claims")))
        .await;
    write_claim(&relay, 1, "new-x 1 -").await;
    declare(&relay, "last", &settings, None).await.unwrap();
    let more = declare(&relay, "more", &settings, None).await;
    assert!(
        matches!(more, Err(BrokerError::TooManyTopics(_))),
        "{more:?}"
    );
    let _: u64 = relay.command(cmd("HDEL").arg(&topics).arg(&others)).await;
}
