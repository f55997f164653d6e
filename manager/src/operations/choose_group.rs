//! Chooses the group of a topic that an operator means: the named one, or the only one.

use lisa_core::broker::TopicHandle;
use lisa_core::state::State;
use lisa_core::topic::{Group, Topic};

/// The reason no group can be chosen.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GroupError {
    /// The topic has no such group.
    #[error("topic {topic} has no group {named}, only {groups}")]
    Unknown {
        topic: Topic,
        named: String,
        /// All groups of the topic.
        groups: String,
    },
    /// The topic has no group at all.
    #[error("topic {0} has no group: its messages wait until one is added")]
    NoGroup(Topic),
    /// No group was named, and the topic has several.
    #[error("topic {topic} has several groups, name one: {groups}")]
    Several {
        topic: Topic,
        /// All groups of the topic.
        groups: String,
    },
}

/// Finds a group of a topic by name. Without a name, returns the only group.
///
/// # Errors
/// The topic has no such group or no group at all, or several and none was named.
pub(crate) fn choose<'a>(
    topic: &'a TopicHandle,
    named: Option<&str>,
) -> Result<&'a Group, GroupError> {
    among(topic.name(), topic.groups(), named)
}

/// Finds the group whose messages of a state are listed. Waiting messages belong to every group, so none needs to be
/// named: returns `None` then, unless the topic has only one group.
///
/// # Errors
/// As [`choose`].
pub(crate) fn choose_for<'a>(
    topic: &'a TopicHandle,
    state: State,
    named: Option<&str>,
) -> Result<Option<&'a Group>, GroupError> {
    match (state, named, topic.groups()) {
        (State::Waiting, None, [only]) => Ok(Some(only)),
        (State::Waiting, None, _) => Ok(None),
        _ => choose(topic, named).map(Some),
    }
}

/// Finds one of these groups of a topic, as [`choose`].
///
/// # Errors
/// As [`choose`].
pub(crate) fn among<'a>(
    topic: &Topic,
    groups: &'a [Group],
    named: Option<&str>,
) -> Result<&'a Group, GroupError> {
    let topic = topic.clone();
    let all: Vec<&str> = groups.iter().map(Group::as_str).collect();
    match (named, groups) {
        (_, []) => Err(GroupError::NoGroup(topic)),
        (None, [only]) => Ok(only),
        (None, _) => Err(GroupError::Several {
            topic,
            groups: all.join(", "),
        }),
        (Some(named), _) => groups
            .iter()
            .find(|group| group.as_str() == named)
            .ok_or_else(|| GroupError::Unknown {
                topic,
                named: named.to_owned(),
                groups: all.join(", "),
            }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_group_needs_no_name_and_one_of_several_does() {
        let topic: Topic = "orders".parse().unwrap();
        let groups = ["billing", "search"].map(|group| group.parse::<Group>().unwrap());
        assert_eq!(among(&topic, &groups[..1], None), Ok(&groups[0]));
        assert_eq!(among(&topic, &groups, Some("search")), Ok(&groups[1]));
        let text = |named| among(&topic, &groups, named).unwrap_err().to_string();
        assert_eq!(
            text(None),
            "topic orders has several groups, name one: billing, search"
        );
        assert_eq!(
            text(Some("sales")),
            "topic orders has no group sales, only billing, search"
        );
        let none = among(&topic, &[], Some("billing")).unwrap_err();
        assert_eq!(
            none.to_string(),
            "topic orders has no group: its messages wait until one is added"
        );
    }
}
