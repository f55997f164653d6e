//! The parts of the command line that all programs share: the global options, and the verbs for the configuration,
//! completions and man pages.

mod config;
mod field_args;
mod flags;
mod output;

use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Command, Subcommand};
use clap_complete::Shell;

pub use config::ConfigVerb;
pub use field_args::FieldArgs;
pub use flags::GlobalFlags;
pub use output::{Format, Output, Rows, escape, escape_lines, json_lines};

/// Prints a result. A closed pipe is not an error.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(text: &str) -> io::Result<()> {
    match writeln!(io::stdout().lock(), "{}", text.trim_end()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

/// Prints a line to stderr. It is lost if stderr cannot be written: no work may depend on it.
pub fn remark(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints a question to stderr, without the end of the line.
pub fn prompt(text: impl Display) {
    let _ = write!(io::stderr(), "{text}");
}

/// A verb about the program itself. It reads no configuration and needs no Redis.
#[derive(Debug, Subcommand)]
pub enum ProgramVerb {
    /// Print the completions of this program for a shell
    ///
    /// For bash, put them into ~/.local/share/bash-completion/completions under the name of the program. For fish, into
    /// ~/.config/fish/completions. For zsh, into a directory of fpath, under the name of the program after an underscore
    Completions {
        /// Shell
        shell: Shell,
    },
    /// Write the man pages of this program to a directory, one for each verb
    Man {
        /// Directory, which is created if it does not exist
        dir: PathBuf,
    },
}

impl ProgramVerb {
    /// Runs the verb for a program. A closed pipe is not an error.
    ///
    /// # Errors
    /// The completions cannot be printed, or a page cannot be written; the error names the directory.
    pub fn execute(&self, mut program: Command) -> io::Result<()> {
        match self {
            Self::Completions { shell } => {
                let (name, mut script) = (program.get_name().to_owned(), Vec::new());
                clap_complete::generate(*shell, &mut program, name, &mut script);
                print(&String::from_utf8_lossy(&script))
            }
            Self::Man { dir } => {
                let written = std::fs::create_dir_all(dir)
                    .and_then(|()| clap_mangen::generate_to(program, dir));
                written.map_err(|error| {
                    let text = format!("cannot write man pages to {}: {error}", dir.display());
                    io::Error::new(error.kind(), text)
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_verb_has_a_man_page() {
        let dir = tempfile::tempdir().unwrap();
        let man = ProgramVerb::Man {
            dir: dir.path().join("man1"),
        };
        let program = Command::new("lisa").subcommand(Command::new("garbage").about("List"));
        man.execute(program).unwrap();
        let page = std::fs::read_to_string(dir.path().join("man1/lisa-garbage.1")).unwrap();
        assert!(page.contains("List"), "{page}");
        assert!(dir.path().join("man1/lisa.1").exists());
    }

    #[test]
    fn an_unusable_directory_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let man = ProgramVerb::Man {
            dir: file.path().to_owned(),
        };
        let error = man.execute(Command::new("lisa")).unwrap_err().to_string();
        assert!(error.contains(file.path().to_str().unwrap()), "{error}");
    }
}
