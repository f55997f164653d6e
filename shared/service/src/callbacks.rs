//! The topics to which subscriptions send callbacks. Refuses cycles, in which callbacks would never end.

use std::collections::{BTreeMap, BTreeSet};

use lisa_core::topic::Topic;

/// The topics that receive callbacks of other topics.
#[derive(Clone, Debug, Default)]
pub struct CallbackTopics {
    receivers: BTreeMap<Topic, BTreeSet<Topic>>,
}

impl CallbackTopics {
    /// Adds a topic that receives callbacks of `of`.
    ///
    /// # Errors
    /// Returns the cycle that it would close, such as `a → b → a`. The topic is then not added.
    pub fn add(&mut self, of: &Topic, to: &Topic) -> Result<(), String> {
        if let Some(path) = self.path(to, of) {
            let topics = std::iter::once(of).chain(path);
            let topics: Vec<_> = topics.map(Topic::as_str).collect();
            return Err(topics.join(" → "));
        }
        let receivers = self.receivers.entry(of.clone()).or_default();
        receivers.insert(to.clone());
        Ok(())
    }

    /// Returns the topics on a path of callbacks from one topic to another, including both.
    fn path<'a>(&'a self, from: &'a Topic, to: &Topic) -> Option<Vec<&'a Topic>> {
        let mut seen = BTreeSet::from([from]);
        let mut paths = vec![vec![from]];
        while let Some(path) = paths.pop() {
            let last = *path.last()?;
            if last == to {
                return Some(path);
            }
            for next in self.receivers.get(last).into_iter().flatten() {
                if seen.insert(next) {
                    paths.push([&path[..], &[next]].concat());
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callbacks_that_come_back_to_their_topic_are_refused_with_their_way() {
        let topic = |name: &str| name.parse::<Topic>().unwrap();
        let mut callbacks = CallbackTopics::default();
        let mut add = |of: &str, to: &str| callbacks.add(&topic(of), &topic(to));
        assert_eq!(add("a", "a"), Err("a → a".to_owned()));
        for (of, to) in [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("a", "b")] {
            assert_eq!(add(of, to), Ok(()), "{of} {to}");
        }
        assert_eq!(add("b", "a"), Err("b → a → b".to_owned()));
        let cycle = add("d", "a").unwrap_err();
        assert!(
            ["d → a → b → d", "d → a → c → d"].contains(&&*cycle),
            "{cycle}"
        );
        assert_eq!(add("d", "e"), Ok(()));
    }
}
