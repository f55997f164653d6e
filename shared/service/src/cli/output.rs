//! Renders results: a verb passes its rows, or its document, and each format is written here.

use std::borrow::Cow;
use std::fmt::{self, Write};

use clap::{Args, ValueEnum};
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::{Map, Value};

use lisa_core::time::format_age;

use super::print;
use crate::cli::remark;
use crate::role::StartError;

/// The options of the verbs that print a result.
#[derive(Clone, Debug, Args)]
pub struct Output {
    /// Format of results
    #[arg(long = "output", global = true, value_enum, default_value_t = Format::Table, value_name = "OUTPUT")]
    pub format: Format,
    /// Columns of a list to print, in this order, such as topic,group. Only with the formats table and csv
    #[arg(long, global = true, value_name = "NAMES", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// Omit the line of column names
    #[arg(long, global = true)]
    pub no_headers: bool,
}

/// The format of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned text, or one line of text
    Table,
    /// One JSON document
    Json,
    /// One line of JSON for each entry of a list, or for the result
    Ndjson,
    /// Comma-separated values, quoted as in RFC 4180
    Csv,
}

/// A list as rows of text. A column without a name is not part of CSV.
#[derive(Clone, Debug)]
pub struct Rows {
    columns: Vec<&'static str>,
    numbers: Vec<&'static str>,
    ages: Vec<&'static str>,
    marks: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Rows {
    /// Creates an empty list with the columns as in a table: in capitals, with spaces.
    #[must_use]
    pub fn new<const N: usize>(columns: [&'static str; N]) -> Self {
        Self {
            columns: columns.to_vec(),
            numbers: Vec::new(),
            ages: Vec::new(),
            marks: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Marks the columns that are numbers in NDJSON. An empty cell is null there.
    #[must_use]
    pub fn numbers<const N: usize>(mut self, columns: [&'static str; N]) -> Self {
        self.numbers = columns.to_vec();
        self
    }

    /// Marks the columns whose cells are ages in ms. A table shows `3s`; CSV and NDJSON have the number, in a column with
    /// `_ms` after its name.
    #[must_use]
    pub fn ages<const N: usize>(mut self, columns: [&'static str; N]) -> Self {
        self.ages = columns.to_vec();
        self
    }

    /// Sets the columns that annotate the column before them. A table shows both in one cell: `orders (paused)`.
    #[must_use]
    pub fn marks<const N: usize>(mut self, columns: [&'static str; N]) -> Self {
        self.marks = columns.to_vec();
        self
    }

    /// Returns the name of a column in CSV, NDJSON and `--columns`: `MAX ATTEMPTS` is `max_attempts`.
    fn name(&self, column: &str) -> String {
        let name = column.to_lowercase().replace(' ', "_");
        match self.ages.contains(&column) {
            true => name + "_ms",
            false => name,
        }
    }

    /// Returns a cell as a table shows it.
    fn shown<'c>(&self, column: &str, cell: &'c str) -> Cow<'c, str> {
        match cell.parse() {
            Ok(ms) if self.ages.contains(&column) => format_age(ms).into(),
            _ => escape(cell),
        }
    }

    /// Returns a cell as a value of JSON.
    fn value(&self, column: &str, cell: &str) -> Value {
        let is_number = self.numbers.contains(&column) || self.ages.contains(&column);
        match cell {
            "" if is_number => Value::Null,
            cell if is_number => serde_json::from_str(cell).unwrap_or_else(|_| cell.into()),
            cell => cell.into(),
        }
    }

    /// Adds a row with a cell for each column.
    pub fn add_row(&mut self, cells: impl IntoIterator<Item: ToString>) {
        let cells = cells.into_iter().map(|cell| cell.to_string());
        self.rows.push(cells.collect());
    }

    /// Returns the positions of the columns to print, or an error that lists the allowed names.
    fn chosen(&self, names: &[String]) -> Result<Vec<usize>, StartError> {
        if names.is_empty() {
            return Ok((0..self.columns.len()).collect());
        }
        let known: Vec<String> = self
            .columns
            .iter()
            .map(|column| self.name(column))
            .collect();
        let position = |wanted: &String| {
            let found = known.iter().position(|name| name == wanted.trim());
            found.filter(|at| !known[*at].is_empty()).ok_or_else(|| {
                let allowed = known.iter().filter(|name| !name.is_empty());
                let allowed: Vec<&str> = allowed.map(String::as_str).collect();
                let allowed = allowed.join(", ");
                StartError::Usage(format!("unknown column {wanted:?}; allowed: {allowed}"))
            })
        };
        names.iter().map(position).collect()
    }

    /// Writes a table. A mark is part of the cell before it if both columns are chosen.
    fn table(&self, chosen: &[usize], headers: bool) -> String {
        let is_mark = |at: &usize| self.marks.contains(&self.columns[*at]);
        let is_shown = |at: &usize| !(is_mark(at) && chosen.contains(&(at - 1)));
        let shown: Vec<usize> = chosen.iter().copied().filter(is_shown).collect();
        let cell = |row: &Vec<String>, at: usize| {
            let cell = self.shown(self.columns[at], &row[at]).into_owned();
            match row
                .get(at + 1)
                .filter(|_| chosen.contains(&(at + 1)) && is_mark(&(at + 1)))
            {
                Some(mark) if !mark.is_empty() => format!("{cell} ({})", escape(mark)),
                _ => cell,
            }
        };
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        if headers {
            table.set_header(shown.iter().map(|at| self.columns[*at]));
        }
        for row in &self.rows {
            table.add_row(shown.iter().map(|at| cell(row, *at)));
        }
        table.to_string()
    }

    fn csv(&self, chosen: &[usize], headers: bool) -> String {
        let named = chosen.iter().filter(|at| !self.columns[**at].is_empty());
        let named: Vec<usize> = named.copied().collect();
        let mut text = String::new();
        if headers {
            csv_line(
                &mut text,
                named.iter().map(|at| self.name(self.columns[*at])),
            );
        }
        for row in &self.rows {
            csv_line(&mut text, named.iter().map(|at| &row[*at]));
        }
        text
    }

    fn objects(&self) -> Vec<Value> {
        let object = |row: &Vec<String>| {
            let named = self.columns.iter().zip(row);
            let named = named.filter(|(column, _)| !column.is_empty());
            let fields = named.map(|(column, cell)| (self.name(column), self.value(column, cell)));
            Value::Object(fields.collect())
        };
        self.rows.iter().map(object).collect()
    }
}

/// Writes the table with all columns.
impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        f.write_str(&self.table(&all, true))
    }
}

impl Output {
    /// Returns true if the format is a table.
    #[must_use]
    pub fn is_table(&self) -> bool {
        self.format == Format::Table
    }

    /// Refuses `--columns` if the verb prints no list, or the format has no columns. Call it before anything is done.
    ///
    /// # Errors
    /// [`StartError::Usage`].
    pub fn check(&self, prints_list: bool) -> Result<(), StartError> {
        let problem = match self.format {
            _ if self.columns.is_empty() => return Ok(()),
            _ if !prints_list => "--columns requires a verb that prints a list",
            Format::Json | Format::Ndjson => "--columns requires --output table or csv",
            Format::Table | Format::Csv => return Ok(()),
        };
        Err(StartError::Usage(problem.to_owned()))
    }

    /// Prints a list. `document` is the JSON of it, whose field `entries` holds what NDJSON prints line by line; without a
    /// field, NDJSON prints the rows.
    ///
    /// # Errors
    /// A column is unknown, or standard output cannot be written.
    pub fn list(
        &self,
        document: &impl Serialize,
        entries: Option<&str>,
        rows: &Rows,
    ) -> Result<(), StartError> {
        let text = match (self.format, entries) {
            (Format::Json, _) => json(document)?,
            (Format::Ndjson, None) => json_lines(&rows.objects()),
            (Format::Ndjson, Some(field)) => match value(document)?.get_mut(field) {
                Some(Value::Array(entries)) => json_lines(entries),
                _ => String::new(),
            },
            (Format::Table, _) => rows.table(&rows.chosen(&self.columns)?, !self.no_headers),
            (Format::Csv, _) => rows.csv(&rows.chosen(&self.columns)?, !self.no_headers),
        };
        if text.is_empty() && self.format != Format::Table {
            return Ok(());
        }
        print(&text).map_err(StartError::Write)
    }

    /// Prints an object. In CSV, its fields are the columns. In a table, which is the caller's matter, it is one line of JSON.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn object(&self, document: &impl Serialize) -> Result<(), StartError> {
        let text = match self.format {
            Format::Table | Format::Json | Format::Ndjson => json(document)?,
            Format::Csv => match value(document)? {
                Value::Object(fields) => self.fields(&fields),
                other => json(&other)?,
            },
        };
        print(&text).map_err(StartError::Write)
    }

    /// Prints a remark about a list: below a table, on stderr beside NDJSON and CSV. JSON has it in a field.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn note(&self, text: &str) -> Result<(), StartError> {
        match self.format {
            Format::Table => print(&escape_lines(text)).map_err(StartError::Write),
            Format::Json => Ok(()),
            Format::Ndjson | Format::Csv => {
                remark(escape_lines(text));
                Ok(())
            }
        }
    }

    fn fields(&self, fields: &Map<String, Value>) -> String {
        let mut text = String::new();
        if !self.no_headers {
            csv_line(&mut text, fields.keys());
        }
        let cell = |value: &Value| match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        csv_line(&mut text, fields.values().map(cell));
        text
    }
}

fn json(document: &impl Serialize) -> Result<String, StartError> {
    let text = serde_json::to_string(document);
    let text = text.map_err(|error| StartError::Write(error.into()))?;
    Ok(escape_json(&text).into_owned())
}

fn value(document: &impl Serialize) -> Result<Value, StartError> {
    serde_json::to_value(document).map_err(|error| StartError::Write(error.into()))
}

/// Returns values as lines of JSON (NDJSON), with control and bidirectional characters escaped.
#[must_use]
pub fn json_lines(entries: &[Value]) -> String {
    let mut text = String::new();
    for entry in entries {
        let _ = writeln!(text, "{}", escape_json(&entry.to_string()));
    }
    text
}

/// Escapes what could command a terminal or hide text: control characters and those that change the direction of text. What
/// another program sent stays on one line.
#[must_use]
pub fn escape(text: &str) -> Cow<'_, str> {
    escape_all(text, is_unsafe, |char| char.escape_default().to_string())
}

/// Escapes control and bidirectional characters, except the ends of lines.
#[must_use]
pub fn escape_lines(text: &str) -> Cow<'_, str> {
    let is_unsafe = |char| char != '\n' && is_unsafe(char);
    escape_all(text, is_unsafe, |char| char.escape_default().to_string())
}

/// Escapes control and bidirectional characters in JSON, which has them only in strings, except the ends of lines. The value
/// stays the same.
pub(super) fn escape_json(json: &str) -> Cow<'_, str> {
    let is_unsafe = |char| char != '\n' && is_unsafe(char);
    // All unsafe characters have four hexadecimal digits at most.
    escape_all(json, is_unsafe, |char| {
        format!("\\u{:04x}", u32::from(char))
    })
}

fn escape_all(
    text: &str,
    is_unsafe: impl Fn(char) -> bool,
    escaped_char: impl Fn(char) -> String,
) -> Cow<'_, str> {
    if !text.contains(&is_unsafe) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for char in text.chars() {
        match is_unsafe(char) {
            true => escaped += &escaped_char(char),
            false => escaped.push(char),
        }
    }
    escaped.into()
}

fn is_unsafe(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn csv_line(text: &mut String, cells: impl Iterator<Item: AsRef<str>>) {
    for (index, cell) in cells.enumerate() {
        if index > 0 {
            text.push(',');
        }
        csv_cell(text, cell.as_ref());
    }
    text.push('\n');
}

/// Writes a cell. An apostrophe keeps a spreadsheet from reading text as a formula.
fn csv_cell(text: &mut String, cell: &str) {
    let is_formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let guard = match is_formula && cell.parse::<f64>().is_err() {
        true => "'",
        false => "",
    };
    let needs_quotes = |char: char| matches!(char, ',' | '"' | ' ') || is_unsafe(char);
    match cell.contains(needs_quotes) {
        true => *text += &format!("\"{guard}{}\"", cell.replace('"', "\"\"")),
        false => *text += &format!("{guard}{cell}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Rows {
        let mut rows = Rows::new(["ID", "LAST ERROR", ""]);
        rows.add_row(["a", "x\u{1b}[2J\n\u{202e}y", "█"]);
        rows
    }

    #[test]
    fn a_table_escapes_what_commands_a_terminal() {
        let table = sample().to_string();
        assert!(table.contains(r"x\u{1b}[2J\n\u{202e}y"), "{table}");
        assert_eq!(escape_lines("a\nb\u{9b}"), "a\nb\\u{9b}");
    }

    #[test]
    fn json_escapes_what_commands_a_terminal_and_keeps_its_value() {
        let value = serde_json::json!({ "a\u{202e}": ["\u{9b}2J\u{7f}\u{1b}", "ü\n\u{2066}"] });
        let text = json(&value).unwrap();
        let expected = r#"{"a\u202e":["\u009b2J\u007f\u001b","ü\n\u2066"]}"#;
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        let both = [value.clone(), "plain".into()];
        assert_eq!(json_lines(&both), format!("{expected}\n\"plain\"\n"));
    }

    #[test]
    fn csv_quotes_and_keeps_bytes_and_defuses_formulas() {
        for (cell, written) in [
            ("", ""),
            ("plain", "plain"),
            ("a,b", "\"a,b\""),
            ("say \"x\"", "\"say \"\"x\"\"\""),
            ("x\ny\u{1b}", "\"x\ny\u{1b}\""),
            ("=1+1", "'=1+1"),
            ("@A1,B", "\"'@A1,B\""),
            ("\t=1", "\"'\t=1\""),
            ("-5", "-5"),
            ("-5+cmd", "'-5+cmd"),
        ] {
            let mut text = String::new();
            csv_cell(&mut text, cell);
            assert_eq!(text, written, "{cell:?}");
        }
        let rows = sample();
        let all = rows.chosen(&[]).unwrap();
        let csv = rows.csv(&all, true);
        assert_eq!(csv, "id,last_error\na,\"x\u{1b}[2J\n\u{202e}y\"\n");
    }

    #[test]
    fn numbers_are_numbers_and_ages_are_milliseconds_outside_of_tables() {
        let mut rows = Rows::new(["ID", "READY", "OLDEST"])
            .numbers(["READY"])
            .ages(["OLDEST"]);
        rows.add_row(["7", "3", "3000"]);
        rows.add_row(["8", "", ""]);
        let all = rows.chosen(&[]).unwrap();
        assert_eq!(rows.csv(&all, true), "id,ready,oldest_ms\n7,3,3000\n8,,\n");
        let table = rows.table(&all, true);
        assert!(table.contains("OLDEST") && table.contains("3s"), "{table}");
        let objects = serde_json::json!([
            {"id": "7", "ready": 3, "oldest_ms": 3000}, {"id": "8", "ready": null, "oldest_ms": null},
        ]);
        assert_eq!(Value::Array(rows.objects()), objects);
        assert!(rows.chosen(&["oldest_ms".to_owned()]).is_ok());
    }

    #[test]
    fn a_mark_follows_the_name_in_a_table_and_is_a_column_of_its_own_elsewhere() {
        let mut rows = Rows::new(["TOPIC", "TOPIC STATE", "READY"]).marks(["TOPIC STATE"]);
        rows.add_row(["orders", "paused", "3"]);
        rows.add_row(["mail", "", "4"]);
        let lines = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let table = rows.table(&rows.chosen(&names).unwrap(), true);
            let line = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            table.lines().map(line).collect::<Vec<_>>()
        };
        assert_eq!(lines(&[]), ["TOPIC READY", "orders (paused) 3", "mail 4"]);
        assert_eq!(
            lines(&["ready", "topic"]),
            ["READY TOPIC", "3 orders", "4 mail"]
        );
        assert_eq!(lines(&["topic_state"]), ["TOPIC STATE", "paused", ""]);
        let csv = rows.csv(&rows.chosen(&[]).unwrap(), true);
        assert_eq!(csv, "topic,topic_state,ready\norders,paused,3\nmail,,4\n");
        assert_eq!(rows.objects()[0]["topic"], "orders");
    }

    #[test]
    fn columns_are_chosen_by_name_and_in_order() {
        let rows = sample();
        let chosen = rows.chosen(&["last_error".to_owned(), "id".to_owned()]);
        assert_eq!(chosen.unwrap(), [1, 0]);
        for unknown in ["", "ID", "error"] {
            let error = rows.chosen(&[unknown.to_owned()]).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            let error = error.to_string();
            assert!(error.ends_with("allowed: id, last_error"), "{error}");
        }
    }
}
