//! The options of the command line.

use std::path::{Path, PathBuf};

/// The flags of `make bench`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    /// Fewer messages, and no backlog of millions: minutes.
    pub(crate) quick: bool,
    /// The sections to run; all if empty.
    pub(crate) only: Vec<String>,
    /// Print the sections and end.
    pub(crate) list: bool,
}

/// The message for any other flags.
const USAGE: &str = "flags: --quick, --only section,section, --list";

impl Options {
    /// Reads the arguments after the program's name.
    ///
    /// # Errors
    /// Returns an error that names the unknown flag and the allowed ones.
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        let mut arguments = arguments.filter(|argument| argument != "--bench");
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--quick" => options.quick = true,
                "--list" => options.list = true,
                "--only" => {
                    let names = arguments
                        .next()
                        .ok_or_else(|| format!("--only what? {USAGE}"))?;
                    options.only.extend(names.split(',').map(str::to_owned));
                }
                other => return Err(format!("{other:?} is no flag; {USAGE}")),
            }
        }
        Ok(options)
    }

    /// Returns whether to run a section.
    pub(crate) fn wants(&self, section: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == section)
    }

    /// Returns the full or the quick number of messages.
    pub(crate) fn pick(&self, full: u64, quick: u64) -> u64 {
        if self.quick { quick } else { full }
    }

    /// Returns the folder of the results: a whole full run goes to the kept results, others beside the build.
    pub(crate) fn folder(&self) -> PathBuf {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
        if self.quick || !self.only.is_empty() {
            tests.with_file_name("target").join("bench")
        } else {
            tests.join("benches/results")
        }
    }

    /// The command that repeats the run.
    pub(crate) fn command(&self) -> String {
        let mut flags = Vec::new();
        if self.quick {
            flags.push("--quick".to_owned());
        }
        if !self.only.is_empty() {
            flags.push(format!("--only {}", self.only.join(",")));
        }
        if flags.is_empty() {
            "make bench".to_owned()
        } else {
            format!("make bench ARGS=\"{}\"", flags.join(" "))
        }
    }
}
