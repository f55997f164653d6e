//! Removes a topic: the page that asks first, and the action itself.

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State as With};
use axum::response::Response;
use lisa_core::broker::Removal;
use maud::html;

use super::Dashboard;
use super::actions::{Ask, check_typed};
use super::form::{Fields, PLAIN};
use super::page::{Context, Failure, Page};
use super::parts::Commands;
use super::text::messages;
use crate::operations::topics;

/// Asks before a topic is removed.
pub(super) async fn ask(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Extension(how): Extension<Removal>,
    Path(topic): Path<String>,
) -> Result<Page, Failure> {
    let topic = dashboard.topic(&topic).await?;
    let name = topic.name().as_str();
    topics::not_in_file(&dashboard.0.parts.config, topic.name())?;
    let stats = dashboard.read(dashboard.broker().stats(&topic)).await?;
    let left = html! { strong { (messages(stats.stored)) } };
    let (title, text, label) = match how {
        Removal::Drain => (
            format!("Drain topic {name}, and remove it?"),
            html! { p.lead { "It accepts no new messages, and delivers those that are stored when they are due: " (left) ". It is removed once nothing is left." } p.muted { "This cannot be undone. Requeue or purge its garbage: until then, the topic stays." } },
            "Drain",
        ),
        Removal::Force => (
            format!("Remove topic {name} and its messages?"),
            html! { p.lead { "The topic is permanently removed with all its messages: " (left) "." } p.muted { "This cannot be undone. It takes a few seconds." } },
            "Remove topic",
        ),
    };
    let route = format!("/v1/topics/{name}?how={how}");
    let option = format!("--{how}");
    let commands = Commands::default()
        .curl(&context, &title, "DELETE", route, None)
        .cli(
            &context,
            &title,
            "lisa-manager",
            &["topics", "remove", name, &option],
        );
    let ask = Ask {
        title,
        text,
        fields: html! {},
        label: label.into(),
        typed: Some(name),
        path: format!("/topics/{name}/{how}"),
        back: format!("/topics/{name}"),
        commands,
    };
    Ok(ask.page(&context).below_topic(name))
}

/// Removes a topic.
pub(super) async fn remove(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Extension(how): Extension<Removal>,
    Path(topic): Path<String>,
    body: Body,
) -> Result<Response, Failure> {
    let topic = dashboard.topic(&topic).await?;
    let name = topic.name();
    let fields = Fields::read(body, PLAIN, &dashboard.0.bodies).await?;
    check_typed(&fields, name.as_str())?;
    let action = dashboard.action(&context, topics::REMOVE).topic(name);
    let config = &dashboard.0.parts.config;
    let begun = topics::remove(dashboard.broker(), config, &topic, Some(how), None, action).await?;
    dashboard.changed(name).await;
    let text = match begun.removal {
        Removal::Drain => format!("Topic {name} is draining, {} left.", messages(begun.stored)),
        Removal::Force => format!(
            "Topic {name} is being removed with {}.",
            messages(begun.stored)
        ),
    };
    Ok(context.done("/", text))
}
