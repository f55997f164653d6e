//! The parts of an OpenAPI description that are common to all routes: its header, patterns of names, refusals, tokens.
//!
//! Each route describes its own part. This module describes the treatment of every request by the listener.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use lisa_core::fields::Description;
use lisa_core::message::MessageOptions;
use lisa_core::time::shorten;
use serde::Deserialize;
use serde_json::{Value, json};
use url::form_urlencoded;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{ComponentsBuilder, InfoBuilder, License, OpenApi, OpenApiBuilder, Server};
use utoipa::{IntoParams, PartialSchema, ToSchema};

use super::auth::TokenSet;
use super::problem::{Problem, ProblemCode};

/// The patterns of parameters, by name.
const PATTERNS: [(&str, &str); 9] = [
    ("topic", "^[A-Za-z0-9_][A-Za-z0-9._-]{0,79}$"),
    ("schedule", "^[a-z0-9][a-z0-9_-]{0,46}$"),
    ("group", "^[a-z0-9][a-z0-9_-]{0,63}$"),
    ("id", "^[A-Za-z0-9_:-]{1,64}$"),
    ("token", "^[A-Za-z0-9_-]+$"),
    ("name", "^[a-z]{1,64}$"),
    ("Lisa-Id", "^[A-Za-z0-9_:-]{1,64}$"),
    ("Idempotency-Key", "^\"?[A-Za-z0-9_:-]{1,64}\"?$"),
    ("Lisa-Replace", "^[A-Za-z0-9_:-]{1,64}$"),
];

/// A topic in the path of a request.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct TopicPath {
    /// The topic
    pub topic: String,
}

/// A group of a topic in the path of a request.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct GroupPath {
    /// The topic
    pub topic: String,
    /// The group
    pub group: String,
}

/// A schedule in the path of a request.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct SchedulePath {
    /// The schedule
    pub schedule: String,
}

/// A token in the path of a request.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct TokenPath {
    /// The name of the token
    pub token: String,
}

/// A message of a topic in the path of a request.
#[derive(Clone, Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct MessagePath {
    /// The topic
    pub topic: String,
    /// The message
    pub id: String,
}

/// The tags, one for each resource, with their descriptions.
const TAGS: [(&str, &str); 12] = [
    (
        "messages",
        "Sends, looks up, cancels and reschedules messages",
    ),
    (
        "deliveries",
        "Pulls messages, and settles or extends deliveries",
    ),
    ("topics", "Creates, shows, pauses and removes topics"),
    ("groups", "Pauses, resumes and removes groups of a topic"),
    ("garbage", "Requeues and purges garbage (dead letters)"),
    ("stats", "Counts messages"),
    ("doctor", "Examines and repairs topics"),
    ("jobs", "Shows and runs the periodic jobs of a manager"),
    (
        "schedules",
        "Creates, shows, pauses and removes schedules (recurring messages)",
    ),
    ("tokens", "Creates, shows, rotates and removes tokens"),
    ("workers", "Shows managers and consumers"),
    ("audit", "Shows the actions of operators"),
];

/// Returns the header of an option of a message: its name in capitalized words after `Lisa-`.
#[must_use]
pub fn header_name(option: &str) -> String {
    let mut name = String::from("Lisa");
    for word in option.split('_') {
        let (first, rest) = word.split_at(1);
        name.push('-');
        name.push_str(&first.to_ascii_uppercase());
        name.push_str(rest);
    }
    name
}

/// Returns a description without routes, for a role to fill and pass to [`with_description`].
#[must_use]
pub fn describe() -> OpenApi {
    let mut license = License::new(env!("CARGO_PKG_LICENSE"));
    license.identifier = Some(env!("CARGO_PKG_LICENSE").to_owned());
    let info = InfoBuilder::new()
        .title("Lisa")
        .version(env!("CARGO_PKG_VERSION"))
        .license(Some(license))
        .description(Some(
            "A delayed message queue on Redis Streams: send a message now, and Lisa delivers it when it is due.",
        ))
        .build();
    let tag = |(name, meaning)| {
        TagBuilder::new()
            .name(name)
            .description(Some(meaning))
            .build()
    };
    let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let mut schemas = vec![(Problem::name().into_owned(), Problem::schema())];
    Problem::schemas(&mut schemas);
    let components = ComponentsBuilder::new()
        .schemas_from_iter(schemas)
        .security_scheme("token", token);
    OpenApiBuilder::new()
        .info(info)
        // The listener that serves the description.
        .servers(Some([Server::new("/")]))
        .tags(Some(TAGS.map(tag)))
        .components(Some(components.build()))
        .build()
}

/// Adds `/openapi.json`, which requires no token, to routes with this description. The text is made once.
///
/// # Panics
/// Never: a description always serializes to JSON.
pub fn with_description(router: Router, description: &OpenApi, tokens: &TokenSet) -> Router {
    let text = Bytes::from(complete(description, tokens).to_string());
    let answer = async move || ([(CONTENT_TYPE, "application/json")], text);
    router.route("/openapi.json", get(answer))
}

/// The described routes that have no query, by path and method. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WithoutQuery(Arc<HashSet<(String, String)>>);

impl WithoutQuery {
    /// Finds the routes without a query in their description.
    ///
    /// # Panics
    /// Never: a description always serializes to JSON.
    #[must_use]
    pub fn of(description: &OpenApi) -> Self {
        let description = serde_json::to_value(description).expect("a description is JSON");
        let paths = description["paths"].as_object().into_iter().flatten();
        let routes = paths.flat_map(|(path, methods)| {
            let methods = methods.as_object().into_iter().flatten();
            methods.filter_map(move |(method, route)| {
                let mut parameters = route["parameters"].as_array().into_iter().flatten();
                let has_query = parameters.any(|parameter| parameter["in"] == "query");
                (!has_query).then(|| (path.clone(), method.to_uppercase()))
            })
        });
        Self(Arc::new(routes.collect()))
    }

    /// Refuses a query of these routes: its parameters would have no effect. Apply it to routes with
    /// [`axum::middleware::from_fn_with_state`], inside the layer that requires a token.
    pub async fn refuse(
        State(without): State<Self>,
        matched: MatchedPath,
        request: Request,
        next: Next,
    ) -> Response {
        if let Some(problem) = without.problem(matched.as_str(), &request) {
            return problem.into_response();
        }
        next.run(request).await
    }

    fn problem(&self, path: &str, request: &Request) -> Option<Problem> {
        let query = request.uri().query().filter(|query| !query.is_empty())?;
        let route = (path.to_owned(), request.method().to_string());
        if !self.0.contains(&route) {
            return None;
        }
        let first = form_urlencoded::parse(query.as_bytes()).next();
        let name = shorten(&first.unwrap_or_default().0);
        let why = "unknown field; this route has no query parameters";
        Some(Problem::new(ProblemCode::Invalid, format!("{name}: {why}")).error(name, why))
    }
}

/// Completes an OpenAPI description: adds the patterns of parameters and the responses common to all routes, and removes
/// tags without routes. Requires a token if `tokens` has any.
fn complete(description: &OpenApi, tokens: &TokenSet) -> Value {
    let mut description = serde_json::to_value(description).expect("a description is JSON");
    let paths = members(description.get_mut("paths"));
    let mut resources = BTreeSet::new();
    for (_, methods) in paths {
        for (_, route) in members(Some(methods)) {
            if route["operationId"] == "send_message" {
                options(route);
            }
            let tags = route["tags"].as_array().into_iter().flatten();
            resources.extend(tags.filter_map(Value::as_str).map(str::to_owned));
            parameters(route);
            body(route);
            responses(route);
        }
    }
    if let Some(tags) = description["tags"].as_array_mut() {
        tags.retain(|tag| {
            tag["name"]
                .as_str()
                .is_some_and(|name| resources.contains(name))
        });
    }
    if let Some(schema) = description.pointer_mut("/components/schemas/BatchMessage") {
        message_of_batch(schema);
    }
    description["security"] = match tokens.is_empty() {
        true => json!([{}, { "token": [] }]),
        false => json!([{ "token": [] }]),
    };
    description
}

/// Adds the options of a message as headers.
fn options(route: &mut Value) {
    let parameters = route["parameters"].as_array_mut();
    let options = Description::all::<MessageOptions>();
    parameters
        .into_iter()
        .for_each(|all| all.extend(options.iter().map(option)));
}

fn option(option: &Description) -> Value {
    let mut text = option.meaning.clone();
    if !option.allowed.is_empty() {
        text = format!("{text} Allowed: {}.", option.allowed);
    }
    // An option that is an object is sent in a header as JSON text.
    let schema = match option.schema["type"] == "object" {
        true => json!({ "type": "string" }),
        false => option.schema.clone(),
    };
    json!({
        "name": header_name(option.name),
        "in": "header",
        "required": false,
        "description": text,
        "schema": schema,
    })
}

/// Adds the options to the schema of a message of a batch.
fn message_of_batch(schema: &mut Value) {
    for option in Description::all::<MessageOptions>() {
        let mut of_option = option.schema;
        of_option["description"] = option.meaning.into();
        if of_option["type"] == "object" {
            of_option["additionalProperties"] = true.into();
        }
        schema["properties"][option.name] = of_option;
    }
}

fn parameters(route: &mut Value) {
    let parameters = route.get_mut("parameters").and_then(Value::as_array_mut);
    for parameter in parameters.into_iter().flatten() {
        let pattern = PATTERNS.iter().find(|(name, _)| parameter["name"] == *name);
        if let Some((_, pattern)) = pattern {
            // An optional parameter has two types. The pattern applies to the string.
            parameter["schema"]["pattern"] = json!(pattern);
        }
        if parameter["in"] != "path" {
            // A header or query parameter may be absent, but cannot be null.
            if let Some(types) = parameter["schema"]["type"].as_array() {
                let given = types.iter().find(|kind| *kind != "null").cloned();
                parameter["schema"]["type"] = given.unwrap_or_default();
            }
        }
    }
}

/// Marks a body of bytes as optional. A JSON body is required.
fn body(route: &mut Value) {
    let Some(body) = route.get_mut("requestBody") else {
        return;
    };
    let is_required = body["required"] == json!(true);
    match body.pointer_mut("/content/application~1json/schema") {
        None => body["required"] = json!(false),
        // An optional body is absent, not null.
        Some(schema) if !is_required => {
            let mut choices = schema["oneOf"].as_array().into_iter().flatten();
            let some = choices.find(|choice| choice["type"] != "null").cloned();
            if let Some(some) = some {
                *schema = some;
            }
        }
        Some(_) => {}
    }
}

fn responses(route: &mut Value) {
    let takes_input = route["parameters"].is_array() || route["requestBody"].is_object();
    let takes_body = route["requestBody"].is_object();
    let mut common = vec![
        (
            "401",
            "unauthorized: the listener requires a token, and the request has no valid one",
        ),
        (
            "403",
            "forbidden: the token lacks the scope, or does not reach all that the route covers; without tokens, cross_site: a page of another origin may have sent \
             the request, or host_not_allowed: see auth.allowed_hosts",
        ),
        ("500", "internal: a defect; see the server's log"),
        (
            "503",
            "unavailable: nothing was done; indeterminate: repeat the request",
        ),
    ];
    if takes_input {
        common.push(("422", "invalid: `errors` lists everything that is wrong"));
    }
    if takes_body {
        common.push(("408", "timeout: the body was not received in time"));
        common.push(("413", "too_large: the body exceeds its limit"));
        common.push((
            "415",
            "unsupported_media_type: the body has a Content-Encoding other than identity",
        ));
    }
    let Some(responses) = route.get_mut("responses").and_then(Value::as_object_mut) else {
        return;
    };
    for (status, words) in common {
        responses
            .entry(status)
            .or_insert_with(|| json!({ "description": words }));
    }
    let refusals = responses
        .iter_mut()
        .filter(|(status, _)| status.starts_with(['4', '5']));
    for (_, refusal) in refusals {
        refusal["content"] = json!({
            "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } },
        });
    }
}

fn members(of: Option<&mut Value>) -> impl Iterator<Item = (&String, &mut Value)> {
    of.and_then(Value::as_object_mut).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use lisa_core::message::MessageId;
    use lisa_core::topic::{Group, ScheduleName, Topic};
    use utoipa::OpenApi as _;

    use super::super::auth::{Scope, Token};
    use super::*;

    #[derive(utoipa::OpenApi)]
    #[openapi(paths(show, send))]
    struct Routes;

    #[utoipa::path(get, path = "/{topic}/{id}", params(TopicPath), responses((status = 200, body = String)))]
    #[expect(dead_code, reason = "only described")]
    fn show() {}

    #[utoipa::path(post, path = "/{topic}", params(TopicPath), responses((status = 202, body = String)))]
    #[expect(dead_code, reason = "only described")]
    fn send() {}

    #[test]
    fn every_refusal_is_a_problem_and_a_token_is_required_only_if_configured() {
        let get = |tokens: &TokenSet| {
            let description = complete(&Routes::openapi(), tokens);
            (
                description["paths"]["/{topic}/{id}"]["get"]["responses"].clone(),
                description,
            )
        };
        let (open, description) = get(&TokenSet::default());
        for (status, response) in open.as_object().unwrap() {
            let refuses = response["content"]["application/problem+json"].is_object();
            assert_eq!(refuses, status != "200", "{status}");
        }
        assert!(open["422"].is_object() && !open["413"].is_object());
        assert!(open["401"].is_object() && open["403"].is_object());
        assert_eq!(description["security"], json!([{}, { "token": [] }]));
        let token = Token::new("app", &"0".repeat(64), vec![Scope::Send]).unwrap();
        let (guarded, description) = get(&TokenSet::new(vec![token]));
        assert_eq!(guarded, open);
        assert_eq!(description["security"], json!([{ "token": [] }]));
    }

    #[test]
    fn the_patterns_are_those_of_the_names() {
        let description = complete(&Routes::openapi(), &TokenSet::default());
        let send = &description["paths"]["/{topic}"]["post"];
        let topic = &send["parameters"][0];
        assert_eq!(topic["name"], "topic");
        let rule = |error: &dyn std::fmt::Display| error.to_string();
        for (name, said) in [
            ("topic", rule(&"?".parse::<Topic>().unwrap_err())),
            ("group", rule(&"?".parse::<Group>().unwrap_err())),
            ("schedule", rule(&"?".parse::<ScheduleName>().unwrap_err())),
            ("id", rule(&"?".parse::<MessageId>().unwrap_err())),
        ] {
            let (_, pattern) = PATTERNS.iter().find(|(of, _)| *of == name).unwrap();
            assert!(said.ends_with(pattern.trim_matches(['^', '$'])), "{said}");
            if name == "topic" {
                assert_eq!(topic["schema"]["pattern"], *pattern);
            }
        }
    }
}
