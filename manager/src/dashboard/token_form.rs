//! The form that creates a token, or changes the permissions of one that was created at run time.
//!
//! A change names the version that it began with, so that of two changes that begin with the same version, only one is stored.

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State as With};
use axum::response::{IntoResponse, Response};
use lisa_core::fields::{Description, Given, TableReader, Value as _};
use lisa_core::names::TokenName;
use lisa_core::topic::NamePattern;
use lisa_service::http::auth::{NewToken, Scope};
use lisa_service::http::{Problem, ProblemCode};
use maud::{Markup, html};

use super::Dashboard;
use super::form::{Fields, WITH_DEFINITION};
use super::help;
use super::inputs::{FormReader, Inputs, Mistakes, mistakes_of};
use super::page::{Context, Failure, Page, Section};
use super::token::{changed, name, texts};
use crate::operations::tokens::described;

/// The field with the name of a new token.
const NAME: (&str, &str) = (
    "token",
    "The name of the token, which logs and the audit log show.",
);
/// The field with the scopes, each of which is a box to check.
const SCOPES: &str = "scopes";
/// The fields below "More options": those of a secret that the caller has chosen.
const MORE: [&str; 2] = ["sha256", "previous_sha256"];

/// A form that is shown.
#[derive(Default)]
struct Form {
    /// The token to change; none to create one.
    token: Option<TokenName>,
    /// The fields, as typed.
    fields: Fields,
    mistakes: Mistakes,
}

pub(super) async fn show_new(Extension(context): Extension<Context>) -> Page {
    Form::default().page(&context)
}

pub(super) async fn create(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    body: Body,
) -> Result<Response, Failure> {
    let form = Form {
        fields: Fields::read(body, WITH_DEFINITION, &dashboard.0.bodies).await?,
        ..Form::default()
    };
    Ok(form.put(&dashboard, &context, 0).await)
}

pub(super) async fn show_edit(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(token): Path<String>,
) -> Result<Page, Failure> {
    let name = name(&token)?;
    dashboard.tokens().not_in_file(&name)?;
    let view = dashboard.token(&token).await?;
    let mut fields = Fields::default();
    for scope in &view.scopes {
        fields.set(&choice(*scope), "true".to_owned());
    }
    for (name, text) in texts(&view) {
        fields.set(name, text);
    }
    fields.set("version", view.version.unwrap_or_default().to_string());
    let form = Form {
        token: Some(name),
        fields,
        mistakes: Mistakes::new(),
    };
    Ok(form.page(&context))
}

pub(super) async fn edit(
    With(dashboard): With<Dashboard>,
    Extension(context): Extension<Context>,
    Path(token): Path<String>,
    body: Body,
) -> Result<Response, Failure> {
    let name = name(&token)?;
    let fields = Fields::read(body, WITH_DEFINITION, &dashboard.0.bodies).await?;
    let version = fields.version()?;
    let form = Form {
        token: Some(name),
        fields,
        mistakes: Mistakes::new(),
    };
    Ok(form.put(&dashboard, &context, version).await)
}

/// Returns the name of the box of a scope.
fn choice(scope: Scope) -> String {
    format!("{SCOPES}.{scope}")
}

impl Form {
    /// Reads the token. Notes everything that is wrong with it.
    fn read(&mut self) -> Option<(TokenName, NewToken)> {
        let all = Scope::ALL.iter();
        let chosen = all.filter(|scope| self.fields.text(&choice(**scope)).is_some());
        let chosen: Vec<_> = chosen.map(|scope| scope.as_str()).collect();
        self.fields.set(SCOPES, chosen.join(", "));
        let mut reader = FormReader::new(&self.fields);
        let name = match &self.token {
            Some(name) => Some(name.clone()),
            None => reader.required_field(NAME.0, NAME.1),
        };
        let new = NewToken::read(&mut reader);
        // Otherwise, a lone comma would be a token that reaches everything.
        let lists = described().into_iter();
        for field in lists.filter(|field| field.kind == Vec::<NamePattern>::KIND) {
            let text = self.fields.text(field.name).unwrap_or_default().trim();
            let items = Vec::<String>::read(Given::Text(text));
            if !text.is_empty() && items.is_ok_and(|items| items.is_empty()) {
                let why = "must have at least one name, or be left empty";
                reader.note(field.name, why.to_owned());
            }
        }
        if chosen.is_empty() {
            let why = "choose at least one".to_owned();
            reader.mistakes.insert(SCOPES.to_owned(), why);
        }
        self.mistakes = reader.mistakes;
        let read = name.zip(new);
        read.filter(|_| self.mistakes.is_empty())
    }

    /// Stores the token, if it is at this version.
    async fn put(mut self, dashboard: &Dashboard, context: &Context, version: u64) -> Response {
        let Some((name, new)) = self.read() else {
            return self.refused(context, ProblemCode::Invalid);
        };
        let action = |verb: &str| dashboard.action(context, verb);
        let put = dashboard.tokens().put(&name, &new, Some(version), action);
        match put.await {
            Ok((token, created)) => {
                let what = match (created, token.view.version == Some(version)) {
                    (true, _) => "is created",
                    (false, true) => "already has these permissions",
                    (false, false) => "is changed",
                };
                changed(context, &token, what)
            }
            Err(problem) => {
                self.mistakes = self.mistakes_of(&problem);
                self.refused(context, problem.code())
            }
        }
    }

    fn mistakes_of(&self, problem: &Problem) -> Mistakes {
        let name = match self.token {
            Some(_) => "",
            None => NAME.0,
        };
        let mistakes = mistakes_of(problem, name);
        let described = described();
        let is_shown = |field: &str| {
            field.is_empty() || field == name || described.iter().any(|one| one.name == field)
        };
        match mistakes.keys().all(|field| is_shown(field)) {
            true => mistakes,
            false => Mistakes::from([(String::new(), problem.detail().to_owned())]),
        }
    }

    fn refused(&self, context: &Context, code: ProblemCode) -> Response {
        let page = Page {
            status: code.status(),
            ..self.page(context)
        };
        page.into_response()
    }

    fn page(&self, context: &Context) -> Page {
        let title = match &self.token {
            Some(name) => format!("Change token {name}"),
            None => "Create a token".to_owned(),
        };
        let page = Page::new(Section::Tokens, title, self.render(context));
        let page = page.below("Tokens", "/tokens");
        match &self.token {
            Some(name) => page.below(name.as_str(), format!("/tokens/{name}")),
            None => page,
        }
    }

    fn render(&self, context: &Context) -> Markup {
        let (action, back) = match &self.token {
            Some(name) => (format!("/tokens/{name}/edit"), format!("/tokens/{name}")),
            None => ("/new-token".to_owned(), "/tokens".to_owned()),
        };
        let inputs = Inputs {
            prefix: "token",
            form: &self.fields,
            mistakes: &self.mistakes,
        };
        let fields = described().into_iter();
        let (more, first): (Vec<_>, Vec<_>) = fields.partition(|field| MORE.contains(&field.name));
        let scopes = Scope::ALL.iter();
        let scopes = scopes.map(|scope| (choice(*scope), scope.as_str(), help::meaning(*scope)));
        let scopes: Vec<_> = scopes.collect();
        let is_used = |field: &Description| inputs.is_used(field.name);
        html! {
            form.card.ask.fields method="post" action=(context.link(&action)) {
                (inputs.banner("Nothing was stored. Correct what is marked below."))
                @if self.token.is_some() {
                    @if self.mistakes.contains_key("") { p { a href=(context.link(&action)) { "Discard these changes, and load the stored permissions" } } }
                    input type="hidden" name="version" value=(self.fields.text("version").unwrap_or_default());
                } @else { (inputs.input(&Description::required::<TokenName>(NAME.0, NAME.1))) }
                @for field in &first { @match field.name {
                    SCOPES => (inputs.choices(SCOPES, &scopes)),
                    _ => (inputs.input(field)),
                } }
                details #token-more open[more.iter().any(is_used)] {
                    summary { "More options" }
                    @for field in &more { (inputs.input(field)) }
                }
                div.buttons {
                    button.primary { @if self.token.is_some() { "Save" } @else { "Create" } }
                    a.button.plain href=(context.link(&back)) { "Back" }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(TokenName, NewToken), Mistakes> {
        let mut form = Form {
            fields: Fields::parse(text.as_bytes()),
            ..Form::default()
        };
        form.read().ok_or(form.mistakes)
    }

    #[test]
    fn a_token_has_the_chosen_scopes_and_the_typed_limits() {
        let text = "token=shop&scopes.send=true&scopes.read=true&topics=shop-*%2C+mail&expires=2999-01-01T00:00:00Z";
        let (name, new) = read(text).unwrap();
        assert_eq!(name.as_str(), "shop");
        let definition = new.definition;
        assert_eq!(definition.scopes, [Scope::Send, Scope::Read]);
        let topics = definition.topics.unwrap();
        let topics: Vec<_> = topics.iter().map(NamePattern::as_str).collect();
        assert_eq!(topics, ["mail", "shop-*"]);
        assert!(definition.groups.is_none() && definition.expires.is_some());
    }

    #[test]
    fn each_bad_field_is_named_and_a_list_without_names_is_not_everything() {
        for (text, fields) in [
            ("", vec!["scopes", "token"]),
            ("token=a+b&scopes.all=true", vec!["scopes", "token"]),
            ("token=a&scopes.send=true&topics=%2C", vec!["topics"]),
            ("token=a&scopes.send=true&groups=%5B%5D", vec!["groups"]),
            (
                "token=a&scopes.send=true&schedules=+%2C+",
                vec!["schedules"],
            ),
            ("token=a&scopes.send=true&topics=a+b", vec!["topics"]),
            (
                "token=a&scopes.send=true&previous_sha256=0",
                vec!["previous_sha256"],
            ),
            ("token=a&scopes.send=true&expires=soon", vec!["expires"]),
        ] {
            let mistakes = read(text).unwrap_err();
            assert_eq!(mistakes.keys().collect::<Vec<_>>(), fields, "{text}");
        }
    }
}
