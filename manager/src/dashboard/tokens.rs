//! The list of tokens, by name: those of the managers' configuration, and those that were created at run time.

use axum::Extension;
use axum::extract::{RawQuery, State as With};
use lisa_service::http::auth::Scope;
use maud::{Markup, html};

use super::Dashboard;
use super::form::Fields;
use super::page::{Context, Failure, Page, Section};
use super::parts::{Commands, Level, confirm_link, empty, exact_text, relative_text, sign, tag};
use super::text::{part, visible};
use super::token::texts;
use crate::operations::tokens::{DamagedToken, TokenList, TokenView, Tokens};

/// The largest number of tokens on a page.
const ROWS: usize = 50;
/// The fields that have a column of their own.
const COLUMNS: [&str; 2] = ["scopes", "expires"];

impl Dashboard {
    /// Returns the tokens of the relay.
    pub(super) fn tokens(&self) -> Tokens<'_> {
        Tokens {
            broker: self.broker(),
            config: &self.0.parts.config,
            accepted: self.0.sessions.tokens(),
        }
    }
}

pub(super) async fn show(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    RawQuery(query): RawQuery,
) -> Result<Page, Failure> {
    let fields = Fields::parse(query.unwrap_or_default().as_bytes());
    let prefix = fields.text("prefix").unwrap_or_default().trim();
    let cursor = fields.text("cursor");
    let list = dashboard.tokens().list(prefix, cursor, ROWS);
    let list = dashboard.read(list).await?;
    let body = html! {
        @if !dashboard.0.sessions.are_required() { (open(&context)) }
        (render(&context, prefix, cursor.is_none(), &list))
    };
    let path = "/new-token";
    let create = confirm_link(&context, Scope::Tokens, "Create a token", path, false);
    let page = Page::new(Section::Tokens, "Tokens", body).actions(create);
    Ok(page.live_list(cursor.is_none()))
}

/// Explains that no token counts until the configuration has one.
fn open(context: &Context) -> Markup {
    let advice = html! {
        p { "Every route is open. Tokens that are created here are accepted once the configuration of each process has one. Add it, and reload the configuration:" }
        pre tabindex="0" { "[[auth.tokens]]\nname = \"admin\"\nsha256 = \"…\"\nscopes = [\"read\", \"tokens\"]" }
        p { "See " a href=(context.link("/help")) { "the scopes of tokens" } "." }
    };
    empty("The configuration has no tokens", advice)
}

fn render(context: &Context, prefix: &str, is_first: bool, list: &TokenList) -> Markup {
    let path = |cursor: Option<&str>| {
        let prefix = Some(("prefix", prefix)).filter(|(_, prefix)| !prefix.is_empty());
        let all = prefix.into_iter().chain(cursor.map(|at| ("cursor", at)));
        let all = all.map(|(name, value)| format!("{name}={}", part(value)));
        match &all.collect::<Vec<_>>()[..] {
            [] => "/tokens".to_owned(),
            all => format!("/tokens?{}", all.join("&")),
        }
    };
    let mut words = vec!["tokens", "list"];
    if !prefix.is_empty() {
        words.extend(["--prefix", prefix]);
    }
    let what = "Read this list";
    let commands = Commands::default()
        .curl(context, what, "GET", format!("/v1{}", path(None)), None)
        .cli(context, what, "lisa-manager", &words);
    html! {
        form.filters action=(context.link("/tokens")) {
            label { span { "Names that begin with" } input name="prefix" value=(prefix) maxlength="64" autocomplete="off" spellcheck="false"; }
            button { "Show" }
        }
        div #tokens data-live data-steady {
            (damaged(context, &list.damaged))
            @if list.tokens.is_empty() && list.damaged.is_empty() { (empty("No tokens", html! { @if !prefix.is_empty() { p { "The name of no token begins with " strong { (visible(prefix)) } "." } } })) }
            @if !list.tokens.is_empty() { div.table-box { (table(context, &list.tokens)) } }
            nav.pages aria-label="Pages of tokens" {
                @if !is_first { a href=(context.link(path(None))) { "First page" } }
                @if let Some(next) = &list.next { a rel="next" href=(context.link(path(Some(next)))) { "Next " (ROWS) } } @else { span { "End of the list" } }
            }
        }
        (commands.render("tokens-commands"))
    }
}

/// Names the tokens whose record cannot be read.
fn damaged(context: &Context, damaged: &[DamagedToken]) -> Markup {
    html! { @if !damaged.is_empty() { ul.list aria-label="Tokens that cannot be read" { @for one in damaged { li {
        (sign(Level::Bad)) strong { (one.token) } span { "is not accepted, because its record cannot be read: " (visible(&one.error)) }
        (confirm_link(context, Scope::Tokens, "Remove", format!("/tokens/{}/remove", one.token), true))
    } } } } }
}

fn table(context: &Context, tokens: &[TokenView]) -> Markup {
    html! { table.rows {
        caption.hidden { "Tokens" }
        thead { tr { th scope="col" { "Token" } th scope="col" { "State" } th scope="col" { "Scopes" } th scope="col" { "Limits" } th scope="col" { "Declared" } th scope="col" { "Created" } th scope="col" { "Expires" } } }
        tbody { @for token in tokens { tr {
            th.token scope="row" data-label="Token" { a.row-link href=(context.link(format!("/tokens/{}", part(&token.token)))) { (visible(&token.token)) } }
            td data-label="State" { (state(token)) }
            td data-label="Scopes" { (scopes(token)) }
            td.error data-label="Limits" { (limits(token)) }
            td data-label="Declared" { (source(token)) }
            td data-label="Created" {
                @match &token.created { Some(at) => (relative_text(at, context.now)), None => { span.zero { "–" } } }
                @if let Some(by) = &token.created_by { " " span.muted { "by " (visible(by)) } }
            }
            td data-label="Expires" { @match &token.expires { Some(at) => (exact_text(at)), None => { span.zero { "never" } } } }
        } } }
    } }
}

/// Returns the state of a token, if there is something to say.
pub(super) fn state(token: &TokenView) -> Markup {
    let level = match token.has_expired {
        true => Level::Bad,
        false => Level::Warn,
    };
    html! {
        @match token.state() { "" => { span.zero { "–" } }, state => (tag(level, state)) }
        @if token.hides_stored { " " (tag(Level::Warn, "hides a stored one")) }
    }
}

fn scopes(token: &TokenView) -> String {
    let scopes: Vec<_> = token.scopes.iter().map(|scope| scope.as_str()).collect();
    scopes.join(", ")
}

/// Returns what a token reaches, and its quotas.
fn limits(token: &TokenView) -> Markup {
    let set = texts(token).into_iter();
    let mut limits = set.filter(|(name, _)| !COLUMNS.contains(name)).peekable();
    html! {
        @if limits.peek().is_none() { span.zero { "none" } }
        @for (name, text) in limits { div { span.muted { (name.replace('_', " ")) " " } (visible(&text)) } }
    }
}

pub(super) fn source(token: &TokenView) -> &'static str {
    match token.declared_in_file {
        true => "in the configuration",
        false => "at run time",
    }
}
