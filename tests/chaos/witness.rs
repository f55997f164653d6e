//! Watches whether the machine itself is held up. When processes hardly run for seconds, leases end that their holders
//! would have kept: that is a reason for a duplicate, and no fault of Lisa's.

use crate::record::{ALL, now};
use crate::world::World;
use lisa_tests::Stopwatch;
use std::time::Duration;
use tokio::time::sleep;

/// The kind of disturbance in the record, and its description.
pub(crate) const STALL: &str = "stall";
pub(crate) const WHAT: &str = "the machine was held up for half a second";
const SPAN: Duration = Duration::from_millis(500);
/// The machine counts as held up if it is this many times slower than intended, or this much late.
const SLOW: f64 = 4.0;
const LATE: Duration = Duration::from_millis(300);

/// Measures forever, and records each span in which the machine was held up.
pub(crate) async fn watch(world: &World) {
    loop {
        let (from, watch) = (now(), Stopwatch::start());
        sleep(SPAN).await;
        let late = watch.elapsed().saturating_sub(SPAN);
        let slowness = watch.slowness();
        if slowness > SLOW || late > LATE {
            let detail = format!("{slowness:.1} times slower than meant, woken {late:?} late");
            world.disturbed(from, STALL, ALL, &detail);
        }
    }
}
