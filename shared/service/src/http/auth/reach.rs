//! The topics, groups and schedules that a token reaches, where several teams share a relay.
//!
//! A route with a topic in its path is refused if the token does not reach that topic. Any other route is refused unless its handler
//! filters by what the token reaches. A new route is therefore refused until it is listed in [`LIMITED`].

use lisa_core::percent;
use lisa_core::topic::{Group, NamePattern, ScheduleName, Topic};

use super::Scope;

/// The routes about several topics whose handlers leave out those that the token does not reach.
const LIMITED: [&str; 10] = [
    "/v1/topics",
    "/v1/stats",
    "/v1/stats/snapshot",
    "/v1/attention",
    "/v1/forecast",
    "/v1/schedules",
    "/v1/audit",
    "/v1/garbage/jobs",
    "/v1/garbage/jobs/{id}/stop",
    "/v1/workers",
];

/// The routes about all topics together that stay refused, and the route of one topic to use instead.
const OF_ONE_TOPIC: [(&str, &str); 1] = [("/v1/history", "/v1/topics/{topic}/history")];

/// The topics, groups and schedules that a token reaches. By default, all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reach {
    /// The topics; `None` for all.
    pub topics: Option<Vec<NamePattern>>,
    /// The groups of these topics; `None` for all.
    pub groups: Option<Vec<NamePattern>>,
    /// The schedules of these topics, by their own names; `None` for all.
    pub schedules: Option<Vec<NamePattern>>,
}

impl Reach {
    /// Returns true if any limit is configured, even `*`.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        self.topics.is_some() || self.groups.is_some() || self.schedules.is_some()
    }

    /// Returns true if it has the topic.
    #[must_use]
    pub fn has_topic(&self, topic: &Topic) -> bool {
        matches(self.topics.as_ref(), topic.as_str())
    }

    /// Returns true if it has the group, on the topics that it has.
    #[must_use]
    pub fn has_group(&self, group: &Group) -> bool {
        matches(self.groups.as_ref(), group.as_str())
    }

    /// Returns true if it has the schedule by its name. Its topic is checked separately.
    #[must_use]
    pub fn has_schedule(&self, schedule: &ScheduleName) -> bool {
        matches(self.schedules.as_ref(), schedule.as_str())
    }

    /// Returns the starts of the names of all schedules that it may have and that begin with `prefix`.
    pub fn starts_of_schedules<'a>(&'a self, prefix: &'a str) -> Vec<&'a str> {
        let Some(patterns) = &self.schedules else {
            return vec![prefix];
        };
        let patterns = patterns.iter().map(NamePattern::start);
        let longer = patterns.filter_map(|start| match start.starts_with(prefix) {
            true => Some(start),
            false => prefix.starts_with(start).then_some(prefix),
        });
        longer.collect()
    }

    /// Returns the reason why a request for a route under `/v1` is refused, if it is.
    pub(super) fn refusal(&self, scope: Scope, route: Option<&str>, path: &str) -> Option<String> {
        let is_filtered = route.is_some_and(|route| LIMITED.contains(&route));
        self.refusal_of(scope, route, path, is_filtered)
    }

    /// Returns the reason why a request for a route is refused, if it is. `route` is the pattern of the route, as
    /// `/v1/topics/{topic}`; `None` if the request matches no route. `is_filtered` is true if its handler leaves out what the
    /// token does not reach.
    #[must_use]
    pub fn refusal_of(
        &self,
        scope: Scope,
        route: Option<&str>,
        path: &str,
        is_filtered: bool,
    ) -> Option<String> {
        if !self.is_limited() {
            return None;
        }
        let route = route.unwrap_or_default();
        let named = |name: &str| {
            let mut parts = route.split('/').zip(path.split('/'));
            let (_, given) = parts.find(|(part, _)| *part == name)?;
            Some(percent::decode(given).unwrap_or_default())
        };
        let (topic, schedule) = (named("{topic}"), named("{schedule}"));
        let is_limited = schedule.is_some() || is_filtered;
        let instead = OF_ONE_TOPIC.iter().find(|(of_all, _)| *of_all == route);
        let hint = |why: String| match instead {
            Some((_, one)) => format!("{why}; use {one}"),
            None => why,
        };
        // Tokens reach anything.
        let of_any = scope == Scope::Tokens;
        // A send is to all groups of a topic, and a reader of a topic sees those.
        let of_groups = scope != Scope::Operate && !of_any;
        None.or_else(|| only("topics", self.topics.as_ref(), topic, is_limited).map(hint))
            .or_else(|| only("schedules", self.schedules.as_ref(), schedule, !of_any))
            .or_else(|| only("groups", self.groups.as_ref(), named("{group}"), of_groups))
    }
}

fn matches(patterns: Option<&Vec<NamePattern>>, name: &str) -> bool {
    patterns.is_none_or(|patterns| patterns.iter().any(|pattern| pattern.matches(name)))
}

/// Returns the reason why a request is refused that has this name in its path, or none. Without a name, a route may be limited by its
/// handler.
fn only(
    what: &str,
    patterns: Option<&Vec<NamePattern>>,
    given: Option<String>,
    is_limited: bool,
) -> Option<String> {
    let why = match given {
        Some(name) if !matches(patterns, &name) => String::new(),
        None if patterns.is_some() && !is_limited => {
            format!("; this route covers all {what}")
        }
        _ => return None,
    };
    let names = patterns.into_iter().flatten().map(NamePattern::as_str);
    let names: Vec<_> = names.collect();
    Some(format!(
        "the token is limited to the {what} {}{why}",
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(names: &[&str]) -> Option<Vec<NamePattern>> {
        Some(names.iter().map(|name| name.parse().unwrap()).collect())
    }

    #[test]
    fn a_topic_in_the_path_decides() {
        let reach = Reach {
            topics: patterns(&["shop-*", "mail"]),
            groups: None,
            schedules: patterns(&["shop-*"]),
        };
        let refusal = |route: &str, path: &str| reach.refusal(Scope::Read, Some(route), path);
        let route = "/v1/topics/{topic}/messages:batch";
        for (topic, is_reached) in [
            ("shop-eu", true),
            ("shop-", true),
            ("mail", true),
            ("mail2", false),
            ("shop", false),
            ("bank", false),
            ("s%68op-eu", true),
            ("%62ank", false),
            ("shop-%", false),
        ] {
            let path = format!("/v1/topics/{topic}/messages:batch");
            assert_eq!(refusal(route, &path).is_none(), is_reached, "{topic}");
        }
        let only = "the token is limited to the topics shop-*, mail";
        let why = refusal("/v1/topics/{topic}", "/v1/topics/bank");
        assert_eq!(why.as_deref(), Some(only));
        assert_eq!(refusal("/v1/topics", "/v1/topics"), None);
        let run = |name: &str| {
            refusal(
                "/v1/schedules/{schedule}/run",
                &format!("/v1/schedules/{name}/run"),
            )
        };
        assert_eq!(run("shop-daily"), None);
        let why = "the token is limited to the schedules shop-*";
        assert_eq!(run("daily").as_deref(), Some(why));
        assert_eq!(reach.starts_of_schedules(""), ["shop-"]);
        assert_eq!(reach.starts_of_schedules("sh"), ["shop-"]);
        assert_eq!(reach.starts_of_schedules("shop-e"), ["shop-e"]);
        assert!(reach.starts_of_schedules("d").is_empty());
        let why = refusal("/v1/history", "/v1/history").unwrap();
        let instead = "this route covers all topics; use /v1/topics/{topic}/history";
        assert_eq!(why, format!("{only}; {instead}"));
        for route in ["/v1/jobs/{name}/run", "/metrics", "/", "/v1/unknown"] {
            let why = refusal(route, route).unwrap();
            assert_eq!(why, format!("{only}; this route covers all topics"));
        }
        assert!(reach.refusal(Scope::Send, None, "/v1/topics").is_some());
    }

    #[test]
    fn a_group_in_the_path_decides_and_without_one_nothing_is_operated() {
        let reach = Reach {
            topics: None,
            groups: patterns(&["billing"]),
            schedules: None,
        };
        let (all, one) = (
            "/v1/topics/{topic}/pause",
            "/v1/topics/{topic}/groups/{group}/pull",
        );
        let pull = |group: &str| {
            let path = format!("/v1/topics/t/groups/{group}/pull");
            reach.refusal(Scope::Receive, Some(one), &path)
        };
        assert_eq!(pull("billing"), None);
        assert!(
            pull("other")
                .unwrap()
                .contains("limited to the groups billing")
        );
        let of = |scope| reach.refusal(scope, Some(all), "/v1/topics/t/pause");
        assert_eq!(of(Scope::Send), None);
        assert_eq!(of(Scope::Read), None);
        assert!(of(Scope::Operate).unwrap().contains("covers all groups"));
        let tokens = |reach: &Reach| {
            let route = "/v1/tokens/{token}";
            reach.refusal(Scope::Tokens, Some(route), "/v1/tokens/a")
        };
        assert!(tokens(&reach).unwrap().contains("covers all groups"));
        let of_schedules = Reach {
            schedules: patterns(&["*"]),
            ..Reach::default()
        };
        assert!(tokens(&of_schedules).is_some());
        assert_eq!(tokens(&Reach::default()), None);
        assert_eq!(Reach::default().refusal(Scope::Operate, None, ""), None);
    }
}
