//! enable_garbage_hook: a group's garbage is noted from then on, once a consumer subscribes to it.

use super::take_garbage_hooks::{LEASE, take};
use lisa_core::time::When;
use lisa_tests::Relay;
use lisa_tests::relay::{message, ms};
use redis::cmd;

#[tokio::test]
async fn nothing_is_noted_before_the_first_take_and_everything_after_it() {
    let relay = Relay::start("enable-notices").await;
    relay.put_in_garbage("early").await;
    assert!(relay.zset("garbage_hook:default").await.is_empty());
    assert_eq!(take(&relay, 10, LEASE).await, (vec![], false));
    assert_eq!(relay.hash("conf").await["garbage_hook:default"], "1");
    relay.put_in_garbage("noted").await;
    assert_eq!(
        relay.zset("garbage_hook:default").await,
        [("noted".into(), relay.now().get())].into()
    );
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_wiped_topic_is_declared_and_marked_again() {
    let relay = Relay::start("enable-notices").await;
    take(&relay, 10, LEASE).await;
    for key in ["conf", "stats", "ready:default"] {
        let _: u32 = relay.command(cmd("DEL").arg(relay.key(key))).await;
    }
    take(&relay, 10, LEASE).await;
    assert_eq!(relay.hash("conf").await["garbage_hook:default"], "1");
    relay.send(&[message("a", When::After(ms(5)))]).await;
    relay.assert_conserved().await;
}

#[tokio::test]
async fn a_repeated_mark_changes_nothing() {
    let relay = Relay::start("enable-notices").await;
    take(&relay, 10, LEASE).await;
    let before = relay.snapshot().await;
    take(&relay, 10, LEASE).await;
    assert_eq!(before.diff(&relay.snapshot().await), "");
}
