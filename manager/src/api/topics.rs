//! Shows topics and their messages: counts, settings, pages of messages, single messages. Creates, changes, removes, pauses and
//! resumes topics.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State as With};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use lisa_core::broker::{
    BrokerError, Declare, KeyCursor, Removal, StoredMessage, TimeRange, TopicHandle, TopicStats,
};
use lisa_core::fields;
use lisa_core::message::{MessageId, OrderingKey};
use lisa_core::names::words;
use lisa_core::openapi;
use lisa_core::state::State;
use lisa_core::topic::{Topic, TopicSettings};
use lisa_service::http::body::read_limited;
use lisa_service::http::{
    KEY_OF_MESSAGE, MessagePath, Problem, Query, TopicPath, read_fields_over,
};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use super::precondition::{self, Tag};
use super::{Api, invalid, wrong_group};
use crate::operations::audit;
use crate::operations::choose_group;
use crate::operations::garbage_filter::Filter;
use crate::operations::garbage_search::{self, Search};
use crate::operations::groups::GroupView;
use crate::operations::messages::{FindError, MessagePage, UNTIMED, find};
use crate::operations::snapshot::{self, SnapshotList};
use crate::operations::topics::{
    self, StatsList, TopicEntry, TopicList, TopicPaused, TopicRemoval, stats_of_all,
};

/// The header with the key of a message.
const KEY: &str = "Lisa-Key";
/// The largest body with settings in bytes: 64 groups with long names fit.
const MAX_SETTINGS: usize = 32 * 1024;

/// A topic with its settings, groups and counts.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TopicView {
    topic: Topic,
    /// A number that grows with each change of the topic, and goes on if it is created again.
    epoch: u64,
    /// The time at which it was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<String>,
    settings: TopicSettings,
    /// The way in which it is being removed, if it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    removal: Option<Removal>,
    groups: Vec<GroupView>,
    stats: TopicStats,
}

/// Counts the messages of every topic by group and state. A damaged topic does not hide the others.
#[utoipa::path(get, operation_id = "get_stats", path = "/v1/stats", tag = "stats",
    responses((status = 200, description = "All topics with their groups, counters and conservation error; `damaged` lists the topics that cannot be read completely, each with the error; `unanswered` lists those for which Redis did not answer in time", body = StatsList)))]
pub(super) async fn stats(With(api): With<Api>) -> Result<Json<StatsList>, Problem> {
    match stats_of_all(&api.broker, api.via.all_within()).await {
        Ok(stats) => Ok(Json(stats)),
        Err(error) => Err(api.none_read(error).await),
    }
}

/// Returns the newest counts of every topic that the managers have written to Redis, a few seconds old. It costs two reads for
/// any number of topics. A topic that no manager has counted yet is missing.
#[utoipa::path(get, operation_id = "get_snapshot", path = "/v1/stats/snapshot", tag = "stats",
    responses((status = 200, description = "All counted topics, each with its age; `damaged` lists the topics that could not be counted, each with the error", body = SnapshotList)))]
pub(super) async fn snapshot(With(api): With<Api>) -> Result<Json<SnapshotList>, Problem> {
    let snapshot = snapshot::read(&api.broker).await;
    snapshot.map(Json).map_err(Problem::from)
}

fields! {
    #[derive(Clone, Debug)]
    pub(super) struct TopicsQuery, query {
        /// Start of the names of the topics to list. Default: all topics.
        prefix: Option<Topic> = None;
    }
}

/// Lists the registered topics with their settings, by name.
#[utoipa::path(get, operation_id = "list_topics", path = "/v1/topics", tag = "topics", params(TopicsQuery),
    responses((status = 200, description = "The registered topics", body = TopicList)))]
pub(super) async fn list(
    With(api): With<Api>,
    Query(query): Query<TopicsQuery>,
) -> Result<Json<TopicList>, Problem> {
    let prefix = query.prefix.as_ref().map_or("", Topic::as_str);
    topics::list(&api.broker, prefix)
        .await
        .map(Json)
        .map_err(Problem::from)
}

/// Returns a topic with its settings, counts and groups. `configured` is false for a group that the settings do not name.
#[utoipa::path(get, operation_id = "show_topic", path = "/v1/topics/{topic}", tag = "topics", params(TopicPath),
    responses((status = 200, description = "Settings, groups and counts; the header `ETag` has the epoch in quotes", body = TopicView), (status = 404, description = "unknown_topic")))]
pub(super) async fn show(
    With(api): With<Api>,
    Path(path): Path<TopicPath>,
) -> Result<(Tag, Json<TopicView>), Problem> {
    let topic = api.topic(&path.topic).await?;
    // This process may not know of a recent change yet, but the client needs the newest `ETag` for its next change.
    let topic = match api.broker.newest(topic.name()).await {
        Ok(topic) => topic,
        Err(error) => return Err(api.refused(error).await),
    };
    let stats = api.broker.stats(&topic).await?;
    let view = TopicView {
        topic: topic.name().clone(),
        epoch: topic.epoch(),
        created_at: topic.created_at().map(|at| at.to_string()),
        settings: topic.settings().clone(),
        removal: topic.removal(),
        groups: GroupView::all(&stats),
        stats,
    };
    Ok((tag(&topic), Json(view)))
}

fn tag(topic: &TopicHandle) -> Tag {
    precondition::tag(topic.epoch())
}

/// The settings of a topic to create or change. All are optional.
struct NewSettings;

impl PartialSchema for NewSettings {
    fn schema() -> RefOr<Schema> {
        let meaning = "The settings of a topic to create or change. All are optional.";
        Schema::Object(openapi::object::<TopicSettings>(meaning, &[])).into()
    }
}

impl ToSchema for NewSettings {}

/// Creates a topic, or replaces its settings.
///
/// A setting that the body lacks has the value of `topic_defaults` in the managers' configuration, except `shards`, which stays.
/// One that is `null` has its built-in default. Existing groups stay, whether the settings name them or not. Settings that are in
/// force already are a success at any epoch, so a request without a response can be repeated. If the token has a quota of messages or
/// bytes, a topic without this limit gets an equal part of the quota.
#[utoipa::path(put, operation_id = "put_topic", path = "/v1/topics/{topic}", tag = "topics",
    params(TopicPath,
        ("If-Match" = Option<String>, Header, pattern = r#"^"[1-9][0-9]{0,17}"$"#, description = "An `ETag` of the topic: changes it only if it still has this `ETag`, or these settings"),
        ("If-None-Match" = Option<String>, Header, pattern = r"^\*$", description = "`*`: creates the topic; one that exists must have these settings")),
    request_body = NewSettings,
    responses((status = 200, description = "The topic, with the settings in force; the header `ETag` has the epoch in quotes", body = TopicEntry),
        (status = 201, description = "The new topic", body = TopicEntry),
        (status = 404, description = "unknown_topic: the topic is being removed; repeat the request once it is gone"),
        (status = 409, description = "declared_in_file: the managers' configuration declares the topic; quota: the topic would exceed the quota of the token; busy: there are 10,000 topics"),
        (status = 412, description = "precondition_failed: the topic has changed, exists, or does not exist")))]
pub(super) async fn put(
    With(api): With<Api>,
    Path(path): Path<TopicPath>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Tag, Json<TopicEntry>), Problem> {
    let name: Topic = path
        .topic
        .parse()
        .map_err(|error| invalid("topic", &error))?;
    let mode = precondition::of_put(&headers)?.map_or(Declare::Update, Declare::UpdateAt);
    let body = read_limited(body, MAX_SETTINGS, &api.bodies).await?;
    let _slot = api.reads.begin_with_quota().await?;
    let read = |defaults: &Map<String, Value>| read_fields_over(&body, defaults);
    let action = |verb: &str| api.action(verb);
    let put = topics::put(&api.broker, &api.config, &name, mode, read, action);
    let (topic, created) = put.await?;
    let status = match created {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    Ok((status, tag(&topic), Json(TopicEntry::of(&topic))))
}

fields! {
    #[derive(Clone, Debug)]
    pub(super) struct RemovalQuery, query {
        /// Treatment of the stored messages. Default: a topic that has any is not removed.
        how: Option<Removal> = None;
    }
}

/// Removes a topic with its messages, groups, counters and history.
///
/// From then on, the topic accepts no new messages. With `how=drain`, it first delivers its stored messages, including those that
/// are not due yet. Garbage must be requeued or purged. With `how=force`, everything is removed within seconds. A request can be
/// repeated, and a drain can be changed to `force`. A topic of this name can be created again once this one is gone.
#[utoipa::path(delete, operation_id = "remove_topic", path = "/v1/topics/{topic}", tag = "topics",
    params(TopicPath, RemovalQuery,
        ("If-Match" = Option<String>, Header, pattern = r#"^"[1-9][0-9]{0,17}"$"#, description = "An `ETag` of the topic: removes it only if it still has this `ETag`, or is already being removed in this way")),
    responses((status = 202, description = "The topic is being removed", body = TopicRemoval),
        (status = 404, description = "unknown_topic: also if it was removed"),
        (status = 409, description = "declared_in_file: the managers' configuration declares the topic; not_empty: it has messages, and `how` is missing"),
        (status = 412, description = "precondition_failed: the topic has another `ETag`")))]
pub(super) async fn remove(
    With(api): With<Api>,
    Path(path): Path<TopicPath>,
    Query(query): Query<RemovalQuery>,
    headers: HeaderMap,
) -> Result<(StatusCode, Json<TopicRemoval>), Problem> {
    let epoch = precondition::if_match(&headers)?;
    let topic = api.topic(&path.topic).await?;
    let action = api.action(topics::REMOVE).topic(topic.name());
    let (broker, config) = (&api.broker, &api.config);
    let removal = topics::remove(broker, config, &topic, query.how, epoch, action).await?;
    Ok((StatusCode::ACCEPTED, Json(removal)))
}

fields! {
    #[derive(Clone, Debug)]
    pub(super) struct PageQuery, query {
        /// The state. Default: `waiting`.
        state: Option<State> = None;
        /// The group; required if the topic has several, except for waiting messages.
        group: Option<String> = None;
        /// The order by time within each shard: the due time of waiting messages, the next attempt of those in retry, the move of those in garbage. Like `from` and `to`, only for these states.
        order: Order = Order::Oldest;
        /// Messages per page.
        limit: usize = 100, in 1..=1000;
        /// `next` of the previous page, with the same other parameters. A page of waiting, retry or garbage continues after the last message, even if other messages have moved in the meantime.
        cursor: Option<String> = None;
        ..filter: Filter;
    }
}

words!(
    /// The order of messages by their times.
    Order, "order", {
        /// The oldest first.
        Oldest = "oldest",
        /// The newest first.
        Newest = "newest",
    }
);

impl PageQuery {
    /// Returns the filter of garbage, if there is one.
    fn garbage_filter(&self) -> Result<Option<&Filter>, Problem> {
        let is_garbage = self.state == Some(State::Garbage);
        match self.filter.only_for_garbage() {
            Some(field) if !is_garbage => Err(invalid(field, &"is only for state=garbage")),
            _ => Ok((is_garbage && self.filter.examines()).then_some(&self.filter)),
        }
    }

    fn is_newest_first(&self) -> bool {
        self.order == Order::Newest
    }
}

/// Lists messages of one state, or of one ordering key, a page at a time. Garbage can be filtered.
///
/// `key` without `state` and `group` lists all messages of the key, each in its state in the first group that still has it; the
/// topic needs key_index. With `state=garbage`, `key` filters the garbage and needs no index. A page of garbage with `error`, `reason`
/// or `key` examines up to 5,000 messages, so it may be short or empty and still have a `next`.
#[utoipa::path(get, operation_id = "list_messages", path = "/v1/topics/{topic}/messages", tag = "messages", params(TopicPath, PageQuery),
    responses((status = 200, description = "A page of messages; `next` is null on the last page", body = MessagePage), (status = 404, description = "unknown_topic, or not_found: no such group")))]
pub(super) async fn messages(
    With(api): With<Api>,
    Path(path): Path<TopicPath>,
    Query(query): Query<PageQuery>,
) -> Result<Json<MessagePage>, Problem> {
    let topic = api.topic(&path.topic).await?;
    if let Some(filter) = query.garbage_filter()? {
        return search_garbage(&api, &topic, &query, filter).await;
    }
    let range = query.filter.range(query.is_newest_first());
    if let Some(key) = &query.filter.key {
        if query.state.is_some() || query.group.is_some() {
            let error = "cannot be combined with state or group, except with state=garbage";
            return Err(invalid("key", &error));
        }
        if range != TimeRange::default() {
            return Err(invalid("key", &"cannot be combined with from, to or order"));
        }
        return of_key(&api, &topic, key, &query).await;
    }
    let state = query.state.unwrap_or(State::Waiting);
    let group =
        choose_group::choose_for(&topic, state, query.group.as_deref()).map_err(wrong_group)?;
    if !range.fits(state) {
        return Err(invalid("state", &UNTIMED));
    }
    let (cursor, limit) = (query.cursor.as_deref(), query.limit);
    let page = api
        .broker
        .list_within(&topic, group, state, range, cursor, limit)
        .await?;
    Ok(Json(MessagePage::new(&topic, group, page)))
}

async fn search_garbage(
    api: &Api,
    topic: &TopicHandle,
    query: &PageQuery,
    filter: &Filter,
) -> Result<Json<MessagePage>, Problem> {
    let group = choose_group::choose(topic, query.group.as_deref()).map_err(wrong_group)?;
    let search = Search {
        filter,
        newest_first: query.is_newest_first(),
        cursor: query.cursor.as_deref(),
        limit: query.limit,
    };
    let found = garbage_search::search(&api.broker, topic, group, search).await;
    found.map(Json).map_err(Problem::from)
}

async fn of_key(
    api: &Api,
    topic: &TopicHandle,
    key: &OrderingKey,
    query: &PageQuery,
) -> Result<Json<MessagePage>, Problem> {
    let cursor = query.cursor.as_deref().map(str::parse::<KeyCursor>);
    let cursor = cursor
        .transpose()
        .map_err(|error| invalid("cursor", &error))?;
    match api
        .broker
        .list_of_key(topic, key, cursor, query.limit)
        .await
    {
        Ok(page) => Ok(Json(MessagePage::of_key(topic, page))),
        Err(error @ BrokerError::NoKeyIndex(_)) => Err(invalid("key", &error)),
        Err(error) => Err(error.into()),
    }
}

/// Returns a stored message with its state in each group.
#[utoipa::path(get, operation_id = "get_message", path = "/v1/topics/{topic}/messages/{id}", tag = "messages",
    params(MessagePath,
        ("Lisa-Key" = Option<String>, Header, min_length = 1, max_length = 256, description = KEY_OF_MESSAGE)),
    responses((status = 200, description = "The message", body = StoredMessage),
        (status = 404, description = "unknown_topic, or not_found: no such message, or it has ended (`ended`, and `into` if it was merged)"),
        (status = 503, description = "unavailable")))]
pub(super) async fn message(
    With(api): With<Api>,
    Path(MessagePath { topic, id }): Path<MessagePath>,
    headers: HeaderMap,
) -> Result<Json<StoredMessage>, Problem> {
    let topic = api.topic(&topic).await?;
    let id: MessageId = id.parse().map_err(|error| invalid("id", &error))?;
    let key = headers.get(KEY).map(key).transpose()?;
    match find(&api.broker, &topic, &id, key.as_ref()).await {
        Ok(message) => Ok(Json(*message)),
        Err(FindError::Broker(error)) => Err(error.into()),
        Err(FindError::Unknown { topic, id, end }) => {
            Err(Problem::no_message(topic.as_str(), &id, end))
        }
        Err(error @ FindError::Unreadable { .. }) => Err(Problem::internal(&error).id(id.as_str())),
    }
}

fn key(value: &HeaderValue) -> Result<OrderingKey, Problem> {
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| invalid(KEY, &"not UTF-8"))?;
    text.parse().map_err(|error| invalid(KEY, &error))
}

/// Pauses a topic: sends are accepted, nothing new becomes ready.
#[utoipa::path(post, operation_id = "pause_topic", path = "/v1/topics/{topic}/pause", tag = "topics", params(TopicPath),
    responses((status = 200, description = "The new state; `changed` is false if the topic was in it already", body = TopicPaused), (status = 404, description = "unknown_topic")))]
pub(super) async fn pause(
    With(api): With<Api>,
    Path(path): Path<TopicPath>,
) -> Result<Json<TopicPaused>, Problem> {
    set_paused(&api, api.topic(&path.topic).await?, true).await
}

/// Resumes a paused topic.
#[utoipa::path(post, operation_id = "resume_topic", path = "/v1/topics/{topic}/resume", tag = "topics", params(TopicPath),
    responses((status = 200, description = "The new state; `changed` is false if the topic was in it already", body = TopicPaused), (status = 404, description = "unknown_topic")))]
pub(super) async fn resume(
    With(api): With<Api>,
    Path(path): Path<TopicPath>,
) -> Result<Json<TopicPaused>, Problem> {
    set_paused(&api, api.topic(&path.topic).await?, false).await
}

async fn set_paused(
    api: &Api,
    topic: Arc<TopicHandle>,
    paused: bool,
) -> Result<Json<TopicPaused>, Problem> {
    let name = topic.name();
    let action = if paused { "pause" } else { "resume" };
    let action = api.action(action).topic(name);
    let done = action
        .run(api.broker.pause(&topic, paused), |done| {
            audit::changed(*done)
        })
        .await;
    let changed = done?;
    if changed {
        tracing::info!(topic = %name, paused, "paused or resumed by an operator");
    }
    Ok(Json(TopicPaused {
        topic: name.clone(),
        paused,
        changed,
    }))
}
