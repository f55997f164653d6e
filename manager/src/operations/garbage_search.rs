//! Searches a group's garbage for the messages that match a filter.

use lisa_core::broker::{Broker, BrokerError, ListedMessage, MAX_BATCH, Page, TopicHandle};
use lisa_core::state::State;
use lisa_core::topic::Group;

use super::garbage_filter::Filter;
use super::messages::MessagePage;

/// The most messages that are examined for a page.
const MAX_EXAMINED: usize = 5000;

/// A search, and the page of its results to return.
pub(crate) struct Search<'a> {
    pub(crate) filter: &'a Filter,
    pub(crate) newest_first: bool,
    /// The end of the previous page.
    pub(crate) cursor: Option<&'a str>,
    /// The most messages of the page.
    pub(crate) limit: usize,
}

/// Returns a page of the matching messages. It is short, or empty, if few of the 5,000 messages match that are examined for it;
/// only a page without a next one is the last.
///
/// # Errors
/// [`BrokerError`].
pub(crate) async fn search(
    broker: &Broker,
    topic: &TopicHandle,
    group: &Group,
    search: Search<'_>,
) -> Result<MessagePage, BrokerError> {
    let filter = search.filter;
    let range = filter.range(search.newest_first);
    let list = async |cursor: Option<String>, limit| {
        let cursor = cursor.as_deref();
        broker
            .list_within(topic, group, State::Garbage, range, cursor, limit)
            .await
    };
    let matches = |listed: &ListedMessage| {
        filter.matches(listed.reason, listed.error.as_deref(), listed.key.as_ref())
    };
    let mut items = Vec::new();
    let mut next = search.cursor.map(str::to_owned);
    let mut looked_at = 0;
    loop {
        let mut page = list(next.clone(), MAX_BATCH).await?;
        // The page to return ends behind the last message that it has room for.
        let room = search.limit - items.len();
        let fitting = page
            .items
            .iter()
            .enumerate()
            .filter(|(_, listed)| matches(listed));
        let last = fitting.take(room).nth(room - 1);
        if let Some((last, _)) = last.filter(|(last, _)| last + 1 < page.items.len()) {
            page = list(next, last + 1).await?;
        }
        looked_at += page.items.len();
        items.extend(page.items.into_iter().filter(matches));
        next = page.next;
        if next.is_none() || items.len() >= search.limit || looked_at >= MAX_EXAMINED {
            break;
        }
    }
    let page = MessagePage::new(topic, Some(group), Page { items, next });
    Ok(MessagePage {
        looked_at: Some(looked_at),
        ..page
    })
}
