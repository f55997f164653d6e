//! Reads secrets from separate files, as container platforms mount them.
//!
//! Reads each file once, when the configuration is loaded: a regular file of up to 64 KiB. A relative path in a
//! configuration file is relative to the folder of that file.

use std::io;
use std::path::{Path, PathBuf};

use super::layers::SinkSecrets;
use super::table::Table;
use lisa_core::secret::Secret;
use lisa_core::small_file::{self, MAX_PEM_BYTES};

const MAX_BYTES: u64 = 64 * 1024;

/// Reads secrets from the file that `file_key` names, one per line. Returns `None` without such a key or after a problem.
pub(crate) fn read(
    table: &mut Table<'_>,
    key: &'static str,
    file_key: &'static str,
    meaning: &'static str,
) -> Option<Vec<Secret>> {
    let path = table.file(file_key, meaning)?;
    read_from(table, key, file_key, &path)
}

fn read_from(
    table: &mut Table<'_>,
    key: &'static str,
    file_key: &'static str,
    path: &Path,
) -> Option<Vec<Secret>> {
    if table.has(key) {
        table.reject(file_key, format!("{key} and {file_key} cannot both be set"));
        return None;
    }
    let read = small_file::read(path, MAX_BYTES);
    let text = read.and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
    match text {
        Ok(text) => {
            let lines = text.lines().filter(|line| !line.trim().is_empty());
            let secrets: Vec<_> = lines.map(Secret::from).collect();
            if secrets.is_empty() {
                table.reject(file_key, "the file is empty");
            }
            Some(secrets)
        }
        Err(error) => {
            table.reject(file_key, format!("cannot read the file: {error}"));
            None
        }
    }
}

/// Reads the password of a message broker from `password` or `password_file`, as [`read_as_used`] does.
pub(crate) fn password(table: &mut Table<'_>) -> Option<Secret> {
    const INLINE: &str = "The password. Takes precedence over one in the URL.";
    const FILE: &str = "A file whose only line is the value of `password`.";
    one(table, "password", INLINE, "password_file", FILE)
}

/// Reads one secret from `key`, or from the file that `file_key` names, as [`read_as_used`] does.
pub(crate) fn one(
    table: &mut Table<'_>,
    key: &'static str,
    meaning: &'static str,
    file_key: &'static str,
    file_meaning: &'static str,
) -> Option<Secret> {
    let inline = table.optional(key, meaning);
    let mut lines = read_as_used(table, key, file_key, file_meaning).unwrap_or_default();
    if lines.len() > 1 {
        table.reject(file_key, "expected a file with one line");
    }
    lines.pop().or(inline)
}

/// Reads the path of a file that a sink or source reads when it connects. A process that runs it must be able to read the
/// file; one that only checks the configuration warns.
pub(crate) fn path(
    table: &mut Table<'_>,
    key: &'static str,
    meaning: &'static str,
) -> Option<PathBuf> {
    let path = table.file(key, meaning)?;
    if let Err(error) = small_file::read(&path, MAX_PEM_BYTES) {
        let problem = format!("cannot read the file: {error}");
        match table.secrets() {
            SinkSecrets::Unused => {}
            SinkSecrets::Checked => table.warning(key, problem),
            SinkSecrets::Required => table.reject(key, problem),
        }
    }
    Some(path)
}

/// Reads secrets like [`read`], but only as strictly as this process needs the secrets of this sink or source. A process that
/// only checks the configuration warns about a file that it cannot read, because the file may be on another machine. A
/// process that does not run the sink or source does not read the file.
pub(crate) fn read_as_used(
    table: &mut Table<'_>,
    key: &'static str,
    file_key: &'static str,
    meaning: &'static str,
) -> Option<Vec<Secret>> {
    match table.secrets() {
        SinkSecrets::Unused => {
            table.file(file_key, meaning);
            None
        }
        SinkSecrets::Checked => {
            let path = table.file(file_key, meaning)?;
            if let Err(error) = small_file::read(&path, MAX_BYTES) {
                table.warning(file_key, format!("cannot read the file: {error}"));
                return None;
            }
            read_from(table, key, file_key, &path)
        }
        SinkSecrets::Required => read(table, key, file_key, meaning),
    }
}
