//! The server programs that `tests/fetch-package.sh` unpacks from Debian packages. Only `make brokers` fetches them: it sets
//! `LISA_TEST_BROKERS=1`. Without it, the tests that need them are skipped.

use crate::Site;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Returns the path of the server program of a package, which is fetched if this machine has none yet. `None` if tests do
/// not use brokers; this is recorded as a skipped test.
///
/// # Panics
/// Panics if it cannot be fetched.
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
