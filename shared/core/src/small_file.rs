//! Reads small files that an operator names: configurations, secrets and certificates.
//!
//! Rejects anything but a regular file: opening a FIFO can block forever, and reading a device may never end.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The largest allowed certificate file, four times the size of a system's complete set of trusted authorities.
pub const MAX_PEM_BYTES: u64 = 1024 * 1024;

/// Checks that the path is a regular file of at most `most` bytes.
///
/// Call it before opening the file: opening a FIFO waits for a writer.
///
/// # Errors
/// Fails if the file is missing, is not a regular file, or is larger.
pub fn check(path: &Path, most: u64) -> io::Result<()> {
    let file = path.metadata()?;
    if !file.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    match file.len() <= most {
        true => Ok(()),
        false => Err(larger(most)),
    }
}

fn larger(most: u64) -> io::Error {
    io::Error::other(format!("larger than {} KiB", most / 1024))
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// Fails if the file is not a regular file, is larger, or cannot be read.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    check(path, most)?;
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(larger(most));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_up_to_the_bound_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        let text = |path: &Path| read(path, 1024).map_err(|error| error.to_string());
        std::fs::write(&file, [b'x'; 1024]).unwrap();
        assert_eq!(text(&file), Ok(vec![b'x'; 1024]));
        std::fs::write(&file, [b'x'; 1025]).unwrap();
        assert_eq!(text(&file), Err("larger than 1 KiB".to_owned()));
        let symlink = folder.path().join("symlink");
        std::os::unix::fs::symlink(&file, &symlink).unwrap();
        std::fs::write(&file, "y").unwrap();
        assert_eq!(text(&symlink), Ok(b"y".to_vec()));
        let irregular = Err("not a regular file".to_owned());
        assert_eq!(text(Path::new("/dev/zero")), irregular);
        assert_eq!(text(folder.path()), irregular);
        let fifo = folder.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(made.unwrap().success());
        assert_eq!(text(&fifo), irregular);
    }
}
