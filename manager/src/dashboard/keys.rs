//! The ordering keys of a group that have parked messages, each with the message that those wait for.

use axum::Extension;
use axum::extract::{Path, RawQuery, State as With};
use lisa_core::broker::{MAX_PARKED_KEYS, ParkedKeyCursor};
use lisa_core::state::State;
use maud::{Markup, html};

use super::Dashboard;
use super::form::Fields;
use super::page::{Context, Failure, Page, Section};
use super::parts::{Commands, Level, command, empty, relative_text, state, tag};
use super::text::{grouped, part, visible};
use crate::operations::choose_group::choose;
use crate::operations::parked_keys::{self, HolderView, KeyList};

pub(super) async fn show(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(topic): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Page, Failure> {
    let topic = dashboard.topic(&topic).await?;
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    let first = topic.groups().first().map(|group| group.as_str());
    let group = choose(&topic, fields.text("group").or(first))?;
    let cursor = fields.value::<ParkedKeyCursor>("cursor")?;
    let is_first = cursor.is_none();
    let list = parked_keys::list(dashboard.broker(), &topic, group, cursor, MAX_PARKED_KEYS);
    let list = dashboard.read(list).await?;
    let has_index = topic.settings().key_index;
    let groups: Vec<_> = topic.groups().iter().map(|group| group.as_str()).collect();
    let page = Page::new(
        Section::Overview,
        "Ordering keys",
        render(&context, &groups, &list, is_first, has_index),
    );
    Ok(page
        .live_list(is_first)
        .below("Overview", "/")
        .below(topic.name().as_str(), format!("/topics/{}", topic.name())))
}

fn render(
    context: &Context,
    groups: &[&str],
    list: &KeyList,
    is_first: bool,
    has_index: bool,
) -> Markup {
    let (topic, group) = (list.topic.as_str(), list.group.as_str());
    let here = |group: &str, cursor: Option<&str>| {
        let cursor = cursor.map_or(String::new(), |cursor| format!("&cursor={}", part(cursor)));
        context.link(format!(
            "/topics/{topic}/keys?group={}{cursor}",
            part(group)
        ))
    };
    let what = "List these keys";
    let path = format!("/v1/topics/{topic}/groups/{group}/keys");
    let commands = Commands::default()
        .curl(context, what, "GET", path, None)
        .cli(
            context,
            what,
            "lisa-manager",
            &["keys", topic, "--group", group],
        );
    html! {
        @if groups.len() > 1 {
            nav.tabs aria-label="Groups" { @for other in groups { a href=(here(other, None)) aria-current=[(*other == group).then_some("true")] { (other) } } }
        }
        p.muted { "A message is parked while an earlier one of its ordering key is not finished. The earlier one holds the key." }
        div #keys data-live data-steady { @if list.keys.is_empty() {
            (empty(if is_first { "No parked messages" } else { "No more keys" }, html! {
                p { "No message of group " strong { (group) } " waits for an earlier one of its ordering key. Send two with the same key, and the second waits for the first:" }
                (command(&format!("curl -d hello -H 'Lisa-Key: customer-7' {}/v1/topics/{topic}/messages", context.producer)))
            }))
        } @else {
            div.table-box { table.rows {
                caption.hidden { "Ordering keys with parked messages" }
                thead { tr { th scope="col" { "Ordering key" } th.n scope="col" { "Parked" } th scope="col" { "First was due" } th scope="col" { "Held by" } th scope="col" { "State" } th scope="col" { "Since" } } }
                tbody { @for key in &list.keys { tr {
                    th.id scope="row" data-label="Ordering key" { @if has_index { a.row-link href=(context.link(format!("/topics/{topic}/messages?key={}", part(&key.key)))) { (visible(&key.key)) } } @else { (visible(&key.key)) } }
                    td.n data-label="Parked" { (grouped(key.parked)) }
                    td data-label="First was due" { (relative_text(&key.oldest_due_at, context.now)) }
                    @match &key.holder {
                        Some(holder) => (held(context, topic, holder)),
                        None => { td data-label="Held by" { (tag(Level::Bad, "nothing")) } td data-label="State" { "run the doctor" } td data-label="Since" { span.zero { "–" } } }
                    }
                } } }
            } }
            nav.pages aria-label="Pages of keys" {
                @if !is_first { a href=(here(group, None)) { "First page" } }
                @if let Some(next) = &list.next { a rel="next" href=(here(group, Some(next))) { "Next " (MAX_PARKED_KEYS) } } @else { span { "End of the list" } }
            }
        } }
        (commands.render("keys-commands"))
    }
}

/// Returns the cells of the message that holds a key. A message on the stream is ready or in flight.
fn held(context: &Context, topic: &str, holder: &HolderView) -> Markup {
    let id = holder.id.as_str();
    let since = holder.due_at.as_ref().or(holder.garbage_at.as_ref());
    html! {
        td.id data-label="Held by" { a href=(context.link(format!("/topics/{topic}/messages/{}", part(id)))) { (visible(id)) } }
        td data-label="State" { @match holder.state { Some(of) => (state(of.as_str())), None => "ready or in flight" } }
        td data-label="Since" {
            @if holder.state == Some(State::Retry) { "next attempt " }
            @match since { Some(at) => (relative_text(at, context.now)), None => { span.zero { "–" } } }
        }
    }
}
