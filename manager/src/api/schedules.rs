//! The schedules that this manager knows.

use axum::Json;
use axum::extract::State as With;
use lisa_shared::http::Problem;

use super::{Api, problem};
use crate::recurring::{self, ScheduleList};

/// Lists the schedules of this manager's configuration: up to which of its times each has sent, and the next one.
#[utoipa::path(get, operation_id = "list_schedules", path = "/v1/schedules", tag = "manager",
    responses((status = 200, description = "Schedules of this manager", body = ScheduleList)))]
pub(super) async fn list(With(api): With<Api>) -> Result<Json<ScheduleList>, Problem> {
    let schedules = recurring::view(&api.broker, &api.config.schedules).await;
    schedules.map(Json).map_err(problem)
}
