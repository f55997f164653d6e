//! The settings of the `command` sink, which starts a program for each delivery.

use std::fs::Metadata;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::settings::settings;

settings! {
    /// The settings of the `command` sink.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CommandSinkSettings, check = crate::config::sinks::look_for_program {
        /// The program to start for each delivery, and its arguments. There is no shell.
        required command: Vec<String>, check crate::config::sinks::check_command;
        /// The names of environment variables of the consumer to pass to the program, in addition to a few common ones such as
        /// `PATH`.
        default environment: Vec<String> = Vec::new(), check crate::config::sinks::check_environment;
    }
}

/// Checks that a program exists and is executable. Looks for it as the system does: in PATH, unless the name is a path.
///
/// # Errors
/// Returns the reason why it cannot run.
pub fn check_program(program: &str) -> Result<(), &'static str> {
    let places: Vec<PathBuf> = if program.contains('/') {
        vec![program.into()]
    } else {
        match std::env::var_os("PATH") {
            Some(path) => std::env::split_paths(&path)
                .map(|folder| folder.join(program))
                .collect(),
            // The system has its own default.
            None => return Ok(()),
        }
    };
    let found = places.iter().filter_map(|place| place.metadata().ok());
    let files: Vec<Metadata> = found.filter(Metadata::is_file).collect();
    if files.is_empty() {
        Err("no such program")
    } else if files
        .iter()
        .all(|file| file.permissions().mode() & 0o111 == 0)
    {
        Err("not executable")
    } else {
        Ok(())
    }
}

/// The maximum number of environment variables that the configuration of a command can name.
pub const MAX_VARIABLES: usize = 64;

/// Checks the name of an environment variable that the consumer is to pass to a program.
///
/// # Errors
/// Returns the reason why it cannot be passed.
pub fn check_variable(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.contains(['=', '\0']) {
        Err("expected the name of a variable, without its value")
    } else if name.starts_with("LISA_") {
        Err("names that start with LISA_ are reserved for the metadata of the message")
    } else {
        Ok(())
    }
}
