//! The filter of the garbage page: its form, its place in links and commands, and the messages that match.

use lisa_core::broker::{TimeRange, TopicHandle};
use lisa_core::state::{GarbageReason, State};
use lisa_core::topic::Group;
use maud::{Markup, html};

use super::Dashboard;
use super::form::Fields;
use super::page::{Context, Failure};
use super::text::part;
use crate::operations::garbage_filter::{Filter, LONGEST_ERROR};
use crate::operations::garbage_search::{self, Search};
use crate::operations::messages::MessagePage;

/// The messages of one page.
pub(super) const ROWS: usize = 50;

/// Reads a page of a group's garbage, the newest first.
pub(super) async fn page_of(
    dashboard: &Dashboard,
    topic: &TopicHandle,
    group: &Group,
    filter: &Filter,
    cursor: Option<&str>,
) -> Result<MessagePage, Failure> {
    let broker = dashboard.broker();
    if filter.is_empty() {
        let newest = TimeRange {
            newest_first: true,
            ..TimeRange::default()
        };
        let list = broker.list_within(topic, group, State::Garbage, newest, cursor, ROWS);
        let page = dashboard.read(list).await?;
        return Ok(MessagePage::new(topic, Some(group), page));
    }
    let conditions = filter.conditions();
    let search = Search {
        conditions: conditions.map_err(|error| Failure::invalid(error.field, &error.error))?,
        newest_first: true,
        cursor,
        limit: ROWS,
    };
    let found = garbage_search::search(broker, topic, group, search);
    dashboard.read(found).await
}

/// The form for a filter.
pub(super) fn filter_form(
    context: &Context,
    topic: &TopicHandle,
    group: &Group,
    filter: &Filter,
) -> Markup {
    let path = context.link(format!("/topics/{}/garbage", topic.name()));
    html! {
        form.filters action=(path) {
            input type="hidden" name="group" value=(group);
            label { span { "Error" } input name="error" value=(filter.error.as_deref().unwrap_or_default()) maxlength=(LONGEST_ERROR) placeholder="part of the text, * for any" spellcheck="false"; }
            label { span { "Ordering key" } input name="key" value=(filter.key.as_deref().unwrap_or_default()) maxlength="256" spellcheck="false"; }
            label { span { "Reason" } select name="reason" {
                option value="" { "any" }
                @for reason in GarbageReason::ALL { option value=(reason.as_str()) selected[filter.reason.as_deref() == Some(reason.as_str())] { (reason.as_str()) } }
            } }
            button { "Filter" }
            @if !filter.is_empty() { a href=(format!("{path}?group={group}")) { "Show all" } }
        }
    }
}

/// Reads a filter from a form or a link.
pub(super) fn filter_of(fields: &Fields) -> Result<Filter, Failure> {
    let text = |name| fields.text(name).map(str::to_owned);
    let filter = Filter {
        error: text("error"),
        key: text("key"),
        reason: text("reason"),
        ..Filter::default()
    };
    let checked = filter.check();
    checked.map_err(|error| Failure::invalid(error.field, &error.error))?;
    Ok(filter)
}

/// Returns the conditions of a filter of the page by their names, which are those of fields, parameters and options.
pub(super) fn conditions_of(filter: &Filter) -> impl Iterator<Item = (&'static str, &str)> {
    let conditions = [
        ("error", &filter.error),
        ("key", &filter.key),
        ("reason", &filter.reason),
    ];
    let conditions = conditions.into_iter();
    conditions.filter_map(|(name, value)| Some((name, value.as_deref()?)))
}

/// Returns a filter as the end of a query.
pub(super) fn query_of(filter: &Filter) -> String {
    let conditions = conditions_of(filter);
    conditions
        .map(|(name, value)| format!("&{name}={}", part(value)))
        .collect()
}

/// Returns a filter as options of a command.
pub(super) fn options_of(filter: &Filter) -> Vec<String> {
    let conditions = conditions_of(filter);
    conditions
        .map(|(name, value)| format!("--{name}={value}"))
        .collect()
}
