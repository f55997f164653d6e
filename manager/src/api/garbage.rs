//! Requeues and purges garbage (dead letters).

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State as With};
use lisa_core::fields;
use lisa_core::fields::Reader;
use lisa_core::message::MessageId;
use lisa_service::http::body::read_limited;
use lisa_service::http::{GroupPath, Problem, read_fields};

use super::Api;
use crate::operations::audit;
use crate::operations::error_groups::{self, ErrorGroups};
use crate::operations::garbage::{self, Selection, Swept, Verb, without_repetitions};

/// The largest request body in bytes: room for 10,000 ids of the maximum length.
const MAX_BODY: usize = 1024 * 1024;

fields! {
    /// The messages in garbage to handle: either `ids` or `all`.
    #[derive(Clone, Debug)]
    struct Wanted, schema = "GarbageSelection", check = either {
        /// The ids of the messages.
        ids: Vec<MessageId> = Vec::new();
        /// Selects all messages that are in garbage now.
        all: bool = false;
        /// Counts the messages, and changes nothing.
        dry_run: bool = false;
    }
}

fn either(wanted: &Wanted, from: &mut impl Reader) {
    if wanted.ids.is_empty() != wanted.all {
        let why = "set either ids or \"all\": true".to_owned();
        from.problem("ids", serde_json::Value::Null, why);
    }
}

/// Requeues messages from garbage (dead letters): delivers them again, with their attempts reset.
#[utoipa::path(post, operation_id = "requeue_garbage", path = "/v1/topics/{topic}/groups/{group}/garbage/requeue", tag = "garbage", params(GroupPath), request_body = Wanted,
    responses((status = 200, description = "The number of messages found and requeued", body = Swept), (status = 404, description = "unknown_topic, or not_found: no such group")))]
pub(super) async fn requeue(
    With(api): With<Api>,
    Path(path): Path<GroupPath>,
    body: Body,
) -> Result<Json<Swept>, Problem> {
    sweep(&api, &path, Verb::Requeue, body).await
}

/// Permanently removes messages from garbage (dead letters).
#[utoipa::path(post, operation_id = "purge_garbage", path = "/v1/topics/{topic}/groups/{group}/garbage/purge", tag = "garbage", params(GroupPath), request_body = Wanted,
    responses((status = 200, description = "The number of messages found and purged", body = Swept), (status = 404, description = "unknown_topic, or not_found: no such group")))]
pub(super) async fn purge(
    With(api): With<Api>,
    Path(path): Path<GroupPath>,
    body: Body,
) -> Result<Json<Swept>, Problem> {
    sweep(&api, &path, Verb::Purge, body).await
}

/// Groups the errors in garbage (dead letters) that differ only in numbers, ids and quoted text. It reads the newest 5,000
/// messages.
#[utoipa::path(get, operation_id = "list_garbage_errors", path = "/v1/topics/{topic}/groups/{group}/garbage/errors", tag = "garbage", params(GroupPath),
    responses((status = 200, description = "The groups of errors, those with the most messages first: of the `newest` of `total` messages", body = ErrorGroups), (status = 404, description = "unknown_topic, or not_found: no such group")))]
pub(super) async fn errors(
    With(api): With<Api>,
    Path(path): Path<GroupPath>,
) -> Result<Json<ErrorGroups>, Problem> {
    let (topic, group) = api.find(&path).await?;
    let groups = error_groups::error_groups(&api.broker, &topic, &group).await;
    groups.map(Json).map_err(Problem::from)
}

async fn sweep(
    api: &Api,
    path: &GroupPath,
    verb: Verb,
    body: Body,
) -> Result<Json<Swept>, Problem> {
    let (topic, group) = api.find(path).await?;
    let body = read_limited(body, MAX_BODY, &api.bodies).await?;
    let wanted: Wanted = read_fields(&body)?;
    let selection = match wanted.all {
        true => Selection::All,
        false => Selection::Ids(without_repetitions(wanted.ids)),
    };
    let sweep = garbage::sweep(
        &api.broker,
        &topic,
        &group,
        verb,
        &selection,
        wanted.dry_run,
    );
    let swept = if wanted.dry_run {
        sweep.await
    } else {
        let action = api
            .action(verb.as_str())
            .topic(topic.name())
            .group(&group)
            .details(audit::extent(&selection));
        action.run(sweep, audit::swept).await
    };
    let swept = swept?;
    if !wanted.dry_run {
        tracing::info!(topic = %topic.name(), %group, verb = verb.as_str(), done = swept.done, "garbage requeued or purged by an operator");
    }
    Ok(Json(swept))
}
