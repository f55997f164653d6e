//! The running processes, the consumers of each group, and the groups that no consumer reads.

use axum::Extension;
use axum::extract::State as With;
use maud::html;

use super::Dashboard;
use super::page::{Context, Page, Section};
use super::parts::{
    Level, command, count, empty, missing_topics, relative_text, rest, sign, staleness,
};
use super::text::{span, visible};

/// The rows that are shown; the number of the others follows.
const ROWS: usize = 200;

pub(super) async fn show(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
) -> Page {
    let reading = dashboard.workers().await;
    let own = dashboard.0.parts.assignments.name();
    let (workers, groups) = reading
        .value
        .as_deref()
        .map_or((&[][..], &[][..]), |list| (&list.workers, &list.groups));
    let rows: Vec<_> = groups
        .iter()
        .flat_map(|group| {
            let consumers = group.consumers.iter();
            consumers.map(move |consumer| (group, consumer))
        })
        .collect();
    let unread: Vec<_> = groups
        .iter()
        .filter(|group| group.consumers.is_empty())
        .collect();
    let missing = reading.value.as_deref().map(|list| &list.missing);
    let body = html! {
        (staleness("stale", &reading))
        (missing_topics(&context, missing))
        section aria-labelledby="processes-title" { h2 #processes-title { "Processes " span.badge { (workers.len()) } }
            div #processes .table-box data-live { table.rows {
                caption.hidden { "Running processes" }
                thead { tr { th scope="col" { "Name" } th scope="col" { "Role" } th scope="col" { "Version" } th scope="col" { "Host" } th.n scope="col" { "PID" } th.n scope="col" { "Shards" } th.n scope="col" { "Started" } th.n scope="col" { "Last report" } } }
                tbody { @for worker in workers.iter().take(ROWS) { tr {
                    th.id scope="row" data-label="Name" { (visible(&worker.name)) @if worker.name == own { " " span.muted { "serves this page" } } }
                    td data-label="Role" { (visible(&worker.role)) }
                    td data-label="Version" { (visible(&worker.version)) }
                    td data-label="Host" { (visible(&worker.host)) }
                    td.n data-label="PID" { (worker.pid) }
                    td.n data-label="Shards" { (count(worker.shards.iter().map(|of| of.shards.len() as u64).sum())) }
                    td.n data-label="Started" { (relative_text(&worker.started_at, context.now)) }
                    td.n data-label="Last report" { (span(worker.idle_ms)) " ago" }
                } } }
            } }
            (rest(workers.len(), ROWS))
        }
        section aria-labelledby="consumers-title" { h2 #consumers-title { "Consumers " span.badge { (rows.len()) } }
            div #consumers data-live {
                @if rows.is_empty() {
                    (empty("No consumer is running", html! { p { "Start one with a subscription or a gateway in its configuration, or use the Rust library:" } (command("lisa-consumer run --config lisa.toml")) }))
                } @else {
                    div.table-box { table.rows {
                        caption.hidden { "Consumers by topic and group" }
                        thead { tr { th scope="col" { "Consumer" } th scope="col" { "Topic" } th scope="col" { "Group" } th.n scope="col" { "In flight" } th.n scope="col" { "Concurrency" } th scope="col" { "Pulled by" } th.n scope="col" { "Last report" } } }
                        tbody { @for (group, consumer) in rows.iter().take(ROWS) { tr {
                            th.id scope="row" data-label="Consumer" { (visible(&consumer.name)) }
                            td data-label="Topic" { a href=(context.link(format!("/topics/{}", group.topic))) { (group.topic) } }
                            td data-label="Group" { (group.group) }
                            td.n data-label="In flight" { (count(consumer.in_flight as u64)) }
                            td.n data-label="Concurrency" { @match consumer.concurrency { Some(most) => { (most) } None => { "–" } } }
                            td data-label="Pulled by" { (visible(&consumer.pullers.join(", "))) }
                            td.n data-label="Last report" { (span(consumer.idle_ms)) " ago" }
                        } } }
                    } }
                    (rest(rows.len(), ROWS))
                }
            }
        }
        @if !unread.is_empty() { section aria-labelledby="unread-title" { h2 #unread-title { "Groups without a running consumer" }
            ul #unread .list data-live { @for group in unread.iter().take(ROWS) { li { (sign(Level::Warn)) a href=(context.link(format!("/topics/{}", group.topic))) { (group.topic) "/" (group.group) } } } }
            (rest(unread.len(), ROWS))
        } }
    };
    Page::new(Section::Workers, "Workers", body).live()
}
