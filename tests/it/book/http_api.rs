//! The reference page of the HTTP interface, with the types of bodies and responses.

use std::fmt::Write as _;

use serde_json::Value;

use super::cell;

/// Returns the page of a description.
pub(super) fn page(description: &Value) -> String {
    let mut page = "# HTTP interface\n\nGenerated from the descriptions that `lisa-producer run`, `lisa-manager run` and the gateway of \
        `lisa-consumer run` serve at `/openapi.json`. The file [openapi.json](openapi.json) is the description of all three. \
        [HTTP](../guides/http.md) is the guide. The [types](#types) of bodies and responses follow the routes. Every error is a \
        [Problem](#problem).\n"
        .to_owned();
    for (path, methods) in each(&description["paths"]) {
        for (method, operation) in each(methods).filter(|(_, operation)| operation.is_object()) {
            let _ = writeln!(page, "\n## {} {path}", method.to_uppercase());
            route(&mut page, operation);
        }
    }
    page.push_str(
        "\n## Types\n\nA field that may be absent is optional. Times are RFC 3339 in UTC.\n",
    );
    for (name, schema) in each(&description["components"]["schemas"]) {
        let _ = writeln!(page, "\n### {name}");
        described(&mut page, schema);
    }
    page
}

fn route(page: &mut String, operation: &Value) {
    let text = |key: &str| operation[key].as_str().unwrap_or_default();
    for part in [text("summary"), text("description")] {
        if !part.is_empty() {
            let _ = writeln!(page, "\n{part}");
        }
    }
    let parameters = operation["parameters"].as_array();
    if parameters.is_some_and(|all| !all.is_empty()) {
        page.push_str("\n| parameter | in | meaning |\n|---|---|---|\n");
    }
    for parameter in parameters.into_iter().flatten() {
        let text = |key: &str| parameter[key].as_str().unwrap_or_default();
        let (name, place, meaning) = (text("name"), text("in"), cell(text("description")));
        let _ = writeln!(page, "| `{name}` | {place} | {meaning} |");
    }
    let body = &operation["requestBody"];
    if !body.is_null() {
        let optional = match body["required"] == true {
            true => "",
            false => ", optional",
        };
        let _ = writeln!(page, "\nBody: {}{optional}", contents(body));
    }
    page.push_str("\n| status | response |\n|---|---|\n");
    for (status, answer) in each(&operation["responses"]) {
        let meaning = cell(answer["description"].as_str().unwrap_or_default());
        let contents = match status.starts_with('2') {
            true => contents(answer),
            false => String::new(),
        };
        let of = match contents.is_empty() {
            true => String::new(),
            false => format!(": {contents}"),
        };
        let _ = writeln!(page, "| {status} | {meaning}{of} |");
    }
}

/// Returns the types of a body by its media type.
fn contents(body: &Value) -> String {
    let types = each(&body["content"]).map(|(media, content)| {
        let kind = type_of(&content["schema"]);
        format!("{kind} as `{media}`")
    });
    types.collect::<Vec<_>>().join(", or ")
}

/// Writes the description of a type, and its fields.
fn described(page: &mut String, schema: &Value) {
    if let Some(text) = schema["description"].as_str() {
        let _ = writeln!(page, "\n{text}");
    }
    let parts = schema["allOf"].as_array().into_iter().flatten();
    let included = parts.clone().filter(|part| part["$ref"].is_string());
    let included: Vec<_> = included.map(type_of).collect();
    if !included.is_empty() {
        let _ = writeln!(
            page,
            "\nIt has the fields of {}, and these:",
            included.join(" and ")
        );
    }
    fields(page, schema);
    parts.for_each(|part| fields(page, part));
    let choices = schema["oneOf"].as_array().into_iter().flatten();
    let (tables, named): (Vec<_>, Vec<_>) =
        choices.partition(|choice| choice["properties"].is_object());
    if !named.is_empty() {
        let named: Vec<_> = named.into_iter().map(type_of).collect();
        let _ = writeln!(page, "\nOne of {}", named.join(", "));
    }
    tables.into_iter().for_each(|table| described(page, table));
    let is_plain = ["properties", "allOf", "oneOf"]
        .iter()
        .all(|key| schema[*key].is_null());
    if is_plain {
        let _ = writeln!(page, "\nType: {}", type_of(schema));
    }
}

fn fields(page: &mut String, schema: &Value) {
    if !schema["properties"].is_object() {
        return;
    }
    page.push_str("\n| field | type | meaning |\n|---|---|---|\n");
    let required: Vec<_> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    for (name, field) in each(&schema["properties"]) {
        let optional = match required.iter().any(|required| *required == name) {
            true => "",
            false => ", optional",
        };
        let meaning = cell(field["description"].as_str().unwrap_or_default());
        let _ = writeln!(
            page,
            "| `{name}` | {}{optional} | {meaning} |",
            type_of(field)
        );
    }
}

/// Returns a type in words, with links to the types that it names.
fn type_of(schema: &Value) -> String {
    if let Some(name) = schema["$ref"]
        .as_str()
        .and_then(|path| path.rsplit('/').next())
    {
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<_> = words.iter().filter_map(Value::as_str).collect();
        return format!("`{}`", words.join("`, `"));
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let choices: Vec<_> = choices.iter().map(type_of).collect();
        return choices.join(" or ");
    }
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => vec![kind.as_str().unwrap_or("any JSON")],
    };
    let kinds = kinds.into_iter().map(|kind| match kind {
        "array" => format!("array of {}", type_of(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("object of {}", type_of(&schema["additionalProperties"]))
        }
        "string" if schema["format"] == "binary" => "bytes".to_owned(),
        kind => kind.to_owned(),
    });
    kinds.collect::<Vec<_>>().join(" or ")
}

fn each(object: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let fields = object.as_object().into_iter().flatten();
    fields.map(|(name, value)| (name.as_str(), value))
}
