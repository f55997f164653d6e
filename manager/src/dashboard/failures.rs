//! The newest failed attempts of a topic, with the consequence of each.

use axum::Extension;
use axum::extract::{Path, RawQuery, State as With};
use lisa_core::broker::{
    AfterFailure, FAILURES_KEPT, Failure as FailedDelivery, FailureCursor, FailureFilter,
};
use maud::{Markup, html};

use super::Dashboard;
use super::form::Fields;
use super::message::attempt_title;
use super::page::{Context, Failure, Page, Section};
use super::parts::{Commands, Level, empty, relative, tag};
use super::text::{grouped, part, visible};
use crate::operations::choose_group::choose;

/// The number of failures on a page.
const ROWS: usize = 50;

pub(super) async fn show(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(topic): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Page, Failure> {
    let topic = dashboard.topic(&topic).await?;
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    let group = fields.text("group").filter(|group| !group.is_empty());
    let group = match group {
        Some(group) => Some(choose(&topic, Some(group))?),
        None => None,
    };
    let cursor = fields.value::<FailureCursor>("cursor")?;
    let is_first = cursor.is_none();
    let filter = FailureFilter { group, since: None };
    let found = dashboard.broker().failures(&topic, filter, cursor, ROWS);
    let (failures, next) = dashboard.read(found).await?;
    let groups: Vec<_> = topic.groups().iter().map(|group| group.as_str()).collect();
    let name = topic.name().as_str();
    let list = List {
        topic: name,
        groups: &groups,
        group: group.map(|group| group.as_str()),
        failures: &failures,
        next: next.map(|next| next.to_string()),
        is_first,
    };
    let page = Page::new(Section::Overview, "Failures", list.render(&context));
    Ok(page
        .live_list(is_first)
        .below("Overview", "/")
        .below(name, format!("/topics/{name}")))
}

/// A page of the failures of a topic, in one of its groups or in all.
struct List<'a> {
    topic: &'a str,
    groups: &'a [&'a str],
    group: Option<&'a str>,
    failures: &'a [FailedDelivery],
    next: Option<String>,
    is_first: bool,
}

impl List<'_> {
    /// Returns the path of a page.
    fn path(&self, group: Option<&str>, cursor: Option<&str>) -> String {
        let fields = [("group", group), ("cursor", cursor)].into_iter();
        let fields = fields.filter_map(|(name, value)| Some(format!("{name}={}", part(value?))));
        let fields: Vec<_> = fields.collect();
        let mark = if fields.is_empty() { "" } else { "?" };
        format!("/topics/{}/failures{mark}{}", self.topic, fields.join("&"))
    }

    fn render(&self, context: &Context) -> Markup {
        let here = |group, cursor| context.link(self.path(group, cursor));
        let current = |group| (group == self.group).then_some("true");
        let has_groups = self.groups.len() > 1;
        let mut follow = vec!["tail", self.topic, "--failures", "--since", "24h"];
        follow.extend(self.group.iter().flat_map(|group| ["--group", group]));
        let path = format!("/v1{}", self.path(self.group, None));
        let commands = Commands::default()
            .curl(context, "Read this list", "GET", path, None)
            .cli(context, "Follow failures", "lisa-manager", &follow);
        html! {
            @if has_groups {
                nav.tabs aria-label="Groups" {
                    a href=(here(None, None)) aria-current=[current(None)] { "all groups" }
                    @for group in self.groups { a href=(here(Some(group), None)) aria-current=[current(Some(group))] { (group) } }
                }
            }
            p.muted { "The newest failed attempts. Each shard keeps about " (grouped(FAILURES_KEPT as u64)) ", for all groups together." }
            div #failures data-live data-steady {
                @if self.failures.is_empty() {
                    (empty(if self.is_first { "No failures" } else { "No more failures" }, html! { p { "Only failed attempts that are still kept are listed." } }))
                } @else {
                    div.table-box { table.rows {
                        caption.hidden { "Failed attempts" }
                        thead { tr { th scope="col" { "Message" } th scope="col" { "Failed" } @if has_groups { th scope="col" { "Group" } } th scope="col" { "Attempt" } th scope="col" { "Error" } th scope="col" { "Then" } } }
                        tbody { @for failure in self.failures { (self.row(context, failure, has_groups)) } }
                    } }
                }
                nav.pages aria-label="Pages of failures" {
                    @if !self.is_first { a href=(here(self.group, None)) { "First page" } }
                    @if let Some(next) = &self.next { a rel="next" href=(here(self.group, Some(next))) { "Next " (ROWS) } } @else { span { "End of the list" } }
                }
            }
            (commands.render("failures-commands"))
        }
    }

    fn row(&self, context: &Context, failure: &FailedDelivery, has_groups: bool) -> Markup {
        let id = failure.id.as_str();
        let path = format!("/topics/{}/messages/{}", self.topic, part(id));
        html! { tr {
            th.id scope="row" data-label="Message" { a.row-link href=(context.link(path)) { (visible(id)) } }
            td data-label="Failed" { (relative(failure.failed.at, context.now)) }
            @if has_groups { td data-label="Group" { (failure.group) } }
            td data-label="Attempt" { (failure.attempt) ", " (attempt_title(&failure.failed).to_lowercase()) }
            td.error data-label="Error" { (visible(&failure.failed.error)) }
            td data-label="Then" {
                @match failure.then {
                    AfterFailure::Retry => { "retry" @if let Some(at) = failure.next_attempt_at { " " (relative(at, context.now)) } }
                    AfterFailure::Garbage => (tag(Level::Bad, "garbage")),
                    AfterFailure::Expired => (tag(Level::Warn, "expired")),
                }
            }
        } }
    }
}
