//! The number of shards of each topic. Configurations name the number; an outdated one changes nothing.

use crate::plan::Topic;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// The current numbers, and their history.
#[derive(Debug)]
pub(crate) struct Shards {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    numbers: BTreeMap<&'static str, u16>,
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

    /// Notes that a topic gets another number.
    pub(crate) fn changed(&self, topic: Topic, to: u16) {
        let mut state = self.state();
        state.begun += 1;
        state.numbers.insert(topic.name(), to);
    }

    /// Returns the number of times that topics were resharded.
    pub(crate) fn begun(&self) -> u64 {
        self.state().begun
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}
