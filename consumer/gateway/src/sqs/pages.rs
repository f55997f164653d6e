//! Lists of queues, a page at a time.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use lisa_core::topic::Topic;

use super::protocol::{Kind, SqsError};

/// The most queues of a page.
const MAX_LISTED: usize = 1000;
/// The longest token of a page: a topic in base64.
const MAX_TOKEN: usize = 256;

/// A page.
pub(super) struct Page {
    /// The names of the queues.
    pub(super) names: Vec<String>,
    /// The token of the next page. SQS gives none to a client that has not said how many queues it wants.
    pub(super) next: Option<String>,
}

/// Returns a page of queues, which are in the order of their topics. A page continues after the last topic of the one before, so
/// it misses none if topics come and go in the meantime.
pub(super) fn page(
    mut queues: Vec<(&Topic, String)>,
    limit: Option<i64>,
    token: Option<&str>,
) -> Result<Page, SqsError> {
    let is_limited = limit.is_some();
    let limit = match limit {
        None => MAX_LISTED,
        Some(given) => usize::try_from(given)
            .ok()
            .filter(|given| (1..=MAX_LISTED).contains(given))
            .ok_or_else(|| {
                SqsError::parameter("MaxResults", given, "Must be between 1 and 1000")
            })?,
    };
    if let Some(token) = token.filter(|token| !token.is_empty()) {
        let after = topic_in(token).ok_or_else(|| {
            SqsError::new(
                Kind::InvalidParameterValue,
                "Invalid or expired next token.",
            )
        })?;
        queues.retain(|(topic, _)| **topic > after);
    }
    let has_more = queues.len() > limit;
    queues.truncate(limit);
    let last = queues.last().filter(|_| has_more && is_limited);
    let next = last.map(|(topic, _)| URL_SAFE_NO_PAD.encode(topic.as_str()));
    let names = queues.into_iter().map(|(_, name)| name).collect();
    Ok(Page { names, next })
}

fn topic_in(token: &str) -> Option<Topic> {
    let token = Some(token).filter(|token| token.len() <= MAX_TOKEN)?;
    let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
    str::from_utf8(&bytes).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other_and_have_tokens_that_only_lisa_makes() {
        let topics: Vec<Topic> = ["a", "b", "c"].map(|name| name.parse().unwrap()).into();
        let listed = |limit: Option<i64>, token: Option<&str>| {
            let queues = topics.iter().map(|topic| (topic, topic.to_string()));
            page(queues.collect(), limit, token).map(|page| (page.names, page.next))
        };
        let (names, next) = listed(Some(2), None).unwrap();
        assert_eq!(names, ["a", "b"]);
        let (names, next) = listed(Some(2), next.as_deref()).unwrap();
        assert_eq!((names, next), (vec!["c".to_owned()], None));
        assert_eq!(listed(None, None).unwrap().0.len(), 3);
        for (limit, token) in [
            (0, ""),
            (1001, ""),
            (-1, ""),
            (1, "b"),
            (1, "!"),
            (1, "__8"),
        ] {
            assert!(listed(Some(limit), Some(token)).is_err(), "{limit} {token}");
        }
    }
}
