//! change_token: the records of tokens, each replaced only at the version that was read.

use lisa_core::broker::{MAX_TOKENS, TokenChange};
use lisa_core::names::TokenName;
use lisa_tests::Relay;
use redis::cmd;

fn name(text: &str) -> TokenName {
    text.parse().unwrap()
}

async fn change(relay: &Relay, token: &str, record: Option<&str>, at: u64) -> TokenChange {
    let name = name(token);
    let change = relay.broker().change_token(&name, record, at);
    change.await.unwrap()
}

async fn store(relay: &Relay, token: &str, record: &str, at: u64) -> u64 {
    match change(relay, token, Some(record), at).await {
        TokenChange::Changed(version) => version,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_record_is_replaced_only_at_the_version_that_was_read() {
    let relay = Relay::start("tokens").await;
    assert_eq!(relay.broker().tokens_version().await.unwrap(), 0);
    let first = store(&relay, "a", "{1}", 0).await;
    let again = change(&relay, "a", Some("{2}"), 0).await;
    assert_eq!(again, TokenChange::Other(first));
    let second = store(&relay, "a", "{2}", first).await;
    assert!(second > first);
    // A repeated call finds another version.
    let repeated = change(&relay, "a", Some("{2}"), first).await;
    assert_eq!(repeated, TokenChange::Other(second));
    let missing = change(&relay, "b", Some("{}"), first).await;
    assert_eq!(missing, TokenChange::Other(0));
    let all = relay.broker().tokens().await.unwrap();
    assert_eq!(all.version, second);
    assert_eq!(relay.broker().tokens_version().await.unwrap(), second);
    let [token] = &all.tokens[..] else {
        panic!("{all:?}");
    };
    assert_eq!((token.version, &*token.record), (second, "{2}"));
    let one = relay.broker().token(&name("a")).await.unwrap();
    assert_eq!(one.as_ref(), Some(token));
}

#[tokio::test]
async fn the_versions_grow_also_if_a_token_is_removed_and_created_again() {
    let relay = Relay::start("tokens").await;
    let first = store(&relay, "a", "{}", 0).await;
    let other = change(&relay, "a", None, first + 1).await;
    assert_eq!(other, TokenChange::Other(first));
    let TokenChange::Changed(removed) = change(&relay, "a", None, first).await else {
        panic!("not removed");
    };
    let again = change(&relay, "a", None, first).await;
    assert_eq!(again, TokenChange::Other(0));
    assert_eq!(relay.broker().tokens_version().await.unwrap(), removed);
    assert!(relay.broker().tokens().await.unwrap().tokens.is_empty());
    let last = store(&relay, "a", "{}", 0).await;
    assert!(last > removed && removed > first);
    // Otherwise, processes could take the new tokens for those that they know.
    let key = format!("{}:v1:{{registry}}:tokens", relay.broker().namespace());
    let _: u64 = relay.command(cmd("DEL").arg(&key)).await;
    assert!(store(&relay, "a", "{}", 0).await > last);
}

#[tokio::test]
async fn only_a_new_token_may_be_one_too_many() {
    let relay = Relay::start("tokens").await;
    let mut last = 0;
    for number in 0..MAX_TOKENS {
        last = store(&relay, &format!("t{number}"), "{}", 0).await;
    }
    let full = change(&relay, "more", Some("{}"), 0).await;
    assert_eq!(full, TokenChange::Full);
    let newest = format!("t{}", MAX_TOKENS - 1);
    let last = store(&relay, &newest, "{1}", last).await;
    assert!(matches!(
        change(&relay, &newest, None, last).await,
        TokenChange::Changed(_)
    ));
    store(&relay, "more", "{}", 0).await;
}

/// One that is damaged can be replaced and removed.
#[tokio::test]
async fn a_damaged_value_counts_as_none() {
    let relay = Relay::start("tokens").await;
    let key = format!("{}:v1:{{registry}}:tokens", relay.broker().namespace());
    for damaged in ["", "x {}", "{}"] {
        let _: u64 = relay
            .command(cmd("HSET").arg(&key).arg("a").arg(damaged))
            .await;
        let all = relay.broker().tokens().await.unwrap();
        assert_eq!((all.tokens[0].version, &*all.tokens[0].record), (0, ""));
        assert!(matches!(
            change(&relay, "a", None, 0).await,
            TokenChange::Changed(_)
        ));
        assert!(relay.broker().tokens().await.unwrap().tokens.is_empty());
    }
}
