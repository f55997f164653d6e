//! The schedule of faults, and the time until messages flow again.

use crate::faults::{Deck, FLUSHALL, KINDS};
use crate::load::Load;
use crate::options::Options;
use crate::record::{Record, now};
use crate::report::Faults;
use crate::world::World;
use fastrand::Rng;
use futures_util::future::join_all;
use redis::cmd;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// After a fault, messages flow again within this, or a promise is broken: a lease, connections that are dropped, and
/// the backlog meanwhile. A slow machine makes half of it longer.
const RECOVERY: Duration = Duration::from_secs(30);
/// With recoveries that take long there are fewer faults: the time may be exceeded by this factor, not more.
const OVERTIME: f64 = 1.3;
/// The time that messages flow before the first fault, and before and after everything is deleted.
const CALM: Duration = Duration::from_secs(4);

/// The faults of a run.
pub(crate) struct Storm<'a> {
    pub(crate) options: &'a Options,
    pub(crate) world: &'a World,
    pub(crate) load: &'a Arc<Load>,
}

impl Storm<'_> {
    /// Injects faults until the wanted numbers of faults and messages are reached.
    pub(crate) async fn rage(&self, faults: &mut Faults) {
        let (options, world) = (self.options, self.world);
        let wanted = KINDS
            .iter()
            .filter(|kind| options.only.is_empty() || options.only.iter().any(|n| n == kind.name));
        let mut possible = Vec::new();
        for kind in wanted {
            match kind.impossible(world) {
                None => possible.push(kind),
                Some(why) => faults.skipped.push((kind.name, why)),
            }
        }
        for (name, why) in &faults.skipped {
            println!("skipped: {name}: {why}");
        }
        let mut deck = Deck::new(possible, Rng::with_seed(options.seed));
        let time = Duration::from_secs_f64(options.minutes * 60.0);
        let gap = time.div_f64(options.faults.max(1) as f64);
        sleep(CALM).await;
        let begun = Instant::now();
        let mut next = begun;
        loop {
            let enough = faults.total() >= options.faults as u64;
            let overtime = begun.elapsed() > time.mul_f64(OVERTIME);
            if (enough || overtime) && self.load.sent() >= options.messages {
                return;
            }
            sleep_until(next).await;
            let drawn = deck.draw();
            next = Instant::now().max(next + gap * drawn.len().max(1) as u32);
            if drawn.is_empty() {
                // None of the wanted faults is possible here: only messages.
                continue;
            }
            let kinds: Vec<_> = drawn.iter().map(|(kind, _)| kind.name).collect();
            join_all(
                drawn
                    .into_iter()
                    .map(|(kind, dice)| kind.inject(world, dice)),
            )
            .await;
            let recovery = self.recovery(&kinds.join(" and ")).await;
            for kind in &kinds {
                // If there were two at once, the recovery cannot be attributed to one.
                faults.note(kind, recovery.filter(|_| kinds.len() == 1));
            }
        }
    }

    /// Deletes everything while messages flow.
    pub(crate) async fn flush(&self, faults: &mut Faults) {
        sleep(CALM).await;
        let from = now();
        if let Err(why) = self.world.command::<()>(&cmd("FLUSHALL")).await {
            self.world.journal.violation(format!("FLUSHALL: {why}"));
        }
        self.world.journal.note(&Record::Flushed { from });
        faults.note(FLUSHALL, self.recovery(FLUSHALL).await);
        sleep(CALM).await;
    }

    /// Waits from now until all messages flow again; returns the time in ms.
    async fn recovery(&self, after: &str) -> Option<u64> {
        match self.world.flows_since(now(), RECOVERY).await {
            Ok(recovery) => Some(recovery),
            Err(silent) => {
                let crash = self.world.crash().await;
                let crash = crash.map_or(String::new(), |line| format!(": {line}"));
                let what =
                    format!("{silent:?} silent for {RECOVERY:?} and more after {after}{crash}");
                self.world.journal.violation(what);
                None
            }
        }
    }
}
