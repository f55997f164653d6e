//! Faults of single processes.

use super::{Hit, between};
use crate::member::Member;
use crate::settings::Role;
use crate::world::World;
use fastrand::Rng;
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
    member.start(&[]);
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
    member.start(&[]);
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

/// Ends a process cleanly, and starts it again with a clock that is up to nine hours fast or slow.
pub(super) async fn skew(world: &World, mut dice: Rng) -> Result<Hit, String> {
    let library = world.faketime.clone()?;
    let role = [Role::Producer, Role::Manager, Role::Consumer][dice.usize(0..3)];
    let mut member = world.fleet.take(role, dice.usize(..)).await;
    member.terminate().await;
    let hours = dice.i32(1..10) * if dice.bool() { 1 } else { -1 };
    member.start(&[
        ("LD_PRELOAD", library),
        ("FAKETIME", format!("{hours:+}h")),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        // Otherwise each killed process leaves a file behind.
        ("FAKETIME_DISABLE_SHM", "1".to_owned()),
    ]);
    Ok(hit(&member, format!("its clock is {hours:+} h off")))
}
