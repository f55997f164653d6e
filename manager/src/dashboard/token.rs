//! One token: its permissions, the steps of a rotation of its secret, and its removal.

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State as With};
use axum::response::{IntoResponse, Response};
use lisa_core::fields::plain;
use lisa_core::names::TokenName;
use lisa_service::http::ProblemCode;
use lisa_service::http::auth::Scope;
use maud::{Markup, html};
use serde_json::{Value as Json, json};

use super::Dashboard;
use super::actions::Ask;
use super::form::{Fields, PLAIN};
use super::page::{Context, Failure, Page, Section};
use super::parts::{Commands, Level, command, confirm_link, exact_text, relative_text, sign};
use super::text::{part, visible};
use super::tokens::{source, state};
use crate::operations::tokens::{ChangedToken, RotationStep, TokenView, described};

/// Parses the name of a stored token in a path.
pub(super) fn name(text: &str) -> Result<TokenName, Failure> {
    text.parse()
        .map_err(|error| Failure::invalid("token", &error))
}

/// Returns the fields of a definition as they are typed into a form: a list as texts separated by commas.
pub(super) fn texts(token: &TokenView) -> Vec<(&'static str, String)> {
    let text = |value: &Json| match value {
        Json::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        value => plain(value),
    };
    let set = token.definition();
    let fields = described().into_iter();
    let texts = fields.filter_map(|field| Some((field.name, text(set.get(field.name)?))));
    texts.collect()
}

impl Dashboard {
    /// Reads a token, in one of the slots and in time.
    pub(super) async fn token(&self, name: &str) -> Result<TokenView, Failure> {
        self.read_or_problem(self.tokens().show(name)).await
    }
}

/// Puts a page below that of a token.
fn below(page: Page, token: &str) -> Page {
    page.below("Tokens", "/tokens")
        .below(token, format!("/tokens/{}", part(token)))
}

pub(super) async fn show(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(token): Path<String>,
) -> Result<Page, Failure> {
    let view = dashboard.token(&token).await?;
    let at = |verb: &str| format!("/tokens/{}/{verb}", part(&token));
    let link = |label, verb: &str, is_danger| {
        confirm_link(&context, Scope::Tokens, label, at(verb), is_danger)
    };
    let rotate = |step: RotationStep| format!("rotate/{step}");
    let actions = html! {
        @if !view.declared_in_file {
            (link("Change", "edit", false))
            @if view.is_rotating {
                (link("Finish the rotation", &rotate(RotationStep::Finish), false))
                (link("Cancel the rotation", &rotate(RotationStep::Cancel), false))
            } @else { (link("Rotate", &rotate(RotationStep::Begin), false)) }
        }
        @if !view.declared_in_file || view.hides_stored { (link("Remove", "remove", true)) }
    };
    let page = Page::new(Section::Tokens, &view.token, render(&context, &view));
    Ok(page.below("Tokens", "/tokens").actions(actions).live())
}

fn render(context: &Context, view: &TokenView) -> Markup {
    html! {
        div #token-state data-live {
            @if view.has_expired { p.banner.is-bad { (sign(Level::Bad)) span { "This token has expired: it is refused." } } }
            @if view.is_rotating { p.banner.is-warn { (sign(Level::Warn)) span { "Its previous secret is accepted as well. Finish the rotation once all clients have the new one, or cancel it to keep the previous one. " (previous_use(context, view)) } } }
            @if view.hides_stored { p.banner.is-warn { (sign(Level::Warn)) span { "A stored token has the same name. It is not accepted, because the one of the configuration takes precedence. To remove the stored one, use Remove." } } }
        }
        section aria-labelledby="definition-title" { h2 #definition-title { "Permissions" }
            dl #definition .pairs data-live {
                @for (name, text) in texts(view) { div { dt { (name.replace('_', " ")) } dd { (visible(&text)) } } }
                @for (name, most) in view.default_quotas() { div { dt { (name.replace('_', " ")) } dd { (most) ", the default" } } }
                @if view.topics.is_none() && view.groups.is_none() && view.schedules.is_none() { div { dt { "reaches" } dd { "everything" } } }
            }
        }
        section aria-labelledby="about-title" { h2 #about-title { "About" }
            dl #about .pairs data-live {
                div { dt { "State" } dd { @match view.state() { "" => "valid", _ => (state(view)) } } }
                div { dt { "Declared" } dd { (source(view)) } }
                @if let Some(at) = &view.created { div { dt { "Created" } dd { (exact_text(at)) } } }
                @if let Some(by) = &view.created_by { div { dt { "Created by" } dd { (visible(by)) } } }
                @if let Some(version) = view.version { div { dt { "Version" } dd { (version) } } }
            }
            @if view.declared_in_file { p.muted { "To change it, edit " code { "auth.tokens" } " in the configuration of all processes, and reload it." } }
        }
        (commands(context, view).render("token-commands"))
    }
}

/// Returns when the previous secret of a token was last used.
pub(super) fn previous_use(context: &Context, view: &TokenView) -> Markup {
    html! { @match &view.previous_used {
        Some(at) => { "The previous one was last used " (relative_text(at, context.now)) "." }
        None => { "No use of the previous one is known since the rotation." }
    } }
}

fn commands(context: &Context, view: &TokenView) -> Commands {
    let name = view.token.as_str();
    let path = format!("/v1/tokens/{}", part(name));
    let mut all = Commands::default();
    all = all.curl(context, "Read", "GET", &path, None);
    all = all.cli(context, "Read", "lisa-manager", &["tokens", "show", name]);
    if view.declared_in_file {
        return all;
    }
    let json = Json::from(view.definition()).to_string();
    all = all.curl(context, "Replace", "PUT", &path, Some(&json));
    let change = ["tokens", "put", name, "expires=2999-01-01T00:00:00Z"];
    all = all.cli(context, "Change a field", "lisa-manager", &change);
    for step in RotationStep::ALL {
        all = rotation(all, context, *step, name);
    }
    removal(all, context, name)
}

fn rotation(all: Commands, context: &Context, step: RotationStep, name: &str) -> Commands {
    let what = format!("Rotate: {step}");
    let path = format!("/v1/tokens/{name}/rotate");
    let json = json!({ "step": step }).to_string();
    let option = format!("--{step}");
    let mut words = vec!["tokens", "rotate", name];
    if step != RotationStep::Begin {
        words.push(&option);
    }
    all.curl(context, &what, "POST", path, Some(&json))
        .cli(context, &what, "lisa-manager", &words)
}

fn removal(all: Commands, context: &Context, name: &str) -> Commands {
    let (what, words) = ("Remove", ["tokens", "remove", name]);
    all.curl(context, what, "DELETE", format!("/v1/tokens/{name}"), None)
        .cli(context, what, "lisa-manager", &words)
}

/// Answers a change of a token: with its secret, if one was generated, and otherwise on its page.
pub(super) fn changed(context: &Context, token: &ChangedToken, what: &str) -> Response {
    let name = &token.view.token;
    match &token.secret {
        Some(secret) => with_secret(context, name, secret, what).into_response(),
        None => context.done(format!("/tokens/{name}"), format!("Token {name} {what}.")),
    }
}

/// Returns the page with a generated secret. No later page has it. As for all pages, no cache may keep it.
fn with_secret(context: &Context, name: &str, secret: &str, what: &str) -> Page {
    let body = html! {
        section #secret .card role="status" aria-labelledby="secret-title" {
            h2 #secret-title { (sign(Level::Ok)) " Token " (name) " " (what) }
            p.lead { "Its secret is shown only now. Copy it before you leave this page:" }
            (command(secret))
            p.muted { "Clients send it as " code { "Authorization: Bearer" } ". All processes accept it within 5 s. Lisa keeps only its hash: if it is lost, rotate the token." }
            p.buttons { a.button.plain href=(context.link(format!("/tokens/{name}"))) { "Open the token" } }
        }
    };
    below(
        Page::new(Section::Tokens, format!("Secret of {name}"), body),
        name,
    )
}

/// Asks before a step of a rotation.
pub(super) async fn ask_rotation(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Extension(step): Extension<RotationStep>,
    Path(token): Path<String>,
) -> Result<Page, Failure> {
    let name = name(&token)?;
    let view = dashboard.token(&token).await?;
    let (title, text, label) = match step {
        RotationStep::Begin => (
            format!("Rotate the secret of {name}?"),
            "A new secret is generated and shown once. The previous one is accepted as well, until you finish the rotation.",
            "Generate a new secret",
        ),
        RotationStep::Finish => (
            format!("Finish the rotation of {name}?"),
            "Only the new secret is accepted from then on. Clients that still send the previous one are refused.",
            "Finish",
        ),
        RotationStep::Cancel => (
            format!("Cancel the rotation of {name}?"),
            "Only the previous secret is accepted from then on. Clients that already send the new one are refused.",
            "Keep the previous secret",
        ),
    };
    let ask = Ask {
        title,
        text: html! { p.lead { (text) } (about_session(&context, &view)) },
        fields: version(&view),
        label: label.into(),
        typed: None,
        path: format!("/tokens/{name}/rotate/{step}"),
        back: format!("/tokens/{name}"),
        commands: rotation(Commands::default(), &context, step, name.as_str()),
    };
    Ok(below(ask.page(&context), name.as_str()))
}

/// Does a step of the rotation of a secret, if the token is at the version that was asked about.
pub(super) async fn rotate(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Extension(step): Extension<RotationStep>,
    Path(token): Path<String>,
    body: Body,
) -> Result<Response, Failure> {
    let name = name(&token)?;
    let fields = Fields::read(body, PLAIN, &dashboard.0.bodies).await?;
    let version = fields.value::<u64>("version")?;
    let action = dashboard.action(&context, "rotate_token");
    let rotate = dashboard.tokens().rotate(&name, step, version, action);
    let (token, has_changed) = rotate.await?;
    if !has_changed {
        let why = format!("No rotation of {name} is in progress; nothing was changed.");
        return Ok(context.not_done(format!("/tokens/{name}"), why));
    }
    Ok(changed(&context, &token, step.outcome()))
}

/// Asks before a stored token is removed. Its record may be unreadable, or a token of the configuration may hide it.
pub(super) async fn ask_removal(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(token): Path<String>,
) -> Result<Page, Failure> {
    let name = name(&token)?;
    let view = match dashboard.token(&token).await {
        Ok(view) => view,
        Err(Failure::Problem(problem)) if problem.code() == ProblemCode::Internal => TokenView {
            token,
            ..TokenView::default()
        },
        Err(failure) => return Err(failure),
    };
    let text = html! {
        p.lead { "All processes refuse it within 5 s. This cannot be undone: a token with this name that is created later has another secret." }
        @if view.hides_stored { p { "This removes the stored token. The one of the configuration stays." } }
        @else { (about_session(&context, &view)) }
    };
    let ask = Ask {
        title: format!("Remove token {name}?"),
        text,
        fields: version(&view),
        label: "Remove token".into(),
        typed: None,
        path: format!("/tokens/{name}/remove"),
        back: "/tokens".to_owned(),
        commands: removal(Commands::default(), &context, name.as_str()),
    };
    Ok(ask.page(&context).below("Tokens", "/tokens"))
}

/// Removes a stored token, if it is at the version that was asked about.
pub(super) async fn remove(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(token): Path<String>,
    body: Body,
) -> Result<Response, Failure> {
    let name = name(&token)?;
    let fields = Fields::read(body, PLAIN, &dashboard.0.bodies).await?;
    let version = fields.value::<u64>("version")?;
    let action = dashboard.action(&context, "remove_token");
    dashboard.tokens().remove(&name, version, action).await?;
    Ok(context.done("/tokens", format!("Token {name} is removed.")))
}

/// Returns the field with the version that was asked about; none if it is unknown.
fn version(view: &TokenView) -> Markup {
    html! { @if let Some(version) = view.version { input type="hidden" name="version" value=(version); } }
}

/// Warns a viewer whose own token this is.
fn about_session(context: &Context, view: &TokenView) -> Markup {
    html! { @if context.viewer.name() == Some(view.token.as_str()) { p { (sign(Level::Warn)) " You are logged in with this token: your session ends once its secret is no longer accepted." } } }
}
