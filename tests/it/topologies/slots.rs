//! Slots that move again and again, at once or with a stay between two nodes, while messages flow.

use super::is_long;
use super::load::{Load, TOPIC, settings};
use fastrand::Rng;
use lisa_core::topic::TopicSettings;
use lisa_tests::relay::ms;
use lisa_tests::{Aof, Cluster};
use std::time::Duration;
use tokio::time::sleep;

const SHARDS: u16 = 6;
/// The longest stay of a slot between two nodes, ms.
const STAY: u64 = 1500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_again_and_again_lose_repeat_and_disorder_nothing() {
    let seed = std::env::var("LISA_SLOTS_SEED").ok();
    let seed = seed.map_or_else(|| fastrand::u64(..), |seed| seed.parse().expect("a number"));
    println!("LISA_SLOTS_SEED={seed}");
    let mut dice = Rng::with_seed(seed);
    let here = Cluster::start(Aof::EverySec).await;
    let settings = TopicSettings {
        shards: SHARDS,
        // Far longer than any stay, so that nothing explains a message that comes again.
        lease: Duration::from_secs(20),
        ..settings()
    };
    let mut load = Load::start(&here.access(), settings).await;
    let moves = if is_long() { 80 } else { 12 };
    for _ in 0..moves {
        let shard = dice.u16(0..SHARDS);
        let slot = here.slot_of(&format!("{{{TOPIC}:{shard}}}")).await;
        let to = (here.master_of(slot).await + dice.usize(1..3)) % 3;
        if dice.u32(0..3) == 0 {
            here.move_slot(slot, to).await;
        } else {
            here.begin_move(slot, to).await;
            let part = dice.usize(0..6);
            if part > 0 {
                here.move_keys(slot, to, part).await;
            }
            sleep(ms(dice.u64(0..STAY))).await;
            while here.move_keys(slot, to, 100).await > 0 {}
            here.end_move(slot, to).await;
        }
        load.passes(20).await;
    }
    load.drained().await;
    assert_eq!(load.doubled(), Vec::<String>::new());
    let lost = load.finish().await;
    assert!(lost.is_empty(), "{lost:?}");
}
