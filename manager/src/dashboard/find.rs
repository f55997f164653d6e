//! The search: finds topics by name, messages by id, and the messages of an ordering key. It opens what it found only if nothing
//! else can match. Otherwise, it lists all matches, and what it did not search.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{RawQuery, State as With};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use lisa_core::broker::{BrokerError, Found, TopicHandle};
use lisa_core::message::{MessageId, OrderingKey};
use lisa_core::topic::Topic;
use maud::{Markup, html};

use super::Dashboard;
use super::form::Fields;
use super::page::{Context, Failure, Page, Section, see_other};
use super::parts::{Level, rest_at, sign};
use super::text::{counted, grouped, part, visible};
use crate::operations::newest_counts::NewestCounts;
use crate::operations::topics::{registered, unreadable};

/// The most topics that are asked for an id, and the most that are asked for an ordering key.
const MOST: usize = 32;
/// The topics that are asked at a time.
const AT_ONCE: usize = 8;
/// The topics, and the groups, that are listed.
const LISTED: usize = 20;

pub(super) async fn show(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    let wanted = fields.text("q").unwrap_or_default().trim().to_owned();
    let broker = dashboard.broker();
    let known = dashboard.read(registered(broker)).await?;
    let open = |path: &str| Ok(see_other(&context.link(path), None));
    if let Some(topic) = known.iter().find(|topic| topic.name().as_str() == wanted) {
        return open(&format!("/topics/{}", topic.name()));
    }
    let mut unread: BTreeMap<String, String> = unreadable(broker);
    let (mut asked, mut found) = (0, Vec::new());
    if let Ok(id) = wanted.parse::<MessageId>() {
        asked = known.len().min(MOST);
        let id = &id;
        let calls = known.iter().take(MOST).map(|topic| {
            let lookup = async move {
                // Its id may not be the wanted one: see `lookup`.
                Ok(match broker.lookup(topic, id, None).await? {
                    Found::Stored { listed, .. } => Some(listed.id),
                    Found::Unknown { .. } => None,
                })
            };
            (topic, lookup)
        });
        for (topic, id) in ask(&dashboard, calls, &mut unread).await? {
            let path = format!("/topics/{topic}/messages/{}", part(id.as_str()));
            found.push((path, format!("Message {id} in {topic}")));
        }
    }
    let key = wanted.parse::<OrderingKey>().ok();
    let (indexed, unindexed): (Vec<_>, Vec<_>) =
        known.iter().partition(|topic| topic.settings().key_index);
    let is_message = !found.is_empty();
    if let Some(key) = &key {
        let calls = indexed.iter().take(MOST).map(|topic| {
            let list = async move {
                let page = broker.list_of_key(topic, key, None, 1).await?;
                Ok((!page.items.is_empty()).then_some(()))
            };
            (*topic, list)
        });
        for (topic, ()) in ask(&dashboard, calls, &mut unread).await? {
            let path = format!("/topics/{topic}/messages?key={}", part(&wanted));
            found.push((path, format!("Messages with this ordering key in {topic}")));
        }
    }
    // An id names one message. An ordering key may have messages in each topic.
    let is_all = unread.is_empty() && known.len() <= MOST && (is_message || unindexed.is_empty());
    if let ([(path, _)], true) = (&found[..], is_all) {
        return open(path);
    }
    let garbage = match &key {
        Some(key) => Some(search_in_garbage(&dashboard, &context, key).await),
        None => None,
    };
    let lower = wanted.to_lowercase();
    let near = known.iter().map(|topic| topic.name().as_str());
    let near = near.filter(|name| !lower.is_empty() && name.to_lowercase().contains(&lower));
    let near: Vec<_> = near.collect();
    let filter = format!("/?filter={}", part(&wanted));
    let body = html! {
        div.card {
            @if found.is_empty() {
                p.lead { "No topic, stored message or ordering key “" (visible(&wanted)) "” was found." }
            } @else {
                p.lead { "“" (visible(&wanted)) "” was found:" }
                ul { @for (path, text) in &found { li { a href=(context.link(path)) { (visible(text)) } } } }
            }
            p.muted { "Searched the names of " (counted(known.len() as u64, "topic")) ", and the messages of " (asked) " of them. A message that was handled is no longer stored." }
            @if asked > 0 { (unsearched(&context, html! { "this id" }, known.iter().skip(MOST))) }
            @if key.is_some() {
                (unsearched(&context, html! { "this ordering key" }, indexed.iter().copied().skip(MOST)))
                (unsearched(&context, html! { "this ordering key (no " code { "key_index" } ")" }, unindexed.into_iter()))
            }
            @if key.is_some() && !indexed.is_empty() { p.muted { "Ordering keys are searched only in topics with " code { "key_index" } ", among messages sent since it was set." } }
            @if !unread.is_empty() {
                p { (sign(Level::Warn)) " These topics could not be searched:" }
                ul { @for (topic, error) in &unread { li { a href=(context.link(format!("/topics/{}/doctor", part(topic)))) { (visible(topic)) } ": " (visible(error)) } } }
            }
            @if let Some(garbage) = garbage { (garbage) }
            @if !near.is_empty() {
                p { "Topics whose names contain this text:" }
                ul { @for topic in near.iter().take(LISTED) { li { a href=(context.link(format!("/topics/{topic}"))) { (topic) } } } }
                (rest_at(near.len(), LISTED, &context.link(filter)))
            }
        }
    };
    let title = match found.is_empty() {
        true => "Nothing found",
        false => "Found",
    };
    Ok(Page::new(Section::None, title, body).into_response())
}

/// Asks topics, a few at a time. Returns those that have a match, and adds those that could not be read to `unread`.
async fn ask<'t, T>(
    dashboard: &Dashboard,
    calls: impl Iterator<
        Item = (
            &'t Arc<TopicHandle>,
            impl Future<Output = Result<Option<T>, BrokerError>>,
        ),
    >,
    unread: &mut BTreeMap<String, String>,
) -> Result<Vec<(&'t Topic, T)>, Failure> {
    let calls: Vec<_> = calls
        .map(|(topic, call)| async move { (topic.name(), call.await) })
        .collect();
    let search = async {
        let mut found = Vec::new();
        let mut answers = stream::iter(calls).buffered(AT_ONCE);
        while let Some((topic, answer)) = answers.next().await {
            match answer {
                Ok(answer) => found.extend(answer.map(|answer| (topic, answer))),
                Err(error) => {
                    unread.insert(topic.to_string(), error.to_string());
                }
            }
        }
        Ok::<_, BrokerError>(found)
    };
    dashboard.read(search).await
}

/// Names the topics that were not searched for something.
fn unsearched<'t>(
    context: &Context,
    what: Markup,
    topics: impl Iterator<Item = &'t Arc<TopicHandle>>,
) -> Markup {
    let topics: Vec<_> = topics.map(|topic| topic.name()).collect();
    html! { @if !topics.is_empty() {
        p { (sign(Level::Warn)) " Not searched for " (what) ": " (counted(topics.len() as u64, "topic")) ". "
            @for topic in topics.iter().take(LISTED) { a href=(context.link(format!("/topics/{topic}"))) { (topic) } " " }
            @if topics.len() > LISTED { "and " (topics.len() - LISTED) " more" } }
    } }
}

/// Returns links to searches of garbage for an ordering key, for the groups with the most garbage.
async fn search_in_garbage(dashboard: &Dashboard, context: &Context, key: &OrderingKey) -> Markup {
    let reading = dashboard.counts().await;
    let counts = reading.value.as_deref();
    let groups = counts.map_or_else(Vec::new, NewestCounts::groups_with_garbage);
    html! {
        p { "Garbage (dead letters) can be searched for messages with this ordering key: "
            @if groups.is_empty() { "open " a href=(context.link("/garbage")) { "Garbage" } " and choose a group there." } @else { "choose a group." } }
        @if !groups.is_empty() {
            ul { @for (topic, group) in groups.iter().take(LISTED) {
                @let path = format!("/topics/{topic}/garbage?group={}&key={}", group.group, part(key.as_str()));
                li { a href=(context.link(path)) { (topic) " / " (group.group) } span.muted { " (" (grouped(group.garbage)) ")" } }
            } }
            (rest_at(groups.len(), LISTED, &context.link("/garbage")))
        }
    }
}
