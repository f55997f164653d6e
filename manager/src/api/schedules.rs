//! Lists the schedules (recurring messages) of this manager's configuration.

use axum::Json;
use axum::extract::State as With;
use lisa_service::http::Problem;

use super::Api;
use crate::recurring::{self, ScheduleList};

/// Lists the schedules of this manager's configuration: the time up to which each has sent, and its next time.
#[utoipa::path(get, operation_id = "list_schedules", path = "/v1/schedules", tag = "schedules",
    responses((status = 200, description = "The schedules of this manager", body = ScheduleList)))]
pub(super) async fn list(With(api): With<Api>) -> Result<Json<ScheduleList>, Problem> {
    let schedules = recurring::view(&api.broker, &api.config.schedules).await;
    schedules.map(Json).map_err(Problem::from)
}
