//! The server programs that `tests/fetch-package.sh` unpacks from Debian packages. Tests use and fetch them only if
//! `LISA_TEST_BROKERS=1` is set, as by `make brokers`. Otherwise, the tests that need them are skipped.

use crate::Site;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Returns the path of the server program of a package, which is fetched if this machine has none yet. Without
/// `LISA_TEST_BROKERS=1`, records that the calling test is skipped, and returns `None`.
///
/// # Panics
/// Panics if the program cannot be fetched.
#[track_caller]
pub(crate) fn program(package: &str) -> Option<PathBuf> {
    if std::env::var_os("LISA_TEST_BROKERS").is_none_or(|value| value != "1") {
        Site::leave_out(&format!("needs {package}: make brokers"));
        return None;
    }
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
    panic!("{package} cannot be fetched: {why}");
}
