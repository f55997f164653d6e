//! Adds the parts common to all routes to an OpenAPI description: patterns of names, refusals, problems, tokens.
//!
//! Each route describes its own part. This module describes the treatment of every request by the listener.

use lisa_core::fields::Description;
use lisa_core::message::MessageOptions;
use lisa_core::state::End;
use lisa_service::http::auth::TokenSet;
use serde_json::{Value, json};
use utoipa::openapi::OpenApi;

use super::headers::header_name;

/// The patterns of parameters, by name.
const PATTERNS: [(&str, &str); 7] = [
    ("topic", "^[a-z0-9][a-z0-9._-]{0,63}$"),
    ("group", "^[a-z0-9][a-z0-9_-]{0,63}$"),
    ("id", "^[A-Za-z0-9_:-]{1,64}$"),
    ("name", "^[a-z]{1,64}$"),
    ("Lisa-Id", "^[A-Za-z0-9_:-]{1,64}$"),
    ("Idempotency-Key", "^\"?[A-Za-z0-9_:-]{1,64}\"?$"),
    ("Lisa-Replace", "^[A-Za-z0-9_:-]{1,64}$"),
];

/// Completes an OpenAPI description: the patterns of parameters, the responses common to all routes, and the tokens if
/// `tokens` has any.
///
/// # Panics
/// Never: a description always serializes to JSON.
pub fn complete(description: &OpenApi, tokens: &TokenSet) -> Value {
    let mut description = serde_json::to_value(description).expect("a description is JSON");
    let paths = members(description.get_mut("paths"));
    for (_, methods) in paths {
        for (_, route) in members(Some(methods)) {
            match route["operationId"].as_str() {
                Some("send") => options(route),
                Some("send_batch") => lines(route),
                _ => {}
            }
            parameters(route);
            body(route);
            responses(route, tokens);
        }
    }
    description["components"]["schemas"]["Problem"] = problem();
    if !tokens.is_empty() {
        description["components"]["securitySchemes"]["token"] =
            json!({ "type": "http", "scheme": "bearer" });
        description["security"] = json!([{ "token": [] }]);
    }
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
    json!({
        "name": header_name(option.name),
        "in": "header",
        "required": false,
        "description": text,
        "schema": option.schema,
    })
}

/// Describes the lines of a batch.
fn lines(route: &mut Value) {
    let options = Description::all::<MessageOptions>();
    let options: Vec<_> = options.iter().map(|option| option.name).collect();
    route["requestBody"]["description"] = format!(
        "Each line is a JSON object: one of `payload` (any JSON, kept byte for byte), `payload_text` and \
         `payload_base64`; `headers`; and the options {}",
        options.join(", ")
    )
    .into();
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

/// Marks a body of bytes or lines as optional. A JSON body is required.
fn body(route: &mut Value) {
    if let Some(body) = route.get_mut("requestBody")
        && body.pointer("/content/application~1json").is_none()
    {
        body["required"] = json!(false);
    }
}

fn responses(route: &mut Value, tokens: &TokenSet) {
    let takes_input = route["parameters"].is_array() || route["requestBody"].is_object();
    let takes_body = route["requestBody"].is_object();
    let mut common = vec![
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
    }
    if tokens.is_empty() {
        common.push((
            "403",
            "cross_site: a page of another origin may have sent the request; host_not_allowed: see auth.allowed_hosts",
        ));
    } else {
        common.push((
            "401",
            "unauthorized: no token, or one that is not configured",
        ));
        common.push(("403", "forbidden: the token lacks the scope"));
    }
    let Some(responses) = route.get_mut("responses").and_then(Value::as_object_mut) else {
        return;
    };
    for (status, words) in common {
        responses
            .entry(status)
            .or_insert_with(|| json!({ "description": words }));
    }
    if let Some(line) = responses
        .get_mut("200")
        .and_then(|answer| answer.pointer_mut("/content/application~1x-ndjson/schema"))
    {
        // Each line of a batch may fail separately.
        let failed = json!({
            "type": "object",
            "required": ["error"],
            "properties": { "error": { "$ref": "#/components/schemas/Problem" } },
        });
        *line = json!({ "oneOf": [line.take(), failed] });
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

/// Returns the schema of a problem: RFC 9457 with Lisa's extensions.
fn problem() -> Value {
    let text = json!({ "type": "string" });
    json!({
        "type": "object",
        "required": ["type", "title", "status", "detail", "code"],
        "properties": {
            "type": { "type": "string", "pattern": "^urn:lisa:problem:" },
            "title": text,
            "status": { "type": "integer", "minimum": 400, "maximum": 599 },
            "detail": { "type": "string", "description": "An explanation of this occurrence" },
            "code": { "type": "string", "description": "The error code; codes never change their meaning" },
            "id": { "type": "string", "description": "The affected message" },
            "ended": {
                "type": "string",
                "enum": End::ALL,
                "description": "The end of the affected message, if it has ended and that is remembered",
            },
            "into": {
                "type": "string",
                "description": "If `ended` is merged: the id of the message that stands for it",
            },
            "stored": {
                "type": "boolean",
                "const": true,
                "description": "With the code indeterminate: the message is stored, and only its durability was not \
                                reached. If absent, it is unknown whether the message is stored",
            },
            "errors": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["field", "detail"],
                    "properties": { "field": text, "detail": text },
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use lisa_core::message::MessageId;
    use lisa_core::topic::{Group, Topic};
    use lisa_service::http::auth::{Scope, Token};
    use utoipa::OpenApi as _;

    use super::*;

    #[derive(utoipa::OpenApi)]
    #[openapi(paths(super::super::message::get_message, super::super::message::send))]
    struct Routes;

    #[test]
    fn every_refusal_is_a_problem_and_tokens_are_described_only_if_configured() {
        let get = |tokens: &TokenSet| {
            let description = complete(&Routes::openapi(), tokens);
            (
                description["paths"]["/v1/topics/{topic}/messages/{id}"]["get"]["responses"]
                    .clone(),
                description,
            )
        };
        let (open, description) = get(&TokenSet::default());
        for (status, response) in open.as_object().unwrap() {
            let refuses = response["content"]["application/problem+json"].is_object();
            assert_eq!(refuses, status != "200", "{status}");
        }
        assert!(open["422"].is_object() && !open["401"].is_object() && !open["413"].is_object());
        assert!(open["403"].is_object());
        assert!(description["security"].is_null());
        let token = Token::new("app", &"0".repeat(64), vec![Scope::Send]).unwrap();
        let (guarded, description) = get(&TokenSet::new(vec![token]));
        assert!(guarded["401"].is_object() && guarded["403"].is_object());
        assert!(description["security"][0]["token"].is_array());
    }

    #[test]
    fn the_patterns_are_those_of_the_names() {
        let description = complete(&Routes::openapi(), &TokenSet::default());
        let send = &description["paths"]["/v1/topics/{topic}/messages"]["post"];
        let topic = &send["parameters"][0];
        assert_eq!(
            (&topic["name"], &topic["schema"]["pattern"]),
            (&json!("topic"), &json!(PATTERNS[0].1))
        );
        let rule = |error: &dyn std::fmt::Display| error.to_string();
        for (name, said) in [
            ("topic", rule(&"?".parse::<Topic>().unwrap_err())),
            ("group", rule(&"?".parse::<Group>().unwrap_err())),
            ("id", rule(&"?".parse::<MessageId>().unwrap_err())),
        ] {
            let (_, pattern) = PATTERNS.iter().find(|(of, _)| *of == name).unwrap();
            assert!(said.ends_with(pattern.trim_matches(['^', '$'])), "{said}");
        }
    }
}
