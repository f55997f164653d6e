//! The headers that the configuration of a webhook adds to each request. All values are secrets.

use super::secret_file;
use super::table::Table;
use crate::targets::{MAX_OWN_HEADERS, check_header};
use lisa_core::secret::Secret;

const AUTHORIZATION: &str = "authorization";
const FILE_KEY: &str = "authorization_file";

/// Reads `headers`, `authorization` and `authorization_file` into one list. The names are in lower case.
pub(super) fn read(table: &mut Table<'_>) -> Vec<(String, Secret)> {
    let mut headers: Vec<(String, Secret)> = Vec::new();
    let given = table.texts::<Secret>(
        "headers",
        "With type `http`: headers to send with each request. They never replace those of the sink or of the message.",
    );
    for (name, value) in given {
        let lower = name.to_ascii_lowercase();
        let is_twice = headers.iter().any(|(other, _)| *other == lower);
        match check_header(&name, value.expose()) {
            Err(why) => table.reject_secret("headers", &name, why),
            Ok(()) if is_twice => {
                table.reject_secret("headers", &name, "this header is set twice".to_owned());
            }
            Ok(()) => headers.push((lower, value)),
        }
    }
    if headers.len() > MAX_OWN_HEADERS {
        table.reject(
            "headers",
            format!("must have at most {MAX_OWN_HEADERS} headers"),
        );
    }
    if let Some((key, value)) = authorization(table) {
        if let Err(why) = check_header(AUTHORIZATION, value.expose()) {
            table.reject(key, why);
        }
        if headers.iter().any(|(name, _)| name == AUTHORIZATION) {
            table.reject(
                key,
                "authorization and headers.authorization cannot both be set",
            );
        } else {
            headers.push((AUTHORIZATION.to_owned(), value));
        }
    }
    headers
}

/// Reads the value of the header `authorization`, and returns it with its key.
fn authorization(table: &mut Table<'_>) -> Option<(&'static str, Secret)> {
    let inline: Option<Secret> = table.optional(
        AUTHORIZATION,
        "With type `http`: the value of the header `authorization` of each request, such as `Bearer …`.",
    );
    const FILE: &str =
        "With type `http`: a file whose only line is the value of the header `authorization`.";
    let lines = secret_file::read_as_used(table, AUTHORIZATION, FILE_KEY, FILE);
    let mut lines = lines.unwrap_or_default();
    if lines.len() > 1 {
        table.reject(FILE_KEY, "expected a file with one line");
    }
    match lines.pop() {
        Some(line) => Some((FILE_KEY, line)),
        None => inline.map(|value| (AUTHORIZATION, value)),
    }
}
