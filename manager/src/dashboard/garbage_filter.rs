//! The filter of the garbage page: its form, its place in links and commands, and the messages that match.

use std::collections::HashMap;

use lisa_core::broker::{TimeRange, TopicHandle};
use lisa_core::state::{GarbageReason, State};
use lisa_core::topic::Group;
use maud::{Markup, html};

use super::Dashboard;
use super::page::{Context, Failure};
use super::text::{part, visible};
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
    let search = Search {
        filter,
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
            (inputs(filter))
            button { "Filter" }
            @if !filter.is_empty() { a href=(format!("{path}?group={group}")) { "Show all" } }
        }
    }
}

/// The inputs of the form: one for each condition.
fn inputs(filter: &Filter) -> Markup {
    let texts: HashMap<_, _> = filter.texts().collect();
    let text = |name| texts.get(name).map_or("", String::as_str);
    html! {
        label { span { "Error" } input name="error" value=(text("error")) maxlength=(LONGEST_ERROR) placeholder="part of the text, * for any" spellcheck="false"; }
        label { span { "Ordering key" } input name="key" value=(text("key")) maxlength="256" spellcheck="false"; }
        label { span { "Reason" } select name="reason" {
            option value="" { "any" }
            @for reason in GarbageReason::ALL { option value=(reason.as_str()) selected[filter.reason == Some(*reason)] { (reason.as_str()) } }
        } }
        label { span { "From" } input name="from" value=(text("from")) placeholder="24h, or 2026-11-21T09:30:00Z" spellcheck="false"; }
        label { span { "To" } input name="to" value=(text("to")) placeholder="2026-11-21T10:30:00Z" spellcheck="false"; }
    }
}

/// The conditions in a form that asks for confirmation: shown, and hidden to be sent again.
pub(super) fn confirmed(filter: &Filter) -> Markup {
    html! {
        @if !filter.is_empty() { p { "Only messages that match:" } }
        @for (name, text) in filter.texts() {
            p.mono { (name) ": " (visible(&text)) }
            input type="hidden" name=(name) value=(text);
        }
    }
}

/// Returns a filter as the end of a query.
pub(super) fn query_of(filter: &Filter) -> String {
    let texts = filter.texts();
    texts
        .map(|(name, text)| format!("&{name}={}", part(&text)))
        .collect()
}

/// Returns a filter as options of a command.
pub(super) fn options_of(filter: &Filter) -> Vec<String> {
    let texts = filter.texts();
    texts
        .map(|(name, text)| format!("--{}={text}", name.replace('_', "-")))
        .collect()
}

#[cfg(test)]
mod tests {
    use lisa_core::fields::Description;

    use super::*;

    #[test]
    fn each_condition_has_an_input() {
        let inputs = inputs(&Filter::default()).into_string();
        for field in Description::all::<Filter>() {
            let name = format!(" name=\"{}\"", field.name);
            assert_eq!(inputs.matches(&name).count(), 1, "{name}: {inputs}");
        }
    }
}
