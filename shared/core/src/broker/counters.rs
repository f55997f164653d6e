//! The counters of a topic, which Redis keeps from its declaration on.

/// A counter of a topic. Most are counted for each group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    /// Its name in Redis, statistics and metrics.
    pub name: &'static str,
    /// True if it is exported as an event; false if only the sums use it.
    pub is_event: bool,
    /// True if it counts an end of the copy of a group.
    pub is_end: bool,
    /// True if it counts something that happens only after a consumer has read the message.
    pub is_of_reader: bool,
    /// True if it counts moves to garbage (dead letters).
    pub is_garbage: bool,
}

impl Counter {
    const fn event(name: &'static str) -> Self {
        Self {
            name,
            is_event: true,
            is_end: false,
            is_of_reader: false,
            is_garbage: false,
        }
    }

    const fn end(self) -> Self {
        Self {
            is_end: true,
            ..self
        }
    }

    const fn of_reader(self) -> Self {
        Self {
            is_of_reader: true,
            ..self
        }
    }

    const fn garbage(self) -> Self {
        Self {
            is_garbage: true,
            ..self
        }
    }
}

/// All counters, in the order of the values in a snapshot. Append new ones.
pub const COUNTERS: [Counter; 18] = [
    Counter::event("accepted"),
    Counter::event("duplicates"),
    Counter::event("merged"),
    Counter {
        is_event: false,
        ..Counter::event("moved")
    },
    Counter::event("acked").end().of_reader(),
    Counter::event("retried").of_reader(),
    Counter::event("deferred").of_reader(),
    Counter::event("rejected").of_reader().garbage(),
    Counter::event("exhausted").of_reader().garbage(),
    Counter::event("reclaimed").of_reader(),
    Counter::event("recovered"),
    Counter::event("requeued"),
    Counter::event("cancelled").end(),
    Counter::event("expired").end(),
    Counter::event("lapsed").garbage(),
    Counter::event("purged").end(),
    Counter::event("lost").end(),
    Counter::event("dropped").end(),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repair_of_sums_knows_the_same_ends() {
        let script = include_str!("../scripts/doctor/recount.lua");
        let ends = COUNTERS.iter().filter(|counter| counter.is_end);
        let ends: Vec<_> = ends.map(|counter| format!("'{}'", counter.name)).collect();
        let list = format!("ipairs({{{}}})", ends.join(", "));
        assert!(script.contains(&list), "{list}");
    }
}
