//! How many shards each topic has, as the configurations must say it: a process that starts with another number is
//! refused.

use crate::plan::Topic;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// What a process ends with that was refused for its configuration.
pub(crate) const REFUSED: i32 = 78;

/// The numbers now, and how they came about.
#[derive(Debug)]
pub(crate) struct Shards {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    numbers: BTreeMap<&'static str, u16>,
    /// Whether one of them is about to change: which one holds nobody knows.
    changing: bool,
    /// Counts the beginnings and ends of changes.
    changes: u64,
    begun: u64,
}

impl Default for Shards {
    fn default() -> Self {
        let at_first = |topic: Topic| match topic {
            Topic::Plain | Topic::Keyed => 2,
            _ => 1,
        };
        let numbers = Topic::ALL.map(|topic| (topic.name(), at_first(topic)));
        Self {
            state: Mutex::new(State {
                numbers: numbers.into(),
                changing: false,
                changes: 0,
                begun: 0,
            }),
        }
    }
}

impl Shards {
    /// The number of a topic.
    pub(crate) fn of(&self, topic: Topic) -> u16 {
        self.state().numbers[topic.name()]
    }

    /// Notes that a topic is about to get another number.
    pub(crate) fn change(&self) {
        let mut state = self.state();
        state.changing = true;
        state.changes += 1;
    }

    /// Notes what came of that; `None` if the number stays.
    pub(crate) fn changed(&self, topic: Topic, to: Option<u16>) {
        let mut state = self.state();
        state.changing = false;
        state.changes += 1;
        if let Some(number) = to {
            state.begun += 1;
            state.numbers.insert(topic.name(), number);
        }
    }

    /// A mark for what is configured now.
    pub(crate) fn mark(&self) -> u64 {
        self.state().changes
    }

    /// Whether what was configured at a mark may be refused by now.
    pub(crate) fn may_differ(&self, mark: u64) -> bool {
        let state = self.state();
        state.changing || state.changes != mark
    }

    /// How many times topics were given another number.
    pub(crate) fn begun(&self) -> u64 {
        self.state().begun
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panicked who counted")
    }
}
