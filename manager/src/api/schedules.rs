//! Schedules (recurring messages): lists, shows, creates, changes, removes, pauses, resumes and runs them.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State as With};
use axum::http::{HeaderMap, StatusCode};
use lisa_core::broker::MAX_DEFINITION;
use lisa_core::fields;
use lisa_core::topic::ScheduleName;
use lisa_service::http::body::read_limited;
use lisa_service::http::{Problem, Query, SchedulePath, read_fields, read_object};
use lisa_service::recurring::RecurringMessage;

use super::precondition::{self, Tag};
use super::{Api, invalid};
use crate::operations::past_time::PastTime;
use crate::operations::schedules::{
    Backfilled, NewSchedule, Period, ScheduleDetails, ScheduleList, SchedulePaused, ScheduleRun,
    Schedules,
};

/// The largest body with a definition in bytes: JSON may need six for one.
const MAX_BODY: usize = 6 * MAX_DEFINITION;
/// The largest body with a period in bytes.
const MAX_PERIOD: usize = 1024;

fields! {
    #[derive(Clone, Debug)]
    pub(super) struct SchedulesQuery, query {
        /// Start of the names of the schedules to list. Default: all schedules.
        prefix: Option<ScheduleName> = None;
        /// Schedules per page.
        limit: usize = 100, in 1..=1000;
        /// `next` of the previous page, with the same other parameters.
        cursor: Option<ScheduleName> = None;
    }
}

/// Lists schedules by name: those that this manager's configuration declares, and those that were created at run time. Shows the time
/// up to which each has sent, its next time, and what it missed. A page with large definitions has fewer schedules than `limit`.
#[utoipa::path(get, operation_id = "list_schedules", path = "/v1/schedules", tag = "schedules", params(SchedulesQuery),
    responses((status = 200, description = "A page of schedules; `next` is null on the last page", body = ScheduleList)))]
pub(super) async fn list(
    With(api): With<Api>,
    Query(query): Query<SchedulesQuery>,
) -> Result<Json<ScheduleList>, Problem> {
    let prefix = query.prefix.as_ref().map_or("", ScheduleName::as_str);
    let list = schedules(&api).list(prefix, query.cursor.as_ref(), query.limit);
    list.await.map(Json).map_err(Problem::from)
}

/// Returns a schedule with its definition, its next times, and warnings about times that may surprise.
#[utoipa::path(get, operation_id = "show_schedule", path = "/v1/schedules/{schedule}", tag = "schedules", params(SchedulePath),
    responses((status = 200, description = "The schedule; the header `ETag` has the version in quotes, unless a file declares it", body = ScheduleDetails),
        (status = 404, description = "not_found: no such schedule")))]
pub(super) async fn show(
    With(api): With<Api>,
    Path(path): Path<SchedulePath>,
) -> Result<(Option<Tag>, Json<ScheduleDetails>), Problem> {
    let details = schedules(&api).show(&name(&path)?).await?;
    Ok((details.version.map(precondition::tag), Json(details)))
}

/// Creates a schedule, or replaces its definition.
///
/// The body has the fields of `schedules.<name>` in the configuration. A new schedule starts now; a change of `cron` or `time_zone`
/// restarts it. If the schedule already has this definition, the request succeeds regardless of its version, so a request without a
/// response can be repeated. Messages that were sent ahead, up to 5 s before their time, are delivered.
#[utoipa::path(put, operation_id = "put_schedule", path = "/v1/schedules/{schedule}", tag = "schedules",
    params(SchedulePath,
        ("If-Match" = Option<String>, Header, pattern = r#"^"[1-9][0-9]{0,17}"$"#, description = "An `ETag` of the schedule: changes it only if it still has this `ETag`, or this definition"),
        ("If-None-Match" = Option<String>, Header, pattern = r"^\*$", description = "`*`: creates the schedule; one that exists must have this definition")),
    request_body = NewSchedule,
    responses((status = 200, description = "The schedule, with warnings about its times; the header `ETag` has the version in quotes", body = ScheduleDetails),
        (status = 201, description = "The new schedule", body = ScheduleDetails),
        (status = 404, description = "unknown_topic"),
        (status = 409, description = "declared_in_file: the managers' configuration declares the schedule; quota: the token may create no more schedules; busy: the limit of 100,000 schedules is reached"),
        (status = 412, description = "precondition_failed: the schedule has changed, exists, or does not exist")))]
pub(super) async fn put(
    With(api): With<Api>,
    Path(path): Path<SchedulePath>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Option<Tag>, Json<ScheduleDetails>), Problem> {
    let name = name(&path)?;
    let at = precondition::of_put(&headers)?;
    let body = read_limited(body, MAX_BODY, &api.bodies).await?;
    let schedule = RecurringMessage::from_fields(&read_object(&body)?)?;
    let put = schedules(&api).put(&name, &schedule, at, |verb| api.action(verb));
    let (details, created) = put.await?;
    api.stored_schedules.changed.notify_one();
    let status = match created {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    let tag = details.version.map(precondition::tag);
    Ok((status, tag, Json(details)))
}

/// Removes a schedule that was created at run time, with its progress. Messages that it has sent stay.
#[utoipa::path(delete, operation_id = "remove_schedule", path = "/v1/schedules/{schedule}", tag = "schedules",
    params(SchedulePath,
        ("If-Match" = Option<String>, Header, pattern = r#"^"[1-9][0-9]{0,17}"$"#, description = "An `ETag` of the schedule: removes it only if it still has this `ETag`")),
    responses((status = 204, description = "The schedule was removed"),
        (status = 404, description = "not_found: no such schedule, or already removed"),
        (status = 409, description = "declared_in_file: the managers' configuration declares the schedule"),
        (status = 412, description = "precondition_failed: the schedule has another `ETag`")))]
pub(super) async fn remove(
    With(api): With<Api>,
    Path(path): Path<SchedulePath>,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let at = precondition::if_match(&headers)?;
    let action = api.action("remove_schedule");
    schedules(&api).remove(&name(&path)?, at, action).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Pauses a schedule: it sends nothing until it is resumed. Messages that were sent ahead, up to 5 s before their time, are
/// delivered.
#[utoipa::path(post, operation_id = "pause_schedule", path = "/v1/schedules/{schedule}/pause", tag = "schedules", params(SchedulePath),
    responses((status = 200, description = "The new state; `changed` is false if the schedule was in it already", body = SchedulePaused), (status = 404, description = "not_found: no such schedule")))]
pub(super) async fn pause(
    With(api): With<Api>,
    Path(path): Path<SchedulePath>,
) -> Result<Json<SchedulePaused>, Problem> {
    set_paused(&api, &path, true).await
}

/// Resumes a paused schedule. Times that passed while it was paused are skipped.
#[utoipa::path(post, operation_id = "resume_schedule", path = "/v1/schedules/{schedule}/resume", tag = "schedules", params(SchedulePath),
    responses((status = 200, description = "The new state; `changed` is false if the schedule was in it already", body = SchedulePaused), (status = 404, description = "not_found: no such schedule")))]
pub(super) async fn resume(
    With(api): With<Api>,
    Path(path): Path<SchedulePath>,
) -> Result<Json<SchedulePaused>, Problem> {
    set_paused(&api, &path, false).await
}

async fn set_paused(
    api: &Api,
    path: &SchedulePath,
    paused: bool,
) -> Result<Json<SchedulePaused>, Problem> {
    let action = api.action(if paused {
        "pause_schedule"
    } else {
        "resume_schedule"
    });
    let done = schedules(api).pause(&name(path)?, paused, action).await?;
    api.stored_schedules.changed.notify_one();
    Ok(Json(done))
}

/// Sends one message of a schedule now, even if it is paused. The id of the message contains the current second, so another run within
/// it sends nothing.
#[utoipa::path(post, operation_id = "run_schedule", path = "/v1/schedules/{schedule}/run", tag = "schedules", params(SchedulePath),
    responses((status = 200, description = "The message; `sent` is false if the schedule was run within this second already", body = ScheduleRun),
        (status = 404, description = "not_found: no such schedule; unknown_topic")))]
pub(super) async fn run(
    With(api): With<Api>,
    Path(path): Path<SchedulePath>,
) -> Result<Json<ScheduleRun>, Problem> {
    let action = api.action("run_schedule");
    let sender = &api.stored_schedules.sender;
    let name = name(&path)?;
    let run = schedules(&api).run(sender, &name, action);
    run.await.map(Json)
}

fields! {
    /// A period in the past.
    #[derive(Clone, Debug)]
    pub(super) struct BackfillPeriod, schema = "BackfillPeriod", required = from {
        /// The first time.
        from: Option<PastTime> = None;
        /// The end of the period, exclusive. Default: now.
        to: Option<PastTime> = None;
        /// Count the times, and send nothing.
        dry_run: bool = false;
    }
}

/// Sends a message for each time of a schedule in a period of the past, due now.
///
/// The ids are those that the schedule would have used, so a time for which a message was sent is skipped, within the dedup window of
/// the topic. The request can be repeated. It sends at most 1,000 messages; `next` is the `from` of the next one. If a send fails, the
/// `detail` of the problem says how many messages were sent, and from which time to continue. With `dry_run`, the request counts up to
/// 1,000 times and sends nothing.
#[utoipa::path(post, operation_id = "backfill_schedule", path = "/v1/schedules/{schedule}/backfill", tag = "schedules", params(SchedulePath),
    request_body = BackfillPeriod,
    responses((status = 200, description = "The number of messages sent, and the number that already existed", body = Backfilled),
        (status = 404, description = "not_found: no such schedule; unknown_topic"),
        (status = 429, description = "full: the topic has reached max_messages or max_bytes, or Redis its memory limit; `detail` says how many messages were sent")))]
pub(super) async fn backfill(
    With(api): With<Api>,
    Path(path): Path<SchedulePath>,
    body: Body,
) -> Result<Json<Backfilled>, Problem> {
    let body = read_limited(body, MAX_PERIOD, &api.bodies).await?;
    let body: BackfillPeriod = read_fields(&body)?;
    let from = body.from.ok_or_else(|| invalid("from", &"missing"))?;
    let period = Period {
        from: from.0,
        to: body.to.map(|to| to.0),
    };
    let action = api.action("backfill_schedule");
    let sender = &api.stored_schedules.sender;
    let name = name(&path)?;
    let backfill = schedules(&api).backfill(sender, &name, period, body.dry_run, action);
    backfill.await.map(Json)
}

/// Returns the schedules of the relay.
pub(super) fn schedules(api: &Api) -> Schedules<'_> {
    Schedules {
        broker: &api.broker,
        config: &api.config,
    }
}

fn name(path: &SchedulePath) -> Result<ScheduleName, Problem> {
    path.schedule
        .parse()
        .map_err(|error| invalid("schedule", &error))
}
