//! The token of the session: what it may do and reaches, and the part of its quotas that is used.

use axum::Extension;
use axum::extract::State as With;
use lisa_core::topic::Size;
use lisa_service::http::auth::Scope;
use maud::{Markup, html};

use super::Dashboard;
use super::help::meaning;
use super::page::{Context, Failure, Page, Section};
use super::parts::{Commands, Level, confirm_link, empty, meter, sign, tile};
use super::text::{grouped, part, size, visible};
use super::token::{previous_use, texts};
use crate::operations::tokens::{OwnToken, TokenView};

pub(super) async fn show(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
) -> Result<Page, Failure> {
    let title = "Your token";
    if context.viewer.name().is_none() {
        let why = html! { p { "No tokens are configured: every route is open, and nothing is limited." } };
        return Ok(Page::new(
            Section::None,
            title,
            empty("You have no token", why),
        ));
    }
    let own = dashboard.read_or_problem(dashboard.tokens().own()).await?;
    let path = format!("/tokens/{}", part(&own.view.token));
    let manage = confirm_link(&context, Scope::Tokens, "Open in Tokens", path, false);
    let page = Page::new(Section::None, title, render(&context, &own));
    let is_manager = context.viewer.can(Scope::Tokens) && !context.viewer.reach().is_limited();
    Ok(match is_manager {
        true => page.actions(manage),
        false => page,
    })
}

fn render(context: &Context, own: &OwnToken) -> Markup {
    let view = &own.view;
    let what = "Read this token";
    let commands = Commands::default()
        .curl(context, what, "GET", "/v1/token", None)
        .cli(context, what, "lisa-manager", &["tokens", "whoami"]);
    html! {
        @if view.is_rotating { p.banner.is-warn { (sign(Level::Warn)) span { "This token has a new secret. If you still use the previous one, switch to the new one before the rotation is finished. " (previous_use(context, view)) } } }
        section aria-labelledby="limits-title" { h2 #limits-title { "Permissions" }
            dl #limits .pairs {
                div { dt { "token" } dd { (visible(&view.token)) } }
                @for (name, text) in texts(view).iter().filter(|(name, _)| is_permission(name)) { div { dt { (name) } dd { (visible(text)) } } }
                @if view.topics.is_none() && view.groups.is_none() && view.schedules.is_none() { div { dt { "reaches" } dd { "everything" } } }
            }
        }
        section aria-labelledby="scopes-title" { h2 #scopes-title { "Scopes" }
            dl #scopes .pairs.wide { @for scope in &view.scopes { div { dt { code { (scope) } } dd { (meaning(*scope)) } } } }
        }
        section aria-labelledby="quotas-title" { h2 #quotas-title { "Quotas" }
            (quotas(own))
        }
        (commands.render("own-token-commands"))
    }
}

/// Returns true if a field is neither one of the scopes nor a quota, which have sections of their own.
fn is_permission(name: &str) -> bool {
    name != "scopes" && name != "sends_per_second" && !name.starts_with("max_")
}

fn quotas(own: &OwnToken) -> Markup {
    let OwnToken { view, used } = own;
    let TokenView {
        sends_per_second,
        max_topics,
        max_streams,
        max_messages,
        max_bytes,
        max_schedules,
        ..
    } = view;
    let bytes = used.bytes.map(Size::get);
    let stored = [
        ("Topics", max_topics.map(u64::from), used.topics),
        ("Streams", max_streams.map(u64::from), used.streams),
        ("Messages", *max_messages, used.messages),
        ("Bytes", max_bytes.map(Size::get), bytes),
        ("Schedules", max_schedules.map(u64::from), used.schedules),
    ];
    let stored = stored
        .into_iter()
        .filter_map(|(label, limit, used)| Some((label, limit?, used?)));
    let mut stored = stored.peekable();
    let has_any = stored.peek().is_some() || sends_per_second.is_some();
    let shown = |label: &str, amount: u64| match label {
        "Bytes" => size(amount),
        _ => grouped(amount),
    };
    html! {
        @if has_any {
            dl.tiles.is-compact {
                @for (label, limit, used) in stored {
                    (tile(label, html! { (shown(label, used)) }, html! { "of " (shown(label, limit)) (meter(used, limit, label)) }))
                }
                @if let Some(most) = sends_per_second { (tile("Sends", html! { (grouped(u64::from(*most))) }, html! { "at most, per second in each process" })) }
            }
            p.muted { "Messages and bytes are sums of the limits of the topics, not what these hold. Each group has a stream on each shard. Topics and schedules that other tokens create under the same names count, too." }
        } @else { p { "This token has no quota." } }
    }
}
