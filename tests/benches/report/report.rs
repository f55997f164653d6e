//! The results of a run, as Markdown and pictures: the reach table, then the sections.

use std::fmt::Write;
use std::path::Path;
use std::{fs, io};

/// A whole run.
pub(crate) struct Report {
    title: String,
    facts: Vec<(String, String)>,
    reach: Vec<Reach>,
    sections: Vec<Section>,
}

/// One table with the notes that are needed to read it.
#[derive(Default)]
pub(crate) struct Section {
    /// The heading.
    pub(crate) name: String,
    /// Markdown above the table.
    pub(crate) note: String,
    /// The names of the columns.
    pub(crate) header: Vec<String>,
    /// The cells, as many a row as there are columns.
    pub(crate) rows: Vec<Vec<String>>,
    /// Pictures below the table.
    pub(crate) plots: Vec<Plot>,
}

/// A picture beside the report.
pub(crate) struct Plot {
    /// Its file, without `.svg`.
    pub(crate) file: String,
    /// A text alternative for the picture.
    pub(crate) title: String,
    /// The picture.
    pub(crate) svg: String,
}

/// A target of this project, and the measured figure.
pub(crate) struct Reach {
    figure: String,
    least: f64,
    aim: f64,
    unit: &'static str,
    measured: f64,
    more_is_better: bool,
}

impl Reach {
    /// A figure that should be at least this. The unit follows the numbers: ` %`, `×`.
    pub(crate) fn at_least(
        figure: impl Into<String>,
        (least, aim): (f64, f64),
        unit: &'static str,
        measured: f64,
    ) -> Self {
        Self {
            figure: figure.into(),
            least,
            aim,
            unit,
            measured,
            more_is_better: true,
        }
    }

    /// A figure that should be at most this.
    pub(crate) fn at_most(
        figure: impl Into<String>,
        bounds: (f64, f64),
        unit: &'static str,
        measured: f64,
    ) -> Self {
        Self {
            more_is_better: false,
            ..Self::at_least(figure, bounds, unit, measured)
        }
    }

    fn verdict(&self) -> &'static str {
        let keeps = |bound: f64| {
            if self.more_is_better {
                self.measured >= bound
            } else {
                self.measured <= bound
            }
        };
        if keeps(self.aim) {
            "aim reached"
        } else if keeps(self.least) {
            "yes, below the aim"
        } else {
            "**no**"
        }
    }

    fn row(&self) -> Vec<String> {
        let sign = if self.more_is_better { "≥" } else { "≤" };
        let bound = |bound: f64| format!("{sign} {bound}{}", self.unit);
        vec![
            self.figure.clone(),
            bound(self.least),
            bound(self.aim),
            format!("{}{}", number(self.measured), self.unit),
            self.verdict().to_owned(),
        ]
    }
}

impl Section {
    /// Begins a section with the names of its columns.
    pub(crate) fn new(name: &str, note: &str, header: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            note: note.to_owned(),
            header: header.iter().map(ToString::to_string).collect(),
            ..Self::default()
        }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// Panics if it does not have one cell for each column.
    pub(crate) fn row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let row: Vec<String> = cells.into_iter().map(Into::into).collect();
        assert_eq!(row.len(), self.header.len(), "{}: {row:?}", self.name);
        self.rows.push(row);
    }
}

impl Report {
    /// Begins a report; the facts say where, when and with what.
    pub(crate) fn new(title: &str, facts: Vec<(String, String)>) -> Self {
        Self {
            title: title.to_owned(),
            facts,
            reach: Vec::new(),
            sections: Vec::new(),
        }
    }

    /// Adds a line above the tables.
    pub(crate) fn fact(&mut self, name: &str, value: impl Into<String>) {
        self.facts.push((name.to_owned(), value.into()));
    }

    /// Adds a figure to the table at the top.
    pub(crate) fn reach(&mut self, reach: Reach) {
        self.reach.push(reach);
    }

    /// Adds a section below the others.
    pub(crate) fn section(&mut self, section: Section) {
        self.sections.push(section);
    }

    /// The whole report.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n", self.title);
        for (name, value) in &self.facts {
            let _ = writeln!(text, "- {name}: {value}");
        }
        if !self.reach.is_empty() {
            text.push_str("\n## Reach\n\n");
            let header = ["figure", "at least", "aim", "measured", "met"].map(str::to_owned);
            let rows: Vec<_> = self.reach.iter().map(Reach::row).collect();
            table(&mut text, &header, &rows);
        }
        for section in &self.sections {
            let _ = write!(text, "\n## {}\n\n", section.name);
            if !section.note.is_empty() {
                let _ = write!(text, "{}\n\n", section.note);
            }
            table(&mut text, &section.header, &section.rows);
            for plot in &section.plots {
                let _ = write!(text, "\n![{}]({}.svg)\n", plot.title, plot.file);
            }
        }
        text
    }

    /// Writes `<name>.md` and the pictures into a folder, which is created if it is missing.
    ///
    /// # Errors
    /// Returns the error of the file system.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        for plot in self.sections.iter().flat_map(|section| &section.plots) {
            fs::write(folder.join(format!("{}.svg", plot.file)), &plot.svg)?;
        }
        fs::write(folder.join(format!("{name}.md")), self.markdown())
    }
}

/// Text columns to the left, columns of numbers to the right.
fn table(text: &mut String, header: &[String], rows: &[Vec<String>]) {
    let is_number = |cell: &String| {
        let words = cell.chars().any(char::is_alphabetic);
        let digits = cell.starts_with(|c: char| c.is_ascii_digit() || c == '-');
        cell.is_empty() || cell == "–" || (digits && !words)
    };
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    text.push_str(&line(header));
    let rules: Vec<String> = (0..header.len())
        .map(|column| {
            let numbers = rows.iter().all(|row| is_number(&row[column]));
            let rule = if numbers && column > 0 { "---:" } else { "---" };
            rule.to_owned()
        })
        .collect();
    text.push_str(&format!("|{}|\n", rules.join("|")));
    for row in rows {
        text.push_str(&line(row));
    }
}

/// A number with a readable number of digits: `128,400`, `37.2`, `2.31`, `0.052`.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    match value.abs() {
        size if size >= 1000.0 => thousands(value.round() as i64),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A whole number with commas: `128,400`.
pub(crate) fn thousands(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0 { format!("-{text}") } else { text }
}
