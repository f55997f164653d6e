//! heartbeat: returns the live managers, and whether topics changed.

use lisa_core::broker::Declare;
use lisa_core::topic::TopicSettings;
use lisa_tests::Relay;
use lisa_tests::relay::{ms, settings};
use redis::cmd;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(60);

async fn heartbeat(relay: &Relay, manager: &str, lease: Duration) -> Vec<String> {
    relay
        .broker()
        .heartbeat(manager, lease)
        .await
        .expect("an answer")
        .managers
}

#[tokio::test]
async fn managers_see_each_other_until_they_leave() {
    let relay = Relay::start("heartbeat").await;
    assert_eq!(heartbeat(&relay, "m2", LEASE).await, ["m2"]);
    assert_eq!(heartbeat(&relay, "m1", LEASE).await, ["m1", "m2"]);
    assert_eq!(heartbeat(&relay, "m2", LEASE).await, ["m1", "m2"]);
    assert_eq!(heartbeat(&relay, "m1", ms(0)).await, ["m2"]);
    assert_eq!(heartbeat(&relay, "m1", ms(0)).await, ["m2"]);
    relay.assert_drained().await;
}

#[tokio::test]
async fn a_manager_whose_lease_is_over_is_forgotten() {
    let relay = Relay::start("heartbeat").await;
    heartbeat(&relay, "gone", LEASE).await;
    let namespace = relay.broker().namespace();
    let mut age = cmd("ZADD");
    age.arg(format!("{namespace}:v1:{{registry}}:managers"))
        .arg(1)
        .arg("gone");
    let _: u64 = relay.command(&age).await;
    assert_eq!(heartbeat(&relay, "here", LEASE).await, ["here"]);
    relay.assert_drained().await;
}

#[tokio::test]
async fn the_version_changes_with_the_settings_of_a_topic() {
    let relay = Relay::start("heartbeat").await;
    let version = async || relay.broker().heartbeat("m", LEASE).await.unwrap().version;
    let before = version().await;
    assert_eq!(version().await, before);
    let other = TopicSettings {
        max_attempts: 9,
        ..settings()
    };
    let name = relay.topic().name();
    relay
        .broker()
        .declare(name, &other, Declare::Update)
        .await
        .unwrap();
    assert_eq!(version().await, before + 1);
    relay.assert_drained().await;
}
