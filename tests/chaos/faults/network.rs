//! Faults between the processes and Redis: of one process, or of all at once.

use super::{Hit, between};
use crate::record::ALL;
use crate::world::World;
use fastrand::Rng;
use lisa_tests::Mode;
use tokio::time::sleep;

pub(super) fn latency(dice: &mut Rng) -> Mode {
    Mode::Delay(between(dice, 10, 100))
}

pub(super) fn slow_link(dice: &mut Rng) -> Mode {
    Mode::Rate(dice.u32(100_000..400_000))
}

pub(super) fn cut_requests(dice: &mut Rng) -> Mode {
    Mode::CutRequestsAfter(dice.usize(0..2000))
}

pub(super) fn cut_replies(dice: &mut Rng) -> Mode {
    Mode::CutRepliesAfter(dice.usize(0..500))
}

/// Lets proxies misbehave for a while, one time in four for longer than a lease.
pub(super) async fn spoil(
    world: &World,
    mut dice: Rng,
    mode: fn(&mut Rng) -> Mode,
) -> Result<Hit, String> {
    let proxies = world.fleet.proxies();
    let one = dice.usize(0..proxies.len());
    let chosen = if dice.u32(0..3) == 0 {
        proxies
    } else {
        &proxies[one..=one]
    };
    let long = dice.u32(0..4) == 0;
    let lasts = if long {
        between(&mut dice, 3000, 6000)
    } else {
        between(&mut dice, 200, 2000)
    };
    let mode = mode(&mut dice);
    for (_, proxy) in chosen {
        proxy.set(mode).await;
    }
    sleep(lasts).await;
    for (_, proxy) in chosen {
        proxy.set(Mode::Pass).await;
    }
    Ok(Hit {
        process: match chosen {
            [(name, _)] => (*name).to_owned(),
            _ => ALL.to_owned(),
        },
        detail: format!("{mode:?} for {lasts:?}"),
    })
}
