//! A page of the messages of a topic in one state, or of one ordering key. The URL holds every filter.

use axum::Extension;
use axum::extract::{Path, RawQuery, State as With};
use lisa_core::broker::{BrokerError, InvalidCursor, KeyCursor, ListedMessage, TopicHandle};
use lisa_core::message::OrderingKey;
use lisa_core::state::State;
use maud::{Markup, html};

use super::Dashboard;
use super::form::Fields;
use super::page::{Context, Failure, Page, Section};
use super::parts::{Commands, command, empty, relative, state};
use super::text::{part, visible};
use crate::operations::choose_group::choose_for;
use crate::operations::messages::MessagePage;

/// The messages of one page.
const ROWS: usize = 50;

/// The reason that the messages of a key are not listed.
const NO_INDEX: &str = "This topic has no key index, so its messages cannot be listed by ordering key. To list messages that are sent from now on, set key_index = true in its configuration. Keys lists the ordering keys with parked messages.";

pub(super) async fn show(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(topic): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Page, Failure> {
    let topic = dashboard.topic(&topic).await?;
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    let of = fields.value::<State>("state")?.unwrap_or(State::Waiting);
    let key = fields.value::<OrderingKey>("key")?;
    // A state that needs a group shows that of the first one.
    let first = topic.groups().first().map(|group| group.as_str());
    let named = fields
        .text("group")
        .or(if of == State::Waiting { None } else { first });
    let group = match topic.groups() {
        [] if of == State::Waiting => None,
        _ => choose_for(&topic, of, named)?,
    };
    let cursor = fields.text("cursor");
    let broker = dashboard.broker();
    let mut error = None;
    let list = match &key {
        Some(key) => {
            let at: Option<KeyCursor> = cursor
                .map(str::parse)
                .transpose()
                .map_err(|error: InvalidCursor| Failure::invalid("cursor", &error))?;
            match dashboard
                .0
                .queries
                .run(async { Ok::<_, String>(broker.list_of_key(&topic, key, at, ROWS).await) })
                .await
            {
                Ok(Ok(page)) => MessagePage::of_key(&topic, page),
                Ok(Err(BrokerError::NoKeyIndex(_))) => {
                    error = Some(NO_INDEX);
                    MessagePage {
                        topic: topic.name().clone(),
                        group: None,
                        messages: Vec::new(),
                        next: None,
                        looked_at: None,
                    }
                }
                Ok(Err(error)) => return Err(error.into()),
                Err(error) => {
                    return Err(Failure::new(
                        lisa_service::http::ProblemCode::Unavailable,
                        error,
                    ));
                }
            }
        }
        None => {
            let page = dashboard
                .read(broker.list(&topic, group, of, cursor, ROWS))
                .await?;
            MessagePage::new(&topic, group, page)
        }
    };
    let filter = Filter {
        state: of,
        group: group
            .map(|group| group.as_str())
            .filter(|_| of != State::Waiting || named.is_some()),
        key: key.as_ref().map(OrderingKey::as_str),
        cursor,
    };
    let body = render(&context, &topic, &filter, &list, error);
    let page = Page::new(Section::Overview, "Messages", body).live_list(cursor.is_none());
    Ok(page
        .below("Overview", "/")
        .below(topic.name().as_str(), format!("/topics/{}", topic.name())))
}

struct Filter<'f> {
    state: State,
    group: Option<&'f str>,
    key: Option<&'f str>,
    cursor: Option<&'f str>,
}

impl Filter<'_> {
    fn query(&self, cursor: Option<&str>) -> String {
        let mut query = match self.key {
            Some(key) => format!("key={}", part(key)),
            None => format!("state={}", self.state.as_str()),
        };
        if let (Some(group), None) = (self.group, self.key) {
            query += &format!("&group={}", part(group));
        }
        if let Some(cursor) = cursor {
            query += &format!("&cursor={}", part(cursor));
        }
        query
    }
}

fn render(
    context: &Context,
    topic: &TopicHandle,
    filter: &Filter<'_>,
    list: &MessagePage,
    error: Option<&str>,
) -> Markup {
    let name = topic.name().as_str();
    let here = |query: String| context.link(format!("/topics/{name}/messages?{query}"));
    let mut commands = Commands::default().curl(
        context,
        "Read this list",
        "GET",
        format!("/v1/topics/{name}/messages?{}", filter.query(filter.cursor)),
        None,
    );
    let mut words = vec!["messages", "list", name];
    match (filter.key, filter.group) {
        (Some(key), _) => words.extend(["--key", key]),
        (None, group) => {
            words.extend(["--state", filter.state.as_str()]);
            words.extend(group.into_iter().flat_map(|group| ["--group", group]));
        }
    }
    commands = commands.cli(context, "Read this list", "lisa-manager", &words);
    html! {
        nav.tabs aria-label="States" {
            @for of in State::ALL {
                @let query = Filter { state: *of, group: filter.group, key: None, cursor: None }.query(None);
                a href=(here(query)) aria-current=[(filter.key.is_none() && *of == filter.state).then_some("true")] { (state(of.as_str())) }
            }
        }
        form.filters action=(context.link(format!("/topics/{name}/messages"))) {
            label { span { "State" } select name="state" { @for of in State::ALL { option value=(of.as_str()) selected[*of == filter.state] { (of.as_str().replace('_', " ")) } } } }
            @if topic.groups().len() > 1 {
                label { span { "Group" } select name="group" {
                    @if filter.state == State::Waiting { option value="" { "all" } }
                    @for group in topic.groups() { option value=(group) selected[filter.group == Some(group.as_str())] { (group) } }
                } }
            }
            label { span { "Ordering key" } input name="key" value=(filter.key.unwrap_or_default()) maxlength="256" placeholder="instead of a state" spellcheck="false"; }
            button { "Show" }
        }
        @if let Some(error) = error { p.stale { (super::parts::sign(super::parts::Level::Warn)) span { (visible(error)) } } }
        @if error.is_none() { div #messages data-live data-steady { @if list.messages.is_empty() && filter.key.is_some() {
            (empty("No messages with this key", html! { p { "No stored message of the topic has this ordering key" @if filter.cursor.is_some() { " any longer" } "." } }))
        } @else if list.messages.is_empty() {
            (empty(&format!("No messages here{}", if filter.cursor.is_some() { " any longer" } else { "" }), html! {
                p { "Send one that is due in five minutes:" }
                (command(&format!("curl -d hello -H 'Lisa-Delay: 5m' {}/v1/topics/{name}/messages", context.producer)))
            }))
        } @else {
            div.table-box { (table(context, name, &list.messages)) }
            nav.pages aria-label="Pages of messages" {
                @if filter.cursor.is_some() { a href=(here(filter.query(None))) { "First page" } }
                @if let Some(next) = &list.next { a rel="next" href=(here(filter.query(Some(next)))) { "Next " (ROWS) } } @else { span { "End of the list" } }
                a href=(here(filter.query(filter.cursor))) { "Refresh" }
            }
        } } }
        (commands.render("list-commands"))
    }
}

/// Returns messages as rows without payloads. Ordering keys have a column if there are any.
pub(super) fn table(context: &Context, topic: &str, messages: &[ListedMessage]) -> Markup {
    let has_keys = messages.iter().any(|message| message.key.is_some());
    html! {
        table.rows {
            caption.hidden { "Messages" }
            thead { tr { th scope="col" { "Id" } @if has_keys { th scope="col" { "Ordering key" } } th scope="col" { "State" } th scope="col" { "Time" } th.n scope="col" { "Attempt" } th scope="col" { "Consumer or last error" } } }
            tbody { @for message in messages { tr {
                th.id scope="row" data-label="Id" { a.row-link href=(context.link(format!("/topics/{topic}/messages/{}", part(message.id.as_str())))) { (visible(message.id.as_str())) } }
                @if has_keys { td.mono data-label="Ordering key" { @match &message.key { Some(key) => (visible(key.as_str())), None => { span.zero { "–" } } } } }
                td data-label="State" { (state(message.state.as_str())) @if let Some(reason) = message.reason { " " span.muted { (reason.as_str()) } } }
                td data-label="Time" { @match message.time() { Some(at) => (relative(at, context.now)), None => { span.zero { "–" } } } }
                td.n data-label="Attempt" { (message.attempt) }
                td.error data-label="Consumer or last error" {
                    @if let Some(consumer) = &message.consumer { span.mono { (visible(consumer)) } }
                    @if let Some(error) = &message.error { span.clip { (visible(error)) } }
                    @if message.consumer.is_none() && message.error.is_none() { span.zero { "–" } }
                }
            } } }
        }
    }
}
