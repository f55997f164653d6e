//! Topics and their messages: counts, settings, pages of a state, one message, pause and resume.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State as With};
use axum::http::{HeaderMap, HeaderValue};
use lisa_shared::broker::{BrokerError, InvalidCursor, KeyCursor, TopicHandle, TopicStats};
use lisa_shared::http::{Problem, ProblemCode};
use lisa_shared::message::{MessageId, OrderingKey};
use lisa_shared::state::State;
use lisa_shared::topic::{Topic, TopicSettings};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{ALL_WITHIN, Api, invalid, none_known, problem, wrong_group};
use crate::group;
use crate::groups::GroupView;
use crate::view::{FindError, FullMessage, MessagePage, StatsList, find, stats_of_all};

/// Messages in a page when the client does not say.
const DEFAULT_LIMIT: usize = 100;
/// The header that names a message's key.
const KEY: &str = "Lisa-Key";
/// The most messages in a page.
const MAX_LIMIT: usize = 1000;

/// A topic with its settings.
#[derive(Debug, Serialize)]
struct TopicEntry {
    topic: Topic,
    /// Counts the changes of its settings.
    epoch: u64,
    settings: TopicSettings,
}

impl TopicEntry {
    fn of(topic: &TopicHandle) -> Self {
        Self {
            topic: topic.name().clone(),
            epoch: topic.epoch(),
            settings: topic.settings().clone(),
        }
    }
}

/// Counts the messages of every topic by state. One that is damaged does not hide the others.
#[utoipa::path(get, path = "/v1/stats", tag = "manager",
    responses((status = 200, description = "All topics with their groups, counters and conservation error; `damaged` names those of which not all can be read, with the error; `unanswered` those that Redis did not answer for in time", body = Value)))]
pub(super) async fn stats(With(api): With<Api>) -> Result<Json<StatsList>, Problem> {
    let stats = stats_of_all(&api.broker, ALL_WITHIN).await;
    stats.map(Json).map_err(none_known)
}

/// Lists the registered topics with their settings.
#[utoipa::path(get, operation_id = "list_topics", path = "/v1/topics", tag = "manager",
    responses((status = 200, description = "All registered topics", body = Value)))]
pub(super) async fn list(With(api): With<Api>) -> Result<Json<Value>, Problem> {
    let topics = api.broker.refresh().await.map_err(problem)?;
    let topics: Vec<_> = topics.iter().map(|topic| TopicEntry::of(topic)).collect();
    Ok(Json(json!({ "topics": topics })))
}

/// Shows a topic: its settings, counts, and groups, with `configured` false for one that the settings do not name.
#[utoipa::path(get, path = "/v1/topics/{topic}", tag = "manager",
    params(("topic" = String, Path)),
    responses((status = 200, description = "Settings, groups and counts", body = Value), (status = 404, description = "No such topic")))]
pub(super) async fn show(
    With(api): With<Api>,
    Path(topic): Path<String>,
) -> Result<Json<Value>, Problem> {
    let topic = api.topic(&topic).await?;
    let stats: TopicStats = api.broker.stats(&topic).await.map_err(problem)?;
    let entry = TopicEntry::of(&topic);
    let groups = GroupView::all(&topic, &stats);
    Ok(Json(
        json!({ "topic": entry.topic, "epoch": entry.epoch, "settings": entry.settings, "groups": groups, "stats": stats }),
    ))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PageQuery {
    key: Option<String>,
    state: Option<String>,
    group: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

/// Lists messages of one state, or of one ordering key, a page at a time.
#[utoipa::path(get, path = "/v1/topics/{topic}/messages", tag = "manager",
    params(("topic" = String, Path),
        ("state" = Option<String>, Query, description = "waiting (default), ready, in_flight, retry, garbage, backlog or parked"),
        ("group" = Option<String>, Query, description = "needed where the topic has several, but for waiting"),
        ("key" = Option<String>, Query, description = "instead of both: all messages of this ordering key, each as the first group that owes it has it; on topics with key_index"),
        ("limit" = Option<usize>, Query, minimum = 1, maximum = 1000, description = "1 to 1000, default 100"),
        ("cursor" = Option<String>, Query, description = "`next` of the page before")),
    responses((status = 200, description = "A page; `next` is null at the end", body = Value), (status = 404, description = "No such topic or group")))]
pub(super) async fn messages(
    With(api): With<Api>,
    Path(topic): Path<String>,
    query: Result<Query<PageQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<MessagePage>, Problem> {
    let Query(query) = query.map_err(|error| invalid("query", &error.body_text()))?;
    let topic = api.topic(&topic).await?;
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(invalid("limit", &format!("allowed is 1 to {MAX_LIMIT}")));
    }
    if let Some(key) = &query.key {
        if query.state.is_some() || query.group.is_some() {
            return Err(invalid("key", &"give this, or a state and a group"));
        }
        let cursor = query.cursor.as_deref().map(str::parse).transpose();
        let cursor = cursor.map_err(|error: InvalidCursor| invalid("cursor", &error))?;
        return of_key(&api, &topic, key, cursor, limit).await;
    }
    let state = query.state.as_deref().unwrap_or(State::Waiting.as_str());
    let state: State = state.parse().map_err(|error| invalid("state", &error))?;
    let group = group::choose_for(&topic, state, query.group.as_deref()).map_err(wrong_group)?;
    let page = api
        .broker
        .list(&topic, group, state, query.cursor.as_deref(), limit)
        .await;
    let page = page.map_err(problem)?;
    Ok(Json(MessagePage::new(&topic, group, page)))
}

async fn of_key(
    api: &Api,
    topic: &TopicHandle,
    key: &str,
    cursor: Option<KeyCursor>,
    limit: usize,
) -> Result<Json<MessagePage>, Problem> {
    let key: OrderingKey = key.parse().map_err(|error| invalid("key", &error))?;
    match api.broker.list_of_key(topic, &key, cursor, limit).await {
        Ok(page) => Ok(Json(MessagePage::of_key(topic, page))),
        Err(error @ BrokerError::NoKeyIndex(_)) => Err(invalid("key", &error)),
        Err(error) => Err(problem(error)),
    }
}

/// Shows one message: what it holds, and where it is in each group, and why it has not run there.
#[utoipa::path(get, path = "/v1/topics/{topic}/messages/{id}", tag = "manager",
    params(("topic" = String, Path), ("id" = String, Path),
        ("Lisa-Key" = Option<String>, Header, min_length = 1, max_length = 256, description = "Its ordering key, else its merge key: finds a message with a caller's id at once, without asking every shard")),
    responses((status = 200, description = "The message", body = Value),
        (status = 404, description = "unknown_topic, or not_found: there is none, or it has ended (`ended`, and `into` if it was merged)"),
        (status = 422, description = "invalid")))]
pub(super) async fn message(
    With(api): With<Api>,
    Path((topic, id)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Json<FullMessage>, Problem> {
    let topic = api.topic(&topic).await?;
    let id: MessageId = id.parse().map_err(|error| invalid("id", &error))?;
    let key = headers.get(KEY).map(key).transpose()?;
    match find(&api.broker, &topic, &id, key.as_ref()).await {
        Ok(message) => Ok(Json(*message)),
        Err(FindError::Broker(error)) => Err(problem(error)),
        Err(FindError::Unknown { id, end }) => Err(Problem::no_message(&id, end)),
        Err(error @ FindError::Unreadable { .. }) => {
            tracing::error!(topic = %topic.name(), %error, "a stored message cannot be read");
            Err(Problem::new(ProblemCode::Internal, error.to_string()).id(id.as_str()))
        }
    }
}

fn key(value: &HeaderValue) -> Result<OrderingKey, Problem> {
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| invalid(KEY, &"not UTF-8"))?;
    text.parse().map_err(|error| invalid(KEY, &error))
}

/// Stops a topic: messages are accepted, nothing new becomes ready.
#[utoipa::path(post, operation_id = "pause_topic", path = "/v1/topics/{topic}/pause", tag = "manager", params(("topic" = String, Path)),
    responses((status = 200, description = "Whether that changed anything", body = Value), (status = 404, description = "No such topic")))]
pub(super) async fn pause(
    With(api): With<Api>,
    Path(topic): Path<String>,
) -> Result<Json<Value>, Problem> {
    set_paused(&api, api.topic(&topic).await?, true).await
}

/// Lets a paused topic go on.
#[utoipa::path(post, operation_id = "resume_topic", path = "/v1/topics/{topic}/resume", tag = "manager", params(("topic" = String, Path)),
    responses((status = 200, description = "Whether that changed anything", body = Value), (status = 404, description = "No such topic")))]
pub(super) async fn resume(
    With(api): With<Api>,
    Path(topic): Path<String>,
) -> Result<Json<Value>, Problem> {
    set_paused(&api, api.topic(&topic).await?, false).await
}

async fn set_paused(
    api: &Api,
    topic: Arc<TopicHandle>,
    paused: bool,
) -> Result<Json<Value>, Problem> {
    let changed = api.broker.pause(&topic, paused).await.map_err(problem)?;
    let name = topic.name();
    if changed {
        tracing::info!(topic = %name, paused, "paused or resumed by an operator");
    }
    Ok(Json(
        json!({ "topic": name, "paused": paused, "changed": changed }),
    ))
}
