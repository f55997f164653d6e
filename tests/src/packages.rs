//! The server programs that `tests/fetch-package.sh` unpacks from Debian packages. A machine that cannot fetch them skips
//! the tests that need them; a run of CI fails instead.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Returns the path of the server program of a package, which is fetched if this machine has none yet. If it cannot be
/// fetched, says that the test is skipped, and why.
///
/// # Panics
/// Panics if it cannot be fetched in CI.
pub(crate) fn program(package: &str) -> Option<PathBuf> {
    let fetched = Command::new("bash")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/fetch-package.sh"))
        .arg(package)
        .stdin(Stdio::null())
        .output();
    let why = match fetched {
        Ok(output) if output.status.success() => {
            let path = String::from_utf8_lossy(&output.stdout);
            return Some(PathBuf::from(path.trim_end()));
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let in_ci = std::env::var_os("LISA_SUITE_NOTES").is_some();
    assert!(!in_ci, "{package} cannot be fetched: {why}");
    eprintln!("skipped: {package} cannot be fetched: {why}");
    None
}
