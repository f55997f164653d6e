//! Faults of single processes.

use super::{Hit, between};
use crate::member::Member;
use crate::settings::{Role, worker_topic};
use crate::world::World;
use fastrand::Rng;
use lisa_tests::lost_log;
use tokio::sync::MutexGuard;
use tokio::time::sleep;

fn hit(member: &Member, detail: String) -> Hit {
    Hit {
        process: member.name.to_owned(),
        detail,
    }
}

/// Kills a process, and starts it again at once or a little later.
pub(super) async fn kill(world: &World, mut dice: Rng, role: Role) -> Result<Hit, String> {
    let mut member = world.fleet.take(role, dice.usize(..)).await;
    member.kill9().await;
    let away = between(&mut dice, 0, 1500);
    sleep(away).await;
    member.start();
    Ok(hit(&member, format!("away for {away:?}")))
}

/// Freezes a process: one time in three for longer than a lease.
pub(super) async fn stop(world: &World, mut dice: Rng, role: Role) -> Result<Hit, String> {
    let mut member = world.fleet.take(role, dice.usize(..)).await;
    let long = dice.u32(0..3) == 0;
    let still = if long {
        between(&mut dice, 3500, 6000)
    } else {
        between(&mut dice, 200, 2000)
    };
    member.stop();
    sleep(still).await;
    member.cont();
    Ok(hit(&member, format!("stood still for {still:?}")))
}

/// Ends a process cleanly, and starts it again.
pub(super) async fn terminate(world: &World, mut dice: Rng, role: Role) -> Result<Hit, String> {
    let mut member = world.fleet.take(role, dice.usize(..)).await;
    member.terminate().await;
    member.start();
    Ok(hit(&member, "ended and started".to_owned()))
}

/// Starts a manager beside the others, and kills it a little later.
pub(super) async fn third_manager(world: &World, mut dice: Rng) -> Result<Hit, String> {
    let mut another = world.fleet.another_manager();
    let stay = between(&mut dice, 500, 4000);
    sleep(stay).await;
    match another.exit_status() {
        None => tokio::task::block_in_place(|| another.kill9()),
        Some(_) => return Err(format!("it ended by itself: {}", another.stderr())),
    }
    Ok(Hit {
        process: "manager-3".to_owned(),
        detail: format!("stayed for {stay:?}"),
    })
}

/// Restarts a process with a log that cannot be written to, and restarts it normally after a while.
pub(super) async fn lose_log(world: &World, mut dice: Rng) -> Result<Hit, String> {
    let mut member = any(world, &mut dice).await;
    let (log, _reader) = match worker_topic(member.name) {
        // Its handlers panic, and Rust's panic message would block on a pipe that nobody reads.
        Some(_) => lost_log::full(),
        None => lost_log::ALL[dice.usize(0..lost_log::ALL.len())](),
    };
    member.terminate().await;
    member.start_with(|launch| launch.log_to(log));
    let lasts = between(&mut dice, 2000, 6000);
    sleep(lasts).await;
    // It may have ended by itself.
    member.look().await;
    member.terminate().await;
    member.start();
    Ok(hit(&member, format!("without a log for {lasts:?}")))
}

/// Takes a process of any role but that of the listeners.
async fn any<'a>(world: &'a World, dice: &mut Rng) -> MutexGuard<'a, Member> {
    let role = [Role::Producer, Role::Manager, Role::Consumer][dice.usize(0..3)];
    world.fleet.take(role, dice.usize(..)).await
}

/// Ends a process cleanly, and starts it again with a clock that is up to nine hours fast or slow.
pub(super) async fn skew(world: &World, mut dice: Rng) -> Result<Hit, String> {
    let library = world.faketime.clone()?;
    let mut member = any(world, &mut dice).await;
    member.terminate().await;
    let hours = dice.i32(1..10) * if dice.bool() { 1 } else { -1 };
    member.start_with(|launch| {
        launch
            .env("LD_PRELOAD", &library)
            .env("FAKETIME", &format!("{hours:+}h"))
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            // Otherwise each killed process leaves a file behind.
            .env("FAKETIME_DISABLE_SHM", "1")
    });
    Ok(hit(&member, format!("its clock is {hours:+} h off")))
}
