//! Logs that cannot be written.

use rustix::io::ioctl_fionbio;
use std::fs::OpenOptions;
use std::io::{PipeReader, Write, pipe};
use std::process::Stdio;

/// Makes a standard error. The caller keeps the reader as long as the process runs.
pub type LostLog = fn() -> (Stdio, Option<PipeReader>);

/// All of them.
pub const ALL: [LostLog; 4] = [full, closed, nonblocking, blocked];

/// A disk without space.
pub fn full() -> (Stdio, Option<PipeReader>) {
    let file = OpenOptions::new().write(true).open("/dev/full");
    (file.expect("Linux has it").into(), None)
}

/// A pipe whose reader has gone.
pub fn closed() -> (Stdio, Option<PipeReader>) {
    let (_, writer) = pipe().expect("a pipe");
    (writer.into(), None)
}

/// A pipe that is full, and whose writes fail instead of waiting for its reader, which does not read.
pub fn nonblocking() -> (Stdio, Option<PipeReader>) {
    let (reader, mut writer) = pipe().expect("a pipe");
    ioctl_fionbio(&writer, true).expect("a pipe can be non-blocking");
    while writer.write(&[b'x'; 4096]).is_ok() {}
    (writer.into(), Some(reader))
}

/// A pipe that is full, and whose writes wait for its reader, which does not read.
pub fn blocked() -> (Stdio, Option<PipeReader>) {
    let (reader, mut writer) = pipe().expect("a pipe");
    ioctl_fionbio(&writer, true).expect("a pipe can be non-blocking");
    while writer.write(&[b'x'; 4096]).is_ok() {}
    ioctl_fionbio(&writer, false).expect("a pipe can block");
    (writer.into(), Some(reader))
}
