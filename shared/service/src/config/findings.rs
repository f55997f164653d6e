//! The findings of one load of a configuration: settings, files, problems and warnings.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use figment::value::Value as Merged;

use super::layers::{Layers, Secrets};
use super::merged::to_json;
use super::problem::{Path, Problem};
use super::show::Setting;
use super::table::{DEFAULT, Table};
use lisa_core::fields::{Description, Given, Value};

/// The results of one load: settings, problems and warnings.
pub(super) struct Findings {
    pub(super) layers: Arc<Layers>,
    pub(super) settings: RefCell<Vec<Setting>>,
    pub(super) files: RefCell<BTreeSet<PathBuf>>,
    problems: RefCell<Vec<Problem>>,
    pub(super) warnings: RefCell<Vec<Problem>>,
    pub(super) descriptions: RefCell<Option<Vec<Described>>>,
    pub(super) secrets: Secrets,
}

/// Results of one load.
pub(super) struct Found {
    pub(super) settings: Vec<Setting>,
    /// The files that are named.
    pub(super) files: BTreeSet<PathBuf>,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Problem>,
}

/// A key that was read.
pub(super) struct Described {
    /// The path of its table.
    pub(super) path: Path,
    /// The variant of its table.
    pub(super) variant: Option<Variant>,
    pub(super) description: Description,
}

/// The variant of a table whose keys depend on one of them: that key, and its value.
pub type Variant = (&'static str, &'static str);

impl Findings {
    pub(super) fn new(layers: Arc<Layers>, secrets: Secrets) -> Self {
        Self {
            settings: RefCell::default(),
            files: RefCell::default(),
            problems: RefCell::default(),
            warnings: RefCell::new(layers.unused_variables()),
            descriptions: RefCell::default(),
            layers,
            secrets,
        }
    }

    /// Opens the outermost table.
    pub(super) fn root(&self) -> Table<'_> {
        Table::new(
            self,
            Path::default(),
            vec![(Path::default(), self.layers.values.clone())],
            DEFAULT.into(),
        )
    }

    /// Adds a problem unless it is known: topics inherit a mistake of the topic defaults, but it is still one mistake.
    pub(super) fn add(&self, problem: Problem) {
        let mut problems = self.problems.borrow_mut();
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }

    /// Also collects the descriptions of all keys that are read.
    pub(super) fn describing(self) -> Self {
        self.descriptions.replace(Some(Vec::new()));
        self
    }

    /// Returns the collected descriptions.
    pub(super) fn descriptions(&self) -> Vec<Described> {
        self.descriptions.take().unwrap_or_default()
    }

    /// Returns what was found.
    pub(super) fn finish(self) -> Found {
        Found {
            settings: self.settings.into_inner(),
            files: self.files.into_inner(),
            problems: self.problems.into_inner(),
            warnings: self.warnings.into_inner(),
        }
    }

    pub(super) fn source(&self, value: &Merged) -> String {
        self.layers.source(value.tag())
    }

    /// Reads a value. `none` unsets it if it may be inherited.
    pub(super) fn read<T: Value>(&self, value: &Merged, inherited: bool) -> Result<T, String> {
        let read = if inherited { T::read } else { T::read_set };
        match value {
            Merged::String(_, text) if self.is_text_only(value) => read(Given::Text(text)),
            value => read(Given::Json(&to_json(value))),
        }
    }

    pub(super) fn is_text_only(&self, value: &Merged) -> bool {
        self.layers.is_text_only(value.tag())
    }
}
