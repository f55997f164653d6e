//! One message: its state in each group and the reason, its attributes, headers and payload, and what can be done with it.

use axum::Extension;
use axum::extract::{Path, State as With};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use lisa_core::broker::{FailedAttempt, FailedOutcome, MessageInGroup, StoredMessage, TopicHandle};
use lisa_core::message::MessageId;
use lisa_service::http::auth::Scope;
use maud::{Markup, html};

use super::Dashboard;
use super::page::{Context, Failure, Page, Section};
use super::parts::{Commands, confirm_link, exact, post_button, relative, state};
use super::text::{hex_dump, indented_json, part, size, visible, visible_lines};
use crate::operations::garbage::Verb;
use crate::operations::messages::{FindError, find};

/// The most of a payload that is shown, in bytes; the rest can be downloaded.
const MOST_SHOWN: usize = 16 * 1024;
/// The most of a binary payload that is shown.
const MOST_HEX: usize = 2048;

/// Finds a message by the parts of its path.
pub(super) async fn find_message(
    dashboard: &Dashboard,
    topic: &TopicHandle,
    id: &str,
) -> Result<Box<StoredMessage>, Failure> {
    let id: MessageId = id.parse().map_err(|error| Failure::invalid("id", &error))?;
    let mut failed = None;
    let read = async {
        find(dashboard.broker(), topic, &id, None)
            .await
            .map_err(|error| {
                let text = error.to_string();
                failed = Some(error);
                text
            })
    };
    match dashboard.0.queries.run(read).await {
        Ok(message) => Ok(message),
        Err(text) => Err(match failed {
            Some(FindError::Unknown { .. }) => Failure::not_found(text),
            Some(FindError::Broker(error)) if !error.is_retryable() => error.into(),
            Some(FindError::Unreadable { .. }) => {
                Failure::new(lisa_service::http::ProblemCode::Internal, text)
            }
            _ => Failure::new(lisa_service::http::ProblemCode::Unavailable, text),
        }),
    }
}

/// Returns why a viewer does not see payloads and headers, if that is so.
pub(super) fn may_see(dashboard: &Dashboard, context: &Context) -> Result<(), &'static str> {
    if !dashboard.0.parts.config.manager.dashboard.show_payload {
        return Err(
            "The configuration hides payloads and headers (manager.dashboard.show_payload).",
        );
    }
    match context.viewer.can(Scope::Payload) {
        true => Ok(()),
        false => Err("Payload and headers require the scope payload."),
    }
}

pub(super) async fn show(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path((topic, id)): Path<(String, String)>,
) -> Result<Page, Failure> {
    let topic = dashboard.topic(&topic).await?;
    let message = find_message(&dashboard, &topic, &id).await?;
    let hidden = may_see(&dashboard, &context).err();
    let at = |verb: &str| format!("/topics/{}/messages/{}/{verb}", topic.name(), part(&id));
    let actions = html! {
        @if is_changeable(&message) {
            (post_button(&context, Scope::Send, "Deliver now", at("deliver-now")))
            (confirm_link(&context, Scope::Send, "Reschedule", at("reschedule"), false))
            (confirm_link(&context, Scope::Send, "Cancel", at("cancel"), true))
        }
    };
    let name = topic.name().as_str();
    Ok(Page::new(
        Section::Overview,
        id.as_str(),
        render(&context, &topic, &message, hidden),
    )
    .below("Overview", "/")
    .below(name, format!("/topics/{name}"))
    .below("Messages", format!("/topics/{name}/messages"))
    .actions(actions)
    .live())
}

pub(super) async fn download(
    With(dashboard): With<Dashboard>,
    Path((topic, id)): Path<(String, String)>,
) -> Result<Response, Failure> {
    if !dashboard.0.parts.config.manager.dashboard.show_payload {
        return Err(Failure::not_found("the configuration hides payloads"));
    }
    let topic = dashboard.topic(&topic).await?;
    let message = find_message(&dashboard, &topic, &id).await?;
    let bytes = message.payload.0.clone();
    let name: String = id
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        })
        .take(80)
        .collect();
    let disposition = format!("attachment; filename=\"{name}.bin\"");
    Ok((
        [
            (CONTENT_TYPE, "application/octet-stream".to_owned()),
            (CONTENT_DISPOSITION, disposition),
        ],
        bytes,
    )
        .into_response())
}

/// Returns true if a message can be cancelled, rescheduled and delivered now.
fn is_changeable(message: &StoredMessage) -> bool {
    let mut states = message.groups.iter().map(|copy| &*copy.state);
    let is_held = |state| matches!(state, "ready" | "in_flight" | "unknown");
    let is_pending = |state| matches!(state, "waiting" | "backlog" | "parked" | "retry");
    !states.clone().any(is_held) && (message.groups.is_empty() || states.any(is_pending))
}

/// Returns the commands for what can be done with a message in its states.
fn commands_for(context: &Context, topic: &str, message: &StoredMessage) -> Commands {
    let id = message.listed.id.as_str();
    let api = format!("/v1/topics/{topic}/messages/{}", part(id));
    let words = ["messages", "show", topic, "--", id];
    let mut commands = Commands::default()
        .curl(context, "Read this message", "GET", &api, None)
        .cli(context, "Read this message", "lisa-manager", &words);
    if is_changeable(message) {
        let now = format!("{api}/deliver-now");
        commands = commands
            .curl_producer(context, "Cancel", "DELETE", &api, None)
            .cli(
                context,
                "Cancel",
                "lisa-producer",
                &["cancel", topic, "--", id],
            )
            .curl_producer(context, "Deliver now", "POST", now, None)
            .cli(
                context,
                "Deliver now",
                "lisa-producer",
                &["deliver-now", topic, "--", id],
            )
            .reschedule(context, topic, id);
    }
    for copy in &message.groups {
        if copy.state == "garbage" {
            let (requeue, purge) = (Verb::Requeue, Verb::Purge);
            commands = commands
                .of_garbage(context, requeue, topic, &copy.group, id)
                .of_garbage(context, purge, topic, &copy.group, id);
        }
    }
    commands
}

/// One step of a message's life.
fn step(is_done: bool, title: &str, detail: Markup) -> Markup {
    html! { li.(if is_done { "done" } else { "next" }) { span.what { (title) } span.when { (detail) } } }
}

fn render(
    context: &Context,
    topic: &TopicHandle,
    message: &StoredMessage,
    hidden: Option<&str>,
) -> Markup {
    // Without an index, the messages of a key cannot be listed.
    let has_index = topic.settings().key_index;
    let topic = topic.name().as_str();
    let listed = &message.listed;
    let id = listed.id.as_str();
    let commands = commands_for(context, topic, message);
    html! {
        section #why data-live aria-labelledby="why-title" {
            h2 #why-title { "State in each group" }
            div.why {
                @for copy in &message.groups { article.card {
                    header { h3 { (copy.group) } (state(&copy.state)) }
                    p { (why(context, topic, copy)) }
                    @if copy.state == "garbage" { div.buttons {
                        @let at = |verb: &str| format!("/topics/{topic}/messages/{}/{verb}?group={}", part(id), copy.group);
                        (confirm_link(context, Scope::Operate, "Requeue", at("requeue"), false))
                        (confirm_link(context, Scope::Operate, "Purge", at("purge"), true))
                    } }
                } }
                @if message.groups.is_empty() { article.card { p { "The topic has no group: the message waits until one is added." } } }
            }
        }
        section #timeline data-live aria-labelledby="time-title" {
            h2 #time-title { "Timeline" }
            ol.timeline {
                @if let Some(sent) = message.sent_at { (step(true, "Sent", html! { (exact(sent)) })) }
                @if let Some(due) = listed.due_at {
                    @let is_past = due <= context.now;
                    @let title = if listed.state.as_str() == "retry" { format!("Attempt {}", listed.attempt) } else { "Due".to_owned() };
                    (step(is_past, &title, html! { (relative(due, context.now)) span.muted { " " (due) } }))
                }
                @for copy in &message.groups { @for attempt in copy.attempts.iter().rev() {
                    (step(true, attempt_title(attempt), html! { (relative(attempt.at, context.now)) @if let Some(consumer) = &attempt.consumer { " on " span.mono { (visible(consumer)) } } @if message.groups.len() > 1 { " in " (copy.group) } ": " (visible(&attempt.error)) }))
                } }
                @if let Some(consumer) = &listed.consumer { (step(true, &format!("Attempt {}", listed.attempt), html! { "held by " span.mono { (visible(consumer)) } })) }
                @if let Some(at) = listed.garbage_at { (step(true, "Garbage (dead letter)", html! { (relative(at, context.now)) " after " (listed.attempt) @if listed.attempt == 1 { " attempt" } @else { " attempts" } @if let Some(reason) = listed.reason { ", " (reason.as_str()) } })) }
                @if let Some(at) = message.expires_at { (step(false, "Expires", html! { (relative(at, context.now)) })) }
            }
            @if let Some(error) = &listed.error { div.card.last-error { h3 { "Last error" } pre tabindex="0" { (visible_lines(error)) } } }
        }
        section aria-labelledby="about-title" {
            h2 #about-title { "Attributes" }
            dl.pairs {
                div { dt { "Id" } dd.mono { (visible(id)) " " button.copy.quiet type="button" data-copy=(id) { "Copy" } } }
                div { dt { "Attempt" } dd { (listed.attempt) " of " (message.max_attempts) } }
                @if let Some(key) = &listed.key { div { dt { "Ordering key" } dd.mono { @if has_index { a href=(context.link(format!("/topics/{topic}/messages?key={}", part(key.as_str())))) { (visible(key.as_str())) } } @else { (visible(key.as_str())) } } } }
                @if let Some(key) = &message.merge_key { div { dt { "Merge key" } dd.mono { (visible(key)) } } }
                div { dt { "Priority" } dd { (message.priority) } }
                @if let Some(retry) = &message.retry { div { dt { "Retry" } dd.mono { (visible(&serde_json::to_string(retry).unwrap_or_default())) } } }
            }
        }
        section aria-labelledby="payload-title" {
            div.section-row { h2 #payload-title { "Payload " span.badge { (size(message.payload.0.len() as u64)) } }
                @if hidden.is_none() { a href=(context.link(format!("/topics/{topic}/messages/{}/payload", part(id)))) { "Download" } } }
            @match hidden {
                Some(reason) => p.card.muted { (reason) },
                None => {
                    (shown_payload(message))
                    (shown_headers(message.headers.iter()))
                }
            }
        }
        (commands.render("message-commands"))
    }
}

/// Returns the reason for a state, with a link to the message that holds the ordering key.
fn why(context: &Context, topic: &str, copy: &MessageInGroup) -> Markup {
    let split = |id: &MessageId| Some((id.as_str().to_owned(), copy.why.split_once(id.as_str())?));
    let Some((id, (before, after))) = copy.holder.as_ref().and_then(split) else {
        return visible(&copy.why);
    };
    let path = format!("/topics/{topic}/messages/{}", part(&id));
    html! { (visible(before)) a href=(context.link(path)) { (visible(&id)) } (visible(after)) }
}

/// Names a failed attempt.
pub(super) fn attempt_title(attempt: &FailedAttempt) -> &'static str {
    match attempt.outcome {
        FailedOutcome::Failed => "Failed",
        FailedOutcome::Rejected => "Rejected",
        FailedOutcome::LeaseExpired => "Lease expired",
    }
}

fn shown_payload(message: &StoredMessage) -> Markup {
    if let Some(text) = message.payload.text() {
        return shown_text(text, MOST_SHOWN);
    }
    let bytes = &message.payload.0;
    let hex = hex_dump(&bytes[..bytes.len().min(MOST_HEX)]);
    boxed("Hex", &hex, None, bytes.len() > MOST_HEX)
}

/// Returns up to `most` bytes of a payload of text in a box, indented if it is JSON.
pub(super) fn shown_text(text: &str, most: usize) -> Markup {
    if text.is_empty() {
        return html! { p.card.muted { "Empty" } };
    }
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let is_cut = end < text.len();
    let copied = (!is_cut).then_some(text);
    match copied.and_then(indented_json) {
        Some(json) => boxed("JSON", &json, copied, is_cut),
        None => boxed("Text", &text[..end], copied, is_cut),
    }
}

fn boxed(kind: &str, shown: &str, copied: Option<&str>, is_cut: bool) -> Markup {
    html! {
        div.payload {
            div.payload-head { span { (kind) } @if let Some(copied) = copied { button.copy.quiet type="button" data-copy=(copied) { "Copy" } } }
            pre tabindex="0" { code { (visible_lines(shown)) } }
            @if is_cut { p.muted { "Truncated. Download the payload to see the rest." } }
        }
    }
}

/// Returns headers below a title.
pub(super) fn shown_headers<'h>(headers: impl Iterator<Item = (&'h str, &'h str)>) -> Markup {
    let mut headers = headers.peekable();
    html! {
        h3 { "Headers" }
        @if headers.peek().is_none() { p.muted { "None" } }
        @else { dl.pairs { @for (name, value) in headers { div { dt { (visible(name)) } dd.mono { (visible(value)) } } } } }
    }
}
