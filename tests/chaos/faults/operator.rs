//! Commands of an operator under load: another number of shards, which may be interrupted, and a requeue of all
//! garbage.

use super::{Hit, between};
use crate::plan::{GROUPS, Topic};
use crate::record::ALL;
use crate::settings::Role;
use crate::world::World;
use fastrand::Rng;
use lisa_tests::{Mode, Stopwatch};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// The most shards of a topic.
const MOST: u16 = 8;
/// A verb that another fault makes fail is retried for this long; longer on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(300);

/// Reshards a topic, and does not wait for the end; one time in three the verb is killed midway and called again.
pub(super) async fn reshard(world: &World, mut dice: Rng) -> Result<Hit, String> {
    let topic = Topic::ALL[dice.usize(0..Topic::ALL.len())];
    let shards = world.fleet.shards();
    let now = shards.of(topic);
    let mut to = dice.u16(1..MOST);
    if to >= now {
        to += 1;
    }
    let killed_after = (dice.u32(0..3) == 0).then(|| between(&mut dice, 5, 150));
    let number = to.to_string();
    let verb = [
        "topics",
        "reshard",
        topic.name(),
        "--shards",
        &number,
        "--no-wait",
    ];
    if let Some(after) = killed_after {
        // Dropping it kills it.
        let _ = timeout(after, world.fleet.manager(&verb)).await;
    }
    // It is being resharded to the number of its configuration.
    let early = format!("is being resharded to {now} shards:");
    let is_early = insist(world, &verb, |errors| errors.contains(&early)).await?;
    if !is_early {
        shards.changed(topic, to);
    }
    let detail = match (is_early, killed_after) {
        (true, _) => format!("{}: the last one has not ended", topic.name()),
        (false, None) => format!("{} from {now} to {to}", topic.name()),
        (false, Some(after)) => {
            format!(
                "{} from {now} to {to}, killed after {after:?}",
                topic.name()
            )
        }
    };
    Ok(Hit {
        process: ALL.to_owned(),
        detail,
    })
}

/// Calls a verb until it succeeds, or fails as `expected`; returns whether it failed.
pub(super) async fn insist(
    world: &World,
    verb: &[&str],
    expected: impl Fn(&str) -> bool,
) -> Result<bool, String> {
    let watch = Stopwatch::start();
    loop {
        let (code, output, errors) = world.fleet.manager(verb).await;
        let is_expected = expected(&errors);
        if code == Some(0) || is_expected {
            return Ok(is_expected);
        }
        if watch.elapsed() > watch.limit(PATIENCE / 2, PATIENCE / 2) {
            return Err(format!("{verb:?} ends with {code:?}: {output}{errors}"));
        }
        sleep(PAUSE).await;
    }
}

/// Requeues all garbage of a group: of a topic with several groups, or of one with several shards.
pub(super) async fn requeue(world: &World, mut dice: Rng) -> Result<Hit, String> {
    let (topic, group) = match dice.u32(0..3) {
        0 => (Topic::Plain, "default"),
        _ => (Topic::Twice, GROUPS[1]),
    };
    let name = topic.name();
    let verb = [
        "garbage", "requeue", name, "--group", group, "--all", "--yes",
    ];
    insist(world, &verb, |_| false).await?;
    Ok(Hit {
        process: ALL.to_owned(),
        detail: format!("{name}/{group}"),
    })
}

/// Reshards a topic, and disturbs the managers when the old shards are closed and migrate.
pub(super) async fn cut(world: &World, mut dice: Rng) -> Result<Hit, String> {
    let begun = reshard(world, dice.fork()).await?;
    sleep(between(&mut dice, 2500, 4500)).await;
    let how = disturb_managers(world, &mut dice).await;
    Ok(Hit {
        detail: format!("{}; {how}", begun.detail),
        ..begun
    })
}

/// Kills, freezes or cuts off managers for a time. Returns what was done.
pub(super) async fn disturb_managers(world: &World, dice: &mut Rng) -> String {
    let lasts = between(dice, 100, 4000);
    match dice.u32(0..3) {
        0 => {
            for manager in [0, 1] {
                let mut member = world.fleet.take(Role::Manager, manager).await;
                member.kill9().await;
                member.start();
            }
            "both managers killed".to_owned()
        }
        1 => {
            let mut member = world.fleet.take(Role::Manager, dice.usize(0..2)).await;
            member.stop();
            sleep(lasts).await;
            member.cont();
            format!("{} stood still for {lasts:?}", member.name)
        }
        _ => {
            let proxies = world.fleet.proxies().iter();
            let managers = proxies.filter(|(name, _)| name.starts_with("manager"));
            let managers: Vec<_> = managers.map(|(_, proxy)| proxy).collect();
            for proxy in &managers {
                proxy.set(Mode::SwallowReplies).await;
            }
            sleep(lasts).await;
            for proxy in &managers {
                proxy.set(Mode::Pass).await;
            }
            format!("no manager got a reply for {lasts:?}")
        }
    }
}
