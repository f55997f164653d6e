//! enable_notices: what a group gives up is noted from then on, once somebody asks for it.

use super::take_notices::{LEASE, take};
use lisa_shared::time::When;
use lisa_tests::Relay;
use lisa_tests::relay::{message, ms};
use redis::cmd;

#[tokio::test]
async fn nothing_is_noted_before_the_first_take_and_everything_after_it() {
    let relay = Relay::start("enable-notices").await;
    relay.bury("early").await;
    assert!(relay.zset("notices:default").await.is_empty());
    assert_eq!(take(&relay, 10, LEASE).await, (vec![], false));
    assert_eq!(relay.hash("conf").await["notices:default"], "1");
    relay.bury("noted").await;
    assert_eq!(
        relay.zset("notices:default").await,
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
    assert_eq!(relay.hash("conf").await["notices:default"], "1");
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
