//! Each role killed at each of its steps: held at a call of Redis, before Redis gets it or after, killed there, and
//! started again. Everything is handled, nothing is early, the messages of a key keep their order, and nothing is left.
//!
//! The table says at which calls; a cell whose process never makes its call fails.

mod calls;
mod cell;
mod consumer;
mod manager;
mod producer;

use calls::Side::{self, Before, Behind};
use cell::Cell;

use crate::topologies::is_long;
use futures_util::{FutureExt, StreamExt};
use lisa_core::topic::Shard;
use lisa_tests::{Server, Site, Topology};
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use tokio::time::Instant;

/// The activity of a process when it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scene {
    /// A producer sends a message.
    Send,
    /// It sends a batch.
    Batch,
    /// It sends a message with an ordering key.
    Keyed,
    /// It cancels one.
    Cancel,
    /// It reschedules one.
    Reschedule,
    /// A manager starts.
    Start,
    /// It relays messages.
    Relay,
    /// It relays messages with ordering keys.
    Parked,
    /// It reclaims the messages of a consumer that is gone.
    Ghost,
    /// It purges old garbage.
    Garbage,
    /// It removes a group that was dropped.
    Dropped,
    /// It moves a topic to other shards.
    MigrateOut,
    /// It removes another topic.
    Remove,
    /// It catches up on a missed time of a schedule of its file.
    Recur,
    /// It catches up on a missed time of a schedule that was created at run time.
    Take,
    /// An operator's verb reshards a topic.
    Reshard,
    /// A consumer handles messages.
    Handle,
    /// It handles messages with ordering keys.
    Order,
    /// Its handler fails at first.
    Fail,
    /// Its handler defers them at first.
    Defer,
    /// Its handler rejects all of them.
    Reject,
    /// Its handler takes longer than a lease.
    Long,
    /// It gets messages from a consumer that was killed.
    Suspects,
    /// It is asked to stop while its handlers hang.
    Leave,
    /// It creates its own group.
    Join,
}
use Scene::*;

/// The points at which processes are killed: the scene, the call, and the sides of it that are also tested in a short
/// run. The others need `LISA_TEST_LONG=1`.
const TABLE: [(Scene, &str, &[Side]); 53] = [
    (MigrateOut, "drop_keys", &[]),
    (MigrateOut, "mark_retired", &[]),
    (MigrateOut, "finish_reshard", &[]),
    (MigrateOut, "merge_counters", &[]),
    (MigrateOut, "migrate_in", &[]),
    (MigrateOut, "migrate_out", &[]),
    (Remove, "remove_topic", &[]),
    (Remove, "remove_shard", &[Behind]),
    (Remove, "unregister", &[Before]),
    (Reshard, "HSETNX", &[]),
    (Reshard, "declare", &[]),
    (Reshard, "create_shard", &[]),
    (Reshard, "redirect", &[]),
    (Reshard, "register", &[]),
    (Join, "join", &[]),
    (Send, "send_plain", &[Behind]),
    (Batch, "send_plain", &[]),
    (Keyed, "send", &[]),
    (Cancel, "cancel", &[]),
    (Reschedule, "reschedule", &[Behind]),
    (Start, "declare", &[]),
    (Start, "register", &[]),
    (Start, "heartbeat", &[]),
    (Relay, "heartbeat", &[]),
    (Relay, "move_due_plain", &[Before]),
    (Relay, "stats", &[]),
    (Relay, "note_counts", &[Behind]),
    (Relay, "clean", &[]),
    (Relay, "forget", &[]),
    (Parked, "move_due", &[Behind]),
    (Ghost, "XPENDING", &[]),
    (Ghost, "XRANGE", &[]),
    (Ghost, "HMGET", &[]),
    (Ghost, "reclaim", &[Behind]),
    (Ghost, "heads", &[]),
    (Garbage, "purge", &[]),
    (Dropped, "remove_group", &[]),
    (Recur, "note_fires", &[]),
    (Recur, "send_plain", &[Behind]),
    (Take, "take_fires", &[Behind]),
    (Take, "send_plain", &[]),
    (Take, "note_fires", &[]),
    (Handle, "XREADGROUP", &[Behind]),
    (Handle, "HMGET", &[]),
    (Handle, "ack_plain", &[Behind]),
    (Order, "ack", &[Before]),
    (Fail, "settle", &[]),
    (Defer, "settle", &[]),
    (Reject, "settle", &[]),
    (Long, "XCLAIM", &[]),
    (Suspects, "XCLAIM", &[]),
    (Leave, "settle", &[Before]),
    (Leave, "drop_consumer", &[]),
];

/// The operations that no process calls by itself: they serve operators, clients of a gateway, and Rust handlers that subscribe to
/// garbage.
const NOT_BY_ITSELF: [&str; 24] = [
    "ack_late",
    "change_garbage_job",
    "change_token",
    "claim_topic",
    "enable_garbage_hook",
    "examine",
    "finish_garbage_hook",
    "hide",
    "lookup",
    "note_action",
    "page",
    "parked_keys",
    "pause",
    "pause_schedule",
    "put_schedule",
    "recount",
    "remove_schedule",
    "repair",
    "requeue",
    "retire",
    "start_move_task",
    "take_garbage_hooks",
    "take_parked",
    "walk",
];

/// The operations that only record a history: a process that is killed there leaves a gap.
const OF_HISTORY: [&str; 3] = ["note_sample", "note_total", "observe"];

/// The number of messages that a scene sends.
const COUNT: usize = 6;
/// The number of handlers that run at once, which is the number that [`Leave`] leaves.
const CONCURRENCY: usize = 4;
/// The number of cells that are tried at a time.
const AT_ONCE: usize = 8;
/// The number of shards to which [`MigrateOut`] and [`Reshard`] bring a topic of one.
const SHARDS: u16 = 2;
const SHARD: Shard = Shard::new(0);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_at_any_of_its_calls_loses_nothing() {
    let reason = "the proxy that holds calls stands before one server";
    if Site::lacks(|topology| topology == Topology::Single, reason) {
        return;
    }
    let server = Server::builder().cluster(false).start();
    let cells = TABLE.iter().flat_map(|&(scene, call, in_a_hurry)| {
        let sides = [Before, Behind].into_iter();
        let sides = sides.filter(|side| is_long() || in_a_hurry.contains(side));
        sides.map(move |side| (scene, call, side))
    });
    let failed: Vec<String> = futures_util::stream::iter(cells)
        .map(async |(scene, call, side)| {
            let what = format!("{scene:?}, killed at {call}, {side:?}");
            let begun = Instant::now();
            let cell = Cell::new(&server, what.clone()).await;
            let calls = cell.calls.clone();
            let done = AssertUnwindSafe(run(cell, scene, call, side)).catch_unwind();
            let failed = done.await.is_err();
            println!("{what}: {:?}, {}", begun.elapsed(), calls.seen());
            failed.then_some(what)
        })
        .buffer_unordered(AT_ONCE)
        .filter_map(std::future::ready)
        .collect()
        .await;
    // The failures of each are above.
    assert_eq!(failed, Vec::<String>::new());
}

#[test]
fn every_script_that_a_process_calls_by_itself_is_in_the_table() {
    let in_table = TABLE.iter().map(|(_, call, _)| *call);
    let known: BTreeSet<&str> = in_table.chain(NOT_BY_ITSELF).chain(OF_HISTORY).collect();
    let missing: Vec<&str> = calls::scripts()
        .filter(|name| !known.contains(name))
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
}

async fn run(cell: Cell<'_>, scene: Scene, call: &'static str, side: Side) {
    match scene {
        Send | Batch | Keyed | Cancel | Reschedule => producer::run(cell, scene, call, side).await,
        Start | Relay | Parked | Ghost | Garbage | Dropped | MigrateOut | Remove | Recur | Take => {
            manager::run(cell, scene, call, side).await;
        }
        Reshard => manager::reshard(cell, call, side).await,
        Handle | Order | Fail | Defer | Reject | Long | Suspects | Leave | Join => {
            consumer::run(cell, scene, call, side).await;
        }
    }
}
