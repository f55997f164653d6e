//! Which group a subscription reads for: one of the topic's, or one that each process has for itself.

use std::fmt;
use std::str::FromStr;

use crate::topic::{Group, InvalidName};

/// The group of a subscription.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SubscriptionGroup {
    /// A group of the topic, which its consumers share.
    Named(Group),
    /// A group of this process alone, written `{instance}`: every process gets every message.
    Instance,
}

const INSTANCE: &str = "{instance}";

impl fmt::Display for SubscriptionGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(group) => group.fmt(f),
            Self::Instance => f.write_str(INSTANCE),
        }
    }
}

impl FromStr for SubscriptionGroup {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        if text == INSTANCE {
            return Ok(Self::Instance);
        }
        let named = text
            .parse()
            .ok()
            .filter(|group: &Group| !group.is_of_instance());
        named.map(Self::Named).ok_or_else(|| {
            let rule = "[a-z0-9][a-z0-9_-]{0,63}, not beginning with instance-, or {instance}";
            InvalidName::new("group of a subscription", rule, text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscription_reads_for_a_named_group_or_for_its_process_alone() {
        let read = |text: &str| text.parse::<SubscriptionGroup>();
        let billing = SubscriptionGroup::Named("billing".parse().unwrap());
        assert_eq!(read("billing"), Ok(billing));
        assert_eq!(read("{instance}"), Ok(SubscriptionGroup::Instance));
        for bad in ["", "Billing", "{group}", "{instance", "instance-7"] {
            let error = read(bad).expect_err(bad).to_string();
            assert!(error.ends_with("or {instance}"), "{error}");
        }
        for text in ["billing", "{instance}"] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
    }
}
