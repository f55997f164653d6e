//! The settings of the `command` sink, which starts a program for each delivery.

use std::fs::Metadata;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::settings::settings;

settings! {
    /// The settings of the `command` sink.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct CommandSinkSettings, check = keys::look_for_program {
        /// The program to start for each delivery, and its arguments. There is no shell.
        required command: Vec<String>, check keys::check_command;
        /// The names of environment variables of the consumer to pass to the program, in addition to a few common ones such as
        /// `PATH`.
        default environment: Vec<String> = Vec::new(), check keys::check_environment;
    }
}

#[cfg(feature = "process")]
mod keys {
    //! Checks the keys.

    use super::{CommandSinkSettings, MAX_VARIABLES, check_program, check_variable};
    use crate::config::layers::SinkSecrets;
    use crate::config::table::Table;

    pub(super) fn check_command(command: &[String]) -> Result<(), &'static str> {
        match command.first() {
            Some(program) if !program.is_empty() => Ok(()),
            _ => Err("must be a list whose first item is a program"),
        }
    }

    /// Warns if this machine has no such program. A consumer on another machine may have it.
    pub(super) fn look_for_program(settings: &CommandSinkSettings, table: &mut Table<'_>) {
        if let Some(program) = settings.command.first().filter(|name| !name.is_empty())
            && table.secrets() == SinkSecrets::Checked
            && let Err(why) = check_program(program)
        {
            let refused = "a consumer on this machine would not start";
            table.warning(
                "command",
                format!("cannot run {program:?}: {why}; {refused}"),
            );
        }
    }

    pub(super) fn check_environment(names: &[String]) -> Result<(), String> {
        if names.len() > MAX_VARIABLES {
            return Err(format!("must have at most {MAX_VARIABLES} names"));
        }
        names
            .iter()
            .try_for_each(|name| check_variable(name))
            .map_err(str::to_owned)
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
