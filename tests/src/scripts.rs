//! The Lua files of the engine, as they lie in the tree.

use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/core/src/scripts")
}

fn read(path: &Path) -> String {
    let text = std::fs::read_to_string(path);
    text.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    entries.map(|entry| entry.expect("an entry").path())
}

fn lua(wanted: impl Fn(&Path) -> bool) -> Vec<(String, String)> {
    let top = folder();
    let folders = entries(&top).filter(|path| path.is_dir() && wanted(path));
    let files = folders.flat_map(|folder| entries(&folder).collect::<Vec<_>>());
    let files = files.filter(|path| path.extension().is_some_and(|kind| kind == "lua"));
    let named = files.map(|path| {
        let stem = path.file_stem().expect("a name").to_string_lossy();
        (stem.into_owned(), read(&path))
    });
    named.collect()
}

/// Returns the name and the text of each script, without what it shares with others.
pub fn all() -> Vec<(String, String)> {
    lua(|folder| !folder.ends_with("lib"))
}

/// Returns the name and the text of what scripts share.
pub fn shared() -> Vec<(String, String)> {
    lua(|folder| folder.ends_with("lib"))
}
