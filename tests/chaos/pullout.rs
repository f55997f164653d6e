//! The topic that is only broadcast loses all its groups: their processes end, the groups are removed, messages wait,
//! and other processes start. It takes longer than other faults, and runs beside them.

use crate::plan::{LISTENERS, Topic};
use crate::record::now;
use crate::world::World;
use lisa_tests::Stopwatch;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The time from the end of one to the next: a listener that came back must be heard again before it goes.
const BETWEEN: Duration = Duration::from_secs(25);
/// The first one comes sooner, so that the short form has one.
const FIRST: Duration = Duration::from_secs(6);
/// The time that the topic then has no group, at least.
const WITHOUT: Duration = Duration::from_secs(2);
/// The groups are gone within this: `instance_ttl`, two runs of `clean`, and faults that hold these up. A slow machine
/// makes half of it longer.
const GONE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(300);

/// The names of the two disturbances: a listener is gone; the topic has no group.
pub(crate) const PULL_OUT: &str = "pull-out";
pub(crate) const NO_GROUP: &str = "no-group";

pub(crate) struct PullOuts<'a> {
    world: &'a World,
    over: AtomicBool,
}

impl<'a> PullOuts<'a> {
    pub(crate) fn new(world: &'a World) -> Self {
        Self {
            world,
            over: AtomicBool::new(false),
        }
    }

    /// Makes the one under way the last.
    pub(crate) fn stop(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    /// Repeats the pull-out until it is stopped.
    pub(crate) async fn keep(&self) {
        let mut pause = FIRST;
        loop {
            let next = Instant::now() + pause;
            while Instant::now() < next {
                if self.over.load(Ordering::SeqCst) {
                    return;
                }
                sleep(PAUSE).await;
            }
            self.pull_out().await;
            pause = BETWEEN;
        }
    }

    async fn pull_out(&self) {
        let world = self.world;
        let from = now();
        let mut listeners = Vec::new();
        for name in LISTENERS {
            let mut listener = world.fleet.member(name).await;
            match fastrand::bool() {
                true => listener.kill9().await,
                false => listener.terminate().await,
            }
            listeners.push(listener);
        }
        let watch = Stopwatch::start();
        while let Err(state) = self.no_group().await {
            if watch.elapsed() > watch.limit(GONE / 2, GONE / 2) {
                let what = format!("groups of ended processes stay for {GONE:?} and more: {state}");
                world.journal.violation(what);
                break;
            }
            sleep(PAUSE).await;
        }
        let gone = now();
        sleep(WITHOUT).await;
        for listener in &mut listeners {
            listener.start();
            world.disturbed(from, PULL_OUT, listener.name, "ended, and started again");
        }
        let topic = Topic::Radio.name();
        world.disturbed(gone, NO_GROUP, topic, "no process read it");
    }

    /// The topic has no group.
    async fn no_group(&self) -> Result<(), String> {
        let list = ["groups", "list", Topic::Radio.name(), "--output", "json"];
        let (_, output, errors) = self.world.fleet.manager(&list).await;
        let listed: Value = serde_json::from_str(&output).map_err(|_| errors)?;
        match listed["groups"].as_array() {
            Some(groups) if groups.is_empty() => Ok(()),
            _ => Err(output),
        }
    }
}
