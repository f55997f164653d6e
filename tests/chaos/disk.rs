//! A small disk for the server's data, so that it can be full: a tmpfs in a mount namespace of this process and its
//! children, which ends with the last of them.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Set for the program that runs in its own mount namespace.
const INSIDE: &str = "CHAOS_OWN_MOUNTS";
/// Enough for the append-only file of a long run, and for the next one while it is rewritten.
const SIZE: &str = "size=6g";

/// The bytes left on a full disk: the server keeps writing while the disk is made smaller.
const ROOM: u64 = 128 * 1024;

/// A mounted disk.
#[derive(Debug)]
pub(crate) struct Disk {
    path: PathBuf,
}

/// Runs this program again in its own mount namespace, where that is possible; returns where it is not, or was done.
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
    /// Returns the reason, in words, if there is none.
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

    /// Leaves almost no free space.
    ///
    /// # Errors
    /// It cannot be made so small, in words.
    pub(crate) fn fill(&self) -> Result<(), String> {
        let used = used(&self.path)?;
        mount(
            &["-o", &format!("remount,size={}", used + ROOM)],
            &self.path,
        )
    }

    /// Restores its size.
    pub(crate) fn heal(&self) -> Result<(), String> {
        mount(&["-o", &format!("remount,{SIZE}")], &self.path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // If it cannot be unmounted now, it goes with the last process that sees it.
        let _ = Command::new("umount").arg(&self.path).status();
    }
}

/// The bytes that are in use on the file system of a path.
fn used(path: &Path) -> Result<u64, String> {
    let output = Command::new("df")
        .args(["--block-size=1", "--output=used"])
        .arg(path)
        .output();
    let output = output.map_err(|error| format!("df: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text
        .lines()
        .nth(1)
        .and_then(|line| line.trim().parse().ok());
    number.ok_or_else(|| format!("df says: {text:?}"))
}

fn mount(arguments: &[&str], path: &Path) -> Result<(), String> {
    let output = Command::new("mount").args(arguments).arg(path).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("mount: {error}")),
    }
}
