//! Watches the files that a configuration names, such as those of passwords and certificates.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::sleep;

/// The interval between two looks. A change takes effect when two looks have seen it, because a file may be half written.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Identifies the state of a file: its device and number, its size and the time of its last change. Differs after a rename, as
/// editors and container platforms replace files.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// The files of a configuration, as they were when it was read.
pub(super) struct ChangedFiles {
    read: BTreeMap<PathBuf, Stamp>,
    seen: BTreeMap<PathBuf, Stamp>,
}

impl ChangedFiles {
    /// Remembers the current state of the files.
    pub(super) fn of(files: &BTreeSet<PathBuf>) -> Self {
        let stamps = files.iter().map(|path| (path.clone(), stamp(path)));
        let read: BTreeMap<_, _> = stamps.collect();
        let seen = read.clone();
        Self { read, seen }
    }

    /// Waits until a file has changed and then stays as it is. Remembers the new state.
    ///
    /// # Cancel safety
    /// Safe: a change that was not returned is found again.
    pub(super) async fn changed(&mut self) {
        loop {
            sleep(LOOK_EVERY).await;
            let paths = self.read.keys();
            let now: BTreeMap<_, _> = paths.map(|path| (path.clone(), stamp(path))).collect();
            let is_steady = now == self.seen;
            self.seen = now;
            if is_steady && self.seen != self.read {
                self.read = self.seen.clone();
                return;
            }
        }
    }
}

/// Returns the stamp of the file to which a path leads; `None` if there is none.
fn stamp(path: &Path) -> Stamp {
    let found = std::fs::metadata(path).ok()?;
    Some((
        found.dev(),
        found.ino(),
        found.len(),
        found.mtime(),
        found.mtime_nsec(),
    ))
}
