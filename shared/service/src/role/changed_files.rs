//! Watches the files that a configuration names, such as those of passwords and certificates.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// The interval between two looks. A change takes effect when two looks have seen it, because a file may be half written.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The state of a file: its device and inode, its size and the time of its last change. Differs after a rename, with which editors
/// and container platforms replace files.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// The files of a configuration, as they were before they were read.
#[derive(Debug, Default)]
pub(super) struct ChangedFiles {
    read: Stamps,
    seen: Stamps,
}

type Stamps = BTreeMap<PathBuf, Stamp>;

impl ChangedFiles {
    /// Returns the same files as they are now, to be read.
    pub(super) async fn now(&self) -> Self {
        let read = stamps(self.read.keys().cloned().collect()).await;
        Self {
            seen: read.clone(),
            read,
        }
    }

    /// Replaces the files by those that a load has read. Keeps the state before the load of those that it has already.
    pub(super) fn after_load(mut self, files: &BTreeSet<PathBuf>) -> Self {
        let state = |path: &PathBuf| {
            let before = self.read.remove(path);
            (path.clone(), before.unwrap_or_else(|| stamp(path)))
        };
        let read: Stamps = files.iter().map(state).collect();
        Self {
            seen: read.clone(),
            read,
        }
    }

    /// Waits until a file has changed and then stays as it is. Remembers the new state.
    ///
    /// # Cancel safety
    /// Safe: a change that was not returned is found again.
    pub(super) async fn changed(&mut self) {
        loop {
            sleep(LOOK_EVERY).await;
            let now = stamps(self.read.keys().cloned().collect()).await;
            // One that changes again and again does not hold up the others.
            let is_new = |(path, stamp): (&PathBuf, &Stamp)| {
                self.seen.get(path) == Some(stamp) && self.read.get(path) != Some(stamp)
            };
            let has_new = now.iter().any(is_new);
            self.seen = now;
            if has_new {
                self.read = self.seen.clone();
                return;
            }
        }
    }
}

/// Returns the stamps of files. On a thread of its own, since a network file system may not answer.
async fn stamps(paths: Vec<PathBuf>) -> Stamps {
    let stamps = spawn_blocking(move || {
        let stamps = paths.into_iter().map(|path| {
            let stamp = stamp(&path);
            (path, stamp)
        });
        stamps.collect()
    });
    stamps.await.unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_file_that_changes_again_and_again_does_not_hold_up_another() {
        let folder = tempfile::tempdir().unwrap();
        let (busy, changed) = (folder.path().join("busy"), folder.path().join("changed"));
        let write = |path: &Path, bytes: usize| std::fs::write(path, vec![b'x'; bytes]).unwrap();
        write(&busy, 1);
        write(&changed, 1);
        let files = BTreeSet::from([busy.clone(), changed.clone()]);
        let mut files = ChangedFiles::default().after_load(&files);
        write(&changed, 2);
        for bytes in 2.. {
            write(&busy, bytes);
            // One look, between two changes of the other file.
            let look = tokio::time::timeout(LOOK_EVERY * 3 / 2, files.changed());
            if look.await.is_ok() {
                break;
            }
            assert!(bytes < 10, "the change was not found");
        }
    }
}
