//! Schedules (recurring messages) of this manager's configuration.

use axum::Extension;
use axum::extract::State as With;
use maud::html;

use super::Dashboard;
use super::page::{Context, Failure, Page, Section};
use super::parts::{command, empty, relative_text};
use super::text::visible;
use crate::operations::schedules::Schedules;

/// The most schedules on a page.
const SHOWN: usize = 1000;

pub(super) async fn show(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
) -> Result<Page, Failure> {
    let schedules = Schedules {
        broker: dashboard.broker(),
        config: &dashboard.0.parts.config,
    };
    let list = dashboard.read(schedules.list("", None, SHOWN)).await?;
    let time = |at: &Option<String>| html! { @match at { Some(at) => (relative_text(at, context.now)), None => { span.zero { "–" } } } };
    let body = html! { div #schedules data-live {
        @if list.schedules.is_empty() {
            (empty("No schedules", html! { p { "Recurring messages (cron) are declared in the configuration:" } pre tabindex="0" { "[schedules.nightly]\ncron = \"0 0 3 * * *\"\ntopic = \"reports\"" } p { "Check it before you restart the manager:" } (command("lisa-manager config check --config lisa.toml")) }))
        } @else { div.table-box { table.rows {
            caption.hidden { "Schedules" }
            thead { tr { th scope="col" { "Schedule" } th scope="col" { "Topic" } th scope="col" { "Cron" } th scope="col" { "Time zone" } th scope="col" { "Next" } th scope="col" { "Sent until" } } }
            tbody { @for schedule in &list.schedules { tr {
                th scope="row" data-label="Schedule" { (schedule.schedule) }
                td data-label="Topic" { a href=(context.link(format!("/topics/{}", schedule.topic))) { (schedule.topic) } }
                td.mono data-label="Cron" { (visible(&schedule.cron)) }
                td data-label="Time zone" { (schedule.time_zone) }
                td data-label="Next" { (time(&schedule.next)) }
                td data-label="Sent until" { (time(&schedule.sent_until)) }
            } } }
        } } }
    } };
    Ok(Page::new(Section::Schedules, "Schedules", body).live())
}
