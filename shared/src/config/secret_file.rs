//! Secrets that stand in files of their own, as container platforms mount them.
//!
//! Reads each file once, when the configuration is loaded: a regular file of up to 64 KiB. Relative paths start at the folder of
//! the configuration file.

use std::io;

use super::table::Table;
use crate::secret::Secret;
use crate::small_file;

const MAX_BYTES: u64 = 64 * 1024;

/// Reads secrets from the file that `file_key` names, one a line; `None` without such a key or after a problem.
pub(super) fn read(
    table: &mut Table<'_>,
    key: &'static str,
    file_key: &'static str,
) -> Option<Vec<Secret>> {
    let path = table.file(file_key)?;
    if table.has(key) {
        table.problem(file_key, format!("{key} and {file_key} exclude each other"));
        return None;
    }
    let read = small_file::read(&path, MAX_BYTES);
    let text = read.and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
    match text {
        Ok(text) => {
            let lines = text.lines().filter(|line| !line.trim().is_empty());
            let secrets: Vec<_> = lines.map(Secret::from).collect();
            if secrets.is_empty() {
                table.problem(file_key, "the file is empty");
            }
            Some(secrets)
        }
        Err(error) => {
            table.problem(file_key, format!("cannot read the file: {error}"));
            None
        }
    }
}

/// Reads secrets as [`read`] does; a file that cannot be read is a warning, as it may be on the machine of who needs it.
pub(super) fn check(
    table: &mut Table<'_>,
    key: &'static str,
    file_key: &'static str,
) -> Option<Vec<Secret>> {
    let path = table.file(file_key)?;
    if let Err(error) = small_file::read(&path, MAX_BYTES) {
        table.warning(file_key, format!("cannot read the file: {error}"));
        return None;
    }
    read(table, key, file_key)
}
