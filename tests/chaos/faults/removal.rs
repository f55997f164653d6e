//! A topic that is created, used and removed while others are under load, and managers are disturbed.

use super::operator::{disturb_managers, insist};
use super::{Hit, between};
use crate::record::ALL;
use crate::settings::NAMESPACE;
use crate::world::World;
use fastrand::Rng;
use lisa_tests::Stopwatch;
use redis::cmd;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The first part of the topics' names.
const STEM: &str = "brief-";
/// The most shards of a topic.
const MOST: u16 = 6;
/// The pause between two sends to the topic, and between two looks at what is left.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest time that a send waits for its answer.
const ANSWER: Duration = Duration::from_secs(8);
/// The time limit of the first send, and of a removal once managers are no longer disturbed. A slow machine makes half of it longer.
const GONE: Duration = Duration::from_secs(40);

/// Creates a topic, keeps sending to it, and removes it while it has waiting and ready messages and managers are disturbed. Nothing of
/// the topic may be left, and no send may bring it back.
pub(super) async fn remove(world: &World, mut dice: Rng) -> Result<Hit, String> {
    let (topic, shards) = (format!("{STEM}{:08x}", dice.u32(..)), dice.u16(1..=MOST));
    let (setting, groups) = (format!("shards={shards}"), "groups=default,audit");
    let create = ["topics", "create", &topic, &setting, groups];
    insist(world, &create, |_| false).await?;
    let (name, port) = world.fleet.producers()[dice.usize(0..2)];
    let accepted = Arc::new(AtomicU64::new(0));
    let count = || accepted.load(Ordering::Relaxed);
    let mut sending = JoinSet::new();
    sending.spawn(keep_sending(
        topic.clone(),
        port,
        dice.fork(),
        accepted.clone(),
    ));
    in_time(|| {
        ready(match count() {
            0 => Err(format!("{name} accepts no message for {topic}")),
            _ => Ok(()),
        })
    })
    .await?;
    sleep(between(&mut dice, 200, 2000)).await;
    let verb = ["topics", "remove", &topic, "--force", "--yes"];
    // The verb waits until the topic is gone. After that, a repeated call says so.
    let removing = insist(world, &verb, |errors| errors.contains("is not registered"));
    let disturbing = async {
        sleep(between(&mut dice, 0, 1500)).await;
        disturb_managers(world, &mut dice).await
    };
    let (removed, how) = tokio::join!(removing, disturbing);
    removed?;
    let gone = || is_gone(world, &topic);
    in_time(gone).await?;
    sleep(between(&mut dice, 100, 1000)).await;
    sending.shutdown().await;
    // The last sends have not brought it back.
    in_time(gone).await?;
    let count = count();
    Ok(Hit {
        process: ALL.to_owned(),
        detail: format!("{topic} of {shards} shards, with {count} messages by {name}; {how}"),
    })
}

/// Sends messages, half of which are due at once, and counts those that are accepted.
async fn keep_sending(topic: String, port: u16, mut dice: Rng, accepted: Arc<AtomicU64>) {
    let client = reqwest::Client::builder()
        .timeout(ANSWER)
        .no_proxy()
        .tls_certs_only([])
        .build();
    let client = client.expect("the HTTP client is built");
    let url = format!("http://127.0.0.1:{port}/v1/topics/{topic}/messages");
    loop {
        let delay = ["0s", "1h"][dice.usize(0..2)];
        let send = client.post(&url).header("Lisa-Delay", delay).body("x");
        let answer = send.send().await;
        if answer.is_ok_and(|answer| answer.status().is_success()) {
            accepted.fetch_add(1, Ordering::Relaxed);
        }
        sleep(PAUSE).await;
    }
}

/// Looks until the result is good, and returns the last one that is not once it takes too long. Another fault may hit a look.
async fn in_time<F>(look: impl Fn() -> F) -> Result<(), String>
where
    F: Future<Output = Result<(), String>>,
{
    let watch = Stopwatch::start();
    loop {
        let found = look().await;
        if found.is_ok() || watch.elapsed() > watch.limit(GONE / 2, GONE / 2) {
            return found;
        }
        sleep(PAUSE).await;
    }
}

/// Fails if there are keys of a topic that was removed, except the record of its removal, or if the registry lists it.
async fn is_gone(world: &World, topic: &str) -> Result<(), String> {
    let keys = format!("{NAMESPACE}:v1:{{{topic}:*");
    let mut left = Vec::new();
    for key in world.command::<Vec<String>>(cmd("KEYS").arg(keys)).await? {
        if !is_record(world, &key).await? {
            left.push(key);
        }
    }
    for registry in ["topics", "snapshot"] {
        let registry = format!("{NAMESPACE}:v1:{{registry}}:{registry}");
        let mut listed = cmd("HEXISTS");
        if world.command(listed.arg(&registry).arg(topic)).await? {
            left.push(registry);
        }
    }
    match left.is_empty() {
        true => Ok(()),
        false => Err(format!("of {topic}, there is still {left:?}")),
    }
}

/// Returns whether a key is the record of a removal, which expires.
pub(crate) async fn is_record(world: &World, key: &str) -> Result<bool, String> {
    let is_first =
        key.starts_with(&format!("{NAMESPACE}:v1:{{{STEM}")) && key.ends_with(":0}:conf");
    Ok(is_first
        && world.command::<i64>(cmd("PTTL").arg(key)).await? > 0
        && world
            .command::<Option<String>>(cmd("HGET").arg(key).arg("removed"))
            .await?
            == Some("gone".to_owned()))
}
