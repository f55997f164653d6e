//! A small disk for the server's data, so that it can be full: a tmpfs in a mount namespace of this process and its
//! children, which goes away with the last of them.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Set for the program that runs in a mount namespace of its own.
const INSIDE: &str = "CHAOS_OWN_MOUNTS";
/// Enough for the append-only file of a long run, and for the next one while it is rewritten.
const SIZE: &str = "size=6g";

/// A mounted disk.
#[derive(Debug)]
pub(crate) struct Disk {
    path: PathBuf,
}

/// Runs this program again in a mount namespace of its own, where that is possible; returns where it is not, or was
/// done.
pub(crate) fn enter_own_namespace() {
    if std::env::var_os(INSIDE).is_some() || !may_mount() {
        return;
    }
    let Ok(this) = std::env::current_exe() else {
        return;
    };
    // It only returns if it could not be started: then there is no small disk.
    let _ = unshare()
        .arg(this)
        .args(std::env::args_os().skip(1))
        .env(INSIDE, "1")
        .exec();
}

fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]);
    command
}

fn may_mount() -> bool {
    let probe = unshare()
        .args(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    probe.is_ok_and(|status| status.success())
}

impl Disk {
    /// Mounts a disk on an empty directory.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(crate) fn mount(path: &Path) -> Result<Self, String> {
        if std::env::var_os(INSIDE).is_none() {
            return Err("this process may not mount a small disk".to_owned());
        }
        mount(&["-t", "tmpfs", "-o", SIZE, "tmpfs"], path)?;
        Ok(Self {
            path: path.to_owned(),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves room for one page more than there is on it.
    pub(crate) fn fill(&self) -> Result<(), String> {
        let used = blocks_of(&self.path) * 512;
        mount(
            &["-o", &format!("remount,size={}", used + 4096)],
            &self.path,
        )
    }

    /// Makes it as large as it was.
    pub(crate) fn heal(&self) -> Result<(), String> {
        mount(&["-o", &format!("remount,{SIZE}")], &self.path)
    }
}

/// The blocks of 512 bytes that everything below a directory takes.
fn blocks_of(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => blocks_of(&entry.path()),
        Ok(data) => data.blocks(),
        Err(_) => 0,
    };
    entries.map(size).sum()
}

fn mount(arguments: &[&str], path: &Path) -> Result<(), String> {
    let output = Command::new("mount").args(arguments).arg(path).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("mount: {error}")),
    }
}
