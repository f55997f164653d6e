//! The page and the JSON Schema of the configuration.

use std::fmt::Write as _;

use lisa_core::fields::Description;
use lisa_service::config::{Key, keys, schema};

use super::{assert_current, cell, read, root};

/// Writes the table of keys after each line like `<!-- keys of redis -->`, or `<!-- keys of sink with type http -->` for a
/// variant. A table also has the keys of the tables below it without a line of their own.
fn with_keys(page: &str) -> String {
    const PLACE: &str = "<!-- keys of ";
    let place = |line: &str| {
        let place = line.strip_prefix(PLACE)?.strip_suffix(" -->")?;
        let (table, variant) = place.split_once(" with ").unwrap_or((place, ""));
        Some((table.replace("the rest", ""), variant.to_owned()))
    };
    let places: Vec<(String, String)> = page.lines().filter_map(place).collect();
    let is_below = |table: &str, place: &str| {
        place.is_empty()
            || table == place
            || table
                .strip_prefix(place)
                .is_some_and(|rest| rest.starts_with('.'))
    };
    let mut generated = String::new();
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        let _ = writeln!(generated, "{line}");
        let Some((table, variant)) = place(line) else {
            continue;
        };
        while lines
            .next_if(|line| line.is_empty() || line.starts_with('|'))
            .is_some()
        {}
        generated
            .push_str("\n| key | type | allowed | default | meaning |\n|---|---|---|---|---|\n");
        for key in keys() {
            let of = key.variant.map(|(tag, word)| format!("{tag} {word}"));
            let nearest = places.iter().map(|(table, _)| table);
            let nearest = nearest.filter(|place| is_below(&key.table, place));
            if nearest.max_by_key(|place| place.len()) == Some(&table)
                && of.unwrap_or_default() == variant
            {
                let _ = writeln!(generated, "{}", key_row(&key, &table));
            }
        }
        if lines.peek().is_some() {
            generated.push('\n');
        }
    }
    generated
}

fn key_row(key: &Key, table: &str) -> String {
    let below = key.table.strip_prefix(table).unwrap_or(&key.table);
    let path = format!("{below}.{}", key.description.name);
    let Description {
        kind,
        allowed,
        default,
        required,
        meaning,
        ..
    } = &key.description;
    let default = match default {
        Some(value) => format!("`{value}`"),
        None if *required => "required".to_owned(),
        None => "none".to_owned(),
    };
    let (allowed, meaning) = (cell(allowed), cell(meaning.trim_end_matches('.')));
    let path = path.trim_start_matches('.');
    format!("| `{path}` | {kind} | {allowed} | {default} | {meaning} |")
}

#[test]
fn the_page_of_the_configuration_lists_every_key() {
    let name = "shared/docs/reference/configuration.md";
    let page = with_keys(&read(&root().join(name)));
    assert_current(name, &page);
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    assert!(rows.count() >= keys().len(), "each key is in a table");
}

#[test]
fn the_schema_of_the_configuration_is_current() {
    assert_current("config/lisa.schema.json", &format!("{:#}\n", schema()));
}
