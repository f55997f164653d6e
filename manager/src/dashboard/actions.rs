//! Actions on topics, groups and single messages: the page that asks first, and the action itself.

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State as With};
use axum::response::Response;
use lisa_core::broker::{GroupStats, Retirement};
use lisa_core::message::MessageId;
use lisa_core::names::words;
use lisa_core::state::{CancelOutcome, RescheduleOutcome};
use lisa_core::time::{UnixMs, When, parse_duration};
use lisa_service::http::auth::Scope;
use lisa_service::http::client::Client;
use maud::{Markup, html};

use super::Dashboard;
use super::form::{Fields, PLAIN};
use super::page::{Context, Failure, Page, Section};
use super::parts::{Commands, confirm_link, post_button, relative};
use super::text::{messages, part, visible};
use crate::operations::audit;
use crate::operations::choose_group::choose;
use crate::operations::garbage::{Selection, Verb, sweep};
use crate::operations::groups::{self, GroupRetired};

/// The buttons of a topic.
pub(super) fn topic_buttons(
    context: &Context,
    topic: &str,
    is_paused: bool,
    is_in_file: bool,
) -> Markup {
    let (verb, label) = match is_paused {
        true => ("resume", "Resume"),
        false => ("pause", "Pause"),
    };
    let at = |verb: &str| format!("/topics/{topic}/{verb}");
    html! {
        (post_button(context, Scope::Operate, label, at(verb)))
        // Otherwise, the next start of a manager would create it again.
        @if !is_in_file {
            (confirm_link(context, Scope::Operate, "Drain", at("drain"), true))
            (confirm_link(context, Scope::Operate, "Remove", at("force"), true))
        }
    }
}

/// Pauses or resumes a topic.
pub(super) async fn topic(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path((topic, verb)): Path<(String, String)>,
) -> Result<Response, Failure> {
    let topic = dashboard.topic(&topic).await?;
    let paused = match &*verb {
        "pause" => true,
        "resume" => false,
        _ => {
            return Err(Failure::not_found(format!(
                "a topic has no action {verb:?}"
            )));
        }
    };
    let name = topic.name();
    let action = dashboard.action(&context, &verb).topic(name);
    let pause = dashboard.broker().pause(&topic, paused);
    let changed = action
        .run(pause, |changed| audit::changed(*changed))
        .await?;
    dashboard.changed(name).await;
    let state = if paused { "paused" } else { "running" };
    let path = format!("/topics/{name}");
    if !changed {
        return Ok(context.not_done(path, format!("Topic {name} was already {state}.")));
    }
    tracing::info!(topic = %name, paused, by = context.viewer.name(), "paused or resumed in the dashboard");
    Ok(context.done(path, format!("Topic {name} is {state}.")))
}

/// A page that asks before an action.
pub(super) struct Ask<'a> {
    pub(super) title: String,
    pub(super) text: Markup,
    /// Further fields of the form.
    pub(super) fields: Markup,
    pub(super) label: String,
    /// The name to type before something is destroyed.
    pub(super) typed: Option<&'a str>,
    /// The path of the action, and the page to go back to.
    pub(super) path: String,
    pub(super) back: String,
    pub(super) commands: Commands,
}

impl Ask<'_> {
    pub(super) fn page(self, context: &Context) -> Page {
        let is_danger = self.typed.is_some();
        let body = html! {
            form.card.ask method="post" action=(context.link(&self.path)) {
                (self.text)
                (self.fields)
                @if let Some(name) = self.typed {
                    label for="typed" { "Type the name of the topic, " strong { (name) } }
                    input #typed name="typed" required autocomplete="off" spellcheck="false";
                }
                div.buttons {
                    button.(if is_danger { "danger" } else { "primary" }) { (self.label) }
                    a.button.plain href=(context.link(&self.back)) { "Back" }
                }
            }
            (self.commands.render("ask-commands"))
        };
        Page::new(Section::None, self.title, body)
    }
}

/// Checks the typed name of a topic.
pub(super) fn check_typed(fields: &Fields, topic: &str) -> Result<(), Failure> {
    match fields.text("typed").map(str::trim) {
        Some(typed) if typed == topic => Ok(()),
        _ => Err(Failure::invalid(
            "typed",
            &format!("type {topic} to confirm; nothing was changed"),
        )),
    }
}

/// The buttons of a group.
pub(super) fn group_buttons(context: &Context, topic: &str, group: &GroupStats) -> Markup {
    let at = |verb: &str| format!("/topics/{topic}/groups/{}/{verb}", group.group);
    let (verb, label) = if group.paused {
        ("resume", "Resume")
    } else {
        ("pause", "Pause")
    };
    html! {
        (post_button(context, Scope::Operate, label, at(verb)))
        @if group.retiring.is_some() {
            (post_button(context, Scope::Operate, "Keep", at("keep")))
        } @else {
            (confirm_link(context, Scope::Operate, "Drain", at("drain"), false))
            (confirm_link(context, Scope::Operate, "Drop", at("drop"), true))
        }
    }
}

pub(super) async fn ask_group(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path((topic, group, verb)): Path<(String, String, String)>,
) -> Result<Page, Failure> {
    let topic = dashboard.topic(&topic).await?;
    let group = choose(&topic, Some(&group))?;
    let name = topic.name().as_str();
    let stats = dashboard.read(dashboard.broker().stats(&topic)).await?;
    let left = stats
        .groups
        .iter()
        .find(|stats| stats.group == *group)
        .map_or(0, GroupStats::messages);
    let (title, text, label, typed) = match &*verb {
        "drain" => (
            format!("Drain group {group}?"),
            html! { p.lead { "It gets no new messages. A manager removes it when its messages are finished; " strong { (messages(left)) } " left." } p.muted { "Until then, you can cancel this with Keep." } },
            "Drain",
            None,
        ),
        "drop" => (
            format!("Drop group {group} and its messages?"),
            html! { p.lead { "The group and its messages, including those in garbage, are permanently removed: " strong { (messages(left)) } ". This begins at once." } p.muted { "Copies of other groups are not affected." } },
            "Drop group",
            Some(name),
        ),
        "pause" => (
            format!("Pause group {group}?"),
            html! { p.lead { "Messages that become due for it collect in its backlog." } },
            "Pause",
            None,
        ),
        "resume" => (
            format!("Resume group {group}?"),
            html! { p.lead { "Messages in its backlog become ready again." } },
            "Resume",
            None,
        ),
        "keep" => (
            format!("Keep group {group}?"),
            html! { p.lead { "It gets the messages that become due from now on." } },
            "Keep",
            None,
        ),
        _ => {
            return Err(Failure::not_found(format!(
                "a group has no action {verb:?}"
            )));
        }
    };
    let path = format!("/topics/{name}/groups/{group}/{verb}");
    let words: Vec<&str> = match &*verb {
        "pause" | "resume" => vec![&verb, name, "--group", group.as_str()],
        _ => vec!["groups", &verb, name, group.as_str()],
    };
    let commands = Commands::default()
        .curl(&context, &title, "POST", format!("/v1{path}"), None)
        .cli(&context, &title, "lisa-manager", &words);
    let back = format!("/topics/{name}");
    let ask = Ask {
        title,
        text,
        fields: html! {},
        label: label.into(),
        typed,
        path,
        back,
        commands,
    };
    Ok(ask.page(&context).below_topic(name))
}

pub(super) async fn group(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path((topic, group, verb)): Path<(String, String, String)>,
    body: Body,
) -> Result<Response, Failure> {
    let topic = dashboard.topic(&topic).await?;
    let group = choose(&topic, Some(&group))?;
    let name = topic.name();
    let fields = Fields::read(body, PLAIN, &dashboard.0.bodies).await?;
    let broker = dashboard.broker();
    let action = |verb: &str| dashboard.action(&context, verb).topic(name).group(group);
    let (changed, done) = match &*verb {
        "pause" | "resume" => {
            let paused = verb == "pause";
            let state = if paused { "paused" } else { "running" };
            let pause = groups::pause(broker, &topic, group, paused);
            let answer = action(&verb)
                .run(pause, |answer| audit::changed(answer.changed))
                .await?;
            (answer.changed, format!("Group {group} is {state}."))
        }
        "drain" | "drop" | "keep" => {
            let how = match &*verb {
                "drain" => Some(Retirement::Drain),
                "drop" => {
                    check_typed(&fields, name.as_str())?;
                    Some(Retirement::Drop)
                }
                _ => None,
            };
            let config = Some(&*dashboard.0.parts.config);
            let retire = groups::retire(broker, config, &topic, group, how);
            let answer = action(&verb).run(retire, GroupRetired::outcome).await?;
            if how == Some(Retirement::Drop) {
                groups::begin_drop(broker, &topic, group).await;
            }
            let text = match how {
                Some(Retirement::Drain) => {
                    format!("Group {group} is draining, {} left.", messages(answer.left))
                }
                Some(Retirement::Drop) => format!(
                    "Group {group} is being dropped with {}.",
                    messages(answer.left)
                ),
                None => format!("Group {group} is kept."),
            };
            (answer.changed, text)
        }
        _ => {
            return Err(Failure::not_found(format!(
                "a group has no action {verb:?}"
            )));
        }
    };
    dashboard.changed(name).await;
    let path = format!("/topics/{name}");
    if !changed {
        return Ok(context.not_done(path, format!("Group {group} was already in that state.")));
    }
    tracing::info!(topic = %name, %group, verb, by = context.viewer.name(), "changed a group in the dashboard");
    Ok(context.done(path, done))
}

words!(
    /// An action on a message.
    MessageVerb, "action", {
        /// Remove it before it is delivered.
        Cancel = "cancel",
        /// Give it another due time.
        Reschedule = "reschedule",
        /// Make it due now.
        DeliverNow = "deliver-now",
        /// Deliver it from garbage again.
        Requeue = "requeue",
        /// Remove it from garbage.
        Purge = "purge",
    }
);

impl MessageVerb {
    /// Returns the scope that it requires.
    pub(super) const fn scope(self) -> Scope {
        match self {
            Self::Cancel | Self::Reschedule | Self::DeliverNow => Scope::Send,
            Self::Requeue | Self::Purge => Scope::Operate,
        }
    }

    const fn on_garbage(self) -> Verb {
        match self {
            Self::Purge => Verb::Purge,
            _ => Verb::Requeue,
        }
    }
}

pub(super) async fn ask_message(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Extension(verb): Extension<MessageVerb>,
    Path((topic, id)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Result<Page, Failure> {
    let topic = dashboard.topic(&topic).await?;
    let message = super::message::find_message(&dashboard, &topic, &id).await?;
    let name = topic.name().as_str();
    let back = format!("/topics/{name}/messages/{}", part(&id));
    let path = format!("{back}/{verb}");
    let api = format!("/v1{back}");
    let due = message.listed.due_at;
    let of_query = Fields::parse(query.unwrap_or_default().as_bytes());
    let mut fields = html! {};
    let commands = Commands::default();
    let shown = html! { p.mono.id { (visible(&id)) } @if let Some(due) = due { p.muted { "Due " (relative(due, context.now)) } } };
    let (title, text, label, commands) = match verb {
        MessageVerb::Cancel => {
            let commands = commands
                .curl_producer(&context, "Cancel", "DELETE", &api, None)
                .cli(
                    &context,
                    "Cancel",
                    "lisa-producer",
                    &["cancel", name, "--", &id],
                );
            (
                "Cancel this message?",
                html! { p.lead { "It is removed and will not be delivered to any group." } (shown) },
                "Cancel the message",
                commands,
            )
        }
        MessageVerb::Reschedule => {
            fields = html! {
                label for="delay" { "New delay from now, such as " code { "90s" } ", " code { "2h 30m" } " or " code { "3d" } }
                input #delay name="delay" autocomplete="off" placeholder="15m" spellcheck="false";
                label for="at" { "or a new due time in RFC 3339, such as " code { "2027-01-31T09:00:00Z" } }
                input #at name="at" autocomplete="off" spellcheck="false";
            };
            let commands = commands.reschedule(&context, name, &id);
            (
                "Reschedule this message",
                html! { (shown) },
                "Reschedule",
                commands,
            )
        }
        MessageVerb::DeliverNow => {
            return Err(Failure::not_found("deliver-now needs no confirmation"));
        }
        MessageVerb::Requeue | MessageVerb::Purge => {
            let group = choose(&topic, of_query.text("group"))?;
            fields = html! { input type="hidden" name="group" value=(group); };
            let what = verb.on_garbage();
            let commands = commands.of_garbage(&context, what, name, group, &id);
            if what == Verb::Purge {
                (
                    "Purge this message?",
                    html! { p.lead { "It is permanently removed from the garbage of group " strong { (group) } "." } (shown) },
                    "Purge the message",
                    commands,
                )
            } else {
                (
                    "Requeue this message?",
                    html! { p.lead { "It is delivered to group " strong { (group) } " again, with new attempts." } (shown) },
                    "Requeue the message",
                    commands,
                )
            }
        }
    };
    let ask = Ask {
        title: title.into(),
        text,
        fields,
        label: label.into(),
        typed: None,
        path,
        back: back.clone(),
        commands,
    };
    Ok(ask.page(&context).below_topic(name).below(id, back))
}

pub(super) async fn message(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Extension(verb): Extension<MessageVerb>,
    Path((topic, id)): Path<(String, String)>,
    body: Body,
) -> Result<Response, Failure> {
    let topic = dashboard.topic(&topic).await?;
    let name = topic.name();
    let fields = Fields::read(body, PLAIN, &dashboard.0.bodies).await?;
    let broker = dashboard.broker();
    let here = format!("/topics/{name}/messages/{}", part(&id));
    let id: MessageId = id.parse().map_err(|error| Failure::invalid("id", &error))?;
    let held = "Too late: the message is ready or in flight.";
    let unknown = |end: Option<lisa_core::state::Ended>| match end {
        Some(end) => format!("The message is no longer stored: it was {end}."),
        None => "The message is not stored.".to_owned(),
    };
    let list = format!("/topics/{name}/messages");
    let asks_all = verb.scope() == Scope::Send && topic.shards_of(&id, None).len() > 1;
    let _slot = match asks_all {
        true => Some(dashboard.0.searches.begin(Client::current()).await?),
        false => None,
    };
    let action = dashboard
        .action(&context, verb.as_str())
        .topic(name)
        .details(&id);
    let answer = match verb {
        MessageVerb::Cancel => match action
            .run(broker.cancel(&topic, &id, None), |outcome| {
                cancelled(outcome).to_owned()
            })
            .await?
        {
            CancelOutcome::Cancelled { in_garbage, .. } if in_garbage.is_empty() => {
                context.done(&list, format!("Message {id} was cancelled."))
            }
            CancelOutcome::Cancelled { .. } => context.done(
                &here,
                format!("Message {id} was cancelled. Its copies in garbage stay there."),
            ),
            CancelOutcome::InFlight => context.not_done(&here, held),
            CancelOutcome::Garbage => {
                context.not_done(&here, "The message is in garbage: purge it instead.")
            }
            CancelOutcome::Unknown { end } => context.not_done(&list, unknown(end)),
        },
        MessageVerb::DeliverNow | MessageVerb::Reschedule => {
            let when = match verb {
                MessageVerb::Reschedule => when_of(&fields)?,
                _ => When::NOW,
            };
            when.check(broker.now(), topic.settings().max_delay)
                .map_err(|error| Failure::invalid("due", &error))?;
            let reschedule = broker.reschedule(&topic, &id, None, when);
            match action
                .run(reschedule, |outcome| rescheduled(outcome).to_owned())
                .await?
            {
                RescheduleOutcome::Rescheduled { due } => {
                    context.done(&here, format!("The message is due at {due}."))
                }
                RescheduleOutcome::InFlight => context.not_done(&here, held),
                RescheduleOutcome::Garbage => {
                    context.not_done(&here, "The message is in garbage: requeue it instead.")
                }
                RescheduleOutcome::Unknown { end } => context.not_done(&list, unknown(end)),
            }
        }
        MessageVerb::Requeue | MessageVerb::Purge => {
            let group = choose(&topic, fields.text("group"))?;
            let what = verb.on_garbage();
            let only = Selection::Ids(vec![id.clone()]);
            let swept = sweep(broker, &topic, group, what, &only, false);
            let swept = action.group(group).run(swept, audit::swept).await?;
            let garbage = format!("/topics/{name}/garbage?group={group}");
            match swept.done {
                0 => context.not_done(
                    &garbage,
                    format!("Message {id} is not in the garbage of group {group}."),
                ),
                _ if what == Verb::Purge => {
                    context.done(&garbage, format!("Message {id} was purged."))
                }
                _ => context.done(&here, format!("Message {id} was requeued.")),
            }
        }
    };
    dashboard.changed(name).await;
    tracing::info!(topic = %name, %id, %verb, by = context.viewer.name(), "acted on a message in the dashboard");
    Ok(answer)
}

fn cancelled(outcome: &CancelOutcome) -> &'static str {
    match outcome {
        CancelOutcome::Cancelled { .. } => "cancelled",
        CancelOutcome::InFlight => "too late",
        CancelOutcome::Garbage => "in garbage",
        CancelOutcome::Unknown { .. } => "unknown message",
    }
}

fn rescheduled(outcome: &RescheduleOutcome) -> &'static str {
    match outcome {
        RescheduleOutcome::Rescheduled { .. } => "rescheduled",
        RescheduleOutcome::InFlight => "too late",
        RescheduleOutcome::Garbage => "in garbage",
        RescheduleOutcome::Unknown { .. } => "unknown message",
    }
}

/// Returns the due time of a form: either a delay or an instant.
fn when_of(fields: &Fields) -> Result<When, Failure> {
    let delay = fields
        .text("delay")
        .map(str::trim)
        .filter(|text| !text.is_empty());
    let at = fields.value::<UnixMs>("at")?;
    match (delay, at) {
        (Some(delay), None) => parse_duration(delay)
            .map(When::After)
            .map_err(|error| Failure::invalid("delay", &error)),
        (None, Some(at)) => Ok(When::At(at)),
        _ => Err(Failure::invalid(
            "delay",
            &"enter either a delay or a due time; nothing was changed",
        )),
    }
}
